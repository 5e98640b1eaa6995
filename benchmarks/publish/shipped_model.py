"""What the German–English model of the package costs: size, installation, memory, and words per second.

python -m benchmarks.publish.shipped_model [--source german.txt]     a table, with --publish into docs/performance.md
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import torch

from benchmarks.publish.markdown import markdown_table
from benchmarks.publish.marked_text import replace_marked
from gma.cli.demo import SENTENCES
from gma.decoding.streaming import StreamingTranslator
from gma.decoding.translate import translate
from gma.model import directory

ROOT = Path(__file__).parents[2]
ROUNDS = 5
MANY = 32
DELTA = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, help="German text, a sentence a line; else the demo's sentences")
    parser.add_argument("--publish", action="store_true", help="write the table into docs/performance.md")
    arguments = parser.parse_args()
    if arguments.source:
        lines = [line for line in arguments.source.read_text("utf-8").splitlines() if line.split()]
    else:
        lines = list(SENTENCES)
    # whole batches, so that no slot is idle
    sentences = (lines * MANY)[: max(MANY, min(len(lines), 6 * MANY) // MANY * MANY)]
    torch.set_num_threads(2)
    rows = [*package_rows(), *stream_rows(sentences), *speed_rows(sentences)]
    text = markdown_table(["", ""], rows)
    print(text)
    if arguments.publish:
        replace_marked(ROOT / "docs" / "performance.md", "shipped model", "make bench-model", text)


def package_rows() -> list[tuple[str, str]]:
    """The wheel as pip builds it, its compiler's time included."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
        subprocess.run([*pip, "--wheel-dir", folder, str(ROOT)], check=True)
        seconds = time.perf_counter() - began
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            unpacked = sum(entry.file_size for entry in file.infolist())
        size = wheel.stat().st_size
    model = sum(path.stat().st_size for path in directory.find(directory.DEFAULT).iterdir())
    return [
        ("the wheel; unpacked", f"{size / 1e6:.1f} MB; {unpacked / 1e6:.1f} MB"),
        ("of that the model with its tokenizer", f"{model / 1e6:.1f} MB"),
        ("building it, the native kernels included", f"{seconds:.0f} s"),
    ]


def stream_rows(sentences: list[str]) -> list[tuple[str, str]]:
    """`gma stream` as a process: from its start to the end of one sentence, and its largest memory over all."""
    command = [sys.executable, "-m", "gma", "stream", "--delta", str(DELTA)]
    began = time.perf_counter()
    subprocess.run(command, input=f"{sentences[0]}\n".encode(), check=True, stdout=subprocess.DEVNULL)
    first = time.perf_counter() - began
    peak = _peak_of(command, sentences)
    return [
        ("`gma stream`, from its start to its first translated sentence", f"{first:.1f} s"),
        (f"`gma stream`, largest memory over {len(sentences)} sentences", f"{peak / 1e6:.0f} MB"),
    ]


def _peak_of(command: list[str], sentences: list[str]) -> int:
    """Bytes; asked for in a process of its own, whose only child it is."""
    program = (
        "import resource, subprocess, sys\n"
        f"subprocess.run({command!r}, stdin=sys.stdin, stdout=subprocess.DEVNULL, check=True)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], input="\n".join(sentences).encode(), check=True, stdout=subprocess.PIPE
    )
    # Linux counts kilobytes, macOS bytes
    return int(found.stdout) * (1 if sys.platform == "darwin" else 1024)


def speed_rows(sentences: list[str]) -> list[tuple[str, str]]:
    """Medians over rounds, the two ways taking turns; every stream's text is compared with batched translation."""
    loaded = directory.load(directory.find(directory.DEFAULT))
    expected = [translation.text for translation in translate(loaded, sentences, delta=DELTA)]
    rates: dict[int, list[float]] = {1: [], MANY: []}
    for _ in range(ROUNDS):
        for streams, found in rates.items():
            began = time.perf_counter()
            written = _interpret(StreamingTranslator(loaded), sentences, streams)
            seconds = time.perf_counter() - began
            if written != expected:
                raise SystemExit(
                    f"{streams} streams do not write what batched translation writes; no speed is reported"
                )
            found.append(sum(len(text.split()) for text in written) / seconds)
    threads = torch.get_num_threads()
    return [
        (f"words written per second, {name}, {threads} threads", f"{statistics.median(rates[streams]):,.0f}")
        for streams, name in ((1, "one stream"), (MANY, f"{MANY} streams at once"))
    ]


def _interpret(translator: StreamingTranslator, sentences: list[str], streams: int) -> list[str]:
    """Word by word, `streams` sentences at a time, all speakers in step."""
    texts = []
    for start in range(0, len(sentences), streams):
        spoken = {translator.open(DELTA): sentence.split() for sentence in sentences[start : start + streams]}
        written = {stream: [] for stream in spoken}
        for place in range(max(len(words) for words in spoken.values())):
            heard = {stream: f"{words[place]} " for stream, words in spoken.items() if place < len(words)}
            for stream, emissions in translator.push_many(heard).items():
                written[stream] += emissions
        for stream, emissions in translator.finish_many(list(spoken)).items():
            written[stream] += emissions
            stream.close()
        texts += [" ".join(emission.word for emission in emissions) for emissions in written.values()]
    return texts


if __name__ == "__main__":
    main()
