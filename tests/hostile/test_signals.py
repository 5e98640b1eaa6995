"""Ctrl-C, SIGTERM and the end of the terminal, into every kind of output: what was done is saved and goes on."""

import contextlib
import os
import pty
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gma.cli import main
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
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["gma", *arguments]
    main()


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


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("output", ["terminal", "dead pipe"])
def test_preparing_again_gives_the_same_files(corpus, tmp_path, output, number):
    folder = tmp_path / "corpus"
    arguments = ["prepare", *tiny_run.settings(folder)]
    process = _start(output, *arguments)
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


@pytest.mark.parametrize("number", SIGNALS)
def test_averaging_again_gives_the_same_model(whole, tmp_path, number):
    expected, killed = tmp_path / "expected", tmp_path / "killed"
    tiny_run.wait([_start("dead pipe", "average", str(whole), "--last", "2", "--output", str(expected))])
    arguments = ["average", str(whole), "--last", "2", "--output", str(killed)]
    process = _start("pipe", *arguments)
    _wait_until(killed.exists, process)
    os.kill(process.pid, number)
    process.join(timeout=240)
    tiny_run.wait([_start("closed terminal", *arguments)])
    for path in expected.iterdir():
        assert Path(killed / path.name).read_bytes() == path.read_bytes()


def test_a_hangup_that_nohup_ignores_stays_ignored(corpus, whole, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        from gma.training.interruption import Interruption

        with Interruption(speak=False) as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
        assert interruption.signal == 0
    finally:
        signal.signal(signal.SIGHUP, before)
