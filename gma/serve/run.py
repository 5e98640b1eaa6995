"""A server in this process, from its socket to its last word."""

import hashlib
import socket
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gma.errors import UserError
from gma.model.directory import Loaded
from gma.serve.app import Server
from gma.serve.protocol import Limits
from gma.serve.service import Service
from gma.storage.digest import sha256_of
from gma.terminal import say

# connections that wait to be accepted: a server that comes back is met by all its clients at once
BACKLOG = 2048


def run(
    loaded: Loaded,
    model: Path,
    console: Console,
    *,
    limits: Limits,
    host: str,
    port: int,
    token: str | None,
    origins: Sequence[str],
    proxies: str | None,
) -> None:
    """Serve until a signal comes. model: its folder, whose files name it to resuming clients."""
    listener = listen(host, port)
    service = Service(loaded, fingerprint(model), limits, token=token, origins=tuple(origins))
    server = Server(service, proxies=proxies)
    shown = f"[{host}]" if ":" in host else host
    say(console, f"http://{shown}:{listener.getsockname()[1]} (Ctrl-C stops)")
    server.run([listener])


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise UserError(f"cannot listen at {host}, port {port} ({error.strerror}); choose another --port") from None
    listener.setblocking(False)
    return listener


def fingerprint(model: Path) -> str:
    """Short digest of a model's folder: the same on every machine that has the same weights and tokenizer."""
    digest = hashlib.sha256()
    for name in ("config.toml", "tokenizer.json", "model.safetensors"):
        digest.update(sha256_of(model / name).encode())
    return digest.hexdigest()[:16]
