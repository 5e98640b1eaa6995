"""`gma init`: a recipe for two text files, sized for the text and this machine."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gma.cli import completion
from gma.cli.options import console
from gma.errors import UserError
from gma.storage.folders import real
from gma.terminal import byte_bar, say

if TYPE_CHECKING:
    from gma.config import Config
    from gma.training.sizing import Plan, Text

TEMPLATE = """\
# {name}: {pairs} sentence pairs, {source_words} words of {source}, {target_words} of {target}. Written by `gma init`.
# On the machine it was written on, training takes about {duration}: {speed} target tokens a second.
#
#   gma prepare {file}
#   gma train {file} --folder runs/{name}
#   gma translate runs/{name} < TEXT
#
# `gma config {file}` shows every other key with its default; the recipe `generated` explains all.

[model]
# {parameters} parameters, {why}
{model}

[attention]
# one model for every latency: choose when translating
{attention}

[data]
# where the prepared text goes, and where the files are
{data_folders}
# every so many-th pair is for validation, and not trained on
{held_out}
{vocabulary}

[training]
{start}# an update sees tokens × accumulation; less of either makes an update quicker, and calls for more of them
{batches}
# {passes} times over the text. Fewer are quicker; the best model so far is kept, so too many do no harm
{updates}
{rates}
# {precision_reason}
{precision}
# updates between validations, between checkpoints, and between two lines of the log
{intervals}
"""


def init(
    source: Annotated[Path, typer.Argument(help="Text to translate from, a sentence a line, plain or .gz.")],
    target: Annotated[Path, typer.Argument(help="Its translation, line by line.")],
    output: Annotated[
        Path | None, typer.Option(help="The recipe.", show_default="named after the text, ending in .toml")
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            help="Start from this model instead of random weights: a folder, de-en, or hf://ORGANISATION/NAME.",
            autocompletion=completion.models,
        ),
    ] = None,
) -> None:
    """Write a recipe for two text files, sized for the text and this machine; says how long training will take."""
    stem, languages = _names(source, target)
    output = output or Path(f"{stem}.toml")
    if output.suffix != ".toml":
        raise UserError(f"--output is {output}; expected a name that ends in .toml")
    if output.exists():
        raise UserError(f"{output} is there already; delete it, or choose another name by --output")
    from gma.model import directory
    from gma.model.device import choose_device, multiplies_bfloat16
    from gma.storage import atomic
    from gma.training import sizing

    start = (start_from, directory.load(start_from)) if start_from else None
    with byte_bar(console, "reading") as show:
        text = sizing.read_text(source, target, show)
    say(console, f"{text.pairs:,} pairs, {text.source_words:,} and {text.target_words:,} words; measuring this machine")
    fast_halves = choose_device("auto").type == "cuda" or multiplies_bfloat16()
    plan = sizing.plan(text, "bfloat16" if fast_halves else "float32", start=start and start[1])
    root, files = _places(source, target)
    settings = sizing.settings(text, plan, files, root, f"runs/data/{output.stem}", languages, start)
    output.parent.mkdir(parents=True, exist_ok=True)
    atomic.replace_text(output, recipe(output, text, plan, settings))
    larger = f"; a larger one would take {duration(plan.larger.seconds)}" if plan.larger else ""
    say(console, f"model: {_size(plan)}{larger}")
    say(
        console,
        f"training: {plan.updates:,} updates, {plan.size.passes:g} times over the text; about {duration(plan.seconds)} "
        f"here, at {plan.speed:,.0f} target tokens/s",
    )
    say(console, f"recipe: {output}\nnext: gma train {output} --folder runs/{output.stem}")


def recipe(path: Path, text: "Text", plan: "Plan", settings: "Config") -> str:
    """The commented TOML of a plan."""
    from gma.config.toml import toml_value

    values = settings.values()

    def lines(section: str, *keys: str) -> str:
        return "\n".join(f"{key} = {toml_value(values[section][key])}" for key in keys)

    train = values["data"]["train"]
    if settings.training.start_from:
        why = "like the model that training starts from"
        vocabulary = "# words are cut into the pieces of that model"
        start = f"# the model to start from\n{lines('training', 'start_from')}\n"
    else:
        why = f"as many as so much text is good for{_larger(plan)}"
        vocabulary = f"# pieces of words, for both languages together\n{lines('data', 'vocabulary_size')}"
        start = ""
    shown = [key for key in values["attention"] if start or key in ("delta", "width_rule")]
    return TEMPLATE.format(
        name=path.stem,
        file=path,
        pairs=f"{text.pairs:,}",
        source=values["data"]["source"],
        target=values["data"]["target"],
        source_words=f"{text.source_words:,}",
        target_words=f"{text.target_words:,}",
        duration=duration(plan.seconds),
        speed=f"{plan.speed:,.0f}",
        parameters=f"{plan.parameters / 1e6:.1f} million",
        why=why,
        model=lines("model", "preset", *list(plan.size.model)[1:], "dropout"),
        attention=lines("attention", *shown),
        data_folders=lines("data", "folder", "root", "source", "target") + f"\ntrain = {toml_value(train)}",
        held_out=lines("data", "held_out"),
        vocabulary=vocabulary,
        start=start,
        batches=lines("training", "tokens", "accumulation"),
        passes=f"{plan.size.passes:g}",
        updates=lines("training", "updates"),
        rates=lines("training", "learning_rate", "warmup_updates", "schedule", "clip_norm"),
        precision_reason="twice as fast where the processor has instructions for it, as here"
        if plan.precision == "bfloat16"
        else "this processor has no instructions for bfloat16",
        precision=lines("training", "precision"),
        intervals=lines("training", "validate_every", "validate_sentences", "save_every", "log_every"),
    )


def _larger(plan: "Plan") -> str:
    """What a comment says of a model that this machine is too slow for."""
    if (larger := plan.larger) is None:
        return ""
    return (
        f"\n# and this machine trains over night; {larger.parameters / 1e6:.0f} million would take about "
        f"{duration(larger.seconds)}: width = {larger.size.width}, {larger.size.encoder_layers} and "
        f"{larger.size.decoder_layers} layers"
    )


def duration(seconds: float) -> str:
    """About: "40 seconds", "7 minutes", "3 hours", "12 days"."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 1.5 * size:
            return f"{round(seconds / size)} {unit}s"
    return f"{max(1, math.ceil(seconds / 10)) * 10} seconds"


def _size(plan: "Plan") -> str:
    size = plan.size
    return (
        f"{plan.parameters / 1e6:.1f} million parameters, {size.width} wide, {size.encoder_layers} and "
        f"{size.decoder_layers} layers, {size.vocabulary:,} pieces"
    )


def _names(source: Path, target: Path) -> tuple[str, tuple[str, str]]:
    """What the text is called, and its languages, from names such as mine.de and mine.en.gz."""
    plain = [path.name.removesuffix(".gz") for path in (source, target)]
    if real(source) == real(target):
        raise UserError(f"both files are {source}; expected a text and its translation")
    codes = [name.rpartition(".")[2] for name in plain]
    if all(re.fullmatch(r"[a-z]{2,3}(-[A-Za-z]{2,4})?", code) for code in codes) and codes[0] != codes[1]:
        return plain[0].rpartition(".")[0] or "recipe", (codes[0], codes[1])
    return plain[0].partition(".")[0] or "recipe", ("source", "target")


def _places(source: Path, target: Path) -> tuple[str, list[str]]:
    """The folder that file names start from, and the names; the recipe works wherever it is called."""
    folders = [path.absolute().parent for path in (source, target)]
    if folders[0] == folders[1]:
        return str(folders[0]), [source.name, target.name]
    return str(folders[0]), [source.name, str(target.absolute())]
