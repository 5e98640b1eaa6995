"""A source split over two processes: each attends to its half, and what they found is merged, with gradients."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed
from torch.distributed.nn.functional import all_gather

import gma_kernels
from tests.support.numerics import GRADIENTS, Inputs, simple_inputs
from tests.support.processes import run_python

PROCESSES = 2
BACKENDS = [name for name in ("reference", "native") if gma_kernels.backends()[name].available]


def problem() -> tuple[Inputs, torch.Tensor]:
    """Rows that see the first half, the second, both, and nothing; and where each begins."""
    visible = torch.tensor([3, 40, 25, 40, 0], dtype=torch.int32).expand(2, 1, 5)
    first = torch.tensor([0, 21, 5, 12, 0], dtype=torch.int32).expand(2, 1, 5)
    return simple_inputs(keys=40, visible=visible, center_heads=3), first


def loss_of(found: gma_kernels.ContextAndLogsumexp) -> torch.Tensor:
    return found.context.sin().sum() + found.logsumexp.masked_fill(found.logsumexp.isinf(), 0.0).cos().sum()


def one_process(rank: int, backend: str, folder: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES)
    inputs, first = problem()
    leaves = inputs.leaves()
    length = leaves.key.shape[2] // PROCESSES
    begin = rank * length
    key, value = (x[:, :, begin : begin + length] for x in leaves[1:3])
    rows = (leaves.center - begin, leaves.width, (leaves.visible - begin).clamp(min=0))
    part = gma_kernels.gaussian_attention(
        leaves.query, key, value, *rows,
        first=(first - begin).clamp(min=0), return_logsumexp=True, backend=backend,
    )  # fmt: skip
    merged = gma_kernels.merge(*(all_gather(x.contiguous()) for x in part))
    # every process has the same loss, and the gather's gradients are summed over them
    grads = torch.autograd.grad(loss_of(merged) / PROCESSES, leaves[:5])
    for grad in grads:
        torch.distributed.all_reduce(grad)
    torch.save([*(x.detach() for x in merged), *grads], folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_processes_with_half_of_the_source_each_get_what_one_gets(backend, tmp_path):
    def run(rank: int) -> str:
        return run_python("-m", "tests.gma_kernels.test_distributed", str(rank), backend, str(tmp_path))

    with ThreadPoolExecutor() as together:
        list(together.map(run, range(PROCESSES)))
    inputs, first = problem()
    leaves = inputs.leaves()
    whole = gma_kernels.gaussian_attention(*leaves, first=first, return_logsumexp=True, backend=backend)
    expected = [*(x.detach() for x in whole), *torch.autograd.grad(loss_of(whole), leaves[:5])]
    for rank in range(PROCESSES):
        for name, x, y in zip(("context", "logsumexp", *GRADIENTS), torch.load(tmp_path / f"{rank}.pt"), expected):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


if __name__ == "__main__":
    one_process(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
