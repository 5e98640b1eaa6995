"""The README's examples run as they stand."""

import re
from pathlib import Path

from tests.gma import tiny_model, tiny_run

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_examples_run_in_order(capsys, tmp_path, monkeypatch):
    # the translator that `make demo` would have trained
    tiny_model.make(tmp_path / "runs" / "demo", tiny_run.make_corpus(tmp_path / "corpus"))
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    names = {}
    for example in EXAMPLES:
        exec(compile(example, "README.md", "exec"), names)
    assert names["output"].shape == names["target"].shape
    assert names["weights"].shape == (2, 7, 10)
    assert names["context"].shape == (2, 8, 20, 64)
    assert capsys.readouterr().out.count("tensor(") == 2
    assert names["emission"].source_words == 11


def test_the_first_example_has_ten_lines():
    assert len(EXAMPLES[0].strip().splitlines()) == 10


def test_links_to_files_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
