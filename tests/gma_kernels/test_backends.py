"""Which backends there are, and what happens when the one asked for is not."""

import importlib
import warnings

import pytest
import torch

import gma_kernels
from tests.support.numerics import simple_inputs
from tests.support.processes import run_python

NAMES = ["reference", "native", "triton", "cuda"]


def test_every_backend_is_listed_with_status_devices_and_dtypes():
    found = gma_kernels.backends()
    assert sorted(found) == sorted(NAMES)
    for status in found.values():
        assert isinstance(status, gma_kernels.BackendStatus)
        assert isinstance(status.available, bool)
        assert status.reason
        assert status.devices
        assert {"float32", "float16", "bfloat16"} <= set(status.dtypes)


def test_reference_is_always_available_and_float64_is_for_reference_and_native():
    found = gma_kernels.backends()
    assert found["reference"].available
    assert {name for name in NAMES if "float64" in found[name].dtypes} == {"reference", "native"}


def test_the_returned_table_is_the_callers_own():
    gma_kernels.backends().clear()
    assert gma_kernels.backends()


@pytest.mark.parametrize("name", NAMES)
def test_a_backend_asked_for_by_name_is_used_or_refused_with_reason_and_remedy(name):
    inputs = simple_inputs(dtype=torch.float32)
    status = gma_kernels.backends()[name]
    if status.available and ("any" in status.devices or "cpu" in status.devices):
        assert gma_kernels.gaussian_attention(*inputs, backend=name).shape == (2, 3, 5, 6)
        return
    with pytest.raises(gma_kernels.BackendUnavailable) as refusal:
        gma_kernels.gaussian_attention(*inputs, backend=name)
    message = str(refusal.value)
    assert f"'{name}'" in message
    assert any(word in message for word in ("install", "use backend=", "move them"))
    with pytest.raises(gma_kernels.BackendUnavailable, match=name):
        gma_kernels.attention_weights(*inputs.without_value(), backend=name)


def test_a_backend_of_another_device_is_refused_by_name(monkeypatch):
    """Pretends that triton is there, so that only the tensors' device stands in the way."""
    module = importlib.import_module("gma_kernels.backends")
    pretended = gma_kernels.BackendStatus(True, "pretended", ("cuda",), ("float32",))
    monkeypatch.setattr(module, "_status", lambda name: pretended)
    with pytest.raises(gma_kernels.BackendUnavailable, match=r"'triton'.*cuda.*given cpu.*backend='auto'"):
        gma_kernels.gaussian_attention(*simple_inputs(dtype=torch.float32), backend="triton")


def test_backend_unavailable_is_a_runtime_error():
    assert issubclass(gma_kernels.BackendUnavailable, RuntimeError)


CALLS = """
import warnings, torch, gma_kernels
{before}
q = torch.ones(1, 1, 2, 4); rows = torch.ones(1, 1, 2); visible = torch.ones(1, 1, 2, dtype=torch.int32)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        gma_kernels.gaussian_attention(q, q, q, rows, rows, visible{options})
        gma_kernels.attention_weights(q, q, rows, rows, visible{options})
for warning in caught:
    print(warning.category.__name__, warning.message)
"""
WITHOUT_NATIVE = "from gma_kernels import native; native.status = lambda: (False, 'hidden by this test')"


def test_automatic_step_down_to_reference_warns_once_and_says_why():
    lines = run_python("-c", CALLS.format(before=WITHOUT_NATIVE, options="")).splitlines()
    assert len(lines) == 1
    assert "reference" in lines[0]
    assert "cpu" in lines[0]
    assert "hidden by this test" in lines[0]


def test_reference_asked_for_by_name_does_not_warn():
    assert run_python("-c", CALLS.format(before=WITHOUT_NATIVE, options=", backend='reference'")) == ""


def test_automatic_choice_of_native_does_not_warn():
    if not gma_kernels.backends()["native"].available:
        pytest.skip(f"native: {gma_kernels.backends()['native'].reason}")
    assert run_python("-c", CALLS.format(before="", options="")) == ""


def test_automatic_choice_equals_the_preferred_backend():
    inputs = simple_inputs(dtype=torch.float32)
    preferred = "native" if gma_kernels.backends()["native"].available else "reference"
    expected = gma_kernels.gaussian_attention(*inputs, backend=preferred)
    assert torch.equal(gma_kernels.gaussian_attention(*inputs), expected)


@pytest.mark.parametrize(
    ("capability", "first"),
    [((8, 0), "cuda"), ((8, 9), "cuda"), ((9, 0), "triton"), ((10, 3), "triton"), ((12, 0), "cuda")],
)
def test_auto_takes_triton_where_only_its_kernels_use_the_tensor_cores_own_instructions(monkeypatch, capability, first):
    """Pretends to have a GPU."""
    module = importlib.import_module("gma_kernels.backends")
    pretended = gma_kernels.BackendStatus(True, "pretended", ("cuda",), ("float32",))
    monkeypatch.setattr(module, "_status", lambda name: pretended)
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module.torch.cuda, "get_device_capability", lambda device: capability)
    assert module._automatic.__wrapped__(torch.device("cuda", 0), torch.float32) == first
    monkeypatch.setattr(module.torch.version, "hip", "7.0")
    assert module._automatic.__wrapped__(torch.device("cuda", 0), torch.float32) == "cuda"


@pytest.mark.parametrize(
    ("nvcc", "reason", "warns"),
    [
        ("/bin/nvcc", "torch could not be imported at installation", True),
        (None, "no nvcc was found at installation", False),
        ("/bin/nvcc", "it was left out at installation by GMA_CUDA=0", False),
    ],
)
def test_triton_instead_of_cuda_is_told_where_cuda_kernels_could_have_been_built(monkeypatch, nvcc, reason, warns):
    """Pretends to have a GPU."""
    module = importlib.import_module("gma_kernels.backends")
    status = {
        "cuda": gma_kernels.BackendStatus(False, reason, ("cuda",), ("float32",)),
        "triton": gma_kernels.BackendStatus(True, "pretended", ("cuda",), ("float32",)),
    }
    monkeypatch.setattr(module, "_status", status.__getitem__)
    monkeypatch.setattr(module.shutil, "which", lambda name: nvcc)
    automatic = module._automatic.__wrapped__
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert automatic(torch.device("cuda", 0), torch.float32) == "triton"
    assert [reason in str(x.message) for x in caught] == [True] * warns
