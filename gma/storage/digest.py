"""The SHA-256 of a file."""

import hashlib
from pathlib import Path

BLOCK = 1 << 18


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
