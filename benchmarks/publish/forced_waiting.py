"""Is it the translating or the waiting? The loss of models under their own waiting, and under Wait-k's.

python -m benchmarks.publish.forced_waiting MODEL ... [--deltas 1,2] [--ks 1,2]

References are forced, so that all models score the same words. AL is in model tokens, against the reference's length.
Each row of a model's own is one of its latencies; in the others every layer is made to wait as Wait-k does, with k
tokens and one more for every word, whatever position it predicts; the prior stays where the model puts it.
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from gma.attention.alignment import Alignment, within_source
from gma.corpus.batches import collate
from gma.corpus.token_file import PreparedCorpus, Split
from gma.metrics import latency
from gma.model import directory
from gma.model.transformer import Transformer
from gma.policies.base import CrossAttention, Source
from gma.text.vocabulary import PAD
from gma.training.loss import cross_entropy

BATCH = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--deltas", type=_numbers, default=[1.0, 2.0], help="own latencies, δ or k")
    parser.add_argument("--ks", type=_numbers, default=[1.0, 2.0], help="Wait-k's, forced")
    arguments = parser.parse_args()
    table = Table("model", "waiting", "AL (paper), tokens", "loss", title="Validation loss, references forced")
    for folder in arguments.models:
        loaded = directory.load(folder)
        split = PreparedCorpus.open(Path(loaded.config.data.folder)).split("valid")
        for delta in arguments.deltas:
            table.add_row(folder.name, f"its own at {delta:g}", *score(loaded.model, split, delta))
        for k in arguments.ks:
            with ExitStack() as stack:
                for layer in loaded.model.decoder.layers:
                    stack.enter_context(force(layer.cross_attention, k))
                table.add_row(folder.name, f"Wait-k's, k = {k:g}", *score(loaded.model, split, k))
    Console().print(table)


def force(attention: CrossAttention, k: float):
    """A context in which row i of this layer, from 0, sees min(k + i, |x|) tokens."""
    align = attention.align

    def wait_k(query: Tensor, source: Source, previous=None, delta=None) -> Alignment:
        alignment = align(query, source, previous, delta)
        heard = (torch.arange(query.shape[1], dtype=torch.float64) + k).expand(query.shape[0], 1, -1)
        return alignment._replace(visible=within_source(heard, source.lengths))

    return patch.object(attention, "align", wait_k)


@torch.no_grad()
def score(model: Transformer, split: Split, delta: float) -> tuple[str, str]:
    """AL and the loss per token, of all sentences."""
    loss = tokens = 0.0
    lags: list[float] = []
    for first in range(0, len(split), BATCH):
        batch = collate(split, np.arange(first, min(first + BATCH, len(split))))
        output = model(batch.source, batch.source_lengths, batch.target_input, delta)
        loss += cross_entropy(output.logits, batch.target_output, 0.0, PAD).likelihood.item()
        tokens += batch.tokens
        needed = torch.stack([alignment.visible.amax(dim=1) for alignment in output.alignments]).amax(dim=0)  # [B, T]
        lengths = (batch.target_output != PAD).sum(dim=1).tolist()
        lags += _lags(needed, batch.source_lengths.tolist(), lengths)
    return f"{np.mean(lags):.2f}", f"{loss / tokens:.3f}"


def _lags(needed: Tensor, source_lengths: Sequence[int], target_lengths: Sequence[int]) -> list[float]:
    rows = zip(needed.tolist(), source_lengths, target_lengths)
    return [latency(delays[:length], source, length).al for delays, source, length in rows]


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
