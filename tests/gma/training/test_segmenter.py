"""`gma segment`, and its model directory under every command that takes one."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from gma.corpus import generated
from gma.decoding.streaming import StreamingTranslator
from gma.decoding.translate import translate, translate_lines
from gma.evaluation.evaluate import evaluate
from gma.evaluation.inputs import load_gold
from gma.evaluation.text import load_text
from gma.model import directory
from gma.model.directory import ModelDirectoryError
from gma.storage import tensor_file
from gma.training import segmenter
from tests.support import tiny_model, tiny_run

PAIRS = generated.generate(6, seed=6)
LIMIT = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A corpus, models of it, a text, and what `gma segment` makes of the offline model."""
    folder = tmp_path_factory.mktemp("segment")
    corpus = tiny_run.make_corpus(folder / "corpus")
    tiny_model.make(folder / "offline", corpus, offline=True)
    tiny_model.make(folder / "gaussian", corpus)
    generated.write(folder, PAIRS, "text")
    with pytest.MonkeyPatch.context() as patch:
        assert segment(patch, folder, "offline", "mu") == 0
    return folder


def segment(monkeypatch, folder: Path, model: str, output: str) -> int:
    return tiny_model.command(
        monkeypatch, "segment", folder / model, "--output", folder / output, "--limit", LIMIT, "--device", "cpu"
    )


def text_options(folder: Path) -> list:
    return ["--source", folder / "text.de", "--reference", folder / "text.en"]


def test_what_is_written(folder):
    offline, units = (directory.load(folder / name) for name in ("offline", "mu"))
    record = units.training["meaning_units"]
    assert record["sentences"] == LIMIT
    assert record["words"] + record["held_out_words"] > 5 * LIMIT
    assert (units.model.policy.name, units.model.latency(None)) == ("meaning_units", 0.5)
    assert units.config == offline.config
    for name, tensor in offline.model.state_dict().items():
        assert torch.equal(tensor, units.model.state_dict()[name]), name
    assert not any(path.name.endswith(".tmp") for path in (folder / "mu").iterdir())


def test_the_same_again(folder, monkeypatch):
    assert segment(monkeypatch, folder, "offline", "again") == 0
    one, other = (tensor_file.read(folder / name / directory.SEGMENTER) for name in ("mu", "again"))
    assert one.record == other.record
    tiny_run.assert_same_tensors(one, other)


def test_stream_and_translate_and_evaluate_agree(folder, tmp_path, monkeypatch, capfdbinary):
    sources = [pair.source for pair in PAIRS]
    loaded = directory.load(folder / "mu")
    # between the scores of the words, so that some of them end units
    states = segmenter.word_states(loaded.model, [loaded.tokenizer.source.encode(sources[0])], loaded.tokenizer.source)
    threshold = f"{loaded.model.segmenter(states[0]).median().item():.4f}"
    expected = list(translate_lines(loaded, sources, delta=float(threshold)))
    file, output = folder / "text.de", tmp_path / "out.en"
    options = ["--input", file, "--threshold", threshold, "--device", "cpu"]
    assert tiny_model.command(monkeypatch, "translate", folder / "mu", *options, "--output", output) == 0
    assert output.read_text(encoding="utf-8").splitlines() == expected
    capfdbinary.readouterr()
    assert tiny_model.command(monkeypatch, "stream", folder / "mu", *options, "--plain") == 0
    streamed = capfdbinary.readouterr().out.decode().splitlines()
    assert [" ".join(line.split()) for line in streamed] == expected
    evaluate = [
        "evaluate",
        folder / "mu",
        *text_options(folder),
        "--threshold",
        threshold,
        "--output",
        tmp_path / "out",
    ]
    assert tiny_model.command(monkeypatch, *evaluate) == 0
    assert f"θ = {float(threshold):g}" in capfdbinary.readouterr().out.decode()
    log = [json.loads(line) for line in (tmp_path / "out" / "instances.log").read_text().splitlines()]
    # scored is what the model made of a line before it ended by itself
    whole = [translation.text for translation in translate(loaded, sources, delta=float(threshold))]
    assert [line["prediction"] for line in log] == whole
    assert all(line.startswith(beginning) for line, beginning in zip(expected, whole))


def test_a_curve(folder, tmp_path, monkeypatch):
    sweep = ["sweep", folder / "mu", *text_options(folder), "--threshold", "0.01,0.99", "--output", tmp_path]
    assert tiny_model.command(monkeypatch, *sweep) == 0
    points = json.loads((tmp_path / "curve.json").read_text())["points"]
    assert [point["delta"] for point in points] == [0.01, 0.99]
    assert points[0]["al"] <= points[1]["al"]
    # a new segmenter is a new system
    own = tmp_path / "mu"
    shutil.copytree(folder / "mu", own)
    tensors, record = tensor_file.read(own / directory.SEGMENTER)
    tensor_file.write(own / directory.SEGMENTER, {name: -tensor for name, tensor in tensors.items()}, record)
    assert tiny_model.command(monkeypatch, "sweep", own, *sweep[2:]) == 0
    changed = json.loads((tmp_path / "curve.json").read_text())["points"]
    assert {point["model"] for point in changed}.isdisjoint(point["model"] for point in points)


def test_gold_links_say_nothing_about_it(folder):
    """One list of systems can be measured with them; of this one there is no alignment."""
    gold = load_gold(folder / "text.align")
    for name, has_alignment in (("offline", True), ("mu", False)):
        loaded = directory.load(folder / name)
        text = load_text(loaded, folder / "text.de", folder / "text.en")
        result = evaluate(loaded, text, system=name, gold=gold)
        assert (result.alignment is not None) == has_alignment
        assert result.latency_symbol == (None if has_alignment else "θ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["segment", "gaussian", "--output", "x"], "policy is 'gaussian'; expected 'offline'"),
        (["segment", "mu", "--output", "x"], "policy is 'meaning_units'; expected 'offline'"),
        (["segment", "offline", "--output", "run"], "holds a training run, whose files would be overwritten"),
        (["translate", "mu", "--threshold", "1.5"], "the threshold θ is 1.5; expected a number between 0 and 1"),
        (["translate", "mu", "--beam", "2"], "there is nothing to search. Use beam 1"),
        (["sweep", "mu", "--threshold", "0.5,1"], "the threshold θ is 1; expected a number between 0 and 1"),
        (["stream", "mu", "--threshold", "0"], "the threshold θ is 0; expected a number between 0 and 1"),
        (["evaluate", "offline", "--threshold", "0.5"], "'offline' has none to choose"),
        (["evaluate", "mu", "--alignments", "text.align"], "look at the offline model that it was made from"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_calls(folder, monkeypatch, capsys, arguments, message):
    (folder / "run" / "checkpoints").mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(folder)
    if arguments[0] in ("evaluate", "sweep"):
        arguments = [*arguments, *text_options(folder)]
    if arguments[0] in ("translate", "stream"):
        arguments = [*arguments, "--input", "text.de"]
    assert tiny_model.command(monkeypatch, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "x").exists()


def test_a_corpus_with_another_tokenizer(folder, monkeypatch, capsys, tmp_path):
    other = tiny_run.make_corpus(tmp_path / "corpus", "data.generated=300")
    shutil.copytree(folder / "offline", tmp_path / "model")
    settings = (tmp_path / "model" / "config.toml").read_text(encoding="utf-8")
    (tmp_path / "model" / "config.toml").write_text(settings.replace(str(folder / "corpus"), str(other)))
    assert segment(monkeypatch, tmp_path, "model", "out") == 2
    assert "was prepared with another tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["missing", "damaged", "of another model", "of another shape"])
def test_a_segmenter_that_cannot_be_used(folder, tmp_path, change):
    shutil.copytree(folder / "mu", tmp_path / "mu")
    path = tmp_path / "mu" / directory.SEGMENTER
    tensors, record = tensor_file.read(path)
    if change == "missing":
        path.unlink()
        message = r"segmenter.safetensors is missing; .* run `gma segment` again"
    elif change == "damaged":
        path.write_bytes(path.read_bytes()[:-3])
        message = r"not a whole safetensors file.* run `gma segment` again"
    elif change == "of another model":
        tensor_file.write(path, tensors, record | {"model": "0" * 64})
        message = r"was not made for the model\.safetensors beside it"
    else:
        tensor_file.write(path, tensors | {"output.bias": torch.zeros(2)}, record)
        message = r"output\.bias is \[2\]; expected \[1\]"
    with pytest.raises(ModelDirectoryError, match=message):
        directory.load(tmp_path / "mu")
    with pytest.raises(ModelDirectoryError, match=message):
        StreamingTranslator.load(tmp_path / "mu")


def test_it_is_listed(monkeypatch, capsys):
    assert tiny_model.command(monkeypatch, "info") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "meaning_units" in line)
    assert "θ" in line
