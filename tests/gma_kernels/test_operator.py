"""The operator's contract, on every CPU backend: edge rows, layouts, determinism, threads, forks and value checks."""

import math
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import gma_kernels
from tests.support.numerics import (
    DTYPES,
    GRADIENTS,
    HEAD_LAYOUTS,
    PRIORS,
    Inputs,
    lay_out,
    lay_out_rows,
    poison_blind_rows,
    simple_inputs,
)

RAGGED = torch.tensor([[[0, 1, 7, 3, 9]], [[7, 0, 2, 0, 5]]], dtype=torch.int32)


def attend_and_differentiate(inputs: Inputs, grad: torch.Tensor | None = None, **settings) -> list[torch.Tensor]:
    """The context followed by the five gradients."""
    leaves = inputs.leaves()
    context = gma_kernels.gaussian_attention(*leaves, **settings)
    grad = torch.linspace(-1, 1, context.numel(), dtype=context.dtype).reshape(context.shape) if grad is None else grad
    return [context.detach(), *torch.autograd.grad(context, leaves[:5], grad)]


def assert_same_bits(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for name, x, y in zip(("context", *GRADIENTS), got, expected):
        assert torch.equal(x, y), f"{name} differs by up to {(x.double() - y.double()).abs().max()}"


def assert_dense_rows_before_heads(x: torch.Tensor) -> None:
    batch, heads, rows, size = x.shape
    assert x.stride() == torch.empty(batch, rows, heads, size).transpose(1, 2).stride()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("prior", PRIORS)
def test_rows_that_see_nothing_are_zero_and_ignore_their_center_and_width(backend, prior, dtype):
    inputs = simple_inputs(dtype=dtype, visible=RAGGED)
    clean = attend_and_differentiate(inputs, prior=prior, backend=backend)
    dead = RAGGED == 0
    for bad in (math.nan, math.inf, -math.inf, -1.0, 0.0):
        spoiled = inputs._replace(
            center=inputs.center.masked_fill(dead, bad), width=inputs.width.masked_fill(dead, bad)
        )
        assert_same_bits(attend_and_differentiate(spoiled, prior=prior, backend=backend), clean)
    context, grad_query, _, _, grad_center, grad_width = clean
    for x in (context, grad_query):
        assert not x.masked_select(dead[..., None]).any()
    for x in (grad_center, grad_width):
        assert not x.masked_select(dead).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("prior", PRIORS)
def test_rows_that_see_nothing_poison_nothing(backend, prior, dtype):
    inputs = simple_inputs(dtype=dtype, visible=RAGGED)
    grad = torch.linspace(-1, 1, 2 * 3 * 5 * 6).reshape(2, 3, 5, 6).to(dtype)
    grad_weights = torch.linspace(-1, 1, 2 * 3 * 5 * 7).reshape(2, 3, 5, 7).to(dtype)
    for settings in ({}, {"dropout_p": 0.2, "seed": 4}):
        clean = attend_and_differentiate(inputs, grad, prior=prior, backend=backend, **settings)
        spoiled, bad_grad = poison_blind_rows(inputs, grad)
        assert_same_bits(attend_and_differentiate(spoiled, bad_grad, prior=prior, backend=backend, **settings), clean)

    def weights(inputs: Inputs, grad: torch.Tensor) -> list[torch.Tensor]:
        leaves = inputs.leaves()
        found = gma_kernels.attention_weights(*leaves.without_value(), prior=prior, backend=backend)
        return [found, *torch.autograd.grad(found, (*leaves[:2], *leaves[3:5]), grad, materialize_grads=True)]

    for clean, spoiled in zip(weights(inputs, grad_weights), weights(*poison_blind_rows(inputs, grad_weights))):
        assert torch.equal(clean, spoiled)


def test_rows_that_see_nothing_poison_no_second_derivative():
    inputs = simple_inputs(visible=RAGGED)

    def second(inputs: Inputs) -> tuple[torch.Tensor, ...]:
        leaves = inputs.leaves()
        context = gma_kernels.gaussian_attention(*leaves, backend="reference")
        first = torch.autograd.grad(context.square().sum(), leaves[:5], create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), leaves[:5])

    spoiled, _ = poison_blind_rows(inputs, inputs.query)
    for clean, got in zip(second(inputs), second(spoiled)):
        assert torch.equal(clean, got)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_visible_anywhere_gives_zeros(backend, dtype):
    inputs = simple_inputs(dtype=dtype, visible=torch.zeros(2, 1, 5, dtype=torch.int32))
    assert not any(x.any() for x in attend_and_differentiate(inputs, backend=backend))


def test_visible_past_the_end_is_clamped(backend):
    everything = attend_and_differentiate(simple_inputs(), backend=backend)
    for more in (8, 1000, 2**31 - 1):
        inputs = simple_inputs(visible=torch.full((2, 1, 5), more, dtype=torch.int32))
        assert_same_bits(attend_and_differentiate(inputs, backend=backend), everything)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_hidden_keys_and_values_have_no_influence(backend, dtype):
    inputs = simple_inputs(dtype=dtype, visible=torch.tensor([4, 2, 0, 1, 3], dtype=torch.int32).expand(2, 1, 5))
    changed = inputs._replace(key=inputs.key.clone(), value=inputs.value.clone())
    changed.key[:, :, 4:] = 1e4
    changed.value[:, :, 4:] = -1e4
    clean = attend_and_differentiate(inputs, backend=backend)
    assert_same_bits(attend_and_differentiate(changed, backend=backend), clean)
    assert not clean[2][:, :, 4:].any()
    assert not clean[3][:, :, 4:].any()


@pytest.mark.parametrize("empty", ["batch", "rows", "keys"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_empty_sizes_are_legal(backend, dtype, empty):
    sizes = {"batch": 2, "rows": 5, "keys": 7, empty: 0}
    visible = torch.full((sizes["batch"], 1, sizes["rows"]), 3, dtype=torch.int32)
    inputs = simple_inputs(**sizes, dtype=dtype, visible=visible)
    context, *grads = attend_and_differentiate(inputs, backend=backend)
    assert context.shape == (sizes["batch"], 3, sizes["rows"], 6)
    assert not context.any()
    assert [g.shape for g in grads] == [x.shape for x in inputs[:5]]
    assert not any(g.any() for g in grads)
    weights = gma_kernels.attention_weights(*inputs.without_value(), backend=backend)
    assert weights.shape == (sizes["batch"], 3, sizes["rows"], sizes["keys"])


@pytest.mark.parametrize("layout", HEAD_LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_output_and_gradients_are_dense_in_rows_before_heads(backend, dtype, layout):
    inputs = simple_inputs(dtype=dtype, center_heads=3)
    laid_out = inputs._replace(**{name: lay_out(getattr(inputs, name), layout) for name in ("query", "key", "value")})
    context, *grads = attend_and_differentiate(laid_out, backend=backend)
    for x in (context, *grads[:3]):
        assert x.dtype == dtype
        assert_dense_rows_before_heads(x)
    for got, like in zip(grads[3:], inputs[3:5]):
        assert got.dtype == like.dtype
        assert got.shape == like.shape
        assert got.is_contiguous()


@pytest.mark.parametrize("layout", [x for x in HEAD_LAYOUTS if not x.startswith("one_")])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outer_strides_of_query_key_value_change_nothing(backend, dtype, layout):
    inputs = simple_inputs(2, 3, 5, 37, 19, 21, dtype=dtype)
    expected = attend_and_differentiate(inputs, backend=backend)
    for name in ("query", "key", "value"):
        strided = inputs._replace(**{name: lay_out(getattr(inputs, name), layout)})
        for got, want in zip(attend_and_differentiate(strided, backend=backend), expected):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6 if got.dtype == torch.float32 else 1e-3)


@pytest.mark.parametrize("layout", ["expanded_batch", "expanded_rows", "permuted", "every_second"])
@pytest.mark.parametrize("name", ["center", "width", "visible"])
def test_strides_of_center_width_visible_change_nothing(backend, name, layout):
    inputs = simple_inputs(center_heads=3, visible=RAGGED.repeat(1, 3, 1))
    laid_out = lay_out_rows(getattr(inputs, name), layout)
    strided = inputs._replace(**{name: laid_out})
    dense = inputs._replace(**{name: laid_out.contiguous()})
    assert_same_bits(
        attend_and_differentiate(strided, backend=backend), attend_and_differentiate(dense, backend=backend)
    )


def test_one_column_may_have_any_last_stride(backend):
    inputs = simple_inputs(size=1, value_size=1)
    odd = [x.repeat(1, 1, 1, 4)[..., ::4] for x in inputs[:3]]
    got = attend_and_differentiate(Inputs(*odd, *inputs[3:]), backend=backend)
    assert_same_bits(got, attend_and_differentiate(inputs, backend=backend))


@pytest.mark.parametrize("layout", ["expanded", "rows_first", "cache"])
def test_any_strides_of_the_incoming_gradient(backend, layout):
    inputs = simple_inputs()
    grad = lay_out(torch.randn(2, 3, 5, 6, dtype=torch.float64), layout)
    got = attend_and_differentiate(inputs, grad, backend=backend)
    assert_same_bits(got, attend_and_differentiate(inputs, grad.contiguous(), backend=backend))


def test_gradient_may_arrive_transposed_in_its_last_dimension(backend):
    inputs = simple_inputs()
    grad = torch.randn(2, 3, 6, 5, dtype=torch.float64).mT
    got = attend_and_differentiate(inputs, grad, backend=backend)
    assert_same_bits(got, attend_and_differentiate(inputs, grad.contiguous(), backend=backend))


def test_shared_center_width_and_visible_equal_their_copies_per_head(backend):
    shared = simple_inputs(visible=RAGGED)
    copied = Inputs(*shared[:3], *(x.repeat(1, 3, 1) for x in shared[3:]))
    got = attend_and_differentiate(shared, backend=backend)
    want = attend_and_differentiate(copied, backend=backend)
    want[4:] = [x.sum(dim=1, keepdim=True) for x in want[4:]]
    for x, y in zip(got, want):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_no_gradient_to_visible(backend):
    inputs = simple_inputs(visible=RAGGED).leaves()
    gma_kernels.gaussian_attention(*inputs, backend=backend).sum().backward()
    assert inputs.visible.grad is None
    assert all(x.grad is not None for x in inputs[:5])


@pytest.mark.parametrize("wanted", GRADIENTS)
def test_each_gradient_may_be_asked_for_alone(backend, wanted):
    inputs = simple_inputs(visible=RAGGED)
    everything = dict(zip(GRADIENTS, attend_and_differentiate(inputs, backend=backend)[1:]))
    leaf = getattr(inputs, wanted).clone().requires_grad_()
    context = gma_kernels.gaussian_attention(*inputs._replace(**{wanted: leaf}), backend=backend)
    context.backward(torch.linspace(-1, 1, context.numel(), dtype=context.dtype).reshape(context.shape))
    assert torch.equal(leaf.grad, everything[wanted])


@pytest.mark.parametrize("prior", PRIORS)
def test_gradcheck_in_float64(backend, prior):
    visible = torch.tensor([[[0, 1, 4, 3]]], dtype=torch.int32)
    *inputs, visible = simple_inputs(1, 2, 4, 4, 2, 1, center_heads=2, visible=visible).leaves()
    assert torch.autograd.gradcheck(
        lambda *x: gma_kernels.gaussian_attention(*x, visible, prior=prior, backend=backend), inputs
    )


def test_double_backward_works_on_reference_and_is_refused_elsewhere(backend):
    inputs = simple_inputs().leaves()
    context = gma_kernels.gaussian_attention(*inputs, backend=backend)
    (grad,) = torch.autograd.grad(context.square().sum(), inputs.query, create_graph=True)
    if backend == "reference":
        grad.square().sum().backward()
        assert inputs.center.grad.any()
    else:
        with pytest.raises(RuntimeError, match=rf"{backend}.*double backward.*reference"):
            grad.square().sum().backward()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_runs_and_any_number_of_threads_give_the_same_bits(backend, dtype):
    visible = torch.randint(0, 140, (2, 1, 67), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    inputs = simple_inputs(2, 3, 67, 130, 48, 40, dtype=dtype, visible=visible)
    settings = {"dropout_p": 0.1, "seed": 3, "backend": backend}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = attend_and_differentiate(inputs, **settings)
        assert_same_bits(attend_and_differentiate(inputs, **settings), alone)
        for threads in (2, 3):
            torch.set_num_threads(threads)
            assert_same_bits(attend_and_differentiate(inputs, **settings), alone)
    finally:
        torch.set_num_threads(before)


def test_a_row_does_not_depend_on_its_neighbours(backend):
    """What a batch computes for a sentence is what the sentence alone gets; streaming rests on it."""
    inputs = simple_inputs(2, 3, 5, 37, dtype=torch.float64)
    context = gma_kernels.gaussian_attention(*inputs, backend=backend)
    for b in range(2):
        for i in range(5):
            one = Inputs(
                inputs.query[b : b + 1, :, i : i + 1],
                *(x[b : b + 1] for x in inputs[1:3]),
                *(x[b : b + 1, :, i : i + 1] for x in inputs[3:]),
            )
            alone = gma_kernels.gaussian_attention(*one, backend=backend)
            torch.testing.assert_close(alone[0, :, 0], context[b, :, i], rtol=0, atol=1e-12)


def test_several_python_threads_at_once(backend):
    everyone = [simple_inputs(2, 3, 33, 65, 16, 16, dtype=torch.float32, seed=seed) for seed in range(8)]
    expected = [attend_and_differentiate(x, backend=backend) for x in everyone]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            results = pool.map(lambda x: attend_and_differentiate(x, backend=backend), everyone)
            for got, want in zip(results, expected):
                assert_same_bits(got, want)


def test_after_fork(backend):
    """The parent has used its threads already; the child must neither hang nor get another result."""
    inputs = simple_inputs(2, 3, 67, 130, 32, 32, dtype=torch.float32)
    expected = gma_kernels.gaussian_attention(*inputs, backend=backend)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1 if backend == "reference" else torch.get_num_threads())
            again = gma_kernels.gaussian_attention(*inputs, backend=backend)
            status = 0 if torch.allclose(again, expected, atol=1e-6) else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the forked child hangs")


def test_rows_that_see_nothing_get_zero_gradients_whatever_other_rows_see(backend):
    inputs = simple_inputs(dtype=torch.float32)
    visible = inputs.visible.clone()
    visible[..., 0], visible[..., 1] = 0, inputs.key.shape[2]
    key = inputs.key.clone()
    key[:, :, -1] = 1e30
    leaves = inputs._replace(key=key, visible=visible).leaves()
    gma_kernels.gaussian_attention(*leaves, backend=backend).sum().backward()
    for x in (leaves.query, leaves.center, leaves.width):
        assert not x.grad[:, :, 0].any()


@pytest.mark.parametrize("rows", [2, 5])  # the first is forwarded by the kernel for decoding
@pytest.mark.parametrize("one_hot_by", ["visible", "scores"])
def test_a_row_with_one_weight_has_no_gradient_but_that_of_its_value(backend, rows, one_hot_by):
    make = torch.Generator().manual_seed(0)
    query, key = (3 * torch.randn(2, 4, n, 3, generator=make) for n in (rows, 7))
    value, grad = (10 * torch.randn(2, 4, n, 128, generator=make) for n in (7, rows))
    visible = torch.full((2, 1, rows), 1 if one_hot_by == "visible" else 7, dtype=torch.int32)
    if one_hot_by == "scores":
        # scores of the other keys are 200 to 800 lower, and their weights exactly 0
        query, key = query.abs() + 1, torch.cat([key[:, :, :1].abs() + 20, -key[:, :, 1:].abs() - 20], 2)
    inputs = Inputs(query, key, value, torch.full((2, 1, rows), 2.5), torch.full((2, 1, rows), 3.0), visible)
    leaves = inputs.leaves()
    gma_kernels.gaussian_attention(*leaves, scale=1.0, backend=backend).backward(grad)
    for x in (leaves.query, leaves.key, leaves.center, leaves.width):
        assert not x.grad.any()
    assert leaves.value.grad[:, :, 0].any()
