"""The work behind `gma evaluate`: what to load, what to print, what to write."""

import json
from pathlib import Path

from rich.console import Console

from gma.evaluation import evaluate as evaluation
from gma.evaluation import tables as score_table
from gma.evaluation import text as evaluation_text
from gma.evaluation.evaluate import Evaluation, EvaluationError
from gma.evaluation.instances import write_instances
from gma.model import directory
from gma.model.device import choose_device
from gma.storage import atomic
from gma.terminal import bar, say

SCORES, LOG, SIMULEVAL_CONFIG = "scores.json", "instances.log", "config.yaml"


def run(
    console: Console,
    model: Path | None,
    *,
    instances: Path | None,
    source: Path | None,
    reference: Path | None,
    delta: float | None,
    alignments: Path | None,
    one_based: bool,
    output: Path | None,
    compare: Path | None,
    lowercase: bool,
    slots: int,
    words_per_second: float,
    device: str,
) -> Evaluation:
    """Evaluate a model, or score a log; print tables, and write scores and log into `output`."""
    if (model is None) == (instances is None):
        given = "neither" if model is None else "both"
        raise EvaluationError(f"MODEL or --instances FILE: expected one of them, got {given}")
    # read before the long part, so that a wrong file is found at once
    other = evaluation.load_log(compare) if compare else None
    if instances is not None:
        unused = {"--source": source, "--reference": reference, "--delta": delta, "--alignments": alignments}
        for option, value in unused.items():
            if value is not None:
                raise EvaluationError(f"{option} needs a model and means nothing with --instances; leave it out")
        result = evaluation.evaluate_log(instances, lowercase=lowercase)
    else:
        gold = evaluation.load_gold(alignments, one_based=one_based) if alignments else None
        loaded = directory.load(model, choose_device(device))
        if gold is not None:
            loaded.model.check_can_force()
        text = evaluation_text.load(loaded, source, reference)
        # before the work: what it cannot be compared with, or written to, should not cost it
        if other:
            evaluation.check_same_text(other, dict(zip(text.indices, text.references)))
        if output:
            output.mkdir(parents=True, exist_ok=True)
        say(console, f"text: {text.name}")
        with bar(console, "translating", len(text.sources)) as advance:
            result = evaluation.evaluate(
                loaded,
                text,
                system=str(model),
                delta=delta,
                gold=gold,
                lowercase=lowercase,
                slots=slots,
                words_per_second=words_per_second,
                progress=advance,
            )
    differences = evaluation.compare(other, result.instances, lowercase=lowercase) if other else None
    say(console, score_table.heading(result))
    for table in score_table.tables(result):
        console.print(table)
    for line in score_table.notes(result):
        say(console, line)
    if differences:
        console.print(score_table.comparison(differences, str(compare)))
    if output:
        scores = result.to_dict()
        if differences:
            rows = {name: row._asdict() for name, row in differences.items()}
            scores["comparison"] = {"baseline": str(compare), **rows}
        write(output, scores, result)
        say(console, f"written: {output / SCORES}, {output / LOG}")
    return result


def write(folder: Path, scores: dict, result: Evaluation) -> None:
    """Scores, the log, and the two lines that `simuleval --score-only --output folder` wants to find."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic.replace_text(folder / SCORES, json.dumps(scores, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    atomic.replace_text(folder / SIMULEVAL_CONFIG, "source_type: text\ntarget_type: text\n")
    write_instances(folder / LOG, result.instances)
