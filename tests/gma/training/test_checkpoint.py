"""Checkpoints: exact round trips, every kind of damage noticed, the previous one used, nothing executed."""

import os
import pickle

import pytest
import torch
from torch import nn

from gma.storage import atomic, tensor_file
from gma.storage.tensor_file import DamagedFile
from gma.training.checkpoint import CheckpointError, CheckpointFolder


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model.weight": torch.randn(3, 4, generator=generator),
        "model.half": torch.randn(5, generator=generator).bfloat16(),
        "optimizer.step.weight": torch.tensor(float(seed)),
        "model.empty": torch.zeros(0, 2),
    }


STATE = {"state": {"update": 7, "best": None, "seconds": 0.1 + 0.2}, "identity": {"delta": float("inf")}}


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints", keep=3)


@pytest.fixture
def warnings():
    return []


def test_what_is_saved_comes_back_bit_for_bit(folder, warnings):
    saved = tensors()
    # a view that is not contiguous
    saved["model.view"] = torch.arange(12.0).reshape(3, 4).T
    folder.save(7, saved, STATE)
    path, loaded, state = folder.newest(warnings.append)
    assert path.name == "update-00000007.safetensors"
    assert state == STATE
    assert not warnings
    assert loaded.keys() == saved.keys()
    for name, tensor in saved.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


def test_a_folder_without_checkpoints_has_none(folder, warnings):
    assert folder.newest(warnings.append) is None
    assert not warnings


def test_the_last_few_are_kept(folder, warnings):
    for update in (5, 100_000_000, 20, 10):
        folder.save(update, tensors(), STATE)
    assert [path.name for path in folder.paths()] == [
        "update-00000010.safetensors",
        "update-00000020.safetensors",
        "update-100000000.safetensors",
    ]


def test_every_truncation_is_noticed(folder):
    path = folder.save(1, tensors(), STATE)
    whole = path.read_bytes()
    for length in [0, 1, 7, 8, 9, *range(10, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedFile, match=path.name):
            tensor_file.read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(DamagedFile, match=path.name):
        tensor_file.read(path)


def test_every_altered_byte_is_noticed(folder):
    path = folder.save(1, tensors(), STATE)
    whole = path.read_bytes()
    expected = tensor_file.read(path)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            contents = tensor_file.read(path)
        except DamagedFile:
            continue
        # the padding of the header means nothing; no other byte may go unnoticed
        assert whole[place : place + 1] == b" "
        assert contents.record == expected.record
        assert all(torch.equal(contents.tensors[name], tensor) for name, tensor in expected.tensors.items())


@pytest.mark.parametrize("damage", ["truncated", "altered", "empty", "pickled"])
def test_a_damaged_one_is_named_and_the_one_before_used(folder, warnings, damage, tmp_path):
    folder.save(1, tensors(1), STATE)
    path = folder.save(2, tensors(2), STATE)
    whole = path.read_bytes()
    altered = bytearray(whole)
    altered[-3] ^= 1
    contents = {
        "truncated": whole[:-10],
        "altered": bytes(altered),
        "empty": b"",
        "pickled": pickle.dumps(_Bomb(tmp_path / "executed")),
    }
    path.write_bytes(contents[damage])

    found = folder.newest(warnings.append)
    assert found.path.name == "update-00000001.safetensors"
    assert torch.equal(found.tensors["model.weight"], tensors(1)["model.weight"])
    assert len(warnings) == 1
    assert path.name in warnings[0]
    assert not (tmp_path / "executed").exists()
    # set aside: it is not met again, and does not take the place of a good one
    warnings.clear()
    assert folder.newest(warnings.append).path == found.path
    assert not warnings


def test_a_damaged_one_does_not_push_a_good_one_out(tmp_path, warnings):
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.save(1, tensors(), STATE)
    (tmp_path / "update-00000009.safetensors").write_bytes(b"garbage")
    assert folder.newest(warnings.append).path.name == "update-00000001.safetensors"
    folder.save(3, tensors(), STATE)
    assert folder.newest(warnings.append).path.name == "update-00000003.safetensors"


def test_none_intact_is_an_error(folder, warnings):
    for update in (1, 2):
        folder.save(update, tensors(), STATE).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints in .* is intact"):
        folder.newest(warnings.append)
    assert len(warnings) == 2
    # nor is there "none yet" the next time, when the run would begin anew over what is left of it
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints in .* is intact"):
        folder.newest(warnings.append)


def test_one_that_cannot_be_opened_is_not_taken_for_a_damaged_one(folder, warnings):
    folder.save(1, tensors(), STATE)
    path = folder.folder / "update-00000002.safetensors"
    path.mkdir()
    with pytest.raises(CheckpointError, match=r"update-00000002\.safetensors cannot be opened: Is a directory"):
        folder.newest(warnings.append)
    assert path.exists()
    assert not warnings


def test_leftovers_of_killed_writers_are_removed(folder, warnings):
    path = folder.save(1, tensors(), STATE)
    leftover = path.with_name("update-00000002.safetensors" + atomic.TEMPORARY)
    leftover.write_bytes(path.read_bytes()[:50])
    assert folder.newest(warnings.append).path == path
    assert not leftover.exists()
    assert not warnings


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(temporary):
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        atomic.replace(path, fail)
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "old"


def test_a_checkpoint_that_cannot_be_written_says_so(tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=1)
    # the temporary's name is taken by a folder
    (tmp_path / "checkpoints" / f"update-00000001.safetensors{atomic.TEMPORARY}").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"update-00000001\.safetensors could not be written"):
        folder.save(1, tensors(), STATE)


def test_a_file_of_others_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "foreign.safetensors")
    with pytest.raises(DamagedFile, match="no digest"):
        tensor_file.read(tmp_path / "foreign.safetensors")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4, bias=False)
        self.second = nn.Linear(3, 4)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.ones(2))


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path):
    one, other = Tied(), Tied()
    assert sorted(tensor_file.own_tensors(one)) == ["first.weight", "second.bias", "table"]
    tensor_file.write(tmp_path / "file", tensor_file.own_tensors(one), {})
    tensor_file.fill(tensor_file.own_tensors(other), tensor_file.read(tmp_path / "file").tensors, tmp_path / "file")
    assert torch.equal(other.second.weight, one.first.weight)
    assert other.second.weight is other.first.weight


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.pop("second.bias"), "lacks second.bias"),
        (lambda found: found.update(third=torch.zeros(1)), "holds third"),
        (
            lambda found: found.update({"first.weight": torch.zeros(4, 4)}),
            r"first.weight is \[4, 4\]; expected \[4, 3\]",
        ),
    ],
)
def test_tensors_that_do_not_match_change_nothing(tmp_path, change, message):
    module = Tied()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    found = {name: tensor + 1.0 for name, tensor in tensor_file.own_tensors(module).items()}
    change(found)
    with pytest.raises(ValueError, match=message):
        tensor_file.fill(tensor_file.own_tensors(module), found, tmp_path / "file")
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))
