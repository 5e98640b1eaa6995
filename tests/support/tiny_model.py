"""Model directories with random weights, for tests of what is done with a model."""

import sys
from pathlib import Path

import pytest
import torch

from gma.config.settings import AttentionSettings
from gma.model import directory
from gma.model.transformer import Transformer
from gma.text.tokenizer import Tokenizer
from tests.support import tiny_run

BPE = ("data.tokenizer=bpe", "data.vocabulary_size=200")


def make(folder: Path, corpus: Path, *more: str, seed: int = 0, offline: bool = False) -> Path:
    """Save an untrained model of the corpus. Its output layer is its own: tied, it would write one word for ever."""
    chosen = tiny_run.load(corpus, "model.embeddings=separate", *more)
    if offline:
        chosen = chosen.model_copy(update={"attention": AttentionSettings(policy="offline")})
    tokenizer = Tokenizer.load(corpus / "tokenizer.json")
    torch.manual_seed(seed)
    model = Transformer(chosen.model, chosen.attention, tokenizer.source.size, tokenizer.target.size)
    directory.save(folder, model, chosen, tokenizer, {"update": 0})
    return folder


def command(monkeypatch, *arguments: object) -> int:
    """Run `gma …` in this process; returns its exit code."""
    from gma import cli

    monkeypatch.setattr(sys, "argv", ["gma", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as exit:
        cli.main()
    return exit.value.code or 0
