"""`gma evaluate`: the scores of a model, or of any system's log."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gma.cli.options import Delta, Device, Lowercase, OneBased, OptionalModelPath, Slots, console
from gma.errors import UserError
from gma.terminal import bar, say

if TYPE_CHECKING:
    from gma.evaluation.evaluate import Evaluation
    from gma.metrics import BootstrapDifference

SCORES, LOG, SIMULEVAL_CONFIG = "scores.json", "instances.log", "config.yaml"


def evaluate(
    model: OptionalModelPath = None,
    source: Annotated[
        Path | None, typer.Option(help="Text, one sentence a line.", show_default="the model's test or valid split")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="Its translation.", show_default="as above")] = None,
    delta: Delta = None,
    alignments: Annotated[
        Path | None, typer.Option(help="Gold word links, i-j (sure) or ipj (possible), a line a pair: AER is computed.")
    ] = None,
    one_based: OneBased = False,
    instances: Annotated[Path | None, typer.Option(help="Score this instances.log, with no model.")] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Another system's instances.log: confidence intervals of the differences.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for scores.json and SimulEval's instances.log.")] = None,
    lowercase: Lowercase = False,
    slots: Slots = 64,
    words_per_second: Annotated[
        float, typer.Option(help="Of the speaker, for latency with computing time; use --slots 1 for one stream's.")
    ] = 2.5,
    device: Device = "auto",
) -> None:
    """Quality, latency in both conventions and alignment of a model, or of any system's log."""
    from gma.evaluation.evaluate import check_same_text, compare_logs, evaluate, evaluate_log
    from gma.evaluation.inputs import load_gold, load_log
    from gma.evaluation.text import load_text
    from gma.model import directory, hub

    # files are read before the long part, so that a wrong one is found at once
    other = load_log(compare) if compare else None
    if model is None:
        if instances is None:
            raise UserError("MODEL or --instances FILE: expected one of them, got neither")
        unused = {"--source": source, "--reference": reference, "--delta": delta, "--alignments": alignments}
        for option, value in unused.items():
            if value is not None:
                raise UserError(f"{option} needs a model and means nothing with --instances; leave it out")
        result = evaluate_log(instances, lowercase=lowercase)
    else:
        if instances is not None:
            raise UserError("MODEL or --instances FILE: expected one of them, got both")
        gold = load_gold(alignments, one_based=one_based) if alignments else None
        loaded = directory.load(model, device)
        if gold is not None:
            loaded.model.check_can_force()
        text = load_text(loaded, source, reference)
        if other:
            check_same_text(other, dict(zip(text.indices, text.references)))
        if output:
            output.mkdir(parents=True, exist_ok=True)
        say(console, f"text: {text.name}")
        with bar(console, "translating", len(text.sources)) as advance:
            result = evaluate(
                loaded,
                text,
                system=hub.title(model) or str(model),
                delta=delta,
                gold=gold,
                lowercase=lowercase,
                slots=slots,
                words_per_second=words_per_second,
                progress=advance,
            )
    differences = compare_logs(other, result.instances, lowercase=lowercase) if other else {}
    _show(result, differences, str(compare))
    if output:
        _write(output, result, differences, str(compare))
        say(console, f"written: {output / SCORES}, {output / LOG}")


def _show(result: "Evaluation", differences: Mapping[str, "BootstrapDifference"], baseline: str) -> None:
    from gma.evaluation import tables

    say(console, tables.heading(result))
    for table in tables.tables(result):
        console.print(table)
    for line in tables.notes(result):
        say(console, line)
    if differences:
        console.print(tables.comparison(differences, baseline))


def _write(folder: Path, result: "Evaluation", differences: Mapping[str, "BootstrapDifference"], baseline: str) -> None:
    """Scores, the log, and the two lines that `simuleval --score-only --output folder` wants to find."""
    from gma.evaluation.instances import write_instances
    from gma.storage import atomic

    scores = result.to_dict()
    if differences:
        rows = {name: row._asdict() for name, row in differences.items()}
        scores["comparison"] = {"baseline": baseline, **rows}
    folder.mkdir(parents=True, exist_ok=True)
    atomic.replace_text(folder / SCORES, json.dumps(scores, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    atomic.replace_text(folder / SIMULEVAL_CONFIG, "source_type: text\ntarget_type: text\n")
    write_instances(folder / LOG, result.instances)
