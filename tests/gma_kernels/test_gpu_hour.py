"""The script for an hour on a GPU, as far as it goes without one."""

import os
import subprocess

import torch

from benchmarks.gpu import times
from tests.support.cuda_emulator import ROOT

SCRIPT = ROOT / "benchmarks/gpu_hour.sh"


def test_the_dry_mode_names_every_step_and_every_file_there_is(tmp_path):
    environment = os.environ | {"GMA_DRY": "1"}
    done = subprocess.run(["bash", SCRIPT, tmp_path / "page.md"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    named = done.stdout.splitlines()
    assert all(line.startswith("would run: ") for line in named)
    for file in ("tests/requirements.txt", "tests/support/cuda_installation.py", "tests/gma_kernels/test_gpu.py"):
        assert any(file in line for line in named)
        assert (ROOT / file).exists()
    assert any("benchmarks.gpu.times" in line for line in named)
    assert not (tmp_path / "page.md").exists()


def test_without_a_gpu_it_says_so():
    if torch.cuda.is_available():
        return
    done = subprocess.run(["bash", SCRIPT], env=os.environ | {"GMA_DRY": "0"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "nvidia-smi finds no GPU" in done.stdout


def test_what_is_timed_attends():
    """On the CPU, where only PyTorch's own runs."""
    calls = times.contenders((2, 2, 16, 24, 8), torch.float32, "cpu")
    assert "PyTorch, no prior" in calls
    context = calls["PyTorch, no prior"]()
    assert context.shape == (2, 2, 16, 8)
    times.with_backward(calls["PyTorch, no prior"])()
