"""A bad network: it passes on bytes between clients and a server until it is told to break."""

import contextlib
import socket
import threading


class Relay:
    """Listens at an address of its own and connects to `url`.

    Attributes:
        open: whether new connections are taken.
    """

    def __init__(self, url: str):
        self.lead_to(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.open = True
        self._wires: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(self, *_: object) -> None:
        # wakes up whoever accepts
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def lead_to(self, url: str) -> None:
        """Connect to another server from now on."""
        self._port = int(url.rsplit(":", 1)[1])

    def cut(self) -> None:
        """Break every connection that there is."""
        wires, self._wires = self._wires, []
        for wire in wires:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)
            wire.close()

    def _run(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            if not self.open:
                here.close()
                continue
            there = socket.create_connection(("127.0.0.1", self._port))
            self._wires += [here, there]
            for source, sink in ((here, there), (there, here)):
                threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 14):
            sink.sendall(data)
    for wire in (source, sink):
        with contextlib.suppress(OSError):
            wire.shutdown(socket.SHUT_RDWR)
