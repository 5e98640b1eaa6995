"""The agent under SimulEval itself: its scores and its log are those of `gma evaluate`."""

import gzip
import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from gma.corpus import generated
from gma.evaluation.evaluate import evaluate
from gma.evaluation.inputs import load_log
from gma.evaluation.text import load_text
from gma.model import directory
from tests.support import tiny_model, tiny_run

REASON = 'SimulEval is not installed: pip install "gma[simuleval]"'
# long enough to write words that depend on the source
TRAINED = (
    "model.width=64",
    "model.feed_forward=128",
    "attention.delta=[0.0, 4.0]",
    "training.tokens=1024",
    "training.updates=60",
    "training.validate_every=0",
    "training.save_every=60",
)
LENGTH = 40


def test_without_simuleval_the_message_says_what_to_do(monkeypatch):
    for name in ("simuleval", "simuleval.agents", "gma.simuleval_agent"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "simuleval", None)
    with pytest.raises(ImportError, match=r"gma\[simuleval\]"):
        import gma.simuleval_agent  # noqa: F401


def real_text(folder: Path) -> tuple[Path, Path, list[str]]:
    """Multi30k captions, and settings for a model of it."""
    root = os.environ.get("GMA_DATA")
    if not root:
        pytest.skip("no real text: GMA_DATA is not set to a folder with multi30k-de-en/")
    files = {}
    for language in ("de", "en"):
        for split in ("train", "test_2016_flickr"):
            files[split, language] = folder / f"{split}.{language}"
            with gzip.open(Path(root) / "multi30k-de-en" / f"{split}.{language}.gz", "rb") as lines:
                files[split, language].write_bytes(b"".join(islice(lines, 4000 if split == "train" else LENGTH)))
    settings = ["data.generated=0", "data.tokenizer=bpe", "data.vocabulary_size=1000"]
    for name, split in (("train", "train"), ("valid", "test_2016_flickr")):
        for side, language in (("source", "de"), ("target", "en")):
            settings.append(f"data.{name}.{side}=['{files[split, language]}']")
    return files["test_2016_flickr", "de"], files["test_2016_flickr", "en"], settings


def generated_text(folder: Path) -> tuple[Path, Path, list[str]]:
    source, reference, _ = generated.write(folder, generated.generate(LENGTH, seed=7), "test")
    return source, reference, ["data.tokenizer=bpe", "data.vocabulary_size=300"]


@pytest.fixture(scope="module", params=[generated_text, real_text])
def trained(tmp_path_factory, request) -> tuple[Path, Path, Path]:
    """A model directory, a source and a reference."""
    pytest.importorskip("simuleval", reason=REASON)
    folder = tmp_path_factory.mktemp("simuleval")
    source, reference, data = request.param(folder)
    corpus = tiny_run.make_corpus(folder / "corpus", *data)
    tiny_run.train(corpus, folder / "model", *data, *TRAINED)
    return folder / "model", source, reference


def run(*arguments: object, **options) -> subprocess.CompletedProcess:
    everywhere = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-m", "simuleval.cli", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": everywhere, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
        **options,
    )


def simuleval(output: Path, *arguments: object) -> dict[str, float]:
    """Run it and return the scores it has written."""
    run(*arguments, "--output", output, "--no-progress-bar")
    names, values = (output / "scores.tsv").read_text().splitlines()
    return dict(zip(names.split("\t"), map(float, values.split("\t"))))


METRICS = ("--latency-metrics", "AL", "LAAL", "AP", "DAL")


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.0, 1.0, None])
def test_scores_equal_those_of_evaluate(trained, tmp_path, delta):
    model, source, reference = trained
    loaded = directory.load(model)
    text = load_text(loaded, source, reference)
    ours = evaluate(loaded, text, system="ours", delta=delta)
    texts = ("--source", source, "--target", reference)
    if delta is None:
        # as main.yaml says
        theirs = simuleval(tmp_path, "--system-dir", model, *texts, *METRICS)
    else:
        agent = ("--agent-class", "gma.simuleval_agent.GMAAgent", "--model", model, "--delta", delta)
        theirs = simuleval(tmp_path, *agent, *texts, *METRICS)
    log = load_log(tmp_path / "instances.log")
    same = [(one.prediction, one.delays) == (other.prediction, other.delays) for one, other in zip(log, ours.instances)]
    assert len(log) == LENGTH
    assert all(same)
    latency = ours.scores.latency
    expected = {
        "BLEU": ours.scores.bleu.score,
        "AL": latency.al,
        "LAAL": latency.laal,
        "AP": latency.ap,
        "DAL": latency.dal,
    }
    # it leaves empty predictions out of the means, and these sentences have none
    assert latency.empty == 0
    assert theirs == {name: pytest.approx(value, abs=6e-4) for name, value in expected.items()}
    # and not because nothing was translated
    assert len({instance.prediction for instance in log}) > LENGTH / 2


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["gain", "itst", "wait_k", "monotonic", "offline"])
def test_every_policy_runs(policy, tmp_path):
    """At the latency that the saved folder translates with."""
    pytest.importorskip("simuleval", reason=REASON)
    source, reference, data = generated_text(tmp_path)
    corpus = tiny_run.make_corpus(tmp_path / "corpus", *data)
    options = [option for option in TRAINED if not option.startswith("attention.")]
    tiny_run.train(corpus, tmp_path / "model", *data, *options, f"attention.policy={policy}")
    loaded = directory.load(tmp_path / "model")
    ours = evaluate(loaded, load_text(loaded, source, reference), system="ours")
    texts = ("--source", source, "--target", reference)
    theirs = simuleval(tmp_path / "scores", "--system-dir", tmp_path / "model", *texts, *METRICS)
    log = load_log(tmp_path / "scores" / "instances.log")
    expected = [(instance.prediction, instance.delays) for instance in ours.instances]
    assert [(instance.prediction, instance.delays) for instance in log] == expected
    assert theirs["BLEU"] == pytest.approx(ours.scores.bleu.score, abs=6e-4)


@pytest.mark.slow
def test_the_folder_of_evaluate_can_be_scored(trained, tmp_path, monkeypatch):
    model, source, reference = trained
    options = ["--source", source, "--reference", reference, "--output", tmp_path]
    assert tiny_model.command(monkeypatch, "evaluate", model, *options) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    word, aware = (rescored(tmp_path, *flags) for flags in ((), ("--computation-aware",)))
    assert word["BLEU"] == pytest.approx(scores["bleu"]["score"], abs=6e-4)
    for name in ("al", "laal", "ap", "dal"):
        assert word[name.upper()] == pytest.approx(scores["latency"]["word"][name], abs=6e-4)
        assert aware[f"{name.upper()}_CA"] == pytest.approx(scores["latency"]["computation_aware"][name], abs=6e-4)


def rescored(folder: Path, *flags: str) -> dict[str, float]:
    """What `simuleval --score-only` prints."""
    arguments = ["--score-only", "--output", folder, *METRICS, *flags]
    printed = run(*arguments, capture_output=True, text=True).stdout
    # pandas breaks a wide table into blocks
    lines = [line.rstrip("\\").split() for line in printed.strip().splitlines() if line.strip()]
    return {
        name: float(value) for names, values in zip(lines[::2], lines[1::2]) for name, value in zip(names, values[1:])
    }


@pytest.mark.slow
def test_bursts_empty_sentences_and_half_precision(trained):
    from argparse import ArgumentParser

    from simuleval.data.segments import EmptySegment, TextSegment

    from gma.simuleval_agent import GMAAgent

    parser = ArgumentParser()
    GMAAgent.add_args(parser)
    agent = GMAAgent(parser.parse_args(["--model", str(trained[0]), "--delta", "inf"]))
    with pytest.raises(ValueError, match="fp16"):
        agent.to("cpu", fp16=True)
    agent.to("cpu", fp16=False)
    words = generated.generate(1, seed=1)[0].source.split()
    for _ in range(2):
        # the second time after a sentence that was given up
        segments = [
            agent.pushpop(TextSegment(index=place, content=word, finished=place == len(words) - 1))
            for place, word in enumerate(words)
        ]
        assert all(segment.is_empty for segment in segments[:-1])
        assert segments[-1].finished
        assert len(segments[-1].content.split()) > 1
        agent.reset()
        agent.pushpop(TextSegment(index=0, content=words[0]))
        agent.reset()
    empty = agent.pushpop(EmptySegment(finished=True))
    assert empty.finished
    assert not empty.content
    assert agent.translator.streams == 0
