"""Standard outputs that are closed or full, and what the command says of itself."""

import subprocess
import sys
from importlib.metadata import version

import pytest

GMA = f"{sys.executable} -m gma"


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (f"{GMA} --version", 0, ""),
        (f"{GMA} config > /dev/full", 2, "standard output: No space left on device"),
        (f"{GMA} config >&-", 0, ""),
        (f"{GMA} config | true", 0, ""),
        (f"echo Ja. | {GMA} translate >&-", 2, "standard output is closed"),
        (f"echo Ja. | {GMA} stream --plain >&-", 2, "standard output is closed"),
    ],
)
def test_an_output_that_takes_nothing_is_named(command, code, message):
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=240)
    assert done.returncode == code
    assert done.stderr.startswith(message) if message else not done.stderr
    assert "Traceback" not in done.stderr


def test_the_version():
    done = subprocess.run([sys.executable, "-m", "gma", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"gma {version('gma')}\n"
