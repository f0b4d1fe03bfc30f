"""What a measurement found, as rows of one small table with a verdict each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

CONSOLE = Console(width=140)


@dataclass(frozen=True)
class Row:
    """A measurement. `good` says whether it meets its `target`; None: it has none, and is there to be read."""

    what: str
    measured: str
    target: str = ""
    good: bool | None = None

    @property
    def verdict(self) -> str:
        return "" if self.good is None else "PASS" if self.good else "FAIL"


def conclude(title: str, rows: Sequence[Row]) -> int:
    """Print the table. Returns the exit status: 1 if any row fails."""
    table = Table("what", "measured", "target", "verdict", title=title)
    for row in rows:
        table.add_row(row.what, row.measured, row.target, row.verdict)
    CONSOLE.print(table)
    return int(any(row.good is False for row in rows))
