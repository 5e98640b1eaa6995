"""What the operator takes beyond the plain call, on every CPU backend that has it: grouped heads, a left bound, packed
batches, the logsumexp. `FEATURES_OF` says which backend has what, and a backend is tested for just that."""

import itertools
import math
import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gma_kernels
from gma_kernels.backends import FEATURES, FEATURES_OF
from tests.support.feature_cases import FeatureCase, feature_failures
from tests.support.numerics import CPU_BACKENDS, PRIORS, Inputs, dtype_to_draw, simple_inputs

CASES_PER_CHUNK = 50
# 200 cases for each backend, 5,000 by `make test-all`
CHUNKS = [
    pytest.param(name, chunk, marks=pytest.mark.slow if chunk >= 4 else ())
    for name in CPU_BACKENDS
    for chunk in range(100)
]


def needs(backend: str, *features: str) -> None:
    missing = set(features) - set(FEATURES_OF[backend])
    if missing:
        pytest.skip(f"{backend} does not have {', '.join(missing)}")


@pytest.mark.parametrize(("backend", "chunk"), CHUNKS, indirect=["backend"])
def test_forward_and_gradients_of_random_cases(backend, chunk):
    if not FEATURES_OF[backend]:
        pytest.skip(f"{backend} has none of them")
    found = []
    for seed in range(chunk * CASES_PER_CHUNK, (chunk + 1) * CASES_PER_CHUNK):
        # plain formulas are exact where centers and widths are ordinary, and there the oracle is held against them
        case = FeatureCase.draw(seed, FEATURES_OF[backend], dtype_to_draw(), ordinary=backend == "reference")
        found += feature_failures(case, backend)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_backend_without_a_feature_says_so(feature):
    without = [name for name, features in FEATURES_OF.items() if feature not in features]
    for name in without:
        if gma_kernels.backends()[name].available and "cpu" in gma_kernels.backends()[name].devices:
            with pytest.raises(gma_kernels.BackendUnavailable, match=rf"'{name}' does not have {feature}.*auto"):
                call_with(feature, backend=name)


@pytest.mark.parametrize("feature", FEATURES)
def test_auto_takes_a_backend_that_has_it(feature):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        automatic = call_with(feature)
    assert torch.allclose(automatic, call_with(feature, backend="reference"), atol=1e-12)


def call_with(feature: str, **settings) -> torch.Tensor:
    inputs = simple_inputs(heads=2)
    first = torch.ones_like(inputs.visible)
    if feature == "grouped heads":
        return gma_kernels.gaussian_attention(*grouped(inputs, 1), **settings)
    if feature == "first":
        return gma_kernels.gaussian_attention(*inputs, first=first, **settings)
    if feature == "logsumexp":
        return gma_kernels.gaussian_attention(*inputs, return_logsumexp=True, **settings).logsumexp
    return gma_kernels.gaussian_attention_packed(*as_packed(inputs), **settings)


def grouped(inputs: Inputs, key_heads: int) -> Inputs:
    return inputs._replace(key=inputs.key[:, :key_heads], value=inputs.value[:, :key_heads])


def as_packed(inputs: Inputs, lengths: list[int] | None = None, key_lengths: list[int] | None = None) -> list:
    """A padded batch packed: its tensors, and the offsets."""
    batch, _, rows, _ = inputs.query.shape
    lengths = lengths or [rows] * batch
    key_lengths = key_lengths or [inputs.key.shape[2]] * batch

    def pack(x: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        return torch.cat([x[b].transpose(0, 1)[:length] for b, length in enumerate(lengths)])

    tensors = [pack(x, key_lengths if n in (1, 2) else lengths) for n, x in enumerate(inputs)]
    return [*tensors, *(torch.tensor([0, *itertools.accumulate(x)], dtype=torch.int32) for x in (lengths, key_lengths))]


@pytest.mark.parametrize("prior", PRIORS)
def test_grouped_heads_are_repeated_ones(backend, prior):
    needs(backend, "grouped heads")
    inputs = simple_inputs(heads=6, center_heads=6).leaves()
    few = grouped(inputs, 2)
    repeated = few._replace(key=few.key.repeat_interleave(3, dim=1), value=few.value.repeat_interleave(3, dim=1))
    for settings in ({}, {"dropout_p": 0.4, "seed": 5}):
        outputs = [
            gma_kernels.gaussian_attention(*x, prior=prior, **settings, backend=backend) for x in (few, repeated)
        ]
        torch.testing.assert_close(*outputs, rtol=0, atol=1e-14)
        grads = [torch.autograd.grad(x.sin().sum(), inputs[:5]) for x in outputs]
        for got, expected in zip(*grads):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("prior", PRIORS)
def test_a_window_is_what_a_source_without_its_left_gives(backend, prior):
    needs(backend, "first")
    inputs = simple_inputs(keys=40).leaves()
    first = torch.full_like(inputs.visible, 23)
    whole = gma_kernels.gaussian_attention(*inputs, first=first, prior=prior, backend=backend)
    cut = inputs._replace(
        key=inputs.key[:, :, 23:],
        value=inputs.value[:, :, 23:],
        center=inputs.center - 23,
        visible=(inputs.visible - 23).clamp(min=0),
    )
    part = gma_kernels.gaussian_attention(*cut, prior=prior, backend=backend)
    torch.testing.assert_close(whole, part, rtol=0, atol=1e-13)
    for got, expected in zip(*(torch.autograd.grad(x.sin().sum(), inputs[:5]) for x in (whole, part))):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dropout", [{}, {"dropout_p": 0.3, "seed": 11}])
def test_a_packed_batch_is_a_padded_one(backend, dropout):
    needs(backend, "packed batches")
    lengths, key_lengths = [5, 0, 3, 1], [7, 4, 0, 6]
    visible = torch.tensor(key_lengths, dtype=torch.int32)[:, None, None].repeat(1, 1, 5)
    visible = visible.masked_fill(torch.arange(5) >= torch.tensor(lengths)[:, None, None], 0)
    inputs = simple_inputs(batch=4, visible=visible)
    padded = gma_kernels.gaussian_attention(*inputs, **dropout, backend=backend)
    *tensors, cu_query, cu_key = as_packed(inputs, lengths, key_lengths)
    got = gma_kernels.gaussian_attention_packed(*tensors, cu_query, cu_key, **dropout, backend=backend)
    expected = torch.cat([padded[b].transpose(0, 1)[:length] for b, length in enumerate(lengths)])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("cuts", [(9,), (1, 2, 30), (0, 12, 12, 39, 40)])
def test_parts_of_a_source_merge_into_the_whole(backend, prior, cuts):
    """Forward and gradients, of the context and of the logsumexp."""
    needs(backend, "logsumexp", "first")
    visible = torch.tensor([40, 0, 13, 55, 2], dtype=torch.int32).expand(2, 1, 5)
    inputs = simple_inputs(keys=40, visible=visible, center_heads=3).leaves()
    first = torch.tensor([3, 0, 12, 20, 1], dtype=torch.int32).expand(2, 1, 5)
    whole = gma_kernels.gaussian_attention(*inputs, first=first, prior=prior, return_logsumexp=True, backend=backend)
    parts = []
    for begin, end in itertools.pairwise((0, *cuts, 40)):
        key, value = (x[:, :, begin:end] for x in (inputs.key, inputs.value))
        rows = (inputs.center - begin, inputs.width, (visible - begin).clamp(min=0))
        settings = {"first": (first - begin).clamp(min=0), "prior": prior, "return_logsumexp": True}
        parts.append(gma_kernels.gaussian_attention(inputs.query, key, value, *rows, **settings, backend=backend))
    merged = gma_kernels.merge(*zip(*parts))
    seen = (visible > 0).expand(2, 3, 5)
    assert (whole.logsumexp[~seen] == -math.inf).all()
    assert (merged.logsumexp[~seen] == -math.inf).all()
    torch.testing.assert_close(merged.context, whole.context, rtol=0, atol=1e-13)
    torch.testing.assert_close(merged.logsumexp[seen], whole.logsumexp[seen], rtol=1e-13, atol=1e-13)
    grads = [
        torch.autograd.grad(context.sin().sum() + logsumexp.masked_fill(~seen, 0.0).cos().sum(), inputs[:5])
        for context, logsumexp in (merged, whole)
    ]
    for got, expected in zip(*grads):
        assert got.isfinite().all()
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("prior", PRIORS)
def test_the_logsumexp_is_that_of_the_logits_as_they_are_written(backend, prior):
    needs(backend, "logsumexp")
    inputs = simple_inputs(keys=9)
    inputs.center[0, 0, 0] = -3.2  # nothing is near it
    position = torch.arange(1, 10, dtype=torch.float64)
    distance = (position - inputs.center[..., None]) / inputs.width[..., None]
    log_prior = {
        "gaussian": -0.5 * distance**2,
        "laplace": -math.sqrt(2) * distance.abs(),
        "linear": torch.log((1 - distance.abs() / 2).clamp(min=2.0**-10)),
        "none": torch.zeros_like(distance),
    }[prior]
    expected = torch.logsumexp(0.5 * inputs.query @ inputs.key.mT + log_prior, dim=-1)
    found = gma_kernels.gaussian_attention(*inputs, prior=prior, return_logsumexp=True, backend=backend)
    torch.testing.assert_close(found.logsumexp, expected, rtol=1e-13, atol=1e-13)
    assert torch.equal(found.context, gma_kernels.gaussian_attention(*inputs, prior=prior, backend=backend))


@pytest.mark.parametrize("prior", PRIORS)
def test_a_center_beyond_all_numbers_keeps_logsumexp_and_gradients_finite(backend, prior):
    needs(backend, "logsumexp")
    inputs = simple_inputs(dtype=torch.float32)
    inputs.center[0, 0, :2] = torch.tensor([-1e30, 3e38])
    inputs.width[0, 0, :3] = torch.tensor([1e-38, 1e-10, 1e-38])
    leaves = inputs.leaves()
    found = gma_kernels.gaussian_attention(*leaves, prior=prior, return_logsumexp=True, backend=backend)
    assert found.logsumexp.isfinite().all()
    assert all(x.isfinite().all() for x in torch.autograd.grad(found.logsumexp.sum(), leaves[:5]))


def test_gradcheck_with_everything(backend):
    needs(backend, *FEATURES)
    visible = torch.tensor([[[9, 4, 0, 3, 7]]], dtype=torch.int32)
    inputs = simple_inputs(1, 4, 5, 9, 3, 2, center_heads=4, visible=visible)
    first = torch.tensor([1, 0, 0, 3, 5], dtype=torch.int32).expand(1, 1, 5)
    leaves = grouped(inputs, 2).leaves()[:5]

    def attend(*x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [y[0].T for y in (*x[3:], visible, first)]
        offsets = (torch.tensor(y, dtype=torch.int32) for y in ([0, 3, 5], [0, 4, 9]))
        heads = (y[0].transpose(0, 1) for y in x[:3])
        context, logsumexp = gma_kernels.gaussian_attention_packed(
            *heads, *rows[:3], *offsets, first=rows[3], return_logsumexp=True, backend=backend
        )
        return context, logsumexp.masked_fill(logsumexp == -math.inf, 0.0)

    assert torch.autograd.gradcheck(attend, leaves)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_no_row_sees_may_hold_anything(backend, bad, dtype):
    """Left of every window, right of every row, and in rows that see nothing."""
    needs(backend, "first", "logsumexp", "grouped heads")
    visible = torch.tensor([9, 12, 5, 10, 0], dtype=torch.int32).expand(2, 1, 5)
    first = torch.tensor([4, 3, 5, 9, 0], dtype=torch.int32).expand(2, 1, 5)
    inputs = grouped(simple_inputs(heads=4, keys=70, visible=visible, dtype=dtype), 2)
    blind = (visible <= first)[:, 0]

    def run(inputs: Inputs, spoil: bool) -> list[torch.Tensor]:
        leaves = inputs.leaves()
        found = gma_kernels.gaussian_attention(
            *leaves, first=first, return_logsumexp=True, dropout_p=0.2, seed=1, backend=backend
        )
        grads = [torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape) for x in found]
        if spoil:
            grads = [grads[0].masked_fill(blind[:, None, :, None], bad), grads[1].masked_fill(blind[:, None], bad)]
        return [*found, *torch.autograd.grad(found, leaves[:5], grads)]

    spoiled = Inputs(
        inputs.query.masked_fill(blind[:, None, :, None], bad),
        *(x.clone() for x in inputs[1:3]),
        *(x.masked_fill(blind[:, None], bad) for x in inputs[3:5]),
        visible,
    )
    for x in spoiled[1:3]:
        x[:, :, :3] = bad
        x[:, :, 12:] = bad
    for got, expected in zip(run(spoiled, True), run(inputs, False)):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("function", ["general_forward", "general_backward", "general_weights"])
@pytest.mark.parametrize("packed", [False, True])
def test_opcheck(backend, function, packed):
    needs(backend, *FEATURES)
    inputs = grouped(simple_inputs(1, 4, 5, 9, dtype=torch.float32, center_heads=4), 2)
    first = torch.tensor([1, 0, 9, 3, 5], dtype=torch.int32).expand(1, 1, 5)
    cut = [torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 5], [0, 4, 9])] if packed else [None, None]
    namespace = torch.ops.gma_kernels
    if function == "general_weights":
        arguments = (*inputs.leaves().without_value(), first, 1, 0.5)
    else:
        attention = (*inputs, first, *cut, torch.tensor(5))
        settings = (0, 0.5, 0.3)
        arguments = (*inputs.leaves(), *attention[6:], *settings)
        if function == "general_backward":
            results = getattr(namespace, f"{backend}_general_forward")(*attention, *settings)
            arguments = (*(torch.randn_like(x) for x in results), *attention, *results, *settings)
    torch.library.opcheck(getattr(namespace, f"{backend}_{function}").default, arguments)


def test_compile_and_export_with_everything(backend):
    needs(backend, *FEATURES)
    torch.compiler.reset()

    class Packed(torch.nn.Module):
        def forward(self, *x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return gma_kernels.gaussian_attention_packed(*x[:8], first=x[8], return_logsumexp=True, backend=backend)

    inputs = as_packed(grouped(simple_inputs(heads=4, dtype=torch.float32), 2))
    inputs.append(torch.ones_like(inputs[5]))
    expected = Packed()(*inputs)
    compiled = torch.compile(Packed(), fullgraph=True, backend="aot_eager")
    exported = torch.export.export(Packed(), tuple(inputs)).module()
    for other in (compiled, exported):
        for got, want in zip(other(*inputs), expected):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("dropout", [{}, {"dropout_p": 0.4, "seed": 3}, {"dropout_p": 0.4}])
def test_checkpointing_with_everything_gives_the_same_gradients(backend, use_reentrant, dropout):
    needs(backend, *FEATURES)
    inputs = grouped(simple_inputs(1, 4, 5, 9), 2)
    rows, first = [x[0].T for x in inputs[3:]], torch.tensor([[1], [0], [0], [3], [5]], dtype=torch.int32)
    heads = [x[0].transpose(0, 1) for x in inputs[:3]]
    offsets = [torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 5], [0, 4, 9])]

    def gradients(around) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(8)
        leaves = [x.detach().requires_grad_() for x in (*heads, *rows[:2])]
        context, logsumexp = around(
            lambda *x: gma_kernels.gaussian_attention_packed(
                *x, rows[2], *offsets, first=first, return_logsumexp=True, backend=backend, **dropout
            ),
            *leaves,
        )
        (context.sin().sum() + logsumexp.masked_fill(logsumexp.isinf(), 0.0).sum()).backward()
        return tuple(x.grad for x in leaves)

    expected = gradients(lambda attend, *x: attend(*x))
    got = gradients(lambda attend, *x: checkpoint(attend, *x, use_reentrant=use_reentrant))
    assert all(map(torch.equal, got, expected))
