"""gma info --report: what an issue needs, and nothing that its author would not want to show."""

import os
import platform

import torch

import gma
import gma_kernels
from tests.support import tiny_model


def report(monkeypatch, capsys, *arguments: str) -> dict[str, str]:
    assert tiny_model.command(monkeypatch, "info", *arguments, "--report") == 0
    lines = capsys.readouterr().out.splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


def test_the_report_names_versions_backends_with_their_reasons_and_the_engine(monkeypatch, capsys):
    found = report(monkeypatch, capsys)
    assert found["gma"] == gma.__version__
    assert platform.python_version() in found["python"]
    assert torch.__version__ in found["torch"]
    for name, status in gma_kernels.backends().items():
        assert found[name] == f"{'yes' if status.available else 'no'}: {status.reason}"
    assert found["engine"]
    assert "model" not in found


def test_settings_are_told_and_secrets_are_not(monkeypatch, capsys):
    monkeypatch.setenv("GMA_ENGINE", "torch")
    monkeypatch.setenv("GMA_TOKEN", "not-to-be-shown")
    found = report(monkeypatch, capsys)
    assert "GMA_ENGINE=torch" in found["settings"]
    assert "not-to-be-shown" not in str(found)
    assert os.getcwd() not in str(found)


def test_a_model_is_told_of(monkeypatch, capsys):
    found = report(monkeypatch, capsys, "de-en")
    assert found["model"].startswith("policy gaussian, 4,962,048 parameters, decoded by ")
    assert "made by gma 0.1.0" in found["model"]
