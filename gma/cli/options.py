"""What the commands share: the console they print on, and the options that several of them take."""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO, cast

import typer
from rich.console import Console

from gma.cli import completion
from gma.errors import UserError
from gma.terminal import Output, say

if TYPE_CHECKING:
    from gma.text.vocabulary import Vocabulary

output = Output()
console = Console(file=cast(TextIO, output))


def number(value: float | None) -> float | None:
    """Callback of an option that takes a number: the parser accepts nan, and no option means anything with it."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan; expected a number")
    return value


def write_out(text: str) -> None:
    """Put a result on standard output at once, as UTF-8 whatever the locale."""
    if sys.stdout is None:
        raise UserError("standard output is closed; open it, or give a file by --output")
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def warn_of_unreadable(vocabulary: "Vocabulary", text: str, place: str, console: Console) -> None:
    """Say so where words are left out, and where a model has never seen the letters of a good part of a text."""
    from gma.text.words import LONGEST_WORD

    for word in text.split():
        if len(word) > LONGEST_WORD:
            say(
                console,
                f"warning: {place}: {word[:20]!r}… has {len(word):,} characters and is left out; expected at most "
                f"{LONGEST_WORD:,}, with white space between words",
            )
    if words := vocabulary.unreadable(text):
        some = ", ".join(repr(word[:20]) for word in words[:3]) + (", …" if len(words) > 3 else "")
        say(
            console,
            f"warning: {place}: the model cannot read {len(words)} of the words ({some}); the translation is of the "
            "others",
        )


def _model(context: typer.Context, name: Path | None) -> Path | None:
    # the shell asks how a line may go on
    if name is None or context.resilient_parsing:
        return name
    from gma.model.directory import find

    return find(name)


model_argument = typer.Argument(
    callback=_model,
    autocompletion=completion.models,
    help="Folder of a model, de-en, which comes with the package, or hf://ORGANISATION/NAME@REVISION.",
)
ModelPath = Annotated[Path, model_argument]
OptionalModelPath = Annotated[Path | None, model_argument]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE | FILE.toml] [SECTION.KEY=VALUE]...",
        show_default="the recipe generated",
        autocompletion=completion.settings,
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(
        "--delta",
        "--k",
        "--threshold",
        callback=number,
        help="Latency: source tokens to hear past p (gaussian), k (wait_k), inf for all; θ (gain, itst, MU).",
        show_default="the configured one",
    ),
]
Weights = Annotated[
    Literal["float32", "bfloat16", "int8"],
    typer.Option(help="What the weights are packed into for decoding on the CPU; files stay as they are."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Lowercase = Annotated[bool, typer.Option("--lowercase", help="Ignore case in BLEU and chrF.")]
Slots = Annotated[int, typer.Option(min=1, help="Sentences translated together.")]
OneBased = Annotated[bool, typer.Option("--one-based", help="The links count words from 1.")]
