"""How late a server's words are with many speakers, how many it can have, and whether its memory grows. Linux only.

python -m benchmarks.publish.serving [--publish]
python -m benchmarks.publish.serving --soak 3600
"""

import argparse
import asyncio
import os
import platform
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.publish.markdown import markdown_table
from benchmarks.publish.marked_text import replace_marked
from gma.cli.demo import SENTENCES
from gma.client.talk import address
from gma.serve.load import Load, speak

PAGE = Path("docs/performance.md")
SPEAKERS = (50, 100, 200)
RATE = 2.5  # words a second of each
# milliseconds that a word may be late, of 95 in 100
BOUND = 500
FURTHEST, STEP = 6400, 50
# share of memory by which a server may grow while it is talked to
GROWTH = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Server:
    """A `gma serve` of its own."""

    url: str
    process: int

    @property
    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def megabytes(self, what: str = "VmRSS") -> float:
        status = Path(f"/proc/{self.process}/status").read_text()
        return int(re.search(rf"{what}:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]  # Linux has it


@contextmanager
def server() -> Iterator[Server]:
    limits = [f"--limit={name}={FURTHEST}" for name in ("sessions", "sessions_per_address")]
    command = [sys.executable, "-m", "gma", "serve", "--port", "0", *limits]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}) as process:
        try:
            assert process.stdout is not None
            url = re.search(r"http://\S+", process.stdout.readline())
            if url is None:
                raise SystemExit("the server did not start; its message stands above")
            yield Server(url[0], process.pid)
        finally:
            process.terminate()


@dataclass
class Measured:
    speakers: int
    load: Load
    core: float  # share of one that the server used
    megabytes: float

    def row(self) -> list[str]:
        load = self.load
        return [
            f"{self.speakers:,}",
            f"{load.spoken:,}",
            f"{len(load.delays):,}",
            f"{load.lost}",
            *(f"{load.percentile(share):,.0f}" for share in (0.5, 0.95, 0.99)),
            f"{self.core:.0%}",
            f"{self.megabytes:.0f}",
        ]


def measured(running: Server, speakers: int, seconds: float) -> Measured:
    # the peak is this measurement's own
    Path(f"/proc/{running.process}/clear_refs").write_text("5")
    before, begun = running.processor_seconds, time.monotonic()
    load = asyncio.run(speak(address(running.url), SENTENCES, speakers=speakers, rate=RATE, seconds=seconds))
    share = (running.processor_seconds - before) / (time.monotonic() - begun)
    return Measured(speakers, load, share, running.megabytes("VmHWM"))


def holds(one: Measured) -> bool:
    return not one.load.lost and one.load.percentile(0.95) <= BOUND


def most(running: Server, known: int, seconds: float, console: Console) -> Measured:
    """The largest number of speakers that the bound holds for."""
    best, refused = measured(running, known, seconds), FURTHEST
    while refused - best.speakers > STEP:
        number = min(2 * best.speakers, (best.speakers + refused) // 2) // STEP * STEP
        one = measured(running, number, seconds)
        console.print(f"{number} speakers: p95 {one.load.percentile(0.95):,.0f} ms, {one.load.lost} lost")
        if holds(one):
            best = one
        else:
            refused = number
    return best


def soak(running: Server, seconds: float, speakers: int, console: Console) -> bool:
    """Whether memory stays what it was after the first tenth."""
    found: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(seconds / 60):
            found.append(running.megabytes())
            console.print(f"{len(found)} of 60: {found[-1]:.0f} MB")

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    one = measured(running, speakers, seconds)
    done.set()
    watching.join()
    settled, last = found[len(found) // 10], max(found[-len(found) // 10 :])
    console.print(
        f"{speakers} speakers for {seconds:,.0f} s: {one.load.spoken:,} words spoken, {one.load.lost} speakers lost, "
        f"p95 {one.load.percentile(0.95):.0f} ms; memory {settled:.0f} MB, at the end {last:.0f} MB"
    )
    return not one.load.lost and last <= settled * (1 + GROWTH)


def table(rows: list[Measured], best: Measured) -> str:
    names = ["speakers", "words spoken", "words written", "speakers lost", "p50, ms", "p95, ms", "p99, ms"]
    names += ["of one core", "peak memory, MB"]
    text = markdown_table(names, [one.row() for one in [*rows, best]], words=0)
    return (
        f"{text}\n*{RATE} words a second from each speaker, δ of the model. A delay runs from sending the last word "
        "that a target word waits for until that target word has come: what the policy waits is not in it. Server and "
        f"speakers share one machine ({os.cpu_count()} cores, {platform.machine()}); the server computes with one "
        "thread. "
        f"Last line: the most speakers, in steps of {STEP}, for whom p95 stays within {BOUND} ms.*\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="only this: does memory grow?")
    parser.add_argument("--speakers", type=int, default=50, help="of the soak")
    parser.add_argument("--publish", action="store_true", help=f"write the table into {PAGE}")
    options, console = parser.parse_args(), Console()
    # a file descriptor for every speaker, here and in the server
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with server() as running:
        if options.soak:
            raise SystemExit(0 if soak(running, options.soak, options.speakers, console) else "memory grew")
        rows = [measured(running, speakers, options.seconds) for speakers in SPEAKERS]
        best = most(running, SPEAKERS[-1], options.seconds / 3, console)
    text = table(rows, best)
    console.print(text, highlight=False)
    if lost := [one.speakers for one in rows if one.load.lost]:
        raise SystemExit(f"no table: speakers were lost with {lost} of them")
    if options.publish:
        replace_marked(PAGE, "serving", "make bench-serve", text)


if __name__ == "__main__":
    main()
