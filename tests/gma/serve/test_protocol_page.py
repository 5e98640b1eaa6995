"""docs/protocol.md: its session is replayed, and it knows every message, limit and close code."""

import contextlib
import json
import re
from pathlib import Path

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from gma.model import directory
from gma.serve import protocol
from tests.support.serving import served

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
SESSION = re.search(r"<!-- session.*?```json\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()
ANYTHING = "…"


def same(given, shown) -> bool:
    """Whether a message is what the page shows."""
    if shown == ANYTHING:
        return True
    if isinstance(shown, dict):
        return given.keys() == shown.keys() and all(same(given[name], shown[name]) for name in shown)
    if isinstance(shown, list):
        return len(given) == len(shown) and all(map(same, given, shown))
    return given == shown


def test_the_session_of_the_page():
    with contextlib.ExitStack() as stack:
        url, _ = stack.enter_context(served(directory.load(directory.find("de-en"))))
        socket = stack.enter_context(connect(url.replace("http", "ws") + "/v1/stream"))
        for line in SESSION:
            direction, shown = line[0], line[2:]
            if direction == ">":
                socket.send(shown)
            elif shown.startswith("close"):
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        socket.recv(30)
                assert socket.close_code == int(shown.split()[1])
            else:
                expected, message = json.loads(shown), json.loads(socket.recv(30))
                # the newest one only: there may be more of them, and fewer
                while message["type"] == "wait" != expected["type"]:
                    message = json.loads(socket.recv(30))
                assert same(message, expected), (message, expected)


def test_the_page_knows_every_field_limit_and_code():
    for name in (*protocol.Limits.model_fields, *protocol.Resume.model_fields):
        assert f"`{name}`" in PAGE, name
    for side in (protocol.schema()["client"], protocol.schema()["server"]):
        for name in side["discriminator"]["mapping"]:
            assert f"| `{name}` |" in PAGE, name
    codes = (protocol.DONE, protocol.POLICY_VIOLATION, protocol.TOO_BIG, protocol.FAILED, protocol.RESTART)
    for code in (*codes, protocol.BUSY, protocol.UNAUTHORIZED, protocol.IDLE, protocol.TOO_MANY):
        assert f"| {code} |" in PAGE
