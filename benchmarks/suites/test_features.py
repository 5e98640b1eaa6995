"""What each feature of the operator saves, against the same call of `native` without it. float32, D = 64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.suites.contenders import HEAD_SIZE, Problem, problem
from benchmarks.suites.corpora import sentence_lengths
from benchmarks.suites.interleave import interleaved
from gma_kernels import gaussian_attention, gaussian_attention_packed

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def refuse_if_different(case: str, results: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> None:
    for x, x64 in zip(results, exact, strict=True):
        error = ((x - x64).abs().max() / x64.abs().max().clamp(min=1)).item()
        tolerance = TOLERANCE[torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32]
        assert error <= tolerance, f"{case} is wrong (error {error:.1e}): no speed is reported for it"


def trained(attention: Callable[..., Tensor], *inputs: Tensor, **settings) -> Callable[[], tuple[Tensor, ...]]:
    """Forward, and backward to every floating-point input."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    wanted = [x for x in leaves if x.requires_grad]

    def run() -> tuple[Tensor, ...]:
        context = attention(*leaves, **settings)
        return context, *torch.autograd.grad(context, wanted, torch.ones_like(context))

    return run


def exact(p: Problem, **settings) -> tuple[Tensor, ...]:
    return trained(gaussian_attention, *(x.double() for x in p[:5]), p.visible, backend="reference", **settings)()


def report(benchmark, feature: str, size: str, ours: Callable, other: Callable, rounds: int) -> None:
    times = interleaved(benchmark, {"with": ours, "without": other}, rounds)
    benchmark.extra_info.update(suite=feature, size=size, ratio=times["without"] / times["with"])


def test_grouped_heads(benchmark):
    """Decoding: 16 heads on 2 of keys, against keys repeated for 16 first."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(64, 16, 1, HEAD_SIZE, generator=generator)
    key, value = torch.randn(2, 64, 2, 1024, HEAD_SIZE, generator=generator)
    center = torch.full((64, 1, 1), 512.0)
    p = Problem(query, key, value, center, center, torch.full((64, 1, 1), 1024, dtype=torch.int32))

    def repeated() -> Tensor:
        heads = (x.repeat_interleave(8, dim=1) for x in (key, value))
        return gaussian_attention(query, *heads, *p[3:], backend="native")

    with torch.no_grad():
        expected = gaussian_attention(*(x.double() for x in p[:5]), p.visible, backend="reference")
        for x in (repeated(), gaussian_attention(*p, backend="native")):
            refuse_if_different("grouped heads", (x,), (expected,))
        size = "H=16, H_kv=2, 64 streams, S=1024"
        report(benchmark, "grouped heads", size, lambda: gaussian_attention(*p, backend="native"), repeated, 15)


def test_window(benchmark):
    """The 128 newest positions, against all up to the diagonal."""

    def first_of(p: Problem) -> Tensor:
        return (p.visible - 128).clamp(min=0)

    small = problem(1, 1024, 1024)
    windowed = trained(gaussian_attention, *small, first=first_of(small), backend="native")()
    refuse_if_different("a window", windowed, exact(small, first=first_of(small)))
    p = problem(1, 8192, 8192)
    ours = trained(gaussian_attention, *p, first=first_of(p), backend="native")
    size = "128 of T=S=8192, forward+backward"
    report(benchmark, "window", size, ours, trained(gaussian_attention, *p, backend="native"), 5)


def test_packed_batches(benchmark):
    """64 sentences one behind the other, against the same padded to the longest."""
    lengths = torch.tensor(sentence_lengths(64))
    longest, ends = int(lengths.max()), torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    p = problem(64, longest, longest)
    real = torch.arange(longest) < lengths[:, None]
    p = p._replace(visible=torch.minimum(p.visible, lengths[:, None, None]).where(real[:, None], 0).int())
    matrices = [x.transpose(1, 2)[real] for x in p[:3]]
    rows = [x[:, 0][real][:, None] for x in p[3:]]
    packed = trained(gaussian_attention_packed, *matrices, *rows, ends, ends, backend="native")
    padded = trained(gaussian_attention, *p, backend="native")
    # padded rows get no gradient and give none: what is left of both is the same
    expected = [x.transpose(1, 2)[real] if x.dim() == 4 else x[:, 0][real][:, None] for x in exact(p)]
    refuse_if_different("a packed batch", packed(), tuple(expected))
    filled = lengths.sum().item() / (64 * longest)
    size = f"64 sentences of up to {longest} tokens, {1 - filled:.0%} padding, forward+backward"
    report(benchmark, "packed batches", size, packed, padded, 25)


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "forward+backward"])
def test_bfloat16(benchmark, gradients):
    """bfloat16 inputs, against float32 ones: twice as fast in products where the CPU has AVX512-BF16."""
    p = problem(1, 2048, 2048)
    half = Problem(*(x.bfloat16() for x in p[:3]), *p[3:])
    run, run_half = (trained(gaussian_attention, *x, backend="native") for x in (p, half))
    refuse_if_different("bfloat16", run_half(), exact(half))
    if not gradients:
        with torch.no_grad():
            run, run_half = (lambda x=x: gaussian_attention(*x, backend="native") for x in (p, half))
            report(benchmark, "bfloat16 forward", "B=1 T=S=2048", run_half, run, 15)
        return
    report(benchmark, "bfloat16 forward+backward", "B=1 T=S=2048", run_half, run, 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_narrow_widths(benchmark, dtype):
    """σ = 4 with everything visible, against widths so large that nothing can be left out."""

    def narrow(p: Problem) -> Problem:
        return Problem(*(x.to(dtype) for x in p[:3]), p.center, torch.full_like(p.width, 4.0), p.visible)

    small = narrow(problem(1, 1024, 1024, everything_visible=True))
    results = trained(gaussian_attention, *small, backend="native")()
    refuse_if_different("a narrow prior", results, exact(small))
    p = narrow(problem(1, 4096, 4096, everything_visible=True))
    wide = p._replace(width=torch.full_like(p.width, 1e6))
    ours, other = (trained(gaussian_attention, *x, backend="native") for x in (p, wide))
    feature = "narrow widths" + ", bfloat16" * (dtype == torch.bfloat16)
    report(benchmark, feature, "σ = 4, T=S=4096, everything visible, forward+backward", ours, other, 5)
