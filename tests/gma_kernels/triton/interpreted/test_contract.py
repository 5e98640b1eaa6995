"""The operator's contract on the Triton backend: edge rows, empty sizes, determinism, errors, PyTorch around it."""

import math

import pytest
import torch

import gma_kernels
from gma_kernels import triton as backend
from gma_kernels.triton import tile_sizes
from tests.support.numerics import GRADIENTS, PRIORS, Inputs, lay_out, lay_out_rows, poison_blind_rows, simple_inputs

RAGGED = torch.tensor([[[0, 1, 7, 3, 9]], [[7, 0, 2, 0, 5]]], dtype=torch.int32)


def attend_and_differentiate(inputs: Inputs, grad: torch.Tensor | None = None, **settings) -> list[torch.Tensor]:
    """The context followed by the five gradients."""
    leaves = inputs.leaves()
    context = gma_kernels.gaussian_attention(*leaves, **settings, backend="triton")
    grad = torch.linspace(-1, 1, context.numel()).reshape(context.shape).to(context.dtype) if grad is None else grad
    return [context.detach(), *torch.autograd.grad(context, leaves[:5], grad)]


def assert_same_bits(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for name, x, y in zip(("context", *GRADIENTS), got, expected):
        assert torch.equal(x, y), f"{name} differs by up to {(x.double() - y.double()).abs().max()}"


@pytest.mark.parametrize("prior", ["gaussian", *(pytest.param(x, marks=pytest.mark.slow) for x in PRIORS[1:])])
def test_rows_that_see_nothing_are_zero_and_ignore_their_center_and_width(prior):
    inputs = simple_inputs(dtype=torch.float32, visible=RAGGED)
    clean = attend_and_differentiate(inputs, prior=prior)
    dead = RAGGED == 0
    for bad in (math.nan, math.inf, -1.0, 0.0):
        spoiled = inputs._replace(
            center=inputs.center.masked_fill(dead, bad), width=inputs.width.masked_fill(dead, bad)
        )
        assert_same_bits(attend_and_differentiate(spoiled, prior=prior), clean)
    context, grad_query, _, _, grad_center, grad_width = clean
    for x in (context, grad_query):
        assert not x.masked_select(dead[..., None]).any()
    for x in (grad_center, grad_width):
        assert not x.masked_select(dead).any()


def test_a_row_that_sees_nothing_among_rows_that_see_whole_tiles_spoils_no_gradient():
    """Whole tiles need no mask, and its logsumexp is −∞."""
    visible = torch.full((1, 1, 20), 70, dtype=torch.int32)
    visible[0, 0, [0, 3, 17]] = 0
    inputs = simple_inputs(1, 2, 20, 70, 8, 8, dtype=torch.float32, visible=visible)
    for settings in ({}, {"dropout_p": 0.2, "seed": 4}):
        context, *gradients = attend_and_differentiate(inputs, **settings)
        leaves = inputs.leaves()
        expected = gma_kernels.gaussian_attention(*leaves, **settings, backend="reference")
        grad = torch.linspace(-1, 1, context.numel()).reshape(context.shape)
        for x, y in zip(gradients, torch.autograd.grad(expected, leaves[:5], grad)):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prior", ["gaussian", *(pytest.param(x, marks=pytest.mark.slow) for x in PRIORS[1:])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_that_see_nothing_poison_nothing(prior, dtype):
    """Also among rows that see whole tiles, which are not masked."""
    visible = torch.full((1, 1, 20), 70, dtype=torch.int32)
    visible[0, 0, [0, 3, 17]] = 0
    visible[0, 0, 5:9] = 40
    inputs = simple_inputs(1, 2, 20, 70, 8, 8, dtype=dtype, visible=visible)
    grad = torch.linspace(-1, 1, 1 * 2 * 20 * 8).reshape(1, 2, 20, 8).to(dtype)
    for settings in ({}, {"dropout_p": 0.2, "seed": 4}):
        clean = attend_and_differentiate(inputs, grad, prior=prior, **settings)
        spoiled, bad_grad = poison_blind_rows(inputs, grad)
        assert_same_bits(attend_and_differentiate(spoiled, bad_grad, prior=prior, **settings), clean)
        weights, spoiled_weights = (
            gma_kernels.attention_weights(*x.without_value(), prior=prior, backend="triton") for x in (inputs, spoiled)
        )
        assert torch.equal(weights, spoiled_weights)


@pytest.mark.parametrize("empty", ["batch", "rows", "keys"])
@pytest.mark.parametrize("rows", [1, 5])
def test_empty_sizes_are_legal(empty, rows):
    sizes = {"batch": 2, "rows": rows, "keys": 7, empty: 0}
    visible = torch.full((sizes["batch"], 1, sizes["rows"]), 3, dtype=torch.int32)
    inputs = simple_inputs(**sizes, dtype=torch.float32, visible=visible)
    context, *grads = attend_and_differentiate(inputs)
    assert context.shape == (sizes["batch"], 3, sizes["rows"], 6)
    assert not context.any()
    assert [g.shape for g in grads] == [x.shape for x in inputs[:5]]
    assert not any(g.any() for g in grads)


def test_visible_past_the_end_is_clamped_and_a_negative_one_sees_nothing(monkeypatch):
    everything = attend_and_differentiate(simple_inputs(dtype=torch.float32))
    for more in (8, 2**31 - 1):
        inputs = simple_inputs(dtype=torch.float32, visible=torch.full((2, 1, 5), more, dtype=torch.int32))
        assert_same_bits(attend_and_differentiate(inputs), everything)
    monkeypatch.setattr(backend, "check_values", lambda *_: None)
    below = RAGGED.where(RAGGED > 0, -(2**31))
    got = attend_and_differentiate(simple_inputs(dtype=torch.float32, visible=below))
    assert_same_bits(got, attend_and_differentiate(simple_inputs(dtype=torch.float32, visible=RAGGED)))


@pytest.mark.parametrize("prior", PRIORS[:3])
@pytest.mark.parametrize("bad", [math.nan, -1.0, 0.0, math.inf])
def test_a_bad_width_gives_nan_in_its_row_where_values_are_not_checked(monkeypatch, prior, bad):
    """As on a GPU, whose values nobody looks at."""
    inputs = simple_inputs(dtype=torch.float32, visible=RAGGED)
    clean = gma_kernels.gaussian_attention(*inputs, prior=prior, backend="triton")
    monkeypatch.setattr(backend, "check_values", lambda *_: None)
    inputs.width[0, 0, 2] = bad
    spoiled = gma_kernels.gaussian_attention(*inputs, prior=prior, backend="triton")
    weights = gma_kernels.attention_weights(*inputs.without_value(), prior=prior, backend="triton")
    row = torch.zeros(2, 3, 5, dtype=torch.bool)
    row[0, :, 2] = True
    assert spoiled[row].isnan().all()
    assert torch.equal(spoiled[~row], clean[~row])
    assert torch.equal(weights.isnan().any(dim=-1), row)
    alone = [inputs.query[:1, :, 2:3], *(x[:1] for x in inputs[1:3]), *(x[:1, :, 2:3] for x in inputs[3:])]
    assert gma_kernels.gaussian_attention(*alone, prior=prior, backend="triton").isnan().all()


@pytest.mark.parametrize("values", [{"visible": -1}, {"center": math.nan}, {"width": 0.0}])
def test_bad_values_are_refused_on_the_cpu(values):
    inputs = simple_inputs(dtype=torch.float32, visible=RAGGED.clone())
    for name, value in values.items():
        getattr(inputs, name)[0, 0, 2] = value
        with pytest.raises(ValueError, match=name):
            gma_kernels.gaussian_attention(*inputs, backend="triton")


def freed(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


def test_direct_calls_that_do_not_fit_are_refused():
    inputs = simple_inputs(dtype=torch.float32)
    forward = torch.ops.gma_kernels.triton_forward
    for wrong in (
        inputs._replace(key=inputs.key[:, :, :, :3]),
        inputs._replace(value=inputs.value[:, :, :4]),
        inputs._replace(visible=inputs.visible[:, :, :2]),
        inputs._replace(center=inputs.center.expand(2, 2, 5)),
        inputs._replace(query=inputs.query.mT.contiguous().mT),
        inputs._replace(value=freed(inputs.value)),
    ):
        with pytest.raises(ValueError, match=r"fit|stride|freed"):
            forward(*wrong, None, 0, 1.0, 0.0)
    with pytest.raises(TypeError, match="float64"):
        forward(*simple_inputs(), None, 0, 1.0, 0.0)
    wide = simple_inputs(size=257, dtype=torch.float32)
    with pytest.raises(ValueError, match="D and Dv are 257"):
        forward(*wide, None, 0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("seed", "prior", "dropout_p", "error", "said"),
    [
        (None, 4, 0.0, ValueError, "prior is 4"),
        (None, -1, 0.0, ValueError, "prior is -1"),
        (None, 0, 0.5, ValueError, "a seed unless it is 0"),
        (torch.tensor(1), 0, 1.0, ValueError, "dropout_p is 1.0"),
        (torch.tensor(1), 0, math.nan, ValueError, "dropout_p is nan"),
        (torch.empty(0, dtype=torch.int64), 0, 0.5, ValueError, "seed has shape"),
        (torch.tensor(1, dtype=torch.int32), 0, 0.5, TypeError, "seed has dtype"),
    ],
)
def test_direct_calls_with_impossible_settings_are_refused(seed, prior, dropout_p, error, said):
    inputs = simple_inputs(dtype=torch.float32)
    with pytest.raises(error, match=said):
        torch.ops.gma_kernels.triton_forward(*inputs, seed, prior, 1.0, dropout_p)


def test_the_backward_called_directly_follows_strides_and_refuses_what_does_not_fit():
    inputs = simple_inputs(dtype=torch.float32, visible=RAGGED)
    context, logsumexp = torch.ops.gma_kernels.triton_forward(*inputs, None, 0, 0.5, 0.0)
    grad = torch.ones_like(context)

    def backward(grad, context, logsumexp):
        return torch.ops.gma_kernels.triton_backward(grad, *inputs, None, context, logsumexp, 0, 0.5, 0.0)

    expected = backward(grad, context, logsumexp)
    strided = backward(grad, context.mT.contiguous().mT, logsumexp.mT.contiguous().mT)
    assert all(torch.equal(x, y) for x, y in zip(strided, expected))
    for wrong in (
        (grad[:, :, :2], context, logsumexp),
        (grad, context[:, :1], logsumexp),
        (grad, context, logsumexp[:, :, :1]),
        (grad, context, logsumexp[:, :1]),
        (grad[0], context, logsumexp),
    ):
        with pytest.raises(ValueError, match="does not fit query"):
            backward(*wrong)
    with pytest.raises(TypeError, match="grad_context has dtype"):
        backward(grad.half(), context, logsumexp)


def test_no_rows_with_an_expanded_gradient():
    inputs = simple_inputs(2, 3, 0, 7, 4, 5, dtype=torch.float32)
    grad = torch.ones(()).expand(2, 3, 0, 5)
    *_, grad_key, grad_value, _, _ = attend_and_differentiate(inputs, grad)
    assert not grad_key.any()
    assert not grad_value.any()


def test_two_runs_give_the_same_bits():
    inputs = simple_inputs(1, 2, 21, 67, 16, 16, dtype=torch.float16)
    settings = {"dropout_p": 0.2, "seed": 4}
    assert_same_bits(attend_and_differentiate(inputs, **settings), attend_and_differentiate(inputs, **settings))


def test_shared_rows_get_the_sum_over_the_heads():
    shared = simple_inputs(dtype=torch.float32, visible=RAGGED)
    copied = Inputs(*shared[:3], *(x.repeat(1, 3, 1) for x in shared[3:]))
    got, want = attend_and_differentiate(shared), attend_and_differentiate(copied)
    want[4:] = [x.sum(dim=1, keepdim=True) for x in want[4:]]
    assert_same_bits(got, want)


@pytest.mark.parametrize(
    "layout", ["permuted", *(pytest.param(x, marks=pytest.mark.slow) for x in ("expanded_rows", "every_second"))]
)
def test_strides_of_center_width_visible_change_nothing(layout):
    inputs = simple_inputs(dtype=torch.float32, center_heads=3, visible=RAGGED.repeat(1, 3, 1))
    strided = Inputs(*inputs[:3], *(lay_out_rows(x, layout) for x in inputs[3:]))
    dense = Inputs(*inputs[:3], *(x.contiguous() for x in strided[3:]))
    assert_same_bits(attend_and_differentiate(strided), attend_and_differentiate(dense))


def test_any_strides_of_the_incoming_gradient():
    inputs = simple_inputs(dtype=torch.float32)
    grad = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(1))
    transposed = grad.mT.contiguous().mT
    for strided in (transposed, lay_out(grad, "rows_first"), lay_out(grad, "cache"), lay_out(grad, "expanded")):
        got = attend_and_differentiate(inputs, strided)
        assert_same_bits(got, attend_and_differentiate(inputs, strided.contiguous()))


def test_a_row_that_sees_one_position_has_no_gradient_but_the_values():
    """Exactly: a rounded 16-bit context must not leave a trace."""
    visible = torch.ones(2, 1, 5, dtype=torch.int32)
    inputs = simple_inputs(2, 3, 5, 7, 64, 100, dtype=torch.bfloat16, visible=visible)
    _, grad_query, grad_key, grad_value, grad_center, grad_width = attend_and_differentiate(inputs)
    assert not any(x.any() for x in (grad_key, grad_center, grad_width))
    assert grad_query.abs().max() < 1e-5
    assert grad_value[:, :, 0].all()


@pytest.mark.slow
@pytest.mark.parametrize(("prior", "seed", "dropout_p"), [(0, None, 0.0), (3, 5, 0.3)])
def test_opcheck(prior, seed, dropout_p):
    inputs = simple_inputs(dtype=torch.float32, visible=RAGGED, center_heads=3).leaves()
    seed = None if seed is None else torch.tensor(seed)
    operators = torch.ops.gma_kernels
    torch.library.opcheck(operators.triton_forward.default, (*inputs, seed, prior, 0.5, dropout_p))
    plain = [x.detach() for x in inputs]
    context, logsumexp = operators.triton_forward(*plain, seed, prior, 0.5, dropout_p)
    arguments = (torch.ones_like(context), *plain, seed, context, logsumexp, prior, 0.5, dropout_p)
    torch.library.opcheck(operators.triton_backward.default, arguments)
    torch.library.opcheck(operators.triton_weights.default, (*inputs.without_value(), prior, 0.5))


def test_compile_in_one_graph_gives_the_same_output_and_gradients():
    torch.compiler.reset()

    def attend(*inputs):
        return gma_kernels.gaussian_attention(*inputs, dropout_p=0.2, seed=3, backend="triton")

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    inputs = simple_inputs(dtype=torch.float32, visible=RAGGED)
    results = []
    for function in (attend, compiled):
        leaves = inputs.leaves()
        context = function(*leaves)
        context.sin().sum().backward()
        results.append([context.detach(), *(x.grad for x in leaves[:5])])
    assert_same_bits(*results)


def test_double_backward_is_refused_with_the_remedy():
    inputs = simple_inputs(dtype=torch.float32).leaves()
    context = gma_kernels.gaussian_attention(*inputs, backend="triton")
    (grad,) = torch.autograd.grad(context.square().sum(), inputs.query, create_graph=True)
    with pytest.raises(RuntimeError, match=r"triton.*double backward.*reference"):
        grad.square().sum().backward()


def test_the_status_names_the_interpreter():
    status = gma_kernels.backends()["triton"]
    assert status.available
    assert status.devices == ("cpu",)
    assert "interpreter" in status.reason


def test_a_launch_is_prepared_once(monkeypatch):
    made = []
    for name in ("forward", "backward_rows", "backward_keys", "weights"):
        make = getattr(backend.launch, name)
        monkeypatch.setattr(
            backend.launch, name, lambda *given, name=name, make=make: made.append(name) or make(*given)
        )
    inputs = simple_inputs(dtype=torch.float32)
    attend_and_differentiate(inputs)
    gma_kernels.attention_weights(*inputs.without_value(), backend="triton")
    assert made == ["forward", "backward_rows", "backward_keys", "weights"]


def test_autotuning_keeps_the_fastest_tile_of_each_kind(monkeypatch):
    options = (tile_sizes.Tile(16, 16, 4, 1), tile_sizes.Tile(16, 32, 4, 1), tile_sizes.Tile(32, 32, 4, 1))
    monkeypatch.setattr(tile_sizes, "candidates", lambda *_: options)
    monkeypatch.setattr(tile_sizes, "_fastest", {})
    inputs = simple_inputs(dtype=torch.float32)
    fixed = gma_kernels.gaussian_attention(*inputs, backend="triton")
    assert not tile_sizes._fastest
    tried = []

    def pretended_time(run) -> float:
        run()
        tried.append(run)
        return (3.0, 1.0, 2.0)[len(tried) - 1]

    monkeypatch.setenv("GMA_TRITON_AUTOTUNE", "1")
    monkeypatch.setattr(tile_sizes.triton.testing, "do_bench", pretended_time)
    for _ in range(2):
        tuned = gma_kernels.gaussian_attention(*inputs, backend="triton")
        torch.testing.assert_close(tuned, fixed)
    assert len(tried) == 3
    assert list(tile_sizes._fastest.values()) == [options[1]]


@pytest.mark.usefixtures("real_tiles")
def test_tiles_fit_the_sequence_and_the_fixed_choice_comes_first():
    for kernel, columns, half in tile_sizes.CHOICES:
        for rows in (1, 17, 64, 1000):
            found = tile_sizes.candidates(kernel, columns, 2 if half else 4, rows, rows, False, False, 8)
            fixed = tile_sizes.CHOICES[kernel, columns, half][0]
            assert found[0] == fixed._replace(rows=found[0].rows, keys=found[0].keys)
            assert found[0].keys == (
                min(fixed.keys, tile_sizes.bucket(rows)) if kernel == "backward_keys" else fixed.keys
            )
            assert all(16 <= tile.rows <= max(tile_sizes.bucket(rows), 16) for tile in found)
            assert len(set(found)) == len(found)
