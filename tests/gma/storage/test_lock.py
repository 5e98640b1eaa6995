"""A folder has one owner at a time, whose death frees it."""

import subprocess
import sys

import pytest

from gma.errors import UserError
from gma.storage.lock import locked

BUSY = UserError("another process is in there")


def test_a_second_owner_is_refused_until_the_first_has_gone(tmp_path):
    folder = tmp_path / "new"
    with locked(folder, BUSY):
        with pytest.raises(UserError, match="another process"), locked(folder, BUSY):
            pass
        with locked(tmp_path / "other", BUSY):
            pass
    with locked(folder, BUSY):
        pass


def test_a_killed_owner_leaves_the_folder_free(tmp_path):
    program = """
import sys, time
from pathlib import Path
from gma.storage.lock import locked
with locked(Path(sys.argv[1]), RuntimeError()):
    print("in", flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"in\n"
        with pytest.raises(UserError, match="another process"), locked(tmp_path, BUSY):
            pass
        owner.kill()
        owner.wait()
    with locked(tmp_path, BUSY):
        pass
