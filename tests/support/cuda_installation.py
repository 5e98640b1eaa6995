"""Checks an installed gma_kernels whose extension was built with CUDA, on whatever machine this is.

    python tests/support/cuda_installation.py

Needs torch and the package, no test framework. With no GPU: the CPU path, what is registered, and that `cuda` is
refused with the reason. With one: the CUDA kernels against the reference, also captured into a CUDA graph.
"""

import ctypes
import os
from collections.abc import Callable

import torch

import gma_kernels
from gma_kernels.native import extension

ROLES = ("forward", "backward", "weights")


def make_inputs(device: str, dtype: torch.dtype, rows: int = 37, columns: int = 64) -> list[torch.Tensor]:
    """Query, key, value, center, width, visible of 2 sentences, 3 heads and 150 source positions."""
    generator = torch.Generator().manual_seed(rows)
    query, key, value = (torch.randn(2, 3, n, columns, generator=generator) for n in (rows, 150, 150))
    center = torch.linspace(1, 150, rows).expand(2, 1, rows)
    visible = torch.randint(0, 151, (2, 1, rows), generator=generator, dtype=torch.int32)
    heads = [x.to(device, dtype).requires_grad_() for x in (query, key, value)]
    return [*heads, *(x.to(device).requires_grad_() for x in (center, center / 2)), visible.to(device)]


def results(inputs: list[torch.Tensor], backend: str, **options) -> list[torch.Tensor]:
    """The context and its five gradients."""
    context = gma_kernels.gaussian_attention(*inputs, backend=backend, **options)
    return [context, *torch.autograd.grad(context.float().square().sum(), inputs[:5])]


def check_numbers(backend: str, device: str) -> None:
    tolerances = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
    for dtype, tolerance in tolerances.items():
        for rows, columns in ((1, 64), (37, 64), (130, 128), (70, 256), (20, 33)):
            inputs = make_inputs(device, dtype, rows, columns)
            options = {"dropout_p": 0.1, "seed": torch.tensor(5, device=device)}
            pairs = [*zip(results(inputs, backend, **options), results(inputs, "reference", **options))]
            weights = [*inputs[:2], *inputs[3:]]
            pairs.append(
                tuple(gma_kernels.attention_weights(*weights, backend=name) for name in (backend, "reference"))
            )
            for ours, expected in pairs:
                error = (ours - expected).abs().max() / max(1.0, expected.abs().max().item())
                assert error <= tolerance, f"{backend}, {dtype}, {rows} rows of {columns}: error {error}"
        print(f"{backend}: {dtype} forward, backward, weights and dropout agree with the reference")


def check_registration() -> None:
    for role in ROLES:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"gma_kernels::cuda_{role}", "CUDA"), role
    assert extension is not None, "the library is missing"
    architectures = extension.build_facts()["cuda_architectures"]
    assert architectures, "the extension was built without CUDA"
    print(f"cuda: {', '.join(ROLES)} registered; built for compute capability {architectures}")


def check_stream_lookup() -> None:
    """The symbol that gives the current stream is where the extension looks it up."""
    torch_cuda = ctypes.CDLL("libtorch_cuda.so", mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
    assert torch_cuda.aoti_torch_get_current_cuda_stream
    print("cuda: torch's current stream can be asked for")


def check_refusal(reason: str) -> None:
    query, key, value, *rows = make_inputs("cpu", torch.float32)
    attention = refusal(gma_kernels.gaussian_attention, query, key, value, *rows)
    weights = refusal(gma_kernels.attention_weights, query, key, *rows)
    assert reason in attention, attention
    assert reason in weights, weights
    print(f"refused by name: {attention}")


def refusal(function: Callable, *arguments: torch.Tensor) -> str:
    try:
        function(*arguments, backend="cuda")
    except gma_kernels.BackendUnavailable as error:
        return str(error)
    raise AssertionError("backend='cuda' was not refused")


def check_graph() -> None:
    """The operator inside a CUDA graph gives the bits it gives outside, for new values in the same memory."""
    inputs = [x.detach() for x in make_inputs("cuda", torch.float16)]
    gma_kernels.gaussian_attention(*inputs, backend="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gma_kernels.gaussian_attention(*inputs, backend="cuda")
    inputs[0].mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, gma_kernels.gaussian_attention(*inputs, backend="cuda"))
    print("cuda: captured into a CUDA graph")


def main() -> None:
    print(f"{gma_kernels.__file__}, torch {torch.__version__}")
    check_numbers("native", "cpu")
    check_registration()
    if torch.version.cuda is not None:
        check_stream_lookup()
    status = gma_kernels.backends()["cuda"]
    if status.available:
        check_numbers("cuda", "cuda")
        check_graph()
        return
    expected = "NVIDIA" if torch.version.cuda else "a build without CUDA"
    assert expected in status.reason, status.reason
    check_refusal(status.reason)


if __name__ == "__main__":
    main()
