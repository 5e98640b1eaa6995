"""How close the native kernels come to what the machine can do: arithmetic, memory, scaling, overhead."""

import json
import statistics
import subprocess
import sys
import timeit

import torch

from benchmarks.suites.conftest import THREADS
from benchmarks.suites.contenders import (
    HEAD_SIZE,
    decoding_problem,
    literal,
    native,
    plain_sdpa,
    problem,
    refuse_if_wrong,
    with_gradients,
)
from benchmarks.suites.interleave import interleaved
from gma_kernels.arguments import dropout_seed, prior_and_scale
from gma_kernels.backends import choose_backend
from gma_kernels.registry import operators_of

GEMM = 2048
# five products of the backward, two of the forward, each 2·D a cell
USEFUL_FLOPS = {"forward": 4 * HEAD_SIZE, "backward": 10 * HEAD_SIZE}


def test_arithmetic(benchmark):
    """Useful arithmetic with everything visible, as a share of the machine's own matrix product."""
    p = problem(1, 2048, 2048, everything_visible=True)
    refuse_if_wrong(p, gradients=True, names=("native",))
    a, b = torch.randn(2, GEMM, GEMM)
    tracked = [x.detach().requires_grad_() for x in p[:5]]
    context = native(type(p)(*tracked, p.visible))
    grad = torch.ones_like(context)

    def backward():
        return torch.autograd.grad(context, tracked, grad, retain_graph=True)

    with torch.no_grad():
        times = interleaved(benchmark, {"forward": lambda: native(p), "backward": backward, "GEMM": lambda: a @ b}, 15)
    rate = {name: flops * p.cells / times[name] * 1e-6 for name, flops in USEFUL_FLOPS.items()}
    gemm = 2 * GEMM**3 / times["GEMM"] * 1e-6
    benchmark.extra_info.update(
        suite="arithmetic",
        size="B=1 T=S=2048, everything visible",
        gflops={**rate, "GEMM": gemm},
        share_of_gemm={name: value / gemm for name, value in rate.items()},
    )


def test_scaling(benchmark):
    """Time per visible cell, forward+backward, at 8192 and at 512."""
    long, short = problem(1, 8192, 8192), problem(16, 512, 512)
    refuse_if_wrong(problem(1, 2048, 2048), gradients=True, names=("native",))  # 8192 would need 30 GB to check
    times = interleaved(benchmark, {"8192": with_gradients(native, long), "512": with_gradients(native, short)}, 7)
    per_cell = {"8192": times["8192"] / long.cells, "512": times["512"] / short.cells}
    benchmark.extra_info.update(
        suite="scaling",
        size="B=1 T=S=8192 against B=16 T=S=512",
        time_per_cell_ratio=per_cell["8192"] / per_cell["512"],
    )


def test_bandwidth_of_decoding(benchmark):
    """64 streams, S = 256: how fast visible keys and values are read, against summing up a tensor of all of them."""
    p = decoding_problem(64, 256, capacity=512)
    refuse_if_wrong(p, gradients=False, names=("native", "literal"))
    everything = torch.randn(p.key.numel() + p.value.numel())
    with torch.no_grad():
        contenders = {"native": lambda: native(p), "literal": lambda: literal(p), "sum": everything.sum}
        times = interleaved(benchmark, contenders, 40)
    size = {"native": 2 * p.cells * HEAD_SIZE * 4, "literal": everything.numel() * 4, "sum": everything.numel() * 4}
    benchmark.extra_info.update(
        suite="bandwidth",
        size="64 streams, S=256",
        gigabytes_per_second={name: size[name] / times[name] * 1e-6 for name in size},
    )


def test_overhead_of_one_call(benchmark):
    """One stream, S = 32: the whole call from Python, and what its parts cost. Not interleaved: caches are warm."""
    p = decoding_problem(1, 32, capacity=64)
    refuse_if_wrong(p, gradients=False, names=("native",))
    forward = operators_of("native").forward
    nothing = p._replace(visible=torch.zeros_like(p.visible))

    def prepare():
        choose_backend("native", p.query.device, p.query.dtype)
        prior_and_scale(p.query, "gaussian", None)
        dropout_seed(p.query, 0.0, None)

    with torch.no_grad():
        parts = {
            "whole call": lambda: native(p),
            "preparation": prepare,
            "operator": lambda: forward(*p, None, 0, HEAD_SIZE**-0.5, 0.0),
            "operator with nothing to compute": lambda: forward(*nothing, None, 0, HEAD_SIZE**-0.5, 0.0),
            "plain SDPA": lambda: plain_sdpa(p),
        }
        microseconds = {name: median_microseconds(part) for name, part in parts.items()}
        benchmark.pedantic(parts["whole call"], rounds=1)
    benchmark.extra_info.update(suite="overhead", size="1 stream, S=32", microseconds=microseconds)


def median_microseconds(run, repeats: int = 25, calls: int = 400) -> float:
    return statistics.median(timeit.repeat(run, repeat=repeats, number=calls)) / calls * 1e6


MEASURE_PEAK = """
import json, pathlib, sys, torch
from contenders import literal, native, problem, with_gradients
torch.set_num_threads(int(sys.argv[2]))
attention = {"literal": literal, "native": native}[sys.argv[1]]
with_gradients(attention, problem(1, 64, 64))()  # code, threads and small buffers are not what is measured
run = with_gradients(attention, problem(1, 4096, 4096))


def kilobytes(name):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(name + ":")[1].split()[0])


pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
before = kilobytes("VmRSS")
results = run()
outputs = sum(x.numel() * x.element_size() for x in results) / 1024
print(json.dumps((kilobytes("VmHWM") - before - outputs) / 1024))
"""


def test_memory(benchmark):
    """Extra memory of forward+backward (peak minus inputs and outputs), against the literal formulation's."""

    def extra_megabytes(name: str) -> float:
        folder = __file__.rsplit("/", 1)[0]
        command = [sys.executable, "-c", MEASURE_PEAK, name, str(THREADS)]
        return json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)

    refuse_if_wrong(problem(1, 64, 64), gradients=True, names=("native", "literal"))
    megabytes = benchmark.pedantic(lambda: {name: extra_megabytes(name) for name in ("native", "literal")})
    benchmark.extra_info.update(
        suite="memory",
        size="B=1 T=S=4096, forward+backward",
        megabytes=megabytes,
        share_of_literal=megabytes["native"] / megabytes["literal"],
    )
