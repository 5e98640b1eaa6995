"""Times of the GPU backends beside PyTorch's attention, FlexAttention and FlashAttention. Needs a GPU.

python -m benchmarks.gpu.times prints a table: milliseconds, medians of interleaved runs, and the share of the fastest.
"""

import importlib.util
import statistics
from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

import gma_kernels

# batch, heads, T, S, D: training batches of sentences, long sequences, steps of decoding
SHAPES = (
    (64, 8, 32, 32, 64), (16, 8, 128, 128, 64), (4, 8, 1024, 1024, 64), (1, 16, 4096, 4096, 64),
    (1, 16, 4096, 4096, 128), (32, 8, 1, 128, 64), (1, 8, 1, 4096, 64), (1, 8, 8, 4096, 64),
)  # fmt: skip
ROUNDS, WARM_UP = 20, 3


def contenders(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> dict[str, Callable[[], torch.Tensor]]:
    """Calls that attend; the first two with a Gaussian prior, FlexAttention with its formula, the rest with none."""
    batch, heads, rows, keys, size = shape
    make = {"device": device, "dtype": dtype, "requires_grad": True}
    query = torch.randn(batch, rows, heads, size, **make).transpose(1, 2)
    key, value = (torch.randn(batch, keys, heads, size, **make).transpose(1, 2) for _ in range(2))
    center = torch.linspace(1, keys, rows, device=device).expand(batch, 1, rows).contiguous().requires_grad_()
    visible = torch.full((batch, 1, rows), keys, dtype=torch.int32, device=device)

    def ours(backend: str) -> Callable[[], torch.Tensor]:
        return lambda: gma_kernels.gaussian_attention(query, key, value, center, center / 2, visible, backend=backend)

    found = {name: ours(name) for name in ("cuda", "triton") if gma_kernels.backends()[name].available}
    found["PyTorch, no prior"] = lambda: scaled_dot_product_attention(query, key, value)
    if rows >= 128:
        from torch.nn.attention.flex_attention import flex_attention

        compiled = torch.compile(flex_attention)
        inverse = (2 / center.detach()).expand(batch, heads, rows).contiguous()
        place = center.detach().expand(batch, heads, rows).contiguous()

        def gaussian(score, b, h, i, j):
            distance = (j + 1 - place[b, h, i]) * inverse[b, h, i]
            return score - 0.5 * distance * distance

        found["FlexAttention"] = lambda: compiled(query, key, value, score_mod=gaussian)
    if importlib.util.find_spec("flash_attn"):
        from flash_attn import flash_attn_func

        found["FlashAttention, no prior"] = lambda: flash_attn_func(*(x.transpose(1, 2) for x in (query, key, value)))
    return found


def milliseconds(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Medians; one of each in turn, so that a change of clocks hits all."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(WARM_UP + ROUNDS):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if turn >= WARM_UP:
                times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(found) for name, found in times.items()}


def with_backward(call: Callable[[], torch.Tensor]) -> Callable[[], None]:
    def run() -> None:
        context = call()
        context.backward(torch.ones_like(context))

    return run


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU; these times need one")
    print(torch.cuda.get_device_name(), torch.__version__)
    print("| B, H, T, S, D | pass | contender | ms | of the fastest |\n|---|---|---|---:|---:|")
    for shape in SHAPES:
        calls = contenders(shape, torch.float16, "cuda")
        passes = {"forward": calls, "both": {name: with_backward(call) for name, call in calls.items()}}
        for name, found in passes.items():
            if name == "both" and shape[2] == 1:
                continue
            times = milliseconds(found)
            for contender, time in times.items():
                print(f"| {shape} | {name} | {contender} | {time:.3f} | {min(times.values()) / time:.0%} |")


if __name__ == "__main__":
    main()
