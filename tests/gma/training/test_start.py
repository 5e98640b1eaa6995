"""Training that starts from a trained model: its weights, its tokenizer, and what does not fit."""

import io

import pytest
import torch
from rich.console import Console

from gma.errors import UserError
from gma.model import directory
from gma.storage.tensor_file import own_tensors
from gma.training import run as runs
from tests.support import tiny_model, tiny_run

# no step: what is saved is what training started from
STILL = ["training.learning_rate=1e-12", "training.warmup_from=0", "training.updates=2", "training.save_every=1"]
# another text than the model was trained on, whose own vocabulary would be another
OTHER = ["data.minimum_frequency=3", "data.generated=300"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    corpus = tiny_run.make_corpus(tmp_path_factory.mktemp("first"))
    return tiny_model.make(tmp_path_factory.mktemp("model"), corpus, "attention.width_rule=predicted", seed=3)


def start(tmp_path, model, *more: str) -> tuple[directory.Loaded, str]:
    """What a run that started from `model` has after two updates that changed nothing, and what it said."""
    console = Console(file=io.StringIO(), width=200)
    settings = [*STILL, *OTHER, f"training.start_from={model}", "model.embeddings=separate", *more]
    runs.train(tiny_run.load(tmp_path / "corpus", *settings), tmp_path / "run", console)
    return directory.load(tmp_path / "run"), console.file.getvalue()


def test_weights_and_tokenizer_are_the_models(tmp_path, model):
    there = directory.load(model)
    found, said = start(tmp_path, model, "attention.width_rule=predicted")
    assert (tmp_path / "corpus" / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    weights = own_tensors(there.model)
    for name, tensor in own_tensors(found.model).items():
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=1e-8)
    assert f"starting from {model}: {sum(tensor.numel() for tensor in weights.values()):,} weights\n" in said


@pytest.mark.parametrize("policy", ["gain", "itst", "wait_k", "offline", "monotonic"])
def test_another_policy_takes_over_all_but_its_own_weights(tmp_path, model, policy):
    there = own_tensors(directory.load(model).model)
    found, said = start(tmp_path, model, f"attention.policy={policy}")
    own = own_tensors(found.model)
    shared = [name for name, tensor in own.items() if name in there and tensor.shape == there[name].shape]
    assert len(shared) > 20
    for name in shared:
        torch.testing.assert_close(own[name], there[name], rtol=0, atol=1e-8)
    for name in own.keys() & there.keys() - set(shared):
        rows = min(own[name].shape[0], there[name].shape[0])
        torch.testing.assert_close(own[name][:rows], there[name][:rows], rtol=0, atol=1e-8)
    assert ("begin at random" in said) == (policy in ("gain", "itst", "monotonic"))


def test_a_resumed_run_does_not_start_again(tmp_path, model):
    start(tmp_path, model)
    console = Console(file=io.StringIO(), width=200)
    more = [*STILL, *OTHER, f"training.start_from={model}", "model.embeddings=separate", "training.updates=3"]
    runs.train(tiny_run.load(tmp_path / "corpus", *more), tmp_path / "run", console)
    assert "resuming after update 2" in console.file.getvalue()
    assert "starting from" not in console.file.getvalue()


def test_the_command_prepares_with_the_models_tokenizer(tmp_path, model, monkeypatch):
    start = [f"training.start_from={model}", "model.embeddings=separate"]
    settings = tiny_run.settings(tmp_path / "corpus", *OTHER, *start)
    assert tiny_model.command(monkeypatch, "prepare", *settings) == 0
    assert (tmp_path / "corpus" / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.width=32", r"model\.width = 32: the model of training\.start_from = '.*' has 16; expected the same"),
        ("model.encoder_layers=2", r"model\.encoder_layers = 2: .* has 1"),
        ("training.start_from=nowhere", r"nowhere/config\.toml is missing"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path, model, setting, message):
    with pytest.raises(UserError, match=message):
        start(tmp_path, model, setting)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    # before a text that may be long is prepared
    assert not (tmp_path / "corpus").exists()


def test_a_corpus_with_another_tokenizer_is_refused(tmp_path, model):
    tiny_run.make_corpus(tmp_path / "corpus", *OTHER)
    with pytest.raises(UserError, match=r"corpus was not prepared with the tokenizer of training\.start_from"):
        start(tmp_path, model)
