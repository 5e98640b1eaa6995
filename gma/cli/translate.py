"""`gma translate` and `gma stream`: text in, translation out, line by line or word by word."""

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer
from rich.console import Console

from gma.cli.options import Delta, Device, ModelPath, Weights, console, number, warn_of_unreadable, write_out
from gma.errors import UserError

if TYPE_CHECKING:
    from gma.decoding.streaming import StreamingTranslator
    from gma.model.directory import Loaded

# lines translated before any of them is written: neither memory nor the wait for the first line grows with the file
PORTION = 2048
Input = Annotated[Path | None, typer.Option(help="Text, one sentence or more a line.", show_default="standard input")]


def translate(
    model: ModelPath = Path("de-en"),
    input: Input = None,
    output: Annotated[Path | None, typer.Option(show_default="standard output")] = None,
    delta: Delta = None,
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses; more than 1 needs a model that waits for all.")] = 1,
    weights: Weights = "float32",
    device: Device = "auto",
) -> None:
    """Translate text, many sentences at a time, into exactly what a stream would write."""
    from gma.model import directory
    from gma.model.inference import Inference

    loaded = directory.load(model, device, Inference(weights=weights))
    with _opened(input) as file:
        translate_file(loaded, file, _name(input), output, Console(stderr=True), delta=delta, beam=beam)


def translate_file(
    loaded: "Loaded",
    source: BinaryIO,
    name: str,
    target: Path | None,
    console: Console,
    *,
    delta: float | None = None,
    beam: int = 1,
) -> None:
    """Translate line by line into a file, which appears whole or not at all, or to standard output.

    Args:
        name: of the source, for messages.
    """
    from gma.decoding.translate import translate, translate_lines
    from gma.storage import atomic
    from gma.terminal import bar
    from gma.text.lines import read_lines

    if target is None:
        write_out("")
    # refuses a wrong beam before the input, which may be typed, has been read
    translate(loaded, [], delta=delta, beam=beam)
    lines = read_lines(source, name)
    if target is not None and target.is_dir():
        raise UserError(f"--output is {target}, a folder; expected a file")
    for place, line in enumerate(lines, start=1):
        warn_of_unreadable(loaded.tokenizer.source, line, f"{name}, line {place}", console)
    with bar(console, "translating", len(lines)) as advance:
        translated = (
            line + "\n"
            for start in range(0, len(lines), PORTION)
            for line in translate_lines(
                loaded, lines[start : start + PORTION], delta=delta, beam=beam, progress=advance
            )
        )
        if target is None:
            for line in translated:
                write_out(line)
        elif target.exists() and not target.is_file():
            # a device or a pipe, which nothing can replace
            _write(target, translated)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic.replace(target, lambda temporary: _write(temporary, translated))


def _write(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


def stream(
    model: ModelPath = Path("de-en"),
    input: Input = None,
    delta: Delta = None,
    delay: Annotated[
        float,
        typer.Option(min=0.0, max=3600.0, callback=number, help="Seconds between words, as if they were spoken."),
    ] = 0.0,
    plain: Annotated[bool, typer.Option("--plain", help="No live view, on a terminal either.")] = False,
    weights: Weights = "float32",
    device: Device = "auto",
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="A gma serve that translates, such as http://127.0.0.1:8000.")
    ] = None,
    token: Annotated[str | None, typer.Option(envvar="GMA_TOKEN", help="Of that server.")] = None,
) -> None:
    """Translate while the text is arriving: every word is written the moment it is ready."""
    from gma.cli.stream_input import arriving, single_keys, spoken, typed
    from gma.cli.stream_view import LiveView, PlainView, interpret

    if server is None:
        translator = _translator(model, device, weights)
    elif weights != "float32" or device != "auto":
        raise UserError("--weights and --device are the server's to choose; leave them out with --server")
    live = console.is_terminal and not plain
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_opened(input))
        keys = live and file.isatty()
        if keys:
            stack.enter_context(single_keys())

        def texts(view: LiveView | PlainView) -> Iterable[str]:
            if keys:
                assert isinstance(view, LiveView)
                return typed(view.typing)
            arrived = arriving(file.fileno(), _name(input))
            return spoken(arrived, delay) if delay else arrived

        def view(source: str, target: str) -> LiveView | PlainView:
            hint = "Enter ends the sentence, Ctrl-D the talk" if keys else ""
            return LiveView(console, source, target, hint) if live else PlainView()

        try:
            if server is not None:
                from gma.cli.stream_remote import interpret_remotely

                interpret_remotely(server, texts, view, delta, token)
            else:
                shown = view(*translator.languages)
                interpret(translator, texts(shown), shown, delta)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _translator(model: Path, device: str, weights: str) -> "StreamingTranslator":
    from gma.decoding.greedy import LONGEST_ALONE
    from gma.decoding.streaming import StreamingTranslator
    from gma.model import directory
    from gma.model.inference import Inference

    return StreamingTranslator(directory.load(model, device, Inference(weights=weights)), longest=LONGEST_ALONE)


def _opened(path: Path | None) -> contextlib.AbstractContextManager[BinaryIO]:
    if path is None:
        if sys.stdin is None:
            raise UserError("standard input is closed; give a file by --input")
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error


def _name(path: Path | None) -> str:
    """Of the input, for messages."""
    return "standard input" if path is None else str(path)
