"""Several processes do what one does, stop together, and do not wait for the dead."""

import os
import signal
import time

import pytest
import torch

from gma.errors import UserError
from gma.training.world import join
from tests.support import tiny_run

# two sentences' batches an update, dealt to two processes or taken one after the other
PAIR = ["training.validate_every=10", "attention.diagonal_weight=0.1"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_run.make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module", params=["model.dropout=0.0", "model.dropout=0.1"])
def dropout(request):
    return request.param


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory, dropout):
    """One process that takes two batches an update."""
    run = tmp_path_factory.mktemp("alone")
    tiny_run.wait(tiny_run.start(corpus, run, *PAIR, dropout, "training.accumulation=2"))
    return run


def assert_same(one, other):
    """The two histories agree to 1e-5, and so do the weights at the end."""
    for kind, keys in (
        ("training", ("loss", "smoothed_loss", "auxiliary_loss", "gradient_norm", "past_the_end", "tokens")),
        ("validation", ("loss", "al", "bleu")),
    ):
        left, right = tiny_run.records(one, kind), tiny_run.records(other, kind)
        assert [record["update"] for record in left] == [record["update"] for record in right]
        for key in keys:
            ours, theirs = (torch.tensor([record[key] for record in records]) for records in (left, right))
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    left, right = tiny_run.checkpoint(one, 20).tensors, tiny_run.checkpoint(other, 20).tensors
    for name, tensor in left.items():
        if name.startswith("model."):
            torch.testing.assert_close(tensor, right[name], rtol=0.0, atol=2e-5)


def test_two_processes_give_the_losses_of_one(corpus, alone, tmp_path, dropout):
    tiny_run.wait(tiny_run.start(corpus, tmp_path, *PAIR, dropout, processes=2))
    records = tiny_run.records(tmp_path, "training")
    assert len(records) == 20
    assert all(record["auxiliary_loss"] > 0 for record in records)
    assert_same(alone, tmp_path)


def test_a_run_of_two_processes_is_resumed_by_one(corpus, alone, tmp_path, dropout):
    tiny_run.wait(tiny_run.start(corpus, tmp_path, *PAIR, dropout, "training.updates=10", processes=2))
    tiny_run.wait(tiny_run.start(corpus, tmp_path, *PAIR, dropout, "training.accumulation=2"))
    assert_same(alone, tmp_path)


@pytest.mark.parametrize("sharing", ["heads", "none", "layers", "all"])
def test_every_kind_of_model_trains_in_parallel(corpus, tmp_path, sharing):
    prior = "none" if sharing == "heads" else "gaussian"
    more = [f"attention.sharing={sharing}", f"attention.prior={prior}", "model.embeddings=target"]
    tiny_run.wait(tiny_run.start(corpus, tmp_path, *more, "training.updates=3", processes=2))
    assert tiny_run.last_update(tmp_path) == 3


def test_a_signal_to_one_process_stops_all_at_the_same_update(corpus, tmp_path):
    world = tiny_run.start(corpus, tmp_path, "training.updates=100000", processes=2)
    while tiny_run.last_update(tmp_path) < 3:
        time.sleep(0.001)
    os.kill(world[1].pid, signal.SIGTERM)
    tiny_run.wait(world, 128 + signal.SIGTERM)
    newest = max((tmp_path / "checkpoints").iterdir())
    assert int(newest.stem.removeprefix("update-")) == tiny_run.last_update(tmp_path)


def test_nobody_waits_for_a_process_that_died(corpus, tmp_path):
    world = tiny_run.start(corpus, tmp_path, "training.updates=100000", processes=2)
    while tiny_run.last_update(tmp_path) < 3:
        time.sleep(0.001)
    world[1].kill()
    world[0].join(timeout=120)
    assert world[0].exitcode not in (None, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_a_clear_error(device):
    with pytest.raises(UserError, match=f"training.device is '{device}', but torch finds no GPU"), join(device):
        pass


def test_torchrun(corpus, tmp_path):
    process = tiny_run.command(corpus, tmp_path, "training.updates=4", processes=2)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert output.count("training.updates = 4 reached") == 1
    assert tiny_run.checkpoint(tmp_path, 4).record["identity"]["micro_batches"] == 2


def test_one_process_launches_its_kernels_on_the_gpu_it_was_given(monkeypatch):
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    with join("cuda:1") as world:
        assert world.device == torch.device("cuda:1")
    assert current == [torch.device("cuda:1")]
