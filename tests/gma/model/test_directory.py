"""Model directories: what is saved is what is loaded, and anything else is refused by name."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from rich.console import Console

from gma import config
from gma.corpus import prepare
from gma.errors import UserError
from gma.model import directory
from gma.model.directory import ModelDirectoryError
from gma.model.transformer import Transformer
from gma.storage import tensor_file
from gma.text.tokenizer import Tokenizer
from gma.text.vocabulary import EOS
from gma.training.average import average
from gma.training.checkpoint import CheckpointError, CheckpointFolder
from tests.support import tiny_run

TRAINING = {"update": 3, "validation": {"bleu": 12.5}}
BPE = ["data.tokenizer=bpe", "data.vocabulary_size=200"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    """Joint, so that embeddings can be shared."""
    folder = tmp_path_factory.mktemp("corpus")
    prepare.prepare(tiny_run.load(folder, *BPE).data, folder, Console(quiet=True))
    return Tokenizer.load(folder / "tokenizer.json")


def settings(*more: str) -> config.Config:
    return tiny_run.load(Path("unused"), *BPE, *more)


def build(chosen: config.Config, tokenizer: Tokenizer, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(chosen.model, chosen.attention, tokenizer.source.size, tokenizer.target.size).eval()


@pytest.fixture
def saved(tmp_path, tokenizer) -> Path:
    chosen = settings()
    directory.save(tmp_path, build(chosen, tokenizer), chosen, tokenizer, TRAINING)
    return tmp_path


@torch.no_grad()
def logits(model: Transformer) -> torch.Tensor:
    source = torch.tensor([[5, 6, 7, EOS], [8, 9, EOS, 0]])
    return model(source, torch.tensor([4, 3]), torch.tensor([[1, 10, 11], [1, 12, 13]])).logits


@pytest.mark.parametrize("embeddings", ["separate", "target", "shared"])
@pytest.mark.parametrize("sharing", ["heads", "layers"])
def test_round_trip(tmp_path, tokenizer, embeddings, sharing):
    chosen = settings(f"model.embeddings={embeddings}", f"attention.sharing={sharing}")
    model = build(chosen, tokenizer)
    directory.save(tmp_path, model, chosen, tokenizer, TRAINING)
    loaded = directory.load(tmp_path)
    assert torch.equal(logits(loaded.model), logits(model))
    assert not loaded.model.training
    assert loaded.config == chosen
    assert loaded.training == TRAINING
    text = "wieder liest der kleine Hund ."
    assert loaded.tokenizer.source.encode(text) == tokenizer.source.encode(text)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.toml",
        "main.yaml",
        "model.safetensors",
        "tokenizer.json",
        "training.json",
    ]
    # a tied matrix is on disk once
    parameters = sum(parameter.numel() for parameter in model.parameters())
    stored = tensor_file.read(tmp_path / "model.safetensors").tensors
    assert sum(tensor.numel() for tensor in stored.values()) == parameters


def test_saving_again_replaces(saved, tokenizer):
    chosen = settings()
    other = build(chosen, tokenizer, seed=1)
    directory.save(saved, other, chosen, tokenizer, {"update": 4})
    loaded = directory.load(saved)
    assert torch.equal(logits(loaded.model), logits(other))
    assert loaded.training == {"update": 4}


@pytest.mark.parametrize("name", ["config.toml", "model.safetensors", "tokenizer.json", "training.json"])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(ModelDirectoryError, match=f"{name} is missing"):
        directory.load(saved)


@pytest.mark.parametrize("name", ["config.toml", "model.safetensors", "tokenizer.json", "training.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00garbage", b"{", b"[", b"[]"])
def test_a_damaged_file_is_an_error_that_names_it(saved, name, content):
    (saved / name).write_bytes(content)
    # an empty config is one, of defaults only: it is the weights that do not fit it
    named = "model.safetensors" if (name, content) == ("config.toml", b"") else name
    with pytest.raises(ModelDirectoryError, match=named):
        directory.load(saved)


def test_a_file_that_cannot_be_opened_is_named(saved, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(tensor_file, "read", refuse)
    with pytest.raises(ModelDirectoryError, match=r"model\.safetensors cannot be read: Permission denied"):
        directory.load(saved)


def test_altered_weights_are_refused(saved):
    path = saved / "model.safetensors"
    altered = bytearray(path.read_bytes())
    altered[-5] ^= 1
    path.write_bytes(altered)
    with pytest.raises(ModelDirectoryError, match="digest"):
        directory.load(saved)


def test_weights_of_another_shape_are_refused(saved):
    (saved / "config.toml").write_text(settings("model.width=32").dump())
    with pytest.raises(ModelDirectoryError, match=r"is \[.*16.*\]; expected \[.*32.*\]"):
        directory.load(saved)


def test_weights_of_a_deeper_model_are_refused(saved):
    (saved / "config.toml").write_text(settings("model.encoder_layers=2").dump())
    with pytest.raises(ModelDirectoryError, match=r"lacks encoder\.layers\.1"):
        directory.load(saved)


def test_another_tokenizer_is_refused(saved, tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    prepare.prepare(settings("data.vocabulary_size=210").data, folder, Console(quiet=True))
    (saved / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(ModelDirectoryError, match=r"tokenizer\.json is not the one model\.safetensors was"):
        directory.load(saved)


def test_loading_executes_nothing(saved, tmp_path_factory):
    mark = tmp_path_factory.mktemp("mark") / "executed"
    (saved / "model.safetensors").write_bytes(pickle.dumps(_Bomb(mark)))
    with pytest.raises(ModelDirectoryError):
        directory.load(saved)
    assert not mark.exists()


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture
def run(tmp_path, tokenizer) -> tuple[Path, list[Transformer]]:
    """A run with three checkpoints of unrelated weights."""
    chosen, folder = settings("model.embeddings=shared"), tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(chosen.dump())
    tokenizer.save(folder / "tokenizer.json")
    models = [build(chosen, tokenizer, seed) for seed in range(3)]
    for update, model in enumerate(models, start=1):
        tensors = {f"model.{name}": tensor for name, tensor in tensor_file.own_tensors(model).items()}
        tensors["optimizer.step.x"] = torch.tensor(1.0)
        state = {"state": {"update": update, "tokens": 10 * update, "seconds": 1.0}}
        CheckpointFolder(folder / "checkpoints", keep=5).save(update, tensors, state)
    return folder, models


def test_average_is_the_mean_of_the_last(run, tmp_path):
    folder, models = run
    paths = average(folder, 2, tmp_path / "mean")
    assert [path.name for path in paths] == ["update-00000002.safetensors", "update-00000003.safetensors"]
    loaded = directory.load(tmp_path / "mean")
    parameters = [dict(model.named_parameters()) for model in models]
    for name, tensor in loaded.model.named_parameters():
        torch.testing.assert_close(tensor, (parameters[1][name] + parameters[2][name]) / 2)
    assert loaded.training["update"] == 3
    assert loaded.training["averaged"] == [path.name for path in paths]


def test_average_of_one_is_that_one(run, tmp_path):
    folder, models = run
    average(folder, 1, tmp_path / "last")
    assert torch.equal(logits(directory.load(tmp_path / "last").model), logits(models[-1]))


def test_average_in_half_precision_is_half_the_size_and_the_mean_rounded(run, tmp_path):
    folder, models = run
    average(folder, 1, tmp_path / "half", torch.float16)
    average(folder, 1, tmp_path / "whole")
    half, whole = ((tmp_path / name / directory.MODEL).stat().st_size for name in ("half", "whole"))
    assert half < 0.6 * whole
    found = directory.load(tmp_path / "half").model
    for parameter, expected in zip(found.parameters(), models[-1].parameters()):
        assert torch.equal(parameter, expected.half().float())


def test_average_of_too_many_is_an_error(run, tmp_path):
    with pytest.raises(CheckpointError, match=r"holds 3 checkpoints; expected 4: lower --last"):
        average(run[0], 4, tmp_path / "mean")


def test_average_does_not_overwrite_a_run(run):
    with pytest.raises(UserError, match="choose another --output"):
        average(run[0], 2, run[0])


def test_training_json_is_readable_text(saved):
    assert json.loads((saved / "training.json").read_text()) == TRAINING
