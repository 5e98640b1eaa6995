"""What the CUDA backend says of builds and machines, played by a stand-in for the extension."""

import importlib

import pytest
import torch

import gma_kernels
from gma_kernels import cuda

BUILT = "8.0;9.0;10.0;12.0+PTX"


class Extension:
    def __init__(self, architectures=BUILT, devices=(("NVIDIA A100", 8, 0),), error=None):
        self.architectures, self.devices, self.error = architectures, list(devices), error

    def build_facts(self):
        return {"cuda_architectures": self.architectures}

    def cuda_devices(self):
        if self.error:
            raise RuntimeError(self.error)
        return self.devices


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Pretend to have this extension and a CUDA build of torch; returns the folder of the reason file."""

    def pretend(extension, version="13.0"):
        monkeypatch.setattr(cuda, "extension", extension)
        monkeypatch.setattr(torch.version, "cuda", version)
        monkeypatch.setattr(cuda, "REASON_FILE", tmp_path / "reason.txt")
        status = gma_kernels.backends()["cuda"]
        return status.available, status.reason

    return pretend


def test_a_fitting_device_is_served_and_named(machine):
    available, reason = machine(Extension())
    assert available
    assert "NVIDIA A100" in reason
    assert BUILT in reason


def test_no_extension(machine):
    available, reason = machine(None)
    assert not available
    assert "'native'" in reason


def test_an_extension_without_cuda_gives_the_recorded_reason_and_the_remedy(machine, tmp_path):
    (tmp_path / "reason.txt").write_text("no nvcc was found\n")
    available, reason = machine(Extension(architectures=""))
    assert not available
    assert reason.startswith("no nvcc was found; ")
    assert "GMA_CUDA=1 pip install" in reason


def test_a_torch_without_cuda(machine):
    available, reason = machine(Extension(), version=None)
    assert not available
    assert torch.__version__ in reason
    assert "install" in reason


def test_no_driver_passes_on_what_the_runtime_says(machine):
    assert machine(Extension(error="no NVIDIA driver was found; install one")) == (
        False,
        "no NVIDIA driver was found; install one",
    )


def test_an_old_device_beside_a_good_one_costs_only_itself(machine):
    available, reason = machine(Extension(devices=[("NVIDIA A100", 8, 0), ("Tesla T4", 7, 5)]))
    assert available
    assert "NVIDIA A100" in reason
    assert gma_kernels.backends()["cuda"].devices == ("cuda:0",)
    module = importlib.import_module("gma_kernels.backends")
    module._status.cache_clear()
    try:
        assert module.choose_backend("cuda", torch.device("cuda:0"), torch.float16) == "cuda"
        with pytest.raises(gma_kernels.BackendUnavailable, match=r"serves cuda:0 .*given cuda:1 .*Tesla T4.*7\.5"):
            module.choose_backend("cuda", torch.device("cuda:1"), torch.float16)
    finally:
        module._status.cache_clear()


def test_an_old_device_is_named_and_not_to_be_built_for(machine):
    available, reason = machine(Extension(devices=[("NVIDIA GTX", 6, 1), ("Tesla T4", 7, 5)]))
    assert not available
    assert "cuda:1 (Tesla T4) has compute capability 7.5" in reason
    assert "CUDA_VISIBLE_DEVICES" in reason
    assert "TORCH_CUDA_ARCH_LIST" not in reason


def test_a_device_the_build_left_out_can_be_built_for(machine):
    available, reason = machine(Extension(architectures="9.0", devices=[("NVIDIA A10", 8, 6)]))
    assert not available
    assert "built for 9.0" in reason
    assert "TORCH_CUDA_ARCH_LIST=8.6" in reason


@pytest.mark.parametrize(
    ("capability", "architectures", "fits"),
    [
        ((8, 0), "8.0", True),
        ((8, 9), "8.0", True),  # a later minor version runs machine code of an earlier one
        ((8, 0), "8.6", False),
        ((8, 7), "8.0", False),  # a system on a chip runs its own machine code only
        ((8, 7), "8.0+PTX", True),
        ((8, 7), "8.7", True),
        ((8, 9), "8.7", False),
        ((9, 0), "8.0", False),  # another major version needs PTX
        ((9, 0), "8.0+PTX", True),
        ((8, 0), "9.0+PTX", False),
        ((12, 1), BUILT, True),
        ((13, 0), BUILT, True),
        ((11, 0), BUILT, False),
        ((7, 5), BUILT, False),
        ((9, 0), "9.0a", True),
        ((10, 3), "10.0a+PTX", False),  # what uses one version's own features runs there alone
    ],
)
def test_which_devices_run_which_code(capability, architectures, fits):
    assert cuda.fits(capability, architectures) is fits
