"""Training runs small enough to be started many times: one corpus, a model of some ten thousand weights."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import traceback
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from rich.console import Console

from gma import config
from gma.corpus import prepare
from gma.storage import tensor_file
from gma.training import history
from gma.training import run as runs
from gma.training.trainer import Outcome, Trainer
from gma.training.world import World

SETTINGS = [
    "model.preset=custom",
    "model.width=16",
    "model.feed_forward=32",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=2",
    "attention.delta=[0.5, 3.0]",
    "data.generated=400",
    "training.tokens=256",
    "training.updates=20",
    "training.minutes=0",
    "training.warmup_updates=10",
    "training.validate_every=10",
    "training.validate_sentences=5",
    "training.save_every=5",
    "training.log_every=1",
    "training.device=cpu",
]
# what differs between two runs that do the same
TIMES = {"seconds", "tokens_per_second"}
# children fork from a process that has imported everything: a start takes milliseconds instead of seconds
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.support.tiny_run", "torch.utils.tensorboard"])


def settings(corpus: Path, *more: str) -> list[str]:
    """Overrides of the recipe `generated`; what another policy does not know is left out."""
    other = any(line.startswith("attention.policy=") for line in more)
    common = [line for line in SETTINGS if not (other and line.startswith("attention.delta"))]
    return [*common, f"data.folder={corpus}", *more]


def load(corpus: Path, *more: str) -> config.Config:
    return config.load(None, settings(corpus, *more)).config


def make_corpus(folder: Path, *more: str) -> Path:
    prepare.prepare(load(folder, *more).data, folder, Console(quiet=True))
    return folder


def trainer(corpus: Path, run: Path, *more: str, console: Console | None = None) -> Trainer:
    """In this process, with nothing of an earlier run."""
    run.mkdir(parents=True, exist_ok=True)
    chosen, world, console = load(corpus, *more), World(), console or Console(quiet=True)
    prepared = runs.open_corpus(chosen, world, console)
    return Trainer(chosen, prepared, run, world, console, runs.identity(chosen, prepared, world))


def train(corpus: Path, run: Path, *more: str) -> Outcome:
    """In this process, resuming."""
    return runs.train(load(corpus, *more), run, Console(quiet=True))


def start(corpus: Path, run: Path, *more: str, processes: int = 1) -> list[BaseProcess]:
    """In processes of their own, which can be killed; what they print is in `log(run)`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    run.mkdir(parents=True, exist_ok=True)
    # daemons: a test that fails half-way leaves none behind
    world = [
        _forks.Process(target=_child, args=(corpus, run, more, rank, processes, port), daemon=True)
        for rank in range(processes)
    ]
    for process in world:
        process.start()
    return world


def _child(corpus: Path, run: Path, more: tuple[str, ...], rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    with (run / f"log-{rank}.txt").open("a", buffering=1) as file:
        try:
            outcome = runs.train(load(corpus, *more), run, Console(file=file))
        except BaseException:
            traceback.print_exc(file=file)
            raise
    sys.exit(128 + outcome.signal if outcome.signal else 0)


def wait(world: list[BaseProcess], code: int = 0) -> None:
    """Until all have ended, all with this exit code."""
    for process in world:
        process.join(timeout=240)
    assert [process.exitcode for process in world] == [code] * len(world)


def log(run: Path) -> str:
    return "".join(path.read_text() for path in sorted(run.glob("log-*.txt")))


def command(corpus: Path, run: Path, *more: str, processes: int = 1) -> subprocess.Popen:
    """`gma train` as a user types it."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    arguments = [*launcher, "-m", "gma", "train", "--folder", str(run), *settings(corpus, *more)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def records(run: Path, kind: str) -> list[dict]:
    """Of the run's history, without what depends on the time of day."""
    found = [record for record in history.read(run / "history.jsonl") if record["kind"] == kind]
    return [{key: value for key, value in record.items() if key not in TIMES} for record in found]


def last_update(run: Path) -> int:
    """How far a running training has logged."""
    return max((record["update"] for record in history.read(run / "history.jsonl")), default=0)


def checkpoint(run: Path, update: int) -> tensor_file.Contents:
    return tensor_file.read(run / "checkpoints" / f"update-{update:08}.safetensors")


def assert_same_tensors(one: tensor_file.Contents, other: tensor_file.Contents) -> None:
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name


def assert_same_end(one: Path, other: Path, update: int) -> None:
    """Both runs have the same bits at `update`: weights, optimizer, best model and history."""
    left, right = checkpoint(one, update), checkpoint(other, update)
    assert_same_tensors(left, right)
    left_state, right_state = left.record["state"], right.record["state"]
    for key in left_state.keys() - {"seconds", "window"}:
        assert left_state[key] == right_state[key], key
    assert_same_tensors(*(tensor_file.read(run / "model.safetensors") for run in (one, other)))
    for kind in ("training", "validation"):
        assert records(one, kind) == records(other, kind)
    best = [json.loads((run / "training.json").read_text())["validation"] for run in (one, other)]
    assert best[0] == best[1]
