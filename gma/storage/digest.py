"""Digests: SHA-256 and git names of files that others can check, short fingerprints of what results depend on."""

import hashlib
from pathlib import Path

BLOCK = 1 << 18


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def git_blob_of(path: Path) -> str:
    """The name that git gives to a file with these contents; for small files."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def fingerprint(*parts: str | bytes) -> str:
    """Hash of the parts joined together, 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()
