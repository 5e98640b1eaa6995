"""Ctrl-C and SIGTERM as a wish to stop soon, in good order."""

import os
import signal
import time
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
MESSAGE = b"\ngma: stopping after this update, then saving; once more to stop at once and lose what is not saved\n"
# torchrun hands on a signal that the terminal has sent to us already: that is no second wish
ECHO_SECONDS = 2.0


class Interruption:
    """While entered, the first signal is noted in `signal`; another one, later, ends the process at once."""

    def __init__(self, speak: bool):
        self.signal = 0
        self._speak, self._when, self._previous = speak, 0.0, {}

    def __enter__(self) -> "Interruption":
        self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.signal:
            self.signal, self._when = number, time.monotonic()
            if self._speak:
                os.write(2, MESSAGE)
        elif time.monotonic() - self._when > ECHO_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
