"""The model that training starts from, where it does not start from random weights."""

from pathlib import Path

import torch

from gma.config import Config, ConfigError
from gma.config.settings import ModelSettings
from gma.corpus.token_file import TOKENIZER
from gma.errors import UserError
from gma.model import directory
from gma.model.directory import Loaded
from gma.model.transformer import Transformer
from gma.storage.digest import fingerprint
from gma.storage.tensor_file import own_tensors
from gma.text.tokenizer import Tokenizer

# no weight's shape depends on these
SHAPELESS = {"preset", "dropout", "attention_dropout"}


def tokenizer_to_use(config: Config) -> Tokenizer | None:
    """The tokenizer of the model that training starts from; None where one is learned from the text."""
    return _load(config).tokenizer if config.training.start_from else None


def starting_model(config: Config, corpus: Path) -> Loaded | None:
    """The model of `training.start_from`, if its sizes and its tokenizer are those of the run; None without one."""
    name = config.training.start_from
    if not name:
        return None
    loaded = _load(config)
    tokenizers = [folder / TOKENIZER for folder in (directory.find(name), corpus)]
    if len({fingerprint(path.read_bytes()) for path in tokenizers}) > 1:
        raise UserError(
            f"{corpus} was not prepared with the tokenizer of training.start_from = {name!r}; run `gma prepare` with "
            "this setting, or choose another data.folder"
        )
    return loaded


def _load(config: Config) -> Loaded:
    """The model, whose sizes are looked at before a long text is prepared for it."""
    name = config.training.start_from
    loaded = directory.load(name)
    for key in ModelSettings.model_fields.keys() - SHAPELESS:
        given, found = getattr(config.model, key), getattr(loaded.config.model, key)
        if given != found:
            raise ConfigError(
                f"model.{key} = {given!r}: the model of training.start_from = {name!r} has {found!r}; expected the "
                f"same: write {key} = {found!r}"
            )
    return loaded


@torch.no_grad()
def take_over(model: Transformer, start: Transformer) -> tuple[int, int]:
    """Copy what the two have in common into `model`: how many of its numbers that are, and how many are left.

    Where policies differ, attention is what they have in common: a policy's own projections stand behind it.
    """
    own, found, taken = own_tensors(model), own_tensors(start), 0
    for name, tensor in own.items():
        other = found.get(name)
        if other is not None and other.shape[1:] == tensor.shape[1:]:
            rows = min(other.shape[0], tensor.shape[0])
            tensor[:rows].copy_(other[:rows])
            taken += tensor[:rows].numel()
    return taken, sum(tensor.numel() for tensor in own.values()) - taken
