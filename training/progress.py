"""Progress of training, read from what it logs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from synuc.progress import Status, duration


class Progress(Status):
    """Says how far the logged steps have come."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "Starting the workers ...")
        self._started = time.time()
        self._first: Mapping[str, Any] | None = None

    def show(self, row: Mapping[str, Any] | None) -> None:
        """Show the last row of metrics.jsonl, if there is one."""
        # Rows of an earlier start say nothing about the speed of this one.
        if row is None or row["time"] < self._started:
            return
        # A worker that was replaced goes back to the last checkpoint.
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
        parts.append(f"{duration(seconds)} left")
    return " · ".join(parts)
