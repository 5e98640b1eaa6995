"""Big outputs of the native backend live in memory that is used again: never while someone can still see it."""

import copy
import gc
import io
import os
import threading

import pytest
import torch
from torch.torch_version import TorchVersion

import gma_kernels
from gma_kernels.native import extension
from tests.support.numerics import Inputs
from tests.support.processes import run_python

pytestmark = [
    pytest.mark.skipif(extension is None, reason="the native backend is not installed"),
    pytest.mark.skipif(TorchVersion(torch.__version__) < (2, 11), reason="torch 2.10 takes no memory of others"),
]
MEGABYTE = 2**20


def big_inputs(rows: int = 64, seed: int = 0) -> Inputs:
    """An output of 8 KB for each row."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 2, 4, rows, 256, generator=generator)
    center = torch.arange(1.0, rows + 1).expand(2, 1, rows)
    return Inputs(query, key, value, center, center / 2 + 1, torch.full((2, 1, rows), rows, dtype=torch.int32))


def attention(inputs: Inputs) -> torch.Tensor:
    return gma_kernels.gaussian_attention(*inputs, backend="native")


def gradients(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    leaves = inputs.leaves()
    context = attention(leaves)
    return context.detach(), *torch.autograd.grad(context.sin().sum(), leaves[:5])


def run(program: str, **environment: str) -> None:
    """Run a program in a process of its own, with this file as module `pool`."""
    beginning = "import torch, gma_kernels, tests.gma_kernels.native.test_pool as pool"
    run_python("-c", f"{beginning}\n{program}", **environment)


def test_memory_of_a_dead_output_is_used_again():
    inputs = big_inputs()
    out = attention(inputs)
    address = out.data_ptr()
    del out
    assert attention(inputs).data_ptr() == address


def test_living_outputs_and_their_views_keep_their_memory():
    inputs = big_inputs()
    row = attention(inputs)[1, 2, 3]
    expected = row.clone()
    others = [attention(big_inputs(seed=seed)) for seed in range(1, 5)]
    assert len({x.data_ptr() for x in others}) == len(others)
    assert torch.equal(row, expected)


def test_what_the_memory_held_before_does_not_matter():
    inputs = big_inputs(rows=96)
    # rows that see nothing and keys that nobody sees are written, too
    inputs.visible[0] = 0
    inputs.visible[1, 0, :50] = 3
    inputs.visible[1, 0, 50:] = 60
    expected = [x.clone() for x in gradients(inputs)]
    for _ in range(3):
        for x in gradients(inputs):
            x.fill_(torch.nan)
        del x
        for got, want in zip(gradients(inputs), expected):
            assert torch.equal(got, want)
    poisoned = gma_kernels.attention_weights(*inputs.without_value(), backend="native").fill_(torch.nan)
    del poisoned
    assert gma_kernels.attention_weights(*inputs.without_value(), backend="native").isfinite().all()


def test_what_is_kept_is_bounded():
    run(
        """
for rows in range(16, 400, 7):
    held = [pool.attention(pool.big_inputs(rows)) for _ in range(3)]
    del held
    assert pool.extension.kept_block_bytes() <= 4 * pool.MEGABYTE
assert pool.extension.kept_block_bytes() > 0
""",
        GMA_POOL_MB="4",
    )


def test_nothing_is_kept_if_the_environment_says_so():
    run("pool.attention(pool.big_inputs())\nassert pool.extension.kept_block_bytes() == 0", GMA_POOL_MB="0")


def test_threads_never_get_each_others_memory():
    wrong = []

    def hammer(seed: int) -> None:
        inputs = [big_inputs(rows, seed) for rows in (16, 40, 64)]
        expected = [attention(x).clone() for x in inputs]
        for round in range(30):
            results = [attention(x) for x in inputs]
            wrong.extend(seed for x, y in zip(results, expected) if not torch.equal(x, y))
            results[round % 3].fill_(seed)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_output_may_outlive_everything():
    run("import builtins\nbuiltins.kept = pool.attention(pool.big_inputs())\ntorch.kept = builtins.kept[0]")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_of_fork_has_its_own_pool():
    run(
        """
import os, threading
inputs = pool.big_inputs()
torch.set_num_threads(1)
expected, stop = pool.attention(inputs), threading.Event()

def churn():
    while not stop.is_set():
        pool.attention(inputs)

thread = threading.Thread(target=churn)
thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        pool.attention(inputs).fill_(7)
        os._exit(0 if torch.equal(pool.attention(inputs), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
thread.join()
"""
    )


def test_outputs_can_be_saved_copied_shared_and_seen_by_numpy():
    inputs = big_inputs()
    out = attention(inputs)
    expected = out.clone()
    file = io.BytesIO()
    torch.save(out, file)
    copied = copy.deepcopy(out)
    array = attention(inputs).numpy()
    shared = attention(inputs).share_memory_()
    del out
    gc.collect()
    attention(inputs).fill_(torch.nan)
    for x in (torch.load(io.BytesIO(file.getvalue())), copied, torch.from_numpy(array), shared):
        assert torch.equal(x, expected)
    assert shared.is_shared()


def test_outputs_can_be_sent_to_another_process():
    # in a process of its own, whose main module the child can import
    run(
        """
import torch.multiprocessing as processes
context = processes.get_context("fork")
sent, received = context.SimpleQueue(), context.SimpleQueue()
child = context.Process(target=lambda: received.put(sent.get().sum().item()))
child.start()
out = pool.attention(pool.big_inputs())
sent.put(out)
assert abs(received.get() - out.sum().item()) < 1e-2
child.join()
"""
    )


def test_gradients_accumulate_and_may_be_changed_in_place():
    inputs = big_inputs()
    leaves = inputs.leaves()
    for _ in range(2):
        attention(leaves).sum().backward()
    once = inputs.leaves()
    attention(once).sum().backward()
    for twice, single in zip(leaves[:5], once[:5]):
        torch.testing.assert_close(twice.grad, 2 * single.grad)
        twice.grad.zero_()


def test_inference_mode_and_compile_with_big_outputs():
    inputs = big_inputs()
    expected = attention(inputs)
    with torch.inference_mode():
        inside = attention(inputs)
        assert inside.is_inference()
    torch.compiler.reset()
    compiled = torch.compile(lambda *x: attention(Inputs(*x)) * 2, fullgraph=True, backend="inductor")
    assert torch.equal(inside, expected)
    torch.testing.assert_close(compiled(*inputs), expected * 2)


def test_a_big_output_cannot_grow_in_place():
    """Its memory is not torch's: torch refuses, as it does for memory of numpy."""
    out = attention(big_inputs())
    with pytest.raises(RuntimeError, match="not resizable"):
        out.resize_(4 * out.numel())
