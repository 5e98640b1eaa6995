"""Ctrl-C, SIGTERM and the end of the terminal (SIGHUP) as requests to save and stop."""

import contextlib
import os
import signal
import time
from types import FrameType
from typing import Any

# Windows has none
HANGUP = getattr(signal, "SIGHUP", None)
SIGNALS = (signal.SIGINT, signal.SIGTERM) if HANGUP is None else (signal.SIGINT, signal.SIGTERM, HANGUP)
MESSAGE = b"\ngma: stopping after this update, then saving; press Ctrl-C again to stop now and lose unsaved updates\n"
# torchrun passes on a signal that the terminal has already sent to us: that is not a second one
ECHO_SECONDS = 2.0


class Interruption:
    """While entered, the first signal is noted in `signal`; another one, later, ends the process at once."""

    def __init__(self, speak: bool):
        self.signal = 0
        self._speak, self._when = speak, 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        for number in SIGNALS:
            # under nohup the end of the terminal is ignored
            if number != HANGUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.signal:
            self.signal, self._when = number, time.monotonic()
            if self._speak:
                # standard error may be closed, and a handler must not raise
                with contextlib.suppress(OSError):
                    os.write(2, MESSAGE)
        elif time.monotonic() - self._when > ECHO_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
