"""The dropout of the contract: a published generator, a fixed counter layout, the same weights on every backend."""

import math

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import gma_kernels
from gma_kernels.arguments import dropout_seed
from gma_kernels.philox import drop_threshold, philox4x32
from tests.support.numerics import GRADIENTS, Inputs, simple_inputs

# Random123 kat_vectors, philox4x32 10: counter, key, result
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
SEEDS = [0, 1, 2**32, -1, 0x0123456789ABCDEF, -(2**63), 2**63 - 1]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def philox_in_plain_python(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 as published, in unbounded integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def contract_mask(seed: int, shape: tuple[int, int, int, int], dropout_p: float) -> torch.Tensor:
    """True where a weight is kept, one element at a time from the contract's text."""
    batch, heads, rows, keys = shape
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    threshold = math.floor(dropout_p * 2**32)
    kept = [
        philox_in_plain_python([j >> 2, i, b * heads + h, 0], key)[j & 3] >= threshold
        for b in range(batch)
        for h in range(heads)
        for i in range(rows)
        for j in range(keys)
    ]
    return torch.tensor(kept).reshape(shape)


def uniform_inputs(batch: int, heads: int, rows: int, keys: int, dtype: torch.dtype = torch.float64) -> Inputs:
    """Every weight is 1/keys and the values are the identity, so the context is the dropped weights themselves."""
    real = torch.float64 if dtype == torch.float64 else torch.float32
    row = torch.ones(batch, 1, rows, dtype=real)
    everything = torch.full(row.shape, keys, dtype=torch.int32)
    query = torch.zeros(batch, heads, rows, 1, dtype=dtype)
    key = torch.zeros(batch, heads, keys, 1, dtype=dtype)
    value = torch.eye(keys, dtype=dtype).expand(batch, heads, keys, keys)
    return Inputs(query, key, value, row, row, everything)


def kept(inputs: Inputs, **dropout) -> torch.Tensor:
    return gma_kernels.gaussian_attention(*inputs, prior="none", **dropout) > 0


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_published_vectors(counter, key, expected):
    got = philox4x32([torch.tensor(w) for w in words(counter)], [torch.tensor(w) for w in words(key)])
    assert [int(word) for word in got] == words(expected)
    assert philox_in_plain_python(words(counter), words(key)) == words(expected)


def test_generator_equals_plain_python_on_random_counters():
    make = torch.Generator().manual_seed(0)
    draw = torch.randint(0, 2**32, (6, 200), generator=make)
    got = torch.stack(philox4x32(tuple(draw[:4]), tuple(draw[4:])))
    expected = [philox_in_plain_python(column[:4], column[4:]) for column in draw.T.tolist()]
    assert got.T.tolist() == expected


@pytest.mark.parametrize("dropout_p", [0.0, 0.1, 0.25, 0.5, 0.7, 1 - 2.0**-20, 2.0**-32, 2.0**-33])
def test_threshold_is_the_floor_of_p_times_2_to_the_32(dropout_p):
    assert drop_threshold(dropout_p) == math.floor(dropout_p * 2**32)


@pytest.mark.parametrize("seed", SEEDS)
def test_mask_is_the_one_of_the_contract(backend, seed):
    shape = (2, 3, 5, 11)
    mask = kept(uniform_inputs(*shape), dropout_p=0.4, seed=seed, backend=backend)
    assert torch.equal(mask, contract_mask(seed, shape, 0.4))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 1, 1, 6), (1, 2, 9, 3), (1, 1, 2, 133), (2, 1, 37, 19)])
def test_mask_of_every_shape(backend, shape):
    mask = kept(uniform_inputs(*shape), dropout_p=0.5, seed=77, backend=backend)
    assert torch.equal(mask, contract_mask(77, shape, 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_mask_does_not_depend_on_the_dtype(backend, dtype):
    shape = (2, 2, 4, 17)
    mask = kept(uniform_inputs(*shape, dtype=dtype), dropout_p=0.3, seed=5, backend=backend)
    assert torch.equal(mask, contract_mask(5, shape, 0.3))


def test_mask_does_not_depend_on_visible_or_strides(backend):
    inputs = uniform_inputs(2, 3, 5, 11)
    visible = torch.tensor([0, 1, 4, 11, 30], dtype=torch.int32).expand(2, 1, 5)
    mask = kept(inputs._replace(visible=visible), dropout_p=0.4, seed=9, backend=backend)
    seen = torch.arange(11) < visible[..., None]
    assert torch.equal(mask, contract_mask(9, (2, 3, 5, 11), 0.4) & seen)


def test_kept_weights_are_scaled_and_not_renormalised(backend):
    inputs = simple_inputs()
    identity = torch.eye(7, dtype=torch.float64).expand(2, 3, 7, 7)
    weights = gma_kernels.attention_weights(*inputs.without_value(), backend=backend)
    got = gma_kernels.gaussian_attention(*inputs._replace(value=identity), dropout_p=0.3, seed=1, backend=backend)
    expected = weights * contract_mask(1, (2, 3, 5, 7), 0.3) / 0.7
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=1e-14)


def test_same_seed_same_result_and_different_seed_different(backend):
    inputs = simple_inputs()
    first, again, other, high = (
        gma_kernels.gaussian_attention(*inputs, dropout_p=0.5, seed=seed, backend=backend)
        for seed in (3, 3, 4, 3 + 2**32)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, high), "the high half of the seed is ignored"


@pytest.mark.parametrize("seed", SEEDS)
def test_int_and_tensor_seed_agree(backend, seed):
    inputs = simple_inputs()
    by_int = gma_kernels.gaussian_attention(*inputs, dropout_p=0.5, seed=seed, backend=backend)
    by_tensor = gma_kernels.gaussian_attention(*inputs, dropout_p=0.5, seed=torch.tensor(seed), backend=backend)
    assert torch.equal(by_int, by_tensor)


@pytest.mark.parametrize("seed", [5, None])
def test_a_seed_is_made_on_the_gpu_and_not_copied_there(seed):
    """A copy would wait for the GPU, and is refused while a CUDA graph is captured. On fake tensors: no GPU needed."""
    called = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            called.append(str(function))
            return function(*arguments, **(keywords or {}))

    with FakeTensorMode():
        query = torch.empty(1, 1, 1, 4, device="cuda")
        with Log():
            made = dropout_seed(query, 0.1, seed)
    assert made.device == query.device
    assert called == ["aten.randint.default" if seed is None else "aten.full.default"]


def test_no_seed_draws_from_torchs_generator(backend):
    inputs = simple_inputs()

    def draw() -> torch.Tensor:
        return gma_kernels.gaussian_attention(*inputs, dropout_p=0.5, backend=backend)

    torch.manual_seed(1)
    first, second = draw(), draw()
    torch.manual_seed(1)
    assert torch.equal(draw(), first)
    assert not torch.equal(first, second)


def test_without_dropout_torchs_generator_is_left_alone(backend):
    before = torch.get_rng_state()
    gma_kernels.gaussian_attention(*simple_inputs(), backend=backend)
    gma_kernels.gaussian_attention(*simple_inputs(), dropout_p=0.5, seed=1, backend=backend)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_dropout_at_p_0_whatever_the_seed(backend):
    inputs = simple_inputs()
    plain = gma_kernels.gaussian_attention(*inputs, backend=backend)
    for seed in (None, 1, torch.tensor(2)):
        assert torch.equal(gma_kernels.gaussian_attention(*inputs, dropout_p=0.0, seed=seed, backend=backend), plain)


@pytest.mark.parametrize("dropout_p", [0.01, 0.1, 0.5, 0.9])
def test_keep_rate_within_four_standard_errors(backend, dropout_p):
    mask = kept(uniform_inputs(4, 4, 60, 120), dropout_p=dropout_p, seed=2024, backend=backend).double()
    error = math.sqrt(dropout_p * (1 - dropout_p) / mask.numel())
    assert abs(mask.mean().item() - (1 - dropout_p)) < 4 * error


@pytest.mark.parametrize("dim", range(4), ids=["batch", "heads", "rows", "keys"])
def test_neighbours_are_dropped_independently(backend, dim):
    mask = kept(uniform_inputs(6, 6, 40, 40), dropout_p=0.5, seed=11, backend=backend).double()
    pairs = mask.narrow(dim, 1, mask.shape[dim] - 1) == mask.narrow(dim, 0, mask.shape[dim] - 1)
    assert abs(pairs.double().mean().item() - 0.5) < 4 * math.sqrt(0.25 / pairs.numel())


def test_almost_everything_dropped(backend):
    mask = kept(uniform_inputs(1, 1, 30, 50), dropout_p=1 - 2.0**-32, seed=0, backend=backend)
    assert torch.equal(mask, contract_mask(0, (1, 1, 30, 50), 1 - 2.0**-32))


def test_gradients_are_those_of_the_kept_weights(backend):
    """Backward drops what forward dropped: equal to plain autograd with the mask written down."""
    ours = simple_inputs(center_heads=3).leaves()
    theirs = ours.leaves()
    factor = contract_mask(21, (2, 3, 5, 7), 0.4).double() / 0.6
    context = gma_kernels.gaussian_attention(*ours, dropout_p=0.4, seed=21, backend=backend)
    weights = gma_kernels.attention_weights(*theirs.without_value(), backend="reference")
    expected = (weights * factor) @ theirs.value
    torch.testing.assert_close(context, expected, rtol=0, atol=1e-12)
    grad = torch.randn(context.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for name, got, want in zip(
        GRADIENTS, torch.autograd.grad(context, ours[:5], grad), torch.autograd.grad(expected, theirs[:5], grad)
    ):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("empty", ["batch", "rows", "keys"])
def test_empty_inputs_under_dropout(backend, empty):
    inputs = simple_inputs(**{"batch": 2, "rows": 5, "keys": 7, empty: 0}).leaves()
    context = gma_kernels.gaussian_attention(*inputs, dropout_p=0.5, seed=1, backend=backend)
    assert not context.any()
    context.sum().backward()
    assert not any(x.grad.any() for x in inputs[:5])
