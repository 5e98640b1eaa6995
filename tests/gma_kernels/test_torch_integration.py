"""The operators inside the rest of PyTorch: opcheck, compile, export, checkpointing, autocast, transforms."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import gma_kernels
from tests.support.numerics import GRADIENTS, PRIORS, Inputs, lay_out, simple_inputs

RAGGED = torch.tensor([[[0, 1, 7, 3, 9]], [[7, 0, 2, 0, 5]]], dtype=torch.int32)
SETTINGS = [(0, None, 0.0), (1, None, 0.0), (2, None, 0.0), (3, None, 0.0), (0, 5, 0.3)]


class Attention(torch.nn.Module):
    """The operator as a module, so that export and checkpointing have something to hold."""

    def __init__(self, **settings):
        super().__init__()
        self.settings = settings

    def forward(self, query, key, value, center, width, visible):
        return gma_kernels.gaussian_attention(query, key, value, center, width, visible, **self.settings)


def operator(backend: str, name: str):
    return getattr(torch.ops.gma_kernels, f"{backend}_{name}").default


def gradients(function, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    leaves = inputs.leaves()
    context = function(*leaves)
    context.sin().sum().backward()
    return context.detach(), *(x.grad for x in leaves[:5])


def assert_close(got, expected) -> None:
    for name, x, y in zip(("context", *GRADIENTS), got, expected):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(("prior", "seed", "dropout_p"), SETTINGS)
def test_opcheck_of_forward(backend, prior, seed, dropout_p):
    inputs = simple_inputs(
        dtype=torch.float64 if prior == 1 else torch.float32, visible=RAGGED, center_heads=3
    ).leaves()
    seed = None if seed is None else torch.tensor(seed)
    torch.library.opcheck(operator(backend, "forward"), (*inputs, seed, prior, 0.5, dropout_p))


@pytest.mark.parametrize("layout", ["rows_first", "cache", "packed", "rows_outermost", "one_head"])
def test_opcheck_of_forward_with_strides(backend, layout):
    inputs = simple_inputs(dtype=torch.float32, visible=RAGGED)
    laid_out = Inputs(*(lay_out(x, layout) for x in inputs[:3]), *inputs[3:])
    torch.library.opcheck(operator(backend, "forward"), (*laid_out, None, 0, 0.5, 0.0))


@pytest.mark.parametrize(("prior", "seed", "dropout_p"), [SETTINGS[0], SETTINGS[-1]])
def test_opcheck_of_backward(backend, prior, seed, dropout_p):
    inputs = simple_inputs(dtype=torch.float32, visible=RAGGED)
    seed = None if seed is None else torch.tensor(seed)
    context, logsumexp = operator(backend, "forward")(*inputs, seed, prior, 0.5, dropout_p)
    arguments = (torch.randn_like(context), *inputs, seed, context, logsumexp, prior, 0.5, dropout_p)
    torch.library.opcheck(operator(backend, "backward"), arguments)


@pytest.mark.parametrize("prior", range(4), ids=PRIORS)
def test_opcheck_of_weights(backend, prior):
    inputs = simple_inputs(dtype=torch.float32, visible=RAGGED).leaves()
    torch.library.opcheck(operator(backend, "weights"), (*inputs.without_value(), prior, 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fakes_have_the_real_shapes_strides_and_dtypes(backend, dtype):
    inputs = simple_inputs(dtype=dtype, visible=RAGGED, center_heads=3)
    forward = operator(backend, "forward")
    context, logsumexp = forward(*inputs, None, 0, 0.5, 0.0)
    grads = operator(backend, "backward")(context, *inputs, None, context, logsumexp, 0, 0.5, 0.0)
    weights = operator(backend, "weights")(*inputs.without_value(), 0, 0.5)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) for x in inputs]
        fake_context, fake_logsumexp = forward(*fakes, None, 0, 0.5, 0.0)
        fake_grads = operator(backend, "backward")(
            fake_context, *fakes, None, fake_context, fake_logsumexp, 0, 0.5, 0.0
        )
        fake_weights = operator(backend, "weights")(*fakes[:2], *fakes[3:], 0, 0.5)
    real = (context, logsumexp, *grads, weights)
    for got, fake in zip(real, (fake_context, fake_logsumexp, *fake_grads, fake_weights)):
        assert (got.shape, got.stride(), got.dtype) == (fake.shape, fake.stride(), fake.dtype)


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_compile_gives_the_same_output_and_gradients_at_two_lengths(backend, compiler):
    torch.compiler.reset()
    attention = Attention(backend=backend)
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend(compiler)(graph, example_inputs)

    compiled = torch.compile(attention, fullgraph=True, backend=count)
    for rows, keys in ((5, 7), (6, 11), (9, 13), (17, 30)):
        inputs = simple_inputs(rows=rows, keys=keys, dtype=torch.float32)
        assert_close(gradients(compiled, inputs), gradients(attention, inputs))
    assert len(graphs) <= 2, "recompiled beyond the dynamic-shape graph"


def test_compile_with_backend_auto_and_dropout():
    torch.compiler.reset()
    inputs = simple_inputs(dtype=torch.float32, visible=RAGGED)
    attention = Attention(dropout_p=0.3, seed=9)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    assert_close(gradients(compiled, inputs), gradients(attention, inputs))


def test_compile_draws_a_new_seed_at_every_call(backend):
    torch.compiler.reset()
    inputs = simple_inputs(dtype=torch.float32)
    compiled = torch.compile(Attention(dropout_p=0.5, backend=backend), fullgraph=True, backend="aot_eager")
    assert not torch.equal(compiled(*inputs), compiled(*inputs))


def test_compile_of_weights(backend):
    torch.compiler.reset()
    inputs = simple_inputs(dtype=torch.float32, visible=RAGGED).without_value()
    compiled = torch.compile(gma_kernels.attention_weights, fullgraph=True, backend="aot_eager")
    expected = gma_kernels.attention_weights(*inputs, backend=backend)
    torch.testing.assert_close(compiled(*inputs, backend=backend), expected)


def test_export_with_dynamic_lengths(backend):
    inputs = simple_inputs(dtype=torch.float32)
    attention = Attention(backend=backend)
    rows, keys = torch.export.Dim("rows"), torch.export.Dim("keys")
    of_row = {2: rows}
    shapes = ({2: rows}, {2: keys}, {2: keys}, of_row, of_row, of_row)
    program = torch.export.export(attention, tuple(inputs), dynamic_shapes=shapes)
    for other in (inputs, simple_inputs(rows=11, keys=23, dtype=torch.float32)):
        torch.testing.assert_close(program.module()(*other), attention(*other))


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("dropout", [{}, {"dropout_p": 0.4, "seed": 3}, {"dropout_p": 0.4}])
def test_activation_checkpointing_gives_the_same_gradients(backend, use_reentrant, dropout):
    inputs = simple_inputs(visible=RAGGED)
    attention = Attention(backend=backend, **dropout)
    torch.manual_seed(8)
    expected = gradients(attention, inputs)
    torch.manual_seed(8)
    got = gradients(lambda *x: checkpoint(attention, *x, use_reentrant=use_reentrant), inputs)
    for x, y in zip(got, expected):
        assert torch.equal(x, y)


def test_autocast_changes_nothing(backend):
    inputs = simple_inputs(dtype=torch.float32)
    expected = gradients(Attention(backend=backend), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = gradients(Attention(backend=backend), inputs)
        weights = gma_kernels.attention_weights(*inputs.without_value(), backend=backend)
    for x, y in zip(got, expected):
        assert torch.equal(x, y)
    assert torch.equal(weights, gma_kernels.attention_weights(*inputs.without_value(), backend=backend))


def test_inference_mode_and_no_grad(backend):
    inputs = simple_inputs().leaves()
    expected = gma_kernels.gaussian_attention(*inputs, backend=backend)
    with torch.inference_mode():
        inside = gma_kernels.gaussian_attention(*inputs, backend=backend)
        assert inside.is_inference()
    with torch.no_grad():
        silent = gma_kernels.gaussian_attention(*inputs, backend=backend)
    assert not silent.requires_grad
    assert torch.equal(inside, expected)
    assert torch.equal(silent, expected)
