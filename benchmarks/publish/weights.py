"""Quality and lag of the model of the package with packed weights of each kind.

GMA_DATA=data python -m benchmarks.publish.weights
"""

import os
from pathlib import Path

from rich.console import Console

from benchmarks.publish.markdown import markdown_table
from benchmarks.publish.results import DELTAS, MODEL, TEXTS
from gma.evaluation.evaluate import Evaluation, evaluate
from gma.evaluation.text import load_text
from gma.model import directory
from gma.model.inference import WEIGHTS, Inference


def main() -> None:
    data, console = Path(os.environ.get("GMA_DATA") or "data"), Console()
    models = {weights: directory.load(MODEL, inference=Inference("native", weights)) for weights in WEIGHTS}
    rows = []
    for name, files in TEXTS.items():
        text = load_text(models[WEIGHTS[0]], *(data / file for file in files))
        for delta in DELTAS:
            found = {weights: evaluate(loaded, text, system=weights, delta=delta) for weights, loaded in models.items()}
            rows.append(row(name, delta, found))
    console.print(table(rows), highlight=False)


def row(text: str, delta: float, found: dict[str, Evaluation]) -> list[str]:
    scores = {weights: evaluation.scores for weights, evaluation in found.items()}
    first, *packed = WEIGHTS
    bleu, lag = scores[first].bleu.score, scores[first].latency.al
    cells = [text, f"{delta:g}", f"{bleu:.2f}", f"{lag:.3f}"]
    for weights in packed:
        cells += [f"{scores[weights].bleu.score - bleu:+.2f}", f"{scores[weights].latency.al - lag:+.3f}"]
    return cells


def table(rows: list[list[str]]) -> str:
    first, *packed = WEIGHTS
    names = [
        "text",
        "δ",
        f"{first}: BLEU",
        "AL, words",
        *(f"{name}: {what}" for name in packed for what in ("BLEU", "AL")),
    ]
    return f"{markdown_table(names, rows)}\n*Differences from float32. Greedy; all of it on the native engine.*\n"


if __name__ == "__main__":
    main()
