"""`gma demo`: the German–English model of the package translates while it listens."""

import contextlib
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from gma.cli import plot
from gma.cli.options import console
from gma.terminal import say

if TYPE_CHECKING:
    from gma.decoding.streaming import StreamingTranslator
    from gma.model.directory import Loaded

# the model was trained on none of them; it translates some others less well, see its card
SENTENCES = (
    "Ich habe gestern meinen alten Freund im Park getroffen.",
    "Ich glaube nicht, dass Tom heute kommen wird.",
    "Wenn es morgen regnet, bleiben wir zu Hause.",
    "Wir wollen, dass die Kommission diesen Bericht so schnell wie möglich vorlegt.",
)
# shown at every latency and drawn: its verb comes last
SHOWN = SENTENCES[1]
DELTA = 2.0
DELTAS = (0.5, 1.0, 2.0, 4.0, 6.0)
# how long a spoken word takes
SECONDS_A_WORD = 0.35
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def demo(folder: Annotated[Path, typer.Option(help="For the figure.")] = Path("runs/demo")) -> None:
    """Watch the German-English model of the package translate while it listens."""
    from gma.cli.stream_input import spoken
    from gma.cli.stream_view import LiveView, interpret
    from gma.decoding.streaming import StreamingTranslator
    from gma.model import directory

    model = directory.find(directory.DEFAULT)
    loaded = directory.load(model)
    size = (model / directory.MODEL).stat().st_size
    console.print(
        f"German into English while it is being heard: model {model.name}, "
        f"{loaded.training['parameters'] / 1e6:.1f} million parameters, {size / 1e6:.1f} MB, δ = {DELTA:g}\n",
        highlight=False,
    )
    translator = StreamingTranslator(loaded)
    if console.is_terminal:
        texts = spoken([f"{sentence}\n" for sentence in SENTENCES], SECONDS_A_WORD)
        interpret(translator, texts, LiveView(console, "de", "en"), DELTA)
    else:
        for sentence in SENTENCES:
            console.print(_stream(translator, sentence))
    console.print(_latencies(loaded, SHOWN))
    plot.attention(model, folder / "attention", source=SHOWN, delta=DELTA)
    say(console, f"\nyour turn: {own_command()} stream, or with --delta 4; Ctrl-D ends")


def own_command() -> str:
    """What this command is called in the user's shell: gma, where that finds it, else the path that was used."""
    used = Path(sys.argv[0])
    if used.name == "__main__.py":
        return f"{_short(Path(sys.executable))} -m gma"
    found = shutil.which("gma")
    return "gma" if found and used.name == "gma" and Path(found).resolve() == used.resolve() else _short(used)


def _short(path: Path) -> str:
    """From here, where the path lies below."""
    with contextlib.suppress(ValueError):
        path = path.absolute().relative_to(Path.cwd())
    return str(path)


def numbered(source: str, translation: Iterable[tuple[str, float]]) -> Text:
    """A source with its words numbered; its translation, each word with the number of source words it waited for."""
    heard = ((word, float(number)) for number, word in enumerate(source.split(), start=1))
    lines = Text()
    for label, words in (("heard  ", heard), ("written", translation)):
        lines.append(f"{label}  ", style="dim")
        lines.append_text(_with_numbers(words)).append("\n")
    return lines


def _with_numbers(words: Iterable[tuple[str, float]]) -> Text:
    line = Text()
    for word, number in words:
        line.append(word).append(f"{number:g}".translate(SUPERSCRIPTS) + " ", style="cyan")
    return line


def _stream(translator: "StreamingTranslator", sentence: str) -> Text:
    """One word after the other, and how many had arrived when each word was written."""
    with translator.open(DELTA) as stream:
        written = [emission for word in sentence.split() for emission in stream.push(f"{word} ")]
        written += stream.finish()
    return numbered(sentence, ((emission.word, emission.arrived_words) for emission in written))


def _latencies(loaded: "Loaded", sentence: str) -> Table:
    from gma.decoding.translate import translate
    from gma.metrics import latency

    words = len(sentence.split())
    table = Table(
        Column("δ", justify="right"),
        Column("AL, words", justify="right"),
        "translation; the numbers count the source words heard",
        title=sentence,
        caption="one model, any latency; AL: average lag against |Y| = the translation's length",
        caption_justify="left",
    )
    for delta in DELTAS:
        (translation,) = translate(loaded, [sentence], delta=delta)
        lag = latency(translation.delays, words, max(1, len(translation.words))).al
        table.add_row(f"{delta:g}", f"{lag:.1f}", _with_numbers(zip(translation.words, translation.delays)))
    return table
