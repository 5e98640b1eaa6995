"""Quality and lag of the model of the package with packed weights of each kind, into docs/results.md.

python -m benchmarks.publish.weights [--publish]

The folder of corpora is `data`, or what GMA_DATA names. What was measured before is not again: runs/weights has it.
"""

import argparse
import json
import os
from pathlib import Path

from rich.console import Console

from benchmarks.publish.markdown import markdown_table
from benchmarks.publish.marked_text import replace_marked
from benchmarks.publish.results import DELTAS, DOCS, MODEL, ROOT, TEXTS
from gma.evaluation.evaluate import evaluate
from gma.evaluation.text import EvaluationText, load_text
from gma.model import directory
from gma.model.directory import Loaded
from gma.model.inference import WEIGHTS, Inference
from gma.storage import tensor_file
from gma.storage.atomic import replace_text
from gma_kernels import engine

MEASURED = ROOT / "runs" / "weights"
# what packed weights may change: of BLEU by kind, and words of average lag
LARGEST_BLEU = {"bfloat16": 0.1, "int8": 0.3}
LARGEST_LAG = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--publish", action="store_true", help="write the table into docs/results.md")
    arguments, console = parser.parse_args(), Console()
    data = Path(os.environ.get("GMA_DATA") or "data")
    models = {weights: directory.load(MODEL, inference=Inference("native", weights)) for weights in WEIGHTS}
    rows, differences = [], []
    for name, files in TEXTS.items():
        text = load_text(models[WEIGHTS[0]], *(data / file for file in files))
        for delta in DELTAS:
            found = {kind: measured(loaded, text, kind, delta, files[0]) for kind, loaded in models.items()}
            rows.append(row(name, delta, found))
            differences.append({kind: difference(found, kind) for kind in WEIGHTS[1:]})
            console.print(" · ".join(rows[-1]), highlight=False)
    text = table(rows, differences)
    console.print(text, highlight=False)
    if arguments.publish:
        replace_marked(DOCS / "results.md", "weights", "python -m benchmarks.publish.weights --publish", text)


def measured(loaded: Loaded, text: EvaluationText, weights: str, delta: float, name: str) -> tuple[float, float]:
    """BLEU and average lag, in words."""
    level = engine.decoding_level() if weights == "int8" else engine.simd_level()
    model = tensor_file.digest(MODEL / directory.MODEL)[:12]
    file = MEASURED / model / f"{Path(name).parent.name}-{delta:g}-{weights}-{level}.json"
    if not file.exists():
        scores = evaluate(loaded, text, system=weights, delta=delta).scores
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps([scores.bleu.score, scores.latency.al]))
    bleu, lag = json.loads(file.read_text())
    return bleu, lag


def difference(found: dict[str, tuple[float, float]], weights: str) -> tuple[float, float]:
    (bleu, lag), (other_bleu, other_lag) = found[WEIGHTS[0]], found[weights]
    return other_bleu - bleu, other_lag - lag


def row(text: str, delta: float, found: dict[str, tuple[float, float]]) -> list[str]:
    bleu, lag = found[WEIGHTS[0]]
    cells = [text, f"{delta:g}", f"{bleu:.2f}", f"{lag:.3f}"]
    for weights in WEIGHTS[1:]:
        of_bleu, of_lag = difference(found, weights)
        cells += [f"{of_bleu:+.2f}", f"{of_lag:+.3f}"]
    return cells


def table(rows: list[list[str]], differences: list[dict[str, tuple[float, float]]]) -> str:
    first, *packed = WEIGHTS
    names = [
        "text",
        "δ",
        f"{first}: BLEU",
        "AL, words",
        *(f"{name}: {what}" for name in packed for what in ("BLEU", "AL")),
    ]
    mean, notes = ["mean", "", "", ""], []
    for weights in packed:
        of_bleu, of_lag = zip(*(one[weights] for one in differences))
        mean += [f"{sum(of_bleu) / len(of_bleu):+.2f}", f"{sum(of_lag) / len(of_lag):+.3f}"]
        bound = LARGEST_BLEU[weights]
        within = [abs(bleu) <= bound and abs(lag) <= LARGEST_LAG for bleu, lag in zip(of_bleu, of_lag)]
        notes.append(f"{weights}: {sum(within)} of {len(within)} lines within {bound:g} BLEU and {LARGEST_LAG:g} words")
    return (
        f"{markdown_table(names, [*rows, mean])}\n*Differences from float32. Greedy, all of it on the native engine. "
        f"{'; '.join(notes)}.*\n"
    )


if __name__ == "__main__":
    main()
