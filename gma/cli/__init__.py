"""The `gma` command."""

import contextlib
import errno
import math
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import torch
import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

import gma_kernels
from gma.errors import UserError
from gma.terminal import say

if TYPE_CHECKING:
    from gma.training.trainer import Outcome

app = typer.Typer(
    help="Simultaneous translation with Gaussian multi-head attention.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
plot_app = typer.Typer(help="Draw figures: PNG, and PDF or SVG beside it.", no_args_is_help=True)
app.add_typer(plot_app, name="plot")
console = Console()


def _number(value: float | None) -> float | None:
    # a float to the parser, and not a number to anyone else
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan; expected a number")
    return value


FigurePath = Annotated[Path, typer.Option("--output", help="File; .svg gives an SVG in place of the PDF.")]
Delta = Annotated[
    float | None,
    typer.Option(
        "--delta",
        "--k",
        "--threshold",
        callback=_number,
        help="Latency: source tokens to hear past p (gaussian), k (wait_k), or θ (meaning units); inf for all.",
        show_default="the configured one",
    ),
]


def _model(name: Path | None) -> Path | None:
    from gma.model import directory

    return None if name is None else directory.find(name)


ModelPath = Annotated[
    Path, typer.Argument(callback=_model, help="Folder of a model, or de-en, the one that comes with the package.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]


@app.command()
def demo(folder: Annotated[Path, typer.Option(help="For the figure.")] = Path("runs/demo")) -> None:
    """Watch the German-English model of the package translate while it listens."""
    from gma.cli import demo

    demo.demonstrate(folder, console)


@app.command("demo-train")
def demo_train(
    folder: Annotated[Path, typer.Option(help="Of the run; a second call goes on with what is there.")] = Path(
        "runs/demo-train"
    ),
    minutes: Annotated[float, typer.Option(min=0.01, help="Of training, at most; two cores need about three.")] = 15.0,
) -> None:
    """Train a translator on the generated corpus, translate unseen sentences, and score them."""
    from gma.cli import demo_train as demo_training

    _exit_like(demo_training.demonstrate(folder, minutes, console))


@app.command()
def download(
    name: Annotated[str, typer.Argument(metavar="iwslt15-en-vi | wmt15-de-en | multi30k-de-en | tatoeba-de-en")],
    folder: Annotated[
        Path, typer.Option(envvar="GMA_DATA", help="Put the corpus into a folder of its name in here.")
    ] = Path("data"),
) -> None:
    """Fetch a public corpus; a download that was cut off goes on where it stopped."""
    from gma.corpus.download import download

    say(console, f"corpus: {download(name, folder, console)}")


@app.command()
def prepare(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE | FILE.toml] [SECTION.KEY=VALUE]...", show_default="the recipe generated"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the prepared corpus.", show_default="data.folder")
    ] = None,
) -> None:
    """Turn raw parallel text into the token files that training reads; the tokenizer is learned on the way."""
    from gma import config
    from gma.corpus import prepare

    settings = config.load_arguments(arguments or []).config.data
    folder = output or Path(settings.folder)
    console.print(prepare.prepare(settings, folder, console).table())
    say(console, f"prepared corpus: {folder}")


@app.command()
def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE | FILE.toml] [SECTION.KEY=VALUE]...", show_default="the recipe generated"),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Of the run; goes on if it holds checkpoints.")] = ...,
) -> None:
    """Train a model, or go on training; the best one so far is in the run's folder. Ctrl-C saves before it stops."""
    from gma import config
    from gma.training import run

    _exit_like(run.train(config.load_arguments(arguments or []).config, folder, console))


def _exit_like(outcome: "Outcome") -> None:
    """As a shell expects of a program that a signal has ended."""
    if outcome.signal:
        raise typer.Exit(128 + outcome.signal)


@app.command()
def average(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    output: Annotated[Path, typer.Option(help="Folder for the model.")] = ...,
    last: Annotated[int, typer.Option(min=1, help="How many checkpoints.")] = 5,
    half: Annotated[bool, typer.Option("--half", help="Write float16: half the size; it computes in float32.")] = False,
) -> None:
    """Average the last checkpoints of a run into a model of its own."""
    from gma.training.average import average

    paths = average(run, last, output, torch.float16 if half else None)
    say(console, f"{output}: mean of {', '.join(path.name for path in paths)}")


@app.command()
def segment(
    model: Annotated[Path, typer.Argument(help="Folder of a model with attention.policy=offline, causal encoder.")],
    output: Annotated[Path, typer.Option(help="Folder for the model that translates by meaning units.")] = ...,
    limit: Annotated[int, typer.Option(min=2, help="Training sentences to find meaning units in.")] = 5000,
    device: Device = "auto",
) -> None:
    """MU: teach a model that waits for the whole sentence to translate by meaning units."""
    from gma.training import segmenter

    segmenter.segment(model, output, console, limit=limit, device=device)


@app.command()
def evaluate(
    model: Annotated[
        Path | None,
        typer.Argument(callback=_model, help="Folder of a model, or de-en, the one that comes with the package."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Text, one sentence a line.", show_default="the model's test or valid split")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="Its translation.", show_default="as above")] = None,
    delta: Delta = None,
    alignments: Annotated[
        Path | None, typer.Option(help="Gold word links, i-j (sure) or ipj (possible), a line a pair: AER is computed.")
    ] = None,
    one_based: Annotated[bool, typer.Option("--one-based", help="The links count words from 1.")] = False,
    instances: Annotated[Path | None, typer.Option(help="Score this instances.log, with no model.")] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Another system's instances.log: confidence intervals of the differences.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for scores.json and SimulEval's instances.log.")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case in BLEU and chrF.")] = False,
    slots: Annotated[int, typer.Option(min=1, help="Sentences translated together.")] = 64,
    words_per_second: Annotated[
        float, typer.Option(help="Of the speaker, for latency with computing time; use --slots 1 for one stream's.")
    ] = 2.5,
    device: Device = "auto",
) -> None:
    """Quality, latency in both conventions and alignment of a model, or of any system's log."""
    from gma.cli import evaluate as evaluate_command

    evaluate_command.run(
        console,
        model,
        instances=instances,
        source=source,
        reference=reference,
        delta=delta,
        alignments=alignments,
        one_based=one_based,
        output=output,
        compare=compare,
        lowercase=lowercase,
        slots=slots,
        words_per_second=words_per_second,
        device=device,
    )


@app.command()
def sweep(
    models: Annotated[str, typer.Argument(metavar="MODEL[,MODEL...]", help="Folders of models, or de-en.")],
    delta: Annotated[
        str | None,
        typer.Option(
            "--delta",
            "--k",
            "--threshold",
            help="Latencies with commas: source tokens to hear past p (gaussian), k (wait_k), or θ (meaning units).",
            show_default="0.5,1,2,4 for gaussian; 1,3,5,7 for wait_k; 0.1,0.3,0.5,0.7,0.9 for meaning units",
        ),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Text, one sentence a line.", show_default="the models' test or valid split")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="Its translation.", show_default="as above")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the curve; a sweep that was cut off goes on.", show_default="sweep, in the first MODEL"
        ),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case in BLEU and chrF.")] = False,
    slots: Annotated[int, typer.Option(min=1, help="Sentences translated together.")] = 64,
    device: Device = "auto",
) -> None:
    """Quality and latency of models at several δ, k or θ: one table, CSV, JSON and figure."""
    from gma.evaluation import sweep
    from gma.model import directory

    names = models.split(",")
    sweep.sweep(
        [directory.find(name) for name in names],
        None if delta is None else sweep.parse_deltas(delta),
        output or Path(names[0]) / "sweep",
        console,
        source=source,
        reference=reference,
        lowercase=lowercase,
        slots=slots,
        device=device,
    )


@app.command()
def reproduce(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="For every system.")
    ] = None,
    recipe: Annotated[str, typer.Option(help="generated, or multi30k-de-en, or their beginning.")] = "generated",
    folder: Annotated[Path, typer.Option(help="Of all that is made; what was cut off goes on.")] = ...,
    names: Annotated[
        str, typer.Option("--systems", help="Some, with commas, such as wait-k,gma.", show_default="the recipe's")
    ] = "",
    only: Annotated[str | None, typer.Option(help="systems or ablations.", show_default="both")] = None,
) -> None:
    """Train and sweep every system and every ablation of the paper; its tables, with the published numbers beside."""
    from gma.paper import reproduce

    try:
        reproduce.reproduce(
            recipe,
            folder,
            console,
            names=[name.strip() for name in names.split(",") if name.strip()],
            group=only,
            overrides=overrides or [],
        )
    except reproduce.Stopped as stopped:
        raise typer.Exit(128 + stopped.signal) from None


@app.command()
def translate(
    model: ModelPath = Path("de-en"),
    input: Annotated[Path | None, typer.Option(help="Text, a sentence a line.", show_default="standard input")] = None,
    output: Annotated[Path | None, typer.Option(show_default="standard output")] = None,
    delta: Delta = None,
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses; more than 1 needs a model that waits for all.")] = 1,
    device: Device = "auto",
) -> None:
    """Translate text, many sentences at a time, into exactly what a stream would write."""
    from gma.decoding.translate import translate_file
    from gma.model import directory
    from gma.model.device import choose_device

    loaded = directory.load(model, choose_device(device))
    errors = Console(stderr=True)
    with _input(input) as file:
        translate_file(loaded, file, _input_name(input), output, errors, delta=delta, beam=beam)


@app.command()
def stream(
    model: ModelPath = Path("de-en"),
    input: Annotated[Path | None, typer.Option(help="Text, a sentence a line.", show_default="standard input")] = None,
    delta: Delta = None,
    delay: Annotated[
        float,
        typer.Option(min=0.0, max=3600.0, callback=_number, help="Seconds between words, as if they were spoken."),
    ] = 0.0,
    plain: Annotated[bool, typer.Option("--plain", help="No live view, on a terminal either.")] = False,
    device: Device = "auto",
) -> None:
    """Translate while the text is arriving: every word is written the moment it is ready."""
    from gma.cli import stream_input, stream_view
    from gma.decoding.greedy import LONGEST_ALONE
    from gma.decoding.streaming import StreamingTranslator
    from gma.model import directory
    from gma.model.device import choose_device

    loaded = directory.load(model, choose_device(device))
    languages = loaded.config.data.source, loaded.config.data.target
    view = stream_view.LiveView(console, *languages) if console.is_terminal and not plain else stream_view.PlainView()
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_input(input))
        if file.isatty() and isinstance(view, stream_view.LiveView):
            stack.enter_context(stream_input.single_keys())
            texts = stream_input.typed(view.typing)
        else:
            texts = stream_input.arriving(file.fileno(), _input_name(input))
        try:
            translator = StreamingTranslator(loaded, longest=LONGEST_ALONE)
            stream_view.interpret(translator, stream_input.spoken(texts, delay) if delay else texts, view, delta)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _input(path: Path | None) -> contextlib.AbstractContextManager[BinaryIO]:
    from gma.text.parallel_text import TextError

    if path is None:
        if sys.stdin is None:
            raise TextError("standard input is closed; give a file by --input")
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return path.open("rb")
    except OSError as error:
        raise TextError(f"{path}: cannot be read ({error.strerror})") from error


def _input_name(path: Path | None) -> str:
    return "standard input" if path is None else str(path)


@app.command()
def config(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE_OR_FILE] [KEY=VALUE]...", help="A recipe's name or a TOML file; overrides."),
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print TOML that can be loaded again.")] = False,
) -> None:
    """Show every setting of a run and where its value comes from."""
    from gma import config

    resolved = config.load_arguments(arguments or [])
    if toml:
        print(resolved.config.dump(), end="")
        return
    table = Table(Column("key", no_wrap=True), Column("value", overflow="fold"), Column("from", no_wrap=True))
    for key, value, origin in resolved.rows():
        table.add_row(key, Text(value), Text(origin), style="" if origin == "default" else "bold")
    console.print(table)
    console.print(f"recipes: {', '.join(config.recipes())}", highlight=False)


@app.command()
def info() -> None:
    """Show versions, which backends of the attention operator can be used here and why, and the policies there are."""
    import gma
    from gma.policies import POLICIES, MeaningUnits

    console.print(
        f"gma {gma.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{torch.get_num_threads()} threads"
    )
    table = Table("backend", "available", "devices", "dtypes", "how, or why not")
    for name, status in gma_kernels.backends().items():
        table.add_row(
            name, "yes" if status.available else "no", " ".join(status.devices), " ".join(status.dtypes), status.reason
        )
    console.print(table)
    table = Table("policy", "latency", "what it does")
    for policy in (*POLICIES.values(), MeaningUnits):
        table.add_row(policy.name, policy.latency_symbol or "–", policy.summary)
    console.print(table)


@plot_app.command("curve")
def plot_curve(
    curves: Annotated[list[Path], typer.Argument(metavar="CURVE...", help="Outputs of `gma sweep`.")],
    output: FigurePath = Path("curve"),
    convention: Annotated[str, typer.Option(help="Of AL: word or paper.")] = "word",
) -> None:
    """BLEU over AL, one line per system."""
    from gma.cli import plot

    _print_paths(plot.curve(curves, output, convention=convention))


@plot_app.command("attention")
def plot_attention(
    model: ModelPath,
    output: FigurePath = Path("attention"),
    source: Annotated[
        str | None, typer.Option(help="The sentence itself.", show_default="a line of the evaluation text")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="What is written.", show_default="the reference, or the model's translation")
    ] = None,
    line: Annotated[int, typer.Option(min=1, help="Of the text, from 1.")] = 1,
    source_file: Annotated[Path | None, typer.Option(show_default="the model's test or valid split")] = None,
    reference_file: Annotated[Path | None, typer.Option(show_default="as above")] = None,
    delta: Delta = None,
    layer: Annotated[int | None, typer.Option(help="Decoder layer, from 1.", show_default="the last")] = None,
    alignments: Annotated[Path | None, typer.Option(help="Gold word links, a line a pair, drawn as squares.")] = None,
    one_based: Annotated[bool, typer.Option("--one-based", help="The links count words from 1.")] = False,
) -> None:
    """One sentence: posterior, aligned positions and the READ/WRITE path."""
    from gma.cli import plot

    paths = plot.attention(
        model,
        output,
        source=source,
        target=target,
        line=line,
        source_file=source_file,
        reference_file=reference_file,
        delta=delta,
        layer=layer,
        alignments=alignments,
        one_based=one_based,
    )
    _print_paths(paths)


@plot_app.command("steps")
def plot_steps(
    model: ModelPath,
    output: FigurePath = Path("steps"),
    source: Annotated[Path | None, typer.Option(show_default="the model's test or valid split")] = None,
    reference: Annotated[Path | None, typer.Option(show_default="as above")] = None,
    delta: Delta = None,
) -> None:
    """How far the aligned position moves with every target token, a histogram per layer."""
    from gma.cli import plot

    _print_paths(plot.steps(model, output, source=source, reference=reference, delta=delta))


@plot_app.command("learning")
def plot_learning(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")], output: FigurePath = Path("learning")
) -> None:
    """Loss, BLEU and AL over the updates of a run."""
    from gma.cli import plot

    _print_paths(plot.learning(run, output))


def _print_paths(paths: list[Path]) -> None:
    for path in paths:
        say(console, f"figure: {path}")


def main() -> None:
    try:
        app()
    except (UserError, gma_kernels.BackendUnavailable) as error:
        # the message says all there is to say; a traceback would bury it
        print(error, file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        # a path of the user's that cannot be written or read, or a disk; anything else is no message for people
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        print(error.strerror if error.filename is None else f"{error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
