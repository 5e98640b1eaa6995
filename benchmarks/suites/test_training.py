"""A training step of the GMA Transformer against the same model with plain attention to the source, small preset."""

import pytest
import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import gma_kernels
from benchmarks.suites.corpora import short_sentences
from benchmarks.suites.interleave import interleaved
from gma.config.settings import AttentionSettings, ModelSettings
from gma.corpus.batches import Batch, BatchPlan, collate
from gma.model.transformer import Transformer
from gma.policies import OfflineCrossAttention
from gma.text.vocabulary import PAD

TOKENS = 2048


class PlainCrossAttention(OfflineCrossAttention):
    """torch's fused attention, with no prior, no truncation and no mask over the padding: the least there can be."""

    def attend(self, query, memory, alignment):
        key, value = (part.transpose(1, 2) for part in memory.parts)
        context = scaled_dot_product_attention(self.split_heads(query), key, value)
        return self.output(context.transpose(1, 2).flatten(2))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> tuple[str, int, int, Batch]:
    """The corpus's name, its vocabularies' sizes (target, source), and a batch of the median number of sentences."""
    name, prepared = short_sentences(tmp_path_factory.mktemp("corpus"))
    split = prepared.split("train")
    plan = sorted(BatchPlan(split, TOKENS, seed=1).epoch(0), key=len)
    middle = len(plan) // 2
    return name, prepared.tokenizer.target.size, prepared.tokenizer.source.size, collate(split, plan[middle])


def model(source: int, target: int, **attention) -> Transformer:
    torch.manual_seed(0)
    return Transformer(ModelSettings(preset="small", dropout=0.1), AttentionSettings(**attention), source, target)


def with_plain_attention(source: int, target: int) -> Transformer:
    plain = model(source, target, policy="offline")
    for layer in plain.decoder.layers:
        layer.cross_attention.__class__ = PlainCrossAttention
    return plain


def step(transformer: Transformer, batch: Batch):
    optimizer = torch.optim.Adam(transformer.parameters(), 1e-4)

    def run():
        logits = transformer(batch.source, batch.source_lengths, batch.target_input).logits
        loss = cross_entropy(logits.flatten(0, 1), batch.target_output.flatten(), ignore_index=PAD)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return run


def test_training_step(benchmark, corpus):
    name, target, source, batch = corpus
    gaussian, reference = model(source, target), model(source, target, backend="reference")
    with torch.no_grad():
        pair = [m.eval()(batch.source, batch.source_lengths, batch.target_input).logits for m in (gaussian, reference)]
    error = (pair[0] - pair[1]).abs().max().item()
    assert error < 1e-3, f"native and reference differ by {error:.1e}: no speed is reported"
    contenders = {
        "native": step(gaussian.train(), batch),
        "plain SDPA": step(with_plain_attention(source, target), batch),
        "reference": step(reference.train(), batch),
    }
    milliseconds = interleaved(benchmark, contenders, 7)
    benchmark.extra_info.update(
        suite="training",
        size=f"small preset, {name}, {TOKENS} tokens a batch",
        tokens_per_second=batch.tokens / milliseconds["native"] * 1e3,
    )


def test_cross_attention_operator(benchmark, corpus):
    """The operator alone on one batch's shapes, forward and backward, positions on the diagonal and δ = 1."""
    batch = corpus[3]
    size, keys = batch.source.shape
    rows = batch.target_input.shape[1]
    heads, head_size = 4, 128
    query, key, value = (
        torch.randn(size, n, heads, head_size).transpose(1, 2).requires_grad_() for n in (rows, keys, keys)
    )
    center = (torch.arange(1, rows + 1) * (keys / rows)).expand(size, 1, rows).clone().requires_grad_()
    width = (center.detach() / 2).requires_grad_()
    visible = torch.minimum((center.detach() + 1).floor(), batch.source_lengths[:, None, None]).int()
    grad = torch.randn(size, rows, heads, head_size).transpose(1, 2)

    def ours():
        context = gma_kernels.gaussian_attention(query, key, value, center, width, visible, backend="native")
        return context, *torch.autograd.grad(context, (query, key, value, center, width), grad)

    def plain():
        context = scaled_dot_product_attention(query, key, value)
        return torch.autograd.grad(context, (query, key, value), grad)

    exact = [x.detach().double().requires_grad_() for x in (query, key, value, center, width)]
    context = gma_kernels.gaussian_attention(*exact, visible, backend="reference")
    expected = (context, *torch.autograd.grad(context, exact, grad.double()))
    for x, x64 in zip(ours(), expected):
        error = ((x - x64).abs().max() / x64.abs().max().clamp(min=1)).item()
        assert error <= 2e-5, f"the operator is wrong (error {error:.1e}): no speed is reported"
    interleaved(benchmark, {"native": ours, "plain SDPA": plain}, 60)
    benchmark.extra_info.update(suite="training operator", size=f"B={size} H={heads} T={rows} S={keys} D={head_size}")
