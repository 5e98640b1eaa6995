"""Interrupted training: killed, stopped, damaged; resumed to the same bits as the run that was left alone."""

import os
import random
import shutil
import signal
import time

import pytest
import torch

from gma import config
from gma.errors import UserError
from gma.storage import tensor_file
from gma.training.checkpoint import CheckpointError
from gma.training.history import History, read
from gma.training.run import FREE
from gma.training.trainer import State
from tests.support import tiny_run

UPDATES = 36
# large enough that writing a checkpoint takes a while
WIDE = ["model.width=128", "model.feed_forward=256", f"training.updates={UPDATES}", "training.save_every=2"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_run.make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """A run of 20 updates that nobody disturbed."""
    run = tmp_path_factory.mktemp("whole")
    tiny_run.train(corpus, run)
    return run


def test_killed_at_random_moments_and_resumed_gives_the_same_bits(corpus, tmp_path):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    tiny_run.wait(tiny_run.start(corpus, undisturbed, *WIDE))

    generator = random.Random(20221)
    moments = sorted(generator.sample(range(1, UPDATES - 8), 12))
    kills = half_written = 0
    for number, moment in enumerate(moments):
        (process,) = tiny_run.start(corpus, killed, *WIDE)
        while process.is_alive() and tiny_run.last_update(killed) < moment:
            time.sleep(0.001)
        if number % 2:
            time.sleep(generator.uniform(0.0, 0.05))
        else:
            while process.is_alive() and not _temporaries(killed):
                pass
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        half_written += bool(_temporaries(killed))
    assert kills >= 10
    assert half_written >= 2, "no checkpoint was caught half written: make it larger"

    tiny_run.wait(tiny_run.start(corpus, killed, *WIDE))
    assert tiny_run.log(killed).count("resuming after update") >= 8
    assert not _temporaries(killed)
    tiny_run.assert_same_end(undisturbed, killed, UPDATES)


def _temporaries(run):
    try:
        return [name for name in os.listdir(run / "checkpoints") if name.endswith(".tmp")]
    except FileNotFoundError:
        return []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_same_command_goes_on(corpus, whole, tmp_path, number):
    # no checkpoint is due before the signal's own
    (process,) = tiny_run.start(corpus, tmp_path, "training.save_every=1000")
    while tiny_run.last_update(tmp_path) < 7:
        time.sleep(0.001)
    os.kill(process.pid, number)
    tiny_run.wait([process], 128 + number)
    text = tiny_run.log(tmp_path)
    assert f"stopped by {signal.Signals(number).name}" in text
    assert "the same command goes on" in text
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert 7 <= int(saved.stem.removeprefix("update-")) < 20

    tiny_run.train(corpus, tmp_path)
    tiny_run.assert_same_end(whole, tmp_path, 20)


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(corpus, whole, tmp_path):
    tiny_run.train(corpus, tmp_path, "training.updates=10")
    newest = tmp_path / "checkpoints" / "update-00000010.safetensors"
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newest.write_bytes(damaged)

    tiny_run.wait(tiny_run.start(corpus, tmp_path))
    text = tiny_run.log(tmp_path)
    assert "warning" in text
    assert "update-00000010.safetensors" in text
    assert "resuming after update 5" in text
    tiny_run.assert_same_end(whole, tmp_path, 20)


def test_no_intact_checkpoint_is_an_error(corpus, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "update-00000010.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        tiny_run.train(corpus, tmp_path)
    # the second time, too: it must not begin anew
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        tiny_run.train(corpus, tmp_path)


def test_files_of_others_in_the_folder_stay(corpus, tmp_path):
    (tmp_path / "notes.tmp").write_text("mine")
    tiny_run.train(corpus, tmp_path, "training.updates=1")
    assert (tmp_path / "notes.tmp").read_text() == "mine"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_float16_needs_a_gpu_also_when_the_device_is_found_out(corpus, tmp_path):
    with pytest.raises(config.ConfigError, match=r"float16.*needs a GPU.*use 'bfloat16' or 'float32'"):
        tiny_run.train(corpus, tmp_path, "training.device=auto", "training.precision=float16")


def test_a_finished_run_is_left_as_it_is(corpus, whole):
    before = (whole / "history.jsonl").read_bytes()
    outcome = tiny_run.train(corpus, whole)
    assert outcome.update == 20
    assert "training.updates = 20 reached" in outcome.reason
    assert (whole / "history.jsonl").read_bytes() == before


def test_the_last_checkpoint_knows_of_the_last_validation(corpus, tmp_path):
    """Also where it was saved before: otherwise every start of a finished run validates it again."""
    once = ["training.validate_every=0", "training.updates=10"]
    tiny_run.train(corpus, tmp_path, *once)
    state = tiny_run.checkpoint(tmp_path, 10).record["state"]
    assert (state["validated"], state["best"]["update"]) == (10, 10)
    before = (tmp_path / "history.jsonl").read_bytes()
    tiny_run.train(corpus, tmp_path, *once)
    assert (tmp_path / "history.jsonl").read_bytes() == before


def test_a_checkpoint_of_a_version_with_fewer_settings_goes_on(corpus, whole, tmp_path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "checkpoints" / "update-00000020.safetensors"
    tensors, record = tensor_file.read(path)
    assert record["identity"]["settings"].pop("attention.diagonal_weight") == 0.0
    record["state"]["window"].pop()
    tensor_file.write(path, tensors, record)
    with pytest.raises(UserError, match=r"attention\.diagonal_weight was 0\.0 and is 0\.1"):
        tiny_run.train(corpus, tmp_path, "training.updates=25", "attention.diagonal_weight=0.1")
    assert tiny_run.train(corpus, tmp_path, "training.updates=25").update == 25


def test_a_run_without_its_checkpoints_is_not_begun_anew(corpus, whole, tmp_path):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoints")
    model = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="no checkpoint to go on from"):
        tiny_run.train(corpus, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == model
    assert len(read(tmp_path / "history.jsonl")) == len(read(whole / "history.jsonl"))


def test_more_updates_continue_as_if_asked_for_at_once(corpus, whole, tmp_path):
    tiny_run.train(corpus, tmp_path, "training.updates=10")
    tiny_run.train(corpus, tmp_path, "training.updates=20")
    tiny_run.assert_same_end(whole, tmp_path, 20)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["training.seed=2"], ["training.seed was 1 and is 2"]),
        (["model.dropout=0.2", "attention.delta=1.0"], ["model.dropout was 0.1", r"attention.delta was \[0.5, 3.0\]"]),
        (["training.accumulation=2"], [r"processes × training.accumulation was 1 and is 2"]),
        (["training.learning_rate=1e-3"], ["training.learning_rate was 0.002 and is 0.001"]),
    ],
)
def test_another_config_is_refused_by_name(corpus, whole, changes, named):
    for message in named:
        with pytest.raises(UserError, match=message):
            tiny_run.train(corpus, whole, *changes)


def test_what_is_named_as_free_to_change_is(corpus, whole):
    with pytest.raises(UserError) as refusal:
        tiny_run.train(corpus, whole, "training.accumulation=2")
    assert "training.accumulation" not in str(refusal.value).partition("Free to change are ")[2]


def test_a_rate_that_ends_with_the_updates_fixes_their_number(corpus, tmp_path):
    tiny_run.train(corpus, tmp_path, "training.schedule=linear", "training.updates=15")
    with pytest.raises(UserError, match=r"training\.updates was 15 and is 16") as refusal:
        tiny_run.train(corpus, tmp_path, "training.schedule=linear", "training.updates=16")
    assert "training.updates" not in str(refusal.value).partition("Free to change are ")[2]


def test_another_corpus_is_refused(corpus, whole, tmp_path):
    other = tiny_run.make_corpus(tmp_path / "other", "data.generated=401")
    with pytest.raises(UserError, match=r"the prepared corpus in .* is another one"):
        tiny_run.train(other, whole, "data.generated=401")
    with pytest.raises(UserError, match="generated is 400, and 401 there"):
        tiny_run.train(other, whole)


def test_free_settings_exist():
    values = config.load(None).config.values()
    assert {f"{section}.{key}" for section, table in values.items() for key in table} >= FREE


def test_a_foreign_model_is_not_overwritten(corpus, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(UserError, match="was not trained here"):
        tiny_run.train(corpus, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == b"precious"


def test_two_runs_do_not_share_a_folder(corpus, tmp_path):
    (process,) = tiny_run.start(corpus, tmp_path, "training.updates=100000")
    while tiny_run.last_update(tmp_path) < 1:
        time.sleep(0.001)
    try:
        with pytest.raises(UserError, match="another process is training"):
            tiny_run.train(corpus, tmp_path)
    finally:
        process.kill()
        process.join()


def test_history_drops_the_unsaved_future_and_broken_lines(tmp_path):
    record = '{"kind": "training", "update": %d, "loss": 1.0}\n'
    path = tmp_path / "history.jsonl"
    path.write_text(record % 1 + record % 2 + record % 3 + '{"kind": "trai')
    history = History(tmp_path, 2)
    history.add({"kind": "training", "update": 3, "loss": 0.5})
    history.close()
    assert [(line["update"], line["loss"]) for line in read(path)] == [(1, 1.0), (2, 1.0), (3, 0.5)]


@pytest.mark.parametrize("line", ["not JSON", "[1]", '{"a": 1}', '{"kind": "training", "update": "1"}'])
def test_a_history_with_a_wrong_line_is_refused_and_kept(tmp_path, line):
    record = '{"kind": "training", "update": 1, "loss": 1.0}\n'
    path = tmp_path / "history.jsonl"
    path.write_text(record + line + "\n" + record)
    with pytest.raises(UserError, match="line 2"):
        History(tmp_path, 2)
    assert path.read_text() == record + line + "\n" + record
    path.write_bytes(b"\xff\n" + record.encode())
    with pytest.raises(UserError, match="line 1"):
        read(path)


def test_time_already_spent_counts(corpus, tmp_path):
    tiny_run.train(corpus, tmp_path, "training.updates=5")
    spent = tiny_run.checkpoint(tmp_path, 5).record["state"]["seconds"]
    outcome = tiny_run.train(corpus, tmp_path, "training.updates=0", f"training.minutes={spent / 60}")
    assert outcome.update == 5
    assert "training.minutes" in outcome.reason


def test_the_optimizer_is_restored_too(corpus, whole):
    """Otherwise the first update after resuming would be another one."""
    moments = [name for name in tiny_run.checkpoint(whole, 20).tensors if name.startswith("optimizer.exp_avg.")]
    resumed = tiny_run.trainer(corpus, whole)
    contents = tiny_run.checkpoint(whole, 20)
    resumed.restore(contents.tensors, State(**contents.record["state"]), whole)
    live = resumed.tensors()
    assert moments
    assert all(torch.equal(live[name], tensor) for name, tensor in contents.tensors.items())
