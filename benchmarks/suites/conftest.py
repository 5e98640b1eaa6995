"""Settings every benchmark shares."""

import pytest
import torch

import gma_kernels

THREADS = 2


@pytest.fixture(autouse=True, scope="session")
def environment():
    status = gma_kernels.backends()["native"]
    if not status.available:
        pytest.exit(f"nothing to measure: {status.reason}", returncode=1)
    torch.set_num_threads(THREADS)


def pytest_benchmark_update_machine_info(config, machine_info):
    machine_info["torch"] = torch.__version__
    machine_info["threads"] = THREADS
    machine_info["native"] = gma_kernels.backends()["native"].reason
