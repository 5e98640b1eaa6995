"""Turn pytest-benchmark's JSON into one table of ratios, a CSV file and a figure.

python -m benchmarks.publish.report runs/bench/results.json              print, and write beside the JSON
python -m benchmarks.publish.report runs/bench/results.json --publish    also into docs/ and the README
"""

import argparse
import csv
import json
import shutil
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from benchmarks.publish.markdown import markdown_table
from benchmarks.publish.marked_text import replace_marked

ROOT = Path(__file__).parents[2]
OTHERS = ("literal", "reference", "compiled reference", "SDPA with bias", "FlexAttention", "plain SDPA")
TITLES = {
    "literal": "paper's three steps",
    "reference": "reference",
    "compiled reference": "torch.compile(reference)",
    "SDPA with bias": "SDPA with bias",
    "FlexAttention": "FlexAttention",
    "plain SDPA": "plain SDPA, no prior",
}
COLOURS = ("#1f3b57", "#44749d", "#7fa8c9", "#c6a15b", "#8a9a5b", "#b3b3b3")


def conditions(results: dict) -> str:
    machine = results["machine_info"]
    cpu = machine["cpu"].get("brand_raw", machine["machine"])
    return (
        f"float32, H = 8, D = 64, {machine['threads']} threads, {cpu}, native: {machine['native']}, torch "
        f"{machine['torch']}. Medians of interleaved runs; centers on the diagonal, σ = p/2, δ = 1. Big outputs of "
        "native lie in memory it keeps from earlier calls, those of the others wherever malloc puts them."
    )


def speed_rows(results: dict) -> list[dict]:
    """One row per case: what native takes, and how many times as long the others take that can do it."""
    rows = []
    for case in results["benchmarks"]:
        info = case["extra_info"]
        if info["suite"] in ("forward", "forward+backward", "decoding"):
            times = info["milliseconds"]
            ratios = {name: times[name] / times["native"] for name in OTHERS if name in times}
            rows.append({"suite": info["suite"], "size": info["size"], "native ms": times["native"], **ratios})
    return rows


def limit_lines(results: dict) -> list[str]:
    """A sentence about each case that is no row of the table."""
    found = {case["extra_info"]["suite"]: case["extra_info"] for case in results["benchmarks"]}
    decoders = [decoder(info) for suite, info in found.items() if suite.startswith("decoder ")]
    return [*(SENTENCES[suite](info) for suite, info in found.items() if suite in SENTENCES), *decoders]


def arithmetic(info: dict) -> str:
    share, rate = info["share_of_gemm"], info["gflops"]
    return (
        f"Useful arithmetic, {info['size']}: forward {rate['forward']:.0f} GFLOP/s = {share['forward']:.0%} and "
        f"backward {rate['backward']:.0f} GFLOP/s = {share['backward']:.0%} of the machine's own 2048³ matrix product "
        f"({rate['GEMM']:.0f} GFLOP/s)."
    )


def scaling(info: dict) -> str:
    return f"Time per visible cell, {info['size']}: {info['time_per_cell_ratio']:.2f}×."


def bandwidth(info: dict) -> str:
    speed = info["gigabytes_per_second"]
    return (
        f"Decoding, {info['size']}: native reads the visible half of the keys and values at {speed['native']:.0f} "
        f"GB/s, the paper's three steps read all of them at {speed['literal']:.0f} GB/s, and summing up a tensor of "
        f"that size runs at {speed['sum']:.0f} GB/s."
    )


def overhead(info: dict) -> str:
    parts = info["microseconds"]
    return (
        f"One call from Python, {info['size']}, in a loop of its own (caches warm, unlike in the table): "
        f"{parts['whole call']:.0f} µs, of which the choice of the backend and the settings "
        f"{parts['preparation']:.0f} µs and the operator, which checks the tensors, {parts['operator']:.0f} µs "
        f"({parts['operator with nothing to compute']:.0f} µs with nothing to compute: torch's dispatch of ten "
        f"arguments, and two outputs). Plain SDPA, three arguments: {parts['plain SDPA']:.0f} µs."
    )


def memory(info: dict) -> str:
    size = info["megabytes"]
    return (
        f"Extra memory, {info['size']}: {size['native']:.0f} MB against {size['literal']:.0f} MB of the paper's three "
        f"steps ({info['share_of_literal']:.1%})."
    )


def training(info: dict) -> str:
    times = info["milliseconds"]
    return (
        f"A training step, {info['size']}: {times['native']:.0f} ms ({info['tokens_per_second']:,.0f} target "
        f"tokens/s), {times['native'] / times['plain SDPA']:.2f}× that of the same model with plain SDPA to the source "
        f"and {times['native'] / times['reference']:.2f}× that with backend `reference`."
    )


def training_operator(info: dict) -> str:
    times = info["milliseconds"]
    return (
        f"The operator alone in that step, forward+backward, {info['size']}: {times['native']:.1f} ms, "
        f"{times['native'] / times['plain SDPA']:.2f}× plain SDPA's."
    )


def late_steps(info: dict) -> str:
    times = info["milliseconds"]
    return (
        f"A decoding step, small preset, one stream: {times['20']:.1f} ms around target position 20, "
        f"{times['200'] / times['20']:.2f}× that around position 200."
    )


def streams(info: dict) -> str:
    speed = info["tokens_per_second"]
    return (
        f"Streaming, small preset: {speed['alone']:.0f} tokens/s one stream after another, {speed['together']:.0f} "
        f"tokens/s with 64 in a batch ({speed['together'] / speed['alone']:.1f}×)."
    )


def decoder(info: dict) -> str:
    speed, (_, size, streams, weights) = info["tokens_per_second"], info["suite"].split()
    return (
        f"Decoding, {size} size, {weights}, {streams} at a time: {speed['native']:,.0f} tokens/s, "
        f"{speed['native'] / speed['CTranslate2']:.2f}× CTranslate2, {speed['native'] / speed['PyTorch']:.1f}× PyTorch."
    )


def cache(info: dict) -> str:
    return (
        f"Translating, small preset, {info['size']}: {info['ratio']:.1f}× as fast as running the decoder over the "
        f"whole prefix at every step; all {info['sentences']:,} of them in {info['seconds']:.0f} s "
        f"({info['tokens_per_second']:,.0f} tokens/s)."
    )


def data(info: dict) -> str:
    sizes = (
        f"{pairs} pairs: {found['pairs_per_second']:,.0f} pairs/s, peak memory {found['peak_megabytes']:.0f} MB, "
        f"padding {found['padding']:.1%}"
        for pairs, found in info["prepared"].items()
    )
    return f"`gma prepare`, {info['size']}: {'; '.join(sizes)} (of batches of 4,096 tokens)."


def feature(info: dict) -> str:
    return f"{info['suite'].capitalize()}, {info['size']}: {FEATURES[info['suite']].format(info['ratio'])}."


# what one feature saves, by the name of its suite
FEATURES = {
    "grouped heads": "{:.1f}× as fast as with keys repeated for every head first",
    "window": "{:.0f}× as fast as with everything up to the diagonal",
    "packed batches": "{:.1f}× as fast as padded to the longest",
    "bfloat16 forward": "{:.2f}× as fast as float32",
    "bfloat16 forward+backward": "{:.2f}× as fast as float32",
    "narrow widths": "{:.1f}× as fast as with widths that leave nothing out",
    "narrow widths, bfloat16": "{:.1f}× as fast as with widths that leave nothing out",
}

SENTENCES = {
    "arithmetic": arithmetic,
    "scaling": scaling,
    "bandwidth": bandwidth,
    "overhead": overhead,
    "memory": memory,
    "training": training,
    "training operator": training_operator,
    "late steps": late_steps,
    "streams": streams,
    "cache": cache,
    "data": data,
    **dict.fromkeys(FEATURES, feature),
}


def cells(row: dict) -> list[str]:
    ratios = (f"{row[name]:.1f}×" if name in row else "—" for name in OTHERS)
    return [row["suite"], row["size"], f"{row['native ms']:.3g}", *ratios]


def markdown(rows: list[dict], note: str) -> str:
    head = ["", "size", "native, ms", *(TITLES[name] for name in OTHERS)]
    table = markdown_table(head, [cells(row) for row in rows], words=2)
    return f"{table}\n*Time of each as a multiple of `native`'s. {note}*\n"


def show(rows: list[dict], lines: list[str], note: str) -> None:
    table = Table("", "size", "native, ms", *(TITLES[name] for name in OTHERS), title="Time as a multiple of native's")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*cells(row))
    console = Console(width=150)
    console.print(table)
    console.print(note)
    for line in lines:
        console.print(f"• {line}", highlight=False)


def draw(rows: list[dict], note: str, path: Path) -> None:
    suites = ("forward", "forward+backward", "decoding")
    with plt.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), width_ratios=(4, 4, 2), sharey=True, layout="constrained")
        for ax, suite in zip(axes, suites):
            cases = [row for row in rows if row["suite"] == suite]
            for k, (name, colour) in enumerate(zip(OTHERS, COLOURS)):
                able = [(i, row[name]) for i, row in enumerate(cases) if name in row]
                places, ratios = [i + (k - 2.5) * 0.14 for i, _ in able], [ratio for _, ratio in able]
                bars = ax.bar(places, ratios, 0.13, color=colour, label=TITLES[name])
                ax.bar_label(bars, fmt="%.1f", fontsize=5.5, padding=1)
            ax.axhline(1, color="#d1495b", linewidth=1)
            ax.set_yscale("log")
            ax.set_xticks(range(len(cases)), [row["size"].replace(" T", "\nT").replace(", ", "\n") for row in cases])
            ax.set_title(suite, loc="left")
            ax.yaxis.set_major_formatter("{x:g}×")
        axes[0].set_ylabel("time, multiple of native's")
        handles, labels = axes[0].get_legend_handles_labels()
        handles.append(plt.Line2D([], [], color="#d1495b", linewidth=1))
        figure.legend(handles, [*labels, "native"], loc="outside lower center", ncols=6, frameon=False)
        figure.savefig(path, dpi=180)
        plt.close(figure)


def publish(text: str, lines: list[str], figure: Path, table: Path) -> None:
    """Put the table into the README, the sentences into docs/performance.md, and the files into docs/."""
    shutil.copy(figure, ROOT / "docs" / "benchmark.png")
    shutil.copy(table, ROOT / "docs" / "benchmark.csv")
    replace_marked(ROOT / "README.md", "benchmark", "make bench-publish", text)
    sentences = "".join(f"- {line}\n" for line in lines)
    replace_marked(ROOT / "docs" / "performance.md", "benchmark details", "make bench-publish", sentences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--publish", action="store_true", help="also write docs/ and the README's table")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    rows, lines, note = speed_rows(results), limit_lines(results), conditions(results)
    show(rows, lines, note)
    if not rows:  # a part of the suite that does not compare operators
        return
    figure, table = arguments.results.with_name("benchmark.png"), arguments.results.with_name("benchmark.csv")
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("suite", "size", "native ms", *OTHERS))
        writer.writeheader()
        writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    draw(rows, note, figure)
    print(f"table: {table}\nfigure: {figure}")
    if arguments.publish:
        publish(markdown(rows, note), lines, figure, table)


if __name__ == "__main__":
    main()
