"""Progress of a run: a live panel on a terminal, one plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from synuc.progress import Status, duration


class Progress(Status):
    """Counts what has finished and says so. `total` and `done` are dialogues, `done` those of earlier starts.

    `waiting` gives lines about what is waited for.
    """

    def __init__(self, console: Console, total: int, done: int, waiting: Callable[[], Sequence[str]] = tuple) -> None:
        super().__init__(console, f"{done}/{total} dialogues")
        self.total = total
        self.done = self.before = done
        self.waiting = waiting
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.calls = 0
        self.tokens = 0
        self.started = time.monotonic()

    def add(self, samples: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]) -> None:
        """A dialogue has finished with these samples and calls; without samples, it has only cost them."""
        self.done += bool(samples)
        self.outcomes.update((sample["label"] or "-", sample["outcome"]) for sample in samples)
        self.calls += len(calls)
        self.tokens += sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls)

    def show(self) -> None:
        """Redraw the panel, or print a line if the last one is old enough."""
        waiting = self.waiting()
        self.say("\n".join([self.line(), *waiting]), Group(self._panel(), *map(Text, waiting)))

    def line(self) -> str:
        """The state in one line."""
        by_outcome: Counter[str] = Counter()
        for (_, outcome), n in self.outcomes.items():
            by_outcome[outcome] += n
        counts = ", ".join(f"{by_outcome[name]} {name}" for name in ("accepted", "rejected", "failed"))
        return f"{self.done}/{self.total} dialogues; samples: {counts}; {self._speed()}"

    def _speed(self) -> str:
        seconds = max(time.monotonic() - self.started, 1e-9)
        finished = self.done - self.before
        left = f"{duration(seconds / finished * (self.total - self.done))} left" if finished else "no estimate yet"
        return f"{self.calls / seconds:.1f} calls/s, {self.tokens / seconds:,.0f} tokens/s, {left}"

    def _panel(self) -> Group:
        table = Table()
        for column in ("label", "accepted", "rejected", "failed"):
            table.add_column(column, justify="left" if column == "label" else "right")
        # "-": dialogues that could not be routed to a label.
        unrouted = ["-"] if any(label == "-" for label, _ in self.outcomes) else []
        for label in ["ND", "ER", "IC", *unrouted]:
            counts = (str(self.outcomes[label, name]) for name in ("accepted", "rejected", "failed"))
            table.add_row(label, *counts)
        return Group(f"{self.done}/{self.total} dialogues · {self._speed()}", table)
