"""Runs the tests of the kernels in Triton's interpreter, and tests what needs no kernel at all."""

import importlib
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

import gma_kernels
from tests.support.processes import run_python

INTERPRETED = Path(__file__).parent / "interpreted"


@pytest.mark.parametrize("speed", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_kernels_in_the_interpreter(speed):
    pytest.importorskip("triton")
    run_python(
        "-m", "pytest", str(INTERPRETED), "-m", speed, "-p", "no:cacheprovider", timeout=None, TRITON_INTERPRET="1"
    )


def test_importing_the_package_does_not_import_triton():
    code = "import sys, gma_kernels; gma_kernels.backends(); print('triton' in sys.modules)"
    assert run_python("-c", code).strip() == "False"


HIDE_TRITON = "import sys; sys.modules['triton'] = None; import importlib.util; find = importlib.util.find_spec; "
HIDE_TRITON += "importlib.util.find_spec = lambda name, *rest: None if name == 'triton' else find(name, *rest); "


def test_without_triton_the_status_says_how_to_get_it():
    out = run_python("-c", HIDE_TRITON + "import gma_kernels; print(gma_kernels.backends()['triton'])")
    assert "available=False" in out
    assert "pip install" in out


def test_with_triton_and_no_gpu_the_status_says_what_is_missing():
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    status = gma_kernels.backends()["triton"]
    assert not status.available
    assert "no GPU" in status.reason
    assert "backend='auto'" in status.reason


def test_the_operator_called_directly_on_cpu_tensors_says_what_to_do():
    pytest.importorskip("triton")
    rows = torch.ones(1, 1, 2)
    x = torch.ones(1, 1, 2, 4)
    with pytest.raises(RuntimeError, match=r"given cpu tensors.*TRITON_INTERPRET=1"):
        torch.ops.gma_kernels.triton_forward(x, x, x, rows, rows, rows.int(), None, 0, 1.0, 0.0)


def test_compile_traces_the_operators_on_fake_gpu_tensors(monkeypatch):
    """Nothing is launched, so no GPU is needed; gradients of fake GPU tensors would need one."""
    module = importlib.import_module("gma_kernels.backends")
    pretended = gma_kernels.BackendStatus(True, "pretended", ("cuda",), ("float32", "float16", "bfloat16"))
    monkeypatch.setattr(module, "_status", lambda name: pretended)
    graphs = []

    def keep(graph, example_inputs):
        graphs.append(graph)
        return graph

    def attend(query, key, center, visible):
        settings = {"dropout_p": 0.1, "seed": 3, "backend": "triton"}
        context = gma_kernels.gaussian_attention(query, key, key, center, center, visible, **settings)
        return context, gma_kernels.attention_weights(query, key, center, center, visible, backend="triton")

    torch.compiler.reset()
    with FakeTensorMode():
        query = torch.empty(2, 4, 7, 64, device="cuda", dtype=torch.bfloat16)
        key = torch.empty(2, 4, 9, 64, device="cuda", dtype=torch.bfloat16)
        center, visible = torch.ones(2, 1, 7, device="cuda"), torch.ones(2, 1, 7, device="cuda", dtype=torch.int32)
        context, weights = torch.compile(attend, fullgraph=True, backend=keep)(query, key, center, visible)
    assert len(graphs) == 1
    called = [str(node.target) for node in graphs[0].graph.nodes if "gma_kernels" in str(node.target)]
    assert called == ["gma_kernels.triton_forward.default", "gma_kernels.triton_weights.default"]
    assert (context.shape, context.stride()) == ((2, 4, 7, 64), (1792, 64, 256, 1))
    assert context.device.type == weights.device.type == "cuda"


def test_float64_is_refused_by_name_and_stepped_over_by_auto(monkeypatch):
    module = importlib.import_module("gma_kernels.backends")
    pretended = gma_kernels.BackendStatus(True, "pretended", ("cuda",), ("float32",))
    monkeypatch.setattr(module, "_status", lambda name: pretended)
    module._automatic.cache_clear()
    with pytest.raises(gma_kernels.BackendUnavailable, match=r"'triton' serves float32 and was given torch.float64"):
        module.choose_backend("triton", torch.device("cuda:0"), torch.float64)
    assert module.choose_backend("auto", torch.device("cuda:0"), torch.float32) == "cuda"
    with pytest.warns(UserWarning, match="serves float32 on cuda"):
        assert module.choose_backend("auto", torch.device("cuda:0"), torch.float64) == "reference"
    module._automatic.cache_clear()
