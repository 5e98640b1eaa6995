"""Ctrl-C, SIGTERM and the end of the terminal, into every kind of output: what was done is saved and goes on."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gma.cli import main
from tests.gma.paper import test_reproduce
from tests.support import tiny_run

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
UPDATES = 20


def _terminal() -> int:
    """A terminal; its other end is read so that it never fills."""
    leader, follower = pty.openpty()
    if os.fork() == 0:
        os.close(follower)
        with contextlib.suppress(OSError):
            while os.read(leader, 1 << 16):
                pass
        os._exit(0)
    os.close(leader)
    return follower


def _pipe() -> int:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        while os.read(reader, 1 << 16):
            pass
        os._exit(0)
    os.close(reader)
    return writer


def _dead_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _closed_terminal() -> int:
    leader, follower = pty.openpty()
    os.close(leader)
    return follower


def _full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


OUTPUTS: dict[str, Callable[[], int]] = {
    "terminal": _terminal,
    "pipe": _pipe,
    "dead pipe": _dead_pipe,
    "closed terminal": _closed_terminal,
    "full disk": _full_disk,
}


def _command(output: str, arguments: list[str]) -> None:
    """`gma arguments` with both outputs there, in a process that has been forked for it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    descriptor = OUTPUTS[output]() if output in OUTPUTS else os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  it lives as long as the process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  line by line, as Python has it
    sys.argv = ["gma", *arguments]
    try:
        main()
    finally:
        # what nobody has read of it is no error at the end of a program; multiprocessing would make it one
        with contextlib.suppress(OSError):
            sys.stderr.close()


def _start(output: str, *arguments: str):
    process = tiny_run._forks.Process(target=_command, args=(output, list(arguments)), daemon=True)
    process.start()
    return process


def _wait_until(is_there: Callable[[], bool], process) -> None:
    while process.is_alive() and not is_there():
        time.sleep(0.001)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_run.make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    run = tmp_path_factory.mktemp("whole")
    tiny_run.train(corpus, run)
    return run


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("output", [*OUTPUTS, "file"])
def test_training_saves_and_goes_on_to_the_same_bits(corpus, whole, tmp_path, output, number):
    run = tmp_path / "run"
    place = str(tmp_path / "log") if output == "file" else output
    # every update is logged, and no checkpoint is due before the signal's own
    arguments = ["train", "--folder", str(run), *tiny_run.settings(corpus, "training.save_every=1000")]
    process = _start(place, *arguments)
    _wait_until(lambda: tiny_run.last_update(run) >= 7, process)
    os.kill(process.pid, number)
    tiny_run.wait([process], 128 + number)
    (saved,) = (run / "checkpoints").iterdir()
    assert 7 <= int(saved.stem.removeprefix("update-")) < UPDATES
    tiny_run.train(corpus, run)
    tiny_run.assert_same_end(whole, run, UPDATES)


PLACES = [(output, number) for output in (*OUTPUTS, "file") for number in SIGNALS]
# the whole matrix takes minutes
QUICK = [("terminal", signal.SIGINT), ("dead pipe", signal.SIGTERM), ("closed terminal", signal.SIGHUP)]
MATRIX = [pytest.param(*place, marks=() if place in QUICK else pytest.mark.slow) for place in PLACES]
SLOW_MATRIX = [pytest.param(*place, marks=() if place == QUICK[1] else pytest.mark.slow) for place in PLACES]


@pytest.mark.parametrize(("output", "number"), MATRIX)
def test_preparing_again_gives_the_same_files(corpus, tmp_path, output, number):
    folder = tmp_path / "corpus"
    arguments = ["prepare", *tiny_run.settings(folder)]
    process = _start(str(tmp_path / "log") if output == "file" else output, *arguments)
    _wait_until(lambda: any(folder.glob(".partial-*/*")), process)
    os.kill(process.pid, number)
    process.join(timeout=240)
    assert process.exitcode != 0
    again = _start("dead pipe", *arguments)
    tiny_run.wait([again])
    assert not list(folder.glob(".partial-*"))
    for path in corpus.iterdir():
        if path.name not in ("corpus.json", "checked.json"):
            assert (folder / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("output", "number"), MATRIX)
def test_averaging_again_gives_the_same_model(whole, tmp_path, output, number):
    expected, killed = tmp_path / "expected", tmp_path / "killed"
    tiny_run.wait([_start("dead pipe", "average", str(whole), "--last", "2", "--output", str(expected))])
    arguments = ["average", str(whole), "--last", "2", "--output", str(killed)]
    process = _start(str(tmp_path / "log") if output == "file" else output, *arguments)
    _wait_until(killed.exists, process)
    os.kill(process.pid, number)
    process.join(timeout=240)
    tiny_run.wait([_start("closed terminal", *arguments)])
    for path in expected.iterdir():
        assert Path(killed / path.name).read_bytes() == path.read_bytes()


def _reproduction(output: str, arguments: list[str]) -> None:
    """A small one, without figures, which take longer than what they show."""
    from gma.evaluation import figures
    from gma.paper import reproduce, systems

    systems.BUDGETS["generated"] = test_reproduce.SMALL
    figures.save = lambda figure, path: []
    reproduce.SEGMENTED = 20
    _command(output, arguments)


def _start_reproduction(output: str, folder: Path, overrides: tuple[str, ...]):
    arguments = ["reproduce", *overrides, "training.log_every=1", "--systems", "gma", "--folder", str(folder)]
    process = tiny_run._forks.Process(target=_reproduction, args=(output, arguments), daemon=True)
    process.start()
    return process


def _tables(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in folder.glob("reproduction-*.csv")}
    assert len(found) > 1
    return {name: data for name, data in found.items() if name != test_reproduce.TIMED}


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """What a small reproduction needs, and its tables where nothing disturbs it."""
    overrides = test_reproduce.make_corpus(tmp_path_factory.mktemp("reproduction"))
    folder = tmp_path_factory.mktemp("undisturbed")
    tiny_run.wait([_start_reproduction("dead pipe", folder, overrides)])
    return overrides, _tables(folder)


@pytest.mark.parametrize(("output", "number"), SLOW_MATRIX)
def test_reproducing_goes_on_to_the_same_tables(reproduced, tmp_path, output, number):
    overrides, expected = reproduced
    folder = tmp_path / "reproduction"
    process = _start_reproduction(str(tmp_path / "log") if output == "file" else output, folder, overrides)
    _wait_until(lambda: any(folder.rglob("history.jsonl")), process)
    os.kill(process.pid, number)
    process.join(timeout=240)
    assert process.exitcode in (128 + number, -number)
    tiny_run.wait([_start_reproduction("dead pipe", folder, overrides)])
    assert _tables(folder) == expected


def test_what_windows_has_not_is_not_needed():
    """Neither by the commands, as long as no key is asked for, nor by training and preparing."""
    missing = "for name in ('fcntl', 'termios', 'tty', 'pty', 'resource'): sys.modules[name] = None"
    code = f"import signal, sys\ndel signal.SIGHUP\nimport filelock, rich, sacrebleu, torch, typer\n{missing}\n"
    code += "import gma.cli.app, gma.training.run, gma.corpus.prepare, gma.decoding.translate, gma.paper.reproduce\n"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_a_hangup_that_nohup_ignores_stays_ignored(corpus, whole, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        from gma.training.interruption import Interruption

        with Interruption(speak=False) as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
        assert interruption.signal == 0
    finally:
        signal.signal(signal.SIGHUP, before)
