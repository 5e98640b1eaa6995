"""The way of a newcomer, timed: the commands of three pages and nothing else, in a fresh clone and environment.

python -m benchmarks.publish.newcomer SOURCE TARGET [--publish]     two text files that are each other's translation
"""

import argparse
import os
import platform
import re
import resource
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from benchmarks.publish.markdown import markdown_table
from benchmarks.publish.marked_text import replace_marked

ROOT = Path(__file__).parents[2]
PAGES = {
    "docs/start.md": "a translated sentence",
    "docs/tutorials/train.md": "a model of two text files",
    "docs/tutorials/module.md": "the module in a model of one's own",
}
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# these run until they are told to end; that they answer is what is waited for
SERVERS = ("make serve", "gma serve")
ACTIVATE, PROGRAM = ". .venv/bin/activate", "its Python"
# seconds of a step that has a row of its own
SHORTEST = 5
# of the text, kept to score the model with
KEPT = 100


class Step(NamedTuple):
    goal: str
    command: str
    seconds: float
    processor: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--publish", action="store_true", help="write the table into docs/start.md")
    arguments, console = parser.parse_args(), Console()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "gma"
        steps = [timed("a clone", "git clone", ["git", "clone", "--quiet", str(ROOT), str(clone)], Path(folder))]
        pairs = place(arguments.source, arguments.target, clone)
        for page, goal in PAGES.items():
            steps += walk(clone, page, goal, console)
    text = table(steps, pairs)
    console.print(text, highlight=False)
    if arguments.publish:
        replace_marked(ROOT / "docs" / "start.md", "newcomer", "make newcomer", text)


def place(source: Path, target: Path, clone: Path) -> int:
    """The text as mine.de and mine.en, its last pairs as test.de and test.en; how many pairs there are to train on."""
    for path, name in ((source, "de"), (target, "en")):
        lines = path.read_text("utf-8").splitlines(keepends=True)
        (clone / f"mine.{name}").write_text("".join(lines[:-KEPT]), "utf-8")
        (clone / f"test.{name}").write_text("".join(lines[-KEPT:]), "utf-8")
    return len(lines) - KEPT


def walk(clone: Path, page: str, goal: str, console: Console) -> list[Step]:
    """Every command of the page, in order, and its Python as one program."""
    found: list[Step] = []
    blocks = BLOCK.findall((clone / page).read_text("utf-8"))
    commands = [line for language, text in blocks if language == "sh" for line in text.splitlines() if line.strip()]
    for command in commands:
        shown = re.sub(r"\s*#.*", "", command)
        if shown.startswith(SERVERS):
            found.append(answered(goal, shown, clone))
        elif shown != ACTIVATE:
            found.append(timed(goal, shown, ["bash", "-ec", command], clone))
        console.print(f"{found[-1].seconds if found else 0:7.1f} s  {shown}", highlight=False)
    program = "".join(text for language, text in blocks if language == "python")
    found.append(timed(goal, PROGRAM, ["python", "-c", program], clone))
    console.print(f"{found[-1].seconds:7.1f} s  the Python of {page}", highlight=False)
    return found


def timed(goal: str, shown: str, command: list[str], folder: Path) -> Step:
    """Ends everything where a command fails: the page is wrong."""
    begun, used = time.perf_counter(), processor_seconds()
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{shown}\n{done.stdout}{done.stderr}")
    return Step(goal, shown, time.perf_counter() - begun, processor_seconds() - used)


def answered(goal: str, shown: str, folder: Path) -> Step:
    """A server, until it has said where it listens."""
    begun, used = time.perf_counter(), processor_seconds()
    with subprocess.Popen(
        ["bash", "-ec", f"{shown}"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as server:
        said = ""
        for line in server.stdout:
            said += line
            if "http://" in line:
                break
        else:
            raise SystemExit(f"{shown}\n{said}")
        seconds = time.perf_counter() - begun
        os.killpg(server.pid, signal.SIGTERM)
    return Step(goal, shown, seconds, processor_seconds() - used)


def processor_seconds() -> float:
    """Of all processes that were started here and have ended."""
    times = resource.getrusage(resource.RUSAGE_CHILDREN)
    return times.ru_utime + times.ru_stime


def environment(folder: Path) -> dict[str, str]:
    """As after `. .venv/bin/activate` in a shell that knows nothing of other environments."""
    paths = [path for path in os.environ["PATH"].split(os.pathsep) if not path.endswith(".venv/bin")]
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**kept, "PATH": os.pathsep.join([str(folder / ".venv" / "bin"), *paths])}


def table(steps: list[Step], pairs: int) -> str:
    """What takes long, one by one, and the sum of each page."""
    rows = [row(step) for step in steps if step.seconds >= SHORTEST]
    for goal in PAGES.values():
        of_page = [step for step in steps if step.goal == goal]
        seconds, processor = (sum(getattr(step, name) for step in of_page) for name in ("seconds", "processor"))
        rows.append(row(Step(goal, "all of its page", seconds, processor)))
    return (
        f"{markdown_table(['to', 'command', 'seconds', 'of a processor'], rows, words=2)}\n*{os.cpu_count()} cores, "
        f"{platform.machine()}; {pairs:,} pairs of sentences; packages from a mirror nearby. One by one: what takes "
        f"{SHORTEST} seconds or more.*\n"
    )


def row(step: Step) -> list[str]:
    command = step.command if step.command in (PROGRAM, "all of its page") else f"`{step.command}`"
    return [step.goal, command, f"{step.seconds:.0f}", f"{step.processor:.0f}"]


if __name__ == "__main__":
    main()
