"""The command `gma` as a whole: what it imports, and how it refuses."""

import subprocess
import sys

import gma_kernels
from gma.cli import app
from tests.support import tiny_model


def test_a_command_imports_no_more_than_it_needs():
    """Not even when it ends, where the errors that are expected are sorted from the others."""
    program = "import sys\nfrom gma.cli import main\ntry:\n    main()\nfinally:\n    print(sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program, "info"], capture_output=True, text=True, check=True)
    assert "'gma.cli'" in run.stdout
    assert "'gma.evaluation.evaluate'" not in run.stdout
    assert "'matplotlib'" not in run.stdout


def test_help_does_not_wait_for_torch():
    """Nor do the options of a command, nor settings."""
    program = "import sys\nfrom gma.cli import main\ntry:\n    main()\nfinally:\n    print(sorted(sys.modules))"
    for arguments in (["--help"], ["train", "--help"], ["config", "--toml"]):
        run = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
        assert "'gma.cli.app'" in run.stdout
        assert "'torch'" not in run.stdout


def test_an_unavailable_backend_is_refused_without_a_traceback(capsys, monkeypatch):
    def refuse():
        raise gma_kernels.BackendUnavailable("no such kernels here")

    monkeypatch.setattr(app, "app", refuse)
    assert tiny_model.command(monkeypatch) == 2
    assert capsys.readouterr().err == "no such kernels here\n"


def test_the_command_refuses_without_a_traceback(capsys, monkeypatch):
    assert tiny_model.command(monkeypatch, "config", "training.sed=7") == 2
    assert capsys.readouterr().err.startswith("training.sed = 7 (command line): there is no such key (did you mean")
