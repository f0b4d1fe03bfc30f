"""Progress of training: a line that is redrawn on a terminal, one plain line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

SECONDS_BETWEEN_LINES = 30.0


class Status:
    """A text that changes: redrawn on a terminal, elsewhere printed now and then."""

    def __init__(self, console: Console, at_first: str) -> None:
        self.console = console
        self._at_first = at_first
        self._printed = time.monotonic()
        self._said = ""
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
            self._live.update(Text(self._at_first), refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """Show the text as it is now."""
        if self._live:
            self._live.update(Text(text), refresh=True)
        elif text != self._said and time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._said, self._printed = text, time.monotonic()
            self.console.print(text, soft_wrap=True, highlight=False, markup=False)


def in_background(work: Callable[[], object], look: Callable[[], None], seconds: float) -> Exception | None:
    """Do `work` in another thread, so that Ctrl-C is ours, and `look` in between. Gives the error it ended with."""
    failure: list[Exception] = []

    def guarded() -> None:
        try:
            work()
        except Exception as error:
            failure.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    while thread.is_alive():
        time.sleep(seconds)
        look()
    return failure[0] if failure else None


class Progress(Status):
    """Says how far the logged steps have come."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "Starting the workers ...")
        self._first: Mapping[str, Any] | None = None

    def show(self, row: Mapping[str, Any] | None) -> None:
        """Show the last row of metrics.jsonl, if there is one."""
        if row is None:
            return
        # Rows of an earlier start say nothing about the speed of this one.
        if self._first is None or row["step"] < self._first["step"]:
            self._first = row
        self.say(line(row, self._first))


def line(row: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """A row of metrics.jsonl in one line; the time left follows from the steps since `first`."""
    parts = [f"step {row['step']}/{row['steps']}", f"loss {row['loss']:.4f}"]
    if "reward" in row:
        parts.append(f"reward {row['reward']:.3f}")
    parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
    if steps := row["step"] - first["step"]:
        seconds = (row["time"] - first["time"]) / steps * (row["steps"] - row["step"])
        minutes, rest = divmod(int(seconds), 60)
        parts.append(f"{minutes // 60}h{minutes % 60:02d}m left" if minutes >= 60 else f"{minutes}m{rest:02d}s left")
    return " · ".join(parts)
