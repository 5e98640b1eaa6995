"""Which memory the kernels touch: every output element once, of the inputs what is seen, and nothing else."""

import math
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import gma_kernels
from gma_kernels.triton import launch
from tests.support.numerics import GRADIENTS, Inputs, lay_out, simple_inputs
from tests.support.triton_interpreter import watch

GUARD = 64
RAGGED = torch.tensor([[[0, 40, 33, 5, 17] * 4], [[1, 0, 64, 70, 2] * 4]], dtype=torch.int32)
KINDS = [
    (torch.float32, {"prior": "gaussian"}),
    (torch.bfloat16, {"prior": "linear", "dropout_p": 0.3, "seed": 5}),
    (torch.float16, {"prior": "none"}),
]


@pytest.fixture
def poisoned():
    """New memory is filled with NaN, so that what a kernel does not write shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def guarded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same values between two guard regions, and the whole buffer."""
    poison = math.nan if x.is_floating_point() else 2**31 - 1
    buffer = torch.full((x.numel() + 2 * GUARD,), poison, dtype=x.dtype)
    inside = buffer[GUARD:-GUARD].view(x.shape)
    inside.copy_(x)
    return inside, buffer


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    return torch.equal(x.nan_to_num(nan=12345.0), y.nan_to_num(nan=12345.0))


def everything(inputs: Inputs, settings: dict) -> list[torch.Tensor]:
    leaves = inputs.leaves()
    context = gma_kernels.gaussian_attention(*leaves, **settings, backend="triton")
    weights = gma_kernels.attention_weights(*inputs.without_value(), prior=settings["prior"], backend="triton")
    grad = torch.linspace(-1, 1, context.numel()).reshape(context.shape).to(context.dtype)
    return [context.detach(), weights, *torch.autograd.grad(context, leaves[:5], grad)]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("dtype", "settings"), KINDS, ids=str)
def test_outputs_are_fully_written_and_nothing_outside_is_touched(dtype, settings):
    inputs = simple_inputs(2, 1, 20, 70, 10, 6, dtype=dtype, visible=RAGGED)
    pairs = [guarded(x) for x in inputs]
    buffers = [buffer for _, buffer in pairs]
    before = [x.clone() for x in buffers]
    with watch() as watched:
        outputs = everything(Inputs(*(x for x, _ in pairs)), settings)
    assert watched.launches == 4
    for name, x in zip(("context", "weights", *GRADIENTS), outputs):
        assert x.isfinite().all(), name
        assert name in ("center", "width") or watched.wrote(x), name
    assert all(same_bits(x, y) for x, y in zip(buffers, before))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("keys", [70, 600])
def test_decoding_writes_everything_and_touches_nothing_outside(keys):
    visible = torch.tensor([keys, 0, 33], dtype=torch.int32).reshape(3, 1, 1)
    inputs = simple_inputs(3, 1, 1, keys, 10, 6, dtype=torch.float32, visible=visible)
    pairs = [guarded(x) for x in inputs]
    with watch() as watched:
        context = gma_kernels.gaussian_attention(*(x for x, _ in pairs), backend="triton")
    assert watched.launches == (1 if keys == 70 else 2)
    assert watched.wrote(context)
    assert context.isfinite().all()


def test_the_watch_notices_an_access_outside():
    """A source that claims one key more than there is."""
    inputs = simple_inputs(1, 1, 5, 9, 8, 8, dtype=torch.float32)
    short = inputs.key[:, :, :8]
    problem = launch.Problem(*inputs._replace(key=short, value=inputs.value[:, :, :8]), None, 0, 1.0, 0.0)
    tile = launch.Tile(16, 32, 4, 1)
    made = launch.forward(problem, tile, torch.empty(1, 5, 1, 8).transpose(1, 2), torch.empty(1, 1, 5))
    made.arguments["keys"] = 9
    with watch(), pytest.raises(Exception, match="outside every tensor"):
        made.run()


@triton.jit
def racing(x, READ: tl.constexpr, WRITE: tl.constexpr):
    """Each of two programs reads one element and writes one; which, counted from its own place."""
    place = tl.program_id(0)
    tl.store(x + (place + WRITE) % 2, tl.load(x + (place + READ) % 2))


@pytest.mark.parametrize(("read", "write"), [(1, 0), (0, 1)])
def test_the_watch_notices_a_race(read, write):
    with watch(), pytest.raises(Exception, match="what another"):
        racing[(2,)](torch.zeros(2), read, write)


def test_the_watch_lets_programs_keep_to_their_own():
    with watch():
        racing[(2,)](torch.zeros(2), 0, 0)
        racing[(2,)](torch.zeros(2), 1, 1)


def test_source_that_nobody_sees_is_never_read():
    inputs = simple_inputs(2, 2, 20, 131, 16, 16, dtype=torch.float32)
    visible = torch.arange(1, 21, dtype=torch.int32).expand(2, 1, 20)
    inputs = inputs._replace(visible=visible)
    inputs.key[:, :, 32:] = math.nan
    inputs.value[:, :, 32:] = math.nan
    with watch() as watched:
        outputs = everything(inputs, {"prior": "gaussian"})
    assert not watched.has_read(inputs.key[:, :, 32:])
    assert not watched.has_read(inputs.value[:, :, 32:])
    assert watched.has_read(inputs.key[:, :, :20])
    assert all(x.isfinite().all() for x in outputs)


@pytest.mark.parametrize(
    "layout",
    [
        "packed",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("rows_first", "cache", "rows_outermost", "one_head")),
    ],
)
def test_strides_are_followed_exactly(layout):
    inputs = simple_inputs(1, 2, 5, 37, 19, 21, dtype=torch.float32)
    laid_out = Inputs(*(lay_out(x, layout) for x in inputs[:3]), *inputs[3:])
    dense = Inputs(*(x.contiguous() for x in laid_out[:3]), *inputs[3:])
    with watch():
        got = everything(laid_out, {"prior": "laplace"})
    for x, y in zip(got, everything(dense, {"prior": "laplace"})):
        assert torch.equal(x, y)


def test_addresses_beyond_32_bits(tmp_path: Path):
    """Keys 2³⁰ elements apart, in a file that is nearly all hole; the last lies past the 2³¹st element."""
    stride, keys, size = 2**30, 4, 8
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(2 * (stride * (keys - 1) + size))
    storage = torch.from_file(str(path), shared=True, size=stride * (keys - 1) + size, dtype=torch.float16)
    inputs = simple_inputs(1, 1, 3, keys, size, size, dtype=torch.float16)
    far = storage.as_strided((1, 1, keys, size), (0, 0, stride, 1))
    far.copy_(inputs.key)
    expected = everything(inputs._replace(value=inputs.key), {"prior": "gaussian"})
    got = everything(inputs._replace(key=far, value=far), {"prior": "gaussian"})
    assert all(torch.equal(x, y) for x, y in zip(got, expected))
