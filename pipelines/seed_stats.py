"""What a pass over chat logs took and refused, and why."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.readers import Refused
from pipelines.seeds import Taken, chars_of

EXAMPLES_PER_REASON = 3


class SeedStats:
    """Counts over the items of `read_seeds`, and the sizes of the seeds among them."""

    def __init__(self) -> None:
        self.taken = 0
        self.trimmed = 0
        self.refused: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.languages: Counter[str] = Counter()
        self.read_by_source: Counter[str] = Counter()
        self.taken_by_source: Counter[str] = Counter()
        self.turns: list[int] = []
        self.chars: list[int] = []

    @property
    def read(self) -> int:
        """Records seen; a broken-off file's end counts as one."""
        return self.taken + self.refused.total()

    def add(self, item: Taken | Refused) -> None:
        if isinstance(item, Refused):
            self.read_by_source[item.source] += 1
            self.refused[item.reason] += 1
            examples = self.examples.setdefault(item.reason, [])
            if len(examples) < EXAMPLES_PER_REASON:
                examples.append(f"{item.position} {item.source_id}".strip() + f": {item.detail}")
            return
        seed = item.seed
        self.read_by_source[seed.source] += 1
        self.taken_by_source[seed.source] += 1
        self.taken += 1
        self.trimmed += item.trimmed
        self.languages[seed.language] += 1
        self.turns.append(len(seed.dialogue.turns))
        self.chars.append(chars_of(seed.dialogue))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, most frequent first. `turns` and `chars` are of the seeds taken."""
        return {
            "read": self.read,
            "taken": self.taken,
            "trimmed": self.trimmed,
            "refused": dict(self.refused.most_common()),
            "examples": {reason: list(lines) for reason, lines in self.examples.items()},
            "languages": dict(self.languages.most_common()),
            "sources": {
                name: {"read": read, "taken": self.taken_by_source[name]}
                for name, read in self.read_by_source.items()
            },
            "turns": distribution(self.turns),
            "chars": distribution(self.chars),
        }


def distribution(values: list[int]) -> dict[str, float]:
    """Minimum, median, mean, 95th percentile (nearest rank) and maximum; empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "min": ordered[0],
        "median": statistics.median(ordered),
        "mean": round(statistics.fmean(ordered), 1),
        "p95": ordered[math.ceil(0.95 * len(ordered)) - 1],
        "max": ordered[-1],
    }


def print_stats(stats: SeedStats, console: Console) -> None:
    """Tables of sources, refusals with examples, languages and sizes. Foreign words are printed as they are."""
    console.print(
        f"{stats.read} read, {stats.taken} taken ({stats.trimmed} without their unanswered last message)"
    )
    if len(stats.read_by_source) > 1:
        table = _table("source", "read", "taken")
        for name, read in stats.read_by_source.items():
            table.add_row(Text(name), str(read), str(stats.taken_by_source[name]))
        console.print(table)
    if stats.refused:
        table = _table("refused", "records", "for example")
        table.columns[2].justify = "left"
        for reason, count in stats.refused.most_common():
            table.add_row(reason, str(count), Text("\n".join(stats.examples[reason])))
        console.print(table)
    if stats.taken:
        table = _table("language", "seeds")
        for language, count in stats.languages.most_common():
            table.add_row(language, str(count))
        console.print(table)
        table = _table("of the seeds", "min", "median", "mean", "p95", "max")
        for name, values in (("user turns", stats.turns), ("characters", stats.chars)):
            table.add_row(
                name,
                *(f"{value:g}" if value < 1e5 else f"{value:.0f}" for value in distribution(values).values()),
            )
        console.print(table)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table
