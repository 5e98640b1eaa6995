"""One thread for the small tensors of these tests: starting a second costs more than it brings."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
