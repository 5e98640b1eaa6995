"""The German–English model that comes with the package: there, small, and as good as its card says."""

import io
import subprocess
import sys

import pytest
from rich.console import Console
from safetensors import safe_open

from gma import StreamingTranslator
from gma.cli import demo
from gma.decoding.translate import translate
from gma.metrics import latency
from gma.model import directory
from tests.support import tiny_model, tiny_run

FOLDER = directory.find("de-en")
SENTENCES = (
    *demo.SENTENCES,
    "Guten Morgen!",
    "Ich habe Hunger.",
    "Wo ist der Bahnhof?",
    "Tom weiß, dass Maria das Buch gelesen hat.",
    "Herr Präsident, ich möchte dem Berichterstatter für seine Arbeit danken.",
    "Ein kleiner Hund läuft über die grüne Wiese.",
    "x",
    "Donaudampfschifffahrtsgesellschaftskapitän 12.345,67 € 😀",
)


@pytest.fixture(scope="module")
def loaded():
    return directory.load(FOLDER)


def test_it_is_small_and_has_a_card():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 15e6
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert "CC BY 2.0" in card
    assert "gma train tatoeba-europarl-de-en" in card


def test_its_weights_are_halves_on_disk_and_whole_in_memory(loaded):
    with safe_open(FOLDER / directory.MODEL, "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118
    assert {str(parameter.dtype) for parameter in loaded.model.parameters()} == {"torch.float32"}


def test_it_names_no_folder_of_the_machine_that_trained_it():
    config = (FOLDER / directory.CONFIG).read_text(encoding="utf-8")
    training = (FOLDER / directory.TRAINING).read_text(encoding="utf-8")
    assert '"/' not in config + training


@pytest.mark.parametrize("delta", [0.5, 2.0, 6.0])
def test_a_stream_writes_what_a_batch_writes(loaded, delta):
    expected = translate(loaded, SENTENCES, delta=delta)
    translator = StreamingTranslator(loaded)
    for sentence, translation in zip(SENTENCES, expected):
        with translator.open(delta) as stream:
            written = [emission for word in sentence.split() for emission in stream.push(f"{word} ")]
            written += stream.finish()
        assert tuple(emission.word for emission in written) == translation.words
        assert tuple(emission.source_words for emission in written) == translation.delays


def test_more_latency_is_more_lag(loaded):
    def lag(delta: float) -> float:
        """Summed over sentences, each against its translation's own length."""
        return sum(
            latency(translation.delays, len(sentence.split()), len(translation.words)).al
            for sentence, translation in zip(demo.SENTENCES, translate(loaded, demo.SENTENCES, delta=delta))
        )

    assert lag(0.5) < lag(2.0) < lag(6.0)


def test_it_is_the_default():
    assert StreamingTranslator.load().tokenizer.source.size == StreamingTranslator.load("de-en").tokenizer.source.size
    command = [sys.executable, "-m", "gma", "stream", "--delta", "6"]
    found = subprocess.run(command, input=b"Das wusste ich nicht.\n", stdout=subprocess.PIPE, check=True, timeout=120)
    assert found.stdout.decode() == "I didn't know.\n"


def test_a_folder_of_the_same_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert directory.find("de-en") == FOLDER
    (tmp_path / "de-en" / "sweep").mkdir(parents=True)
    assert directory.find("de-en") == FOLDER
    tiny_model.make(tmp_path / "de-en", tiny_run.make_corpus(tmp_path / "corpus"))
    assert not directory.find("de-en").is_absolute()
    assert str(directory.find("../nothing")) == "../nothing"


def test_the_demo_streams_and_draws(tmp_path, monkeypatch):
    output = io.StringIO()
    monkeypatch.setattr(demo, "console", Console(file=output, width=120))
    demo.demo(tmp_path)
    for sentence in demo.SENTENCES:
        assert sentence.split()[0] in output.getvalue()
    assert "million parameters" in output.getvalue()
    assert (tmp_path / "attention.png").stat().st_size > 10_000
