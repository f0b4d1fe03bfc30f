"""How the tables of a report look, and the numbers in them."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text


def section(console: Console, title: str, table: Table) -> None:
    """Print a table under its title."""
    console.print()
    console.print(Text(title, "bold"))
    console.print(table)


def new_table(first: str, *others: str) -> Table:
    """A table without lines: words in the first column, numbers in the others."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def short(number: int) -> str:
    """At most nine characters."""
    for bound, letter in ((10**12, "T"), (10**9, "G"), (10**7, "M")):
        if number >= bound:
            return f"{number / (10**6 if letter == 'M' else bound):,.1f}{letter}"
    return f"{number:,}"
