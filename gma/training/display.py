"""Progress of training: one live line on a terminal, plain lines elsewhere."""

import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

# seconds after which a log that is no terminal gets a line in any case
SILENCE = 30.0
# seconds of an update that are worth a warning
SLOW_UPDATE = 60.0


class TrainingDisplay:
    """A bar with the latest numbers in it; on anything but a terminal one line per log entry instead.

    Args:
        updates, seconds: the limits of the run, 0 for none.
        quiet: say nothing at all (every process but the first).
    """

    def __init__(self, console: Console, updates: int, seconds: float, quiet: bool):
        self.console = Console(quiet=True) if quiet else console
        self.updates, self.seconds = updates, seconds
        self._live = self.console.is_terminal and not quiet
        self._bar = Progress(
            BarColumn(bar_width=20),
            TextColumn("{task.fields[text]}"),
            console=self.console,
            disable=not self._live,
        )
        self._task = self._bar.add_task("", total=1.0, text="starting")
        self._training, self._validation = "", ""
        self._first: int | None = None
        self._said = 0.0

    def __enter__(self) -> "TrainingDisplay":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._said = time.monotonic()
        self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def expect(self, batches: int, seconds: float) -> None:
        """The first of so many batches of an update took so long: say so if the update will take minutes."""
        if batches * seconds > SLOW_UPDATE:
            self.say(
                f"warning: an update takes about {timedelta(seconds=round(batches * seconds))} here, {batches} batches "
                f"of {timedelta(seconds=round(seconds))}, and nothing is logged or saved meanwhile; less of "
                "training.accumulation or training.tokens, or a smaller model, makes it quicker (see `gma init`)"
            )

    def step(self, update: int, seconds: float) -> None:
        """Move the bar."""
        done = max(update / self.updates if self.updates else 0.0, seconds / self.seconds if self.seconds else 0.0)
        left = timedelta(seconds=round(seconds * (1.0 - done) / done)) if 0.0 < done < 1.0 else timedelta()
        if self._first is None:
            self._first = update
        now = time.monotonic()
        if not self._live and (update == self._first or now - self._said > SILENCE):
            of = f" of {self.updates:,}" if self.updates else ""
            self.say(f"update {update:,}{of}" + (f" · {left} left" if update > self._first else ""))
        parts = [f"update {update:,}", self._training, self._validation, f"{left} left"]
        self._bar.update(self._task, completed=min(1.0, done), text=" · ".join(filter(None, parts)))

    def log(self, record: dict[str, Any]) -> None:
        """A training record."""
        parts = [
            f"loss {record['loss']:.3f}",
            f"{record['tokens_per_second']:,.0f} tokens/s",
            f"rate {record['learning_rate']:.2e}",
        ]
        if "past_the_end" in record:
            parts.append(f"p>|x| {record['past_the_end']:.1%}")
        self._training = " · ".join(parts)
        if not self._live:
            self.say(f"update {record['update']:,} · {self._training}")

    def validation(self, record: dict[str, Any], best: bool) -> None:
        """A validation record; stays on the screen."""
        parts = [f"loss {record['loss']:.3f} (perplexity {record['perplexity']:.2f})"]
        if "bleu" in record:
            parts += [f"BLEU {record['bleu']:.1f}", f"AL {record['al']:.2f} words"]
            self._validation = f"valid BLEU {record['bleu']:.1f} AL {record['al']:.1f}"
        else:
            self._validation = f"valid loss {record['loss']:.3f}"
        parts += ["best so far"] if best else []
        self.say(f"update {record['update']:,} · validation {' · '.join(parts)}")
