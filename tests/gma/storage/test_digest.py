"""Digests that files on disk already carry must never change."""

import hashlib

from gma.storage.digest import fingerprint, sha256_of


def test_of_files(tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 100_000)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(b"abc" * 100_000).hexdigest()


def test_a_fingerprint_is_that_of_the_joined_parts():
    assert fingerprint("ä", b"b", "c") == hashlib.blake2b("äbc".encode(), digest_size=16).hexdigest()
    assert fingerprint("a") != fingerprint("b")
