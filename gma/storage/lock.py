"""One process at a time in a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from gma.errors import UserError

LOCK = ".gma.lock"


@contextmanager
def locked(folder: Path, refusal: UserError) -> Iterator[None]:
    """Keep others out of a folder, which is made if need be; raises `refusal` where another process is in.

    The lock ends with the process, however that ends; the file that carries it may stay behind and means nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise refusal from error
    try:
        yield
    finally:
        lock.release()
