"""The native operators' way through autograd: in C++ for the torch it was built with, in Python for any other."""

import pytest
import torch

import gma_kernels
from gma_kernels import native
from tests.support.numerics import GRADIENTS, simple_inputs
from tests.support.processes import run_python

pytestmark = pytest.mark.skipif(native.extension is None, reason="the native backend was not built")

# any other version finds no library of its name
WITH_ANOTHER_TORCH = """
import torch
torch.__version__ = "0.0.0"
import gma_kernels
from gma_kernels import native
assert not native.has_autograd
inputs, grad = torch.load({file!r})
leaves = [x.requires_grad_(x.is_floating_point()) for x in inputs]
context = gma_kernels.gaussian_attention(*leaves, backend="native")
torch.save(torch.autograd.grad(context, leaves[:5], grad), {file!r})
print(gma_kernels.backends()["native"].reason)
"""


@pytest.mark.skipif(
    not native.AUTOGRAD_FILE.exists() and any(native.AUTOGRAD_FILE.parent.glob("_autograd_torch_*")),
    reason="the kernels were built with another torch",
)
def test_an_installation_has_the_one_in_cpp():
    assert native.has_autograd
    assert "reinstalled" not in gma_kernels.backends()["native"].reason


def test_with_another_torch_gradients_are_the_same_and_the_status_says_what_is_missing(tmp_path):
    inputs = simple_inputs(dtype=torch.float32)
    leaves = inputs.leaves()
    context = gma_kernels.gaussian_attention(*leaves, backend="native")
    grad = torch.randn_like(context)
    expected = torch.autograd.grad(context, leaves[:5], grad)
    file = str(tmp_path / "tensors.pt")
    torch.save((list(inputs), grad), file)
    assert "until reinstalled with torch 0.0.0" in run_python("-c", WITH_ANOTHER_TORCH.format(file=file))
    for name, x, y in zip(GRADIENTS, torch.load(file), expected):
        assert torch.equal(x, y), name


def test_nothing_is_recorded_where_no_gradient_is_wanted():
    inputs = simple_inputs(dtype=torch.float32)
    assert gma_kernels.gaussian_attention(*inputs, backend="native").grad_fn is None
    with torch.no_grad():
        assert gma_kernels.gaussian_attention(*inputs.leaves(), backend="native").grad_fn is None
    with torch.inference_mode():
        assert gma_kernels.gaussian_attention(*inputs.leaves(), backend="native").is_inference()


def test_gradients_that_nobody_asked_for_are_left_out():
    inputs = simple_inputs(dtype=torch.float32)
    width = inputs.width.clone().requires_grad_()
    gma_kernels.gaussian_attention(*inputs._replace(width=width), backend="native").sum().backward()
    expected = inputs.leaves()
    gma_kernels.gaussian_attention(*expected, backend="native").sum().backward()
    assert torch.equal(width.grad, expected.width.grad)
