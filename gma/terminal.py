"""Terminal output of all commands: lines, and progress bars that only a terminal shows."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class Output(io.TextIOBase):
    """Standard output for messages. If it fails, because its reader has died or its disk is full, work goes on in
    silence, and `error` says why."""

    error: OSError | None = None

    def write(self, text: str) -> int:
        # rich fills lines with blanks; a file is better off without
        shown = text if self.isatty() else re.sub(r"[ \t]+(?=\n)", "", text)
        self._try(lambda output: output.write(shown))
        return len(text)

    def flush(self) -> None:
        self._try(lambda output: output.flush())

    def isatty(self) -> bool:
        return self.error is None and sys.stdout is not None and sys.stdout.isatty()

    def fileno(self) -> int:
        return sys.stdout.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute there
        return getattr(sys.stdout, "encoding", None) or "utf-8"

    def _try(self, use: Callable[[TextIO], object]) -> None:
        # a live display of rich puts itself in the place of standard output
        output = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
        if self.error is not None or output is None:
            return
        try:
            use(cast(TextIO, output))
        except OSError as error:
            self.error = error
            # what is left in buffers must not fail once more at the end
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, output.fileno())
                os.close(nowhere)


def say(console: Console, text: str) -> None:
    """One line as it is, whatever the width of the terminal."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def bar(console: Console, description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar over so many items; gives the function that is told how many more are done."""
    with _progress(console, MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task(description, total=total)
        yield lambda count: progress.advance(task, count)


@contextmanager
def byte_bar(
    console: Console, description: str, total: int | None = None
) -> Iterator[Callable[[int, int | None], None]]:
    """A bar over bytes; gives the function that is told how many are done, and of how many where it knows better."""
    with _progress(console, DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task(description, total=total)
        yield lambda done, of: progress.update(task, completed=done, total=of)


def _progress(console: Console, *columns: ProgressColumn) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
