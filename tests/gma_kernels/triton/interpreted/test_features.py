"""Grouped heads, a left bound, packed batches and the logsumexp in Triton's interpreter."""

import dataclasses
import math

import pytest
import torch

import gma_kernels
from gma_kernels import triton as backend
from gma_kernels.triton import launch
from tests.support.feature_cases import FeatureCase, feature_failures
from tests.support.numerics import GRADIENTS, Inputs, simple_inputs
from tests.support.triton_interpreter import watch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CASES_PER_CHUNK = 10
# 20 cases; 1,180 more by `make test-all`
CHUNKS = [pytest.param(chunk, marks=pytest.mark.slow if chunk >= 2 else ()) for chunk in range(120)]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_forward_and_gradients_of_random_cases(chunk):
    found = []
    for seed in range(chunk * CASES_PER_CHUNK, (chunk + 1) * CASES_PER_CHUNK):
        found += feature_failures(FeatureCase.draw(seed, dtype=DTYPES[seed % 3]), "triton")
    assert not found, "\n".join(found)


def grouped(inputs: Inputs, key_heads: int) -> Inputs:
    return inputs._replace(key=inputs.key[:, :key_heads], value=inputs.value[:, :key_heads])


@pytest.mark.parametrize("keys", [40, 700, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decoding_with_grouped_heads_and_a_window(keys, dtype):
    """Group sizes around that of a product's block, sources in one part and in several."""
    both = ("grouped heads", "first")
    for heads, key_heads, features in ((6, 2, both), (17, 1, both[:1]), (2, 2, both[1:])):
        case = FeatureCase.draw(keys + heads, features, dtype)
        changes = {"batch": 2, "rows": 1, "keys": keys, "size": 20, "value_size": 24, "dropout_p": 0.0}
        changes |= {"heads": heads, "center_heads": 1, "width_heads": heads, "visible_heads": heads}
        plain = dataclasses.replace(case.case, **changes, visible_kind="ragged", prior="gaussian")
        bound = {"features": features, "first_kind": "ragged" if "first" in features else "none"}
        case = dataclasses.replace(case, case=plain, key_heads=key_heads, first_heads=1, lengths=(), **bound)
        assert not feature_failures(case, "triton")
    assert (launch.parts_of_source(2, 2, keys)[0] > 1) == (keys > 2 * launch.SHORTEST_PART)


def test_decoding_reads_each_head_of_keys_once_for_its_group():
    inputs = grouped(simple_inputs(2, 12, 1, 100, 16, 16, dtype=torch.float32), 3)
    with watch() as watched:
        gma_kernels.gaussian_attention(*inputs, backend="triton")
    assert watched.launches == 1
    readers = {watched.readers[address] for address in watched.of(inputs.key) & watched.readers.keys()}
    assert len(readers) == 2 * 3
    assert not any(shared for _, shared in readers)


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_no_row_sees_may_hold_anything_and_tiles_of_it_are_not_read(rows, bad):
    """Left of every window, right of every row, and in rows that see nothing."""
    visible = torch.tensor([109, 112, 105, 110, 0] * 4, dtype=torch.int32)[:rows].expand(2, 1, rows)
    first = torch.tensor([74, 73, 105, 109, 0] * 4, dtype=torch.int32)[:rows].expand(2, 1, rows)
    left, right = int(first[visible > first].min()), int(visible.max())
    inputs = grouped(simple_inputs(2, 4, rows, 200, 16, 16, dtype=torch.float32, visible=visible), 2)
    blind = (visible <= first)[:, 0]

    def run(inputs: Inputs, spoil: bool) -> list[torch.Tensor]:
        leaves = inputs.leaves()
        dropout = {"dropout_p": 0.2, "seed": 1} if rows > 1 else {}
        found = gma_kernels.gaussian_attention(*leaves, first=first, return_logsumexp=True, **dropout, backend="triton")
        grads = [torch.linspace(-1, 1, x.numel()).reshape(x.shape) for x in found]
        if spoil:
            grads = [grads[0].masked_fill(blind[:, None, :, None], bad), grads[1].masked_fill(blind[:, None], bad)]
        weights = gma_kernels.attention_weights(*leaves.without_value(), first=first, backend="triton")
        return [*found, weights, *torch.autograd.grad(found, leaves[:5], grads)]

    spoiled = Inputs(
        inputs.query.masked_fill(blind[:, None, :, None], bad),
        *(x.clone() for x in inputs[1:3]),
        *(x.masked_fill(blind[:, None], bad) for x in inputs[3:5]),
        visible,
    )
    for x in spoiled[1:3]:
        x[:, :, :left] = bad
        x[:, :, right:] = bad
    with watch() as watched:
        got = run(spoiled, True)
    for x, y in zip(got, run(inputs, False)):
        assert torch.equal(x, y)
    for x in spoiled[1:3]:
        assert not watched.has_read(x[:, :, :64])
        assert not watched.has_read(x[:, :, 128:])
        assert watched.has_read(x[:, :, left:right])


def packed(lengths: list[tuple[int, int]], heads: int = 2) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors [N, H, D] and [N, 1], and offsets."""
    rows, keys = (sum(pair[n] for pair in lengths) for n in (0, 1))
    inputs = simple_inputs(1, heads, rows, keys, 8, 8, dtype=torch.float32)
    seen = [keys for rows, keys in lengths for _ in range(rows)]
    visible = torch.tensor(seen, dtype=torch.int32).reshape(1, 1, rows)
    tensors = [x[0].transpose(0, 1) for x in inputs._replace(visible=visible)]
    ends = torch.tensor([(0, 0), *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return tensors, [ends[:, 0], ends[:, 1]]


MANY = [(17, 33), (0, 5), (16, 0), (1, 1), (40, 64), (0, 0), (3, 40)]


@pytest.mark.parametrize("lengths", [[(5, 7)], [(0, 0)] * 3, MANY])
def test_every_row_and_key_of_packed_sentences_is_written_once(lengths):
    tensors, offsets = packed(lengths)
    leaves = [x.detach().requires_grad_() for x in tensors[:5]]
    torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
    try:
        with watch():
            context = gma_kernels.gaussian_attention_packed(*leaves, tensors[5], *offsets, backend="triton")
            grads = torch.autograd.grad(context.sum(), leaves)
    finally:
        torch.use_deterministic_algorithms(False)
    for name, x in zip(("context", *GRADIENTS), (context, *grads)):
        assert x.isfinite().all(), name


@pytest.mark.parametrize(
    "wrong",
    [[0, 9, 4, 20], [0, -5, 9, 20], [3, 4, 5, 6], [0, 5, 9, 2**31 - 1], [-(2**31), 2**31 - 1, 0, 7], [99, 99, 99, 99]],
)
def test_offsets_that_nobody_looked_at_touch_nothing_outside(monkeypatch, wrong):
    """As on a GPU. What comes out is anyone's guess, but two programs may write one element."""
    tensors, offsets = packed([(5, 9), (4, 5), (11, 6)])
    bad = torch.tensor(wrong, dtype=torch.int32)
    with pytest.raises(ValueError, match="cu_query"):
        gma_kernels.gaussian_attention_packed(*tensors, bad, offsets[1], backend="triton")
    monkeypatch.setattr(backend, "check_offsets", lambda *_: None)
    for cut in ((bad, offsets[1]), (offsets[0], bad)):
        leaves = [x.detach().requires_grad_() for x in tensors[:5]]
        with watch() as watched:
            watched.races = True
            context = gma_kernels.gaussian_attention_packed(*leaves, tensors[5], *cut, backend="triton")
            torch.autograd.grad(context.sum(), leaves)
        assert watched.launches == 3


def test_gradients_through_the_weights_of_a_window():
    inputs = grouped(simple_inputs(2, 4, 20, 70, 8, 8, dtype=torch.float32), 2)
    first = torch.arange(20, dtype=torch.int32).expand(2, 1, 20) * 3
    results = []
    for name, given in (("triton", inputs), ("reference", inputs.to(torch.float64))):
        leaves = given.leaves()
        weights = gma_kernels.attention_weights(*leaves.without_value(), first=first, backend=name)
        wanted = [x for n, x in enumerate(leaves[:5]) if n != 2]
        results.append([weights, *torch.autograd.grad(weights.square().sum(), wanted)])
    for got, expected in zip(*results):
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", ["general_forward", "general_backward", "general_weights"])
@pytest.mark.parametrize("packs", [False, True])
def test_opcheck(function, packs):
    inputs = grouped(simple_inputs(1, 4, 5, 9, dtype=torch.float32, center_heads=4), 2)
    first = torch.tensor([1, 0, 9, 3, 5], dtype=torch.int32).expand(1, 1, 5)
    cut = [torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 5], [0, 4, 9])] if packs else [None, None]
    namespace = torch.ops.gma_kernels
    if function == "general_weights":
        arguments = (*inputs.leaves().without_value(), first, 1, 0.5)
    else:
        attention = (*inputs, first, *cut, torch.tensor(5))
        settings = (0, 0.5, 0.3)
        arguments = (*inputs.leaves(), *attention[6:], *settings)
        if function == "general_backward":
            results = namespace.triton_general_forward(*attention, *settings)
            arguments = (*(torch.randn_like(x) for x in results), *attention, *results, *settings)
    torch.library.opcheck(getattr(namespace, f"triton_{function}").default, arguments)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"first": torch.zeros(1, 3, 5, dtype=torch.int32)}, "first has shape"),
        ({"first": torch.zeros(1, 1, 5)}, "first has dtype"),
        ({"cu_query": torch.zeros(3, dtype=torch.int32)}, "come together"),
        ({"cu_query": torch.zeros(2).int(), "cu_key": torch.zeros(3).int()}, "cu_key has shape"),
        ({"key": torch.zeros(1, 3, 9, 4), "value": torch.zeros(1, 3, 9, 6)}, "3 heads; expected a divisor"),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)
def test_what_no_kernel_is_made_for_is_refused(change, complaint):
    inputs = simple_inputs(1, 4, 5, 9, dtype=torch.float32)
    given = inputs._asdict() | {"first": None, "cu_query": None, "cu_key": None, "seed": None} | change
    with pytest.raises((TypeError, ValueError), match=complaint):
        torch.ops.gma_kernels.triton_general_forward(**given, prior=0, scale=1.0, dropout_p=0.0)
