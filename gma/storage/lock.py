"""One process at a time in a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gma.errors import UserError


@contextmanager
def locked(folder: Path, refusal: UserError) -> Iterator[None]:
    """Keep others out; raises `refusal` where another process is in.

    The lock is on the folder itself, which is made if need be, and ends with the process, however that ends.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise refusal from error
        yield
    finally:
        os.close(handle)
