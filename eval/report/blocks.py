"""What a report is made of. Sections say what there is; the templates say how it looks, as a page and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from eval.report.drawing import Drawing
from eval.report.published import Published


@dataclass(frozen=True)
class Estimate:
    """A mean and half the width of its 95% interval."""

    mean: float
    half_width: float | None


Value = str | int | float | Estimate | None
"""A cell of a table. Shares are given in percent."""


@dataclass(frozen=True)
class Row:
    """`quoted`: it was published by others. `heading`: its first cell stands over the rows that follow."""

    cells: tuple[Value, ...]
    quoted: bool = False
    heading: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell as it is printed. `spread` is half the width of an estimate's interval, or empty."""

    text: str
    spread: str
    best: bool


@dataclass(frozen=True)
class Table:
    """A table. `spans`: titles over several columns each, with their number of columns; `best`: the columns in which
    the highest value is marked; `folded`: it opens at a click.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    spans: tuple[tuple[str, int], ...] = ()
    best: frozenset[int] = frozenset()
    folded: bool = False
    digits: int = 2
    kind = "table"

    def titles(self) -> list[str]:
        """The columns' titles, each with the one that spans it."""
        over = [span for span, width in self.spans for _ in range(width)] or [""] * len(self.columns)
        return [f"{span} {name}".strip() for span, name in zip(over, self.columns, strict=True)]

    def numeric(self) -> list[bool]:
        """Whether each column holds numbers, or nothing at all."""
        rows = [row.cells for row in self.rows if not row.heading]
        columns = [[cells[at] for cells in rows] for at in range(len(self.columns))]
        return [any(_mean(value) is not None for value in column) or not any(column) for column in columns]

    def printed(self) -> list[tuple[Row, list[Cell]]]:
        """The rows with their cells as texts; of two or more values of a column in `best` the highest is marked."""
        tops = {}
        for at in self.best:
            values = [mean for row in self.rows if not row.heading and (mean := _mean(row.cells[at])) is not None]
            if len(values) > 1:
                tops[at] = max(round(value, self.digits) for value in values)
        return [(row, [self._cell(row, at, tops.get(at)) for at in range(len(row.cells))]) for row in self.rows]

    def _cell(self, row: Row, at: int, top: float | None) -> Cell:
        value = row.cells[at]
        mean = _mean(value)
        best = mean is not None and top is not None and round(mean, self.digits) == top
        half_width = value.half_width if isinstance(value, Estimate) else None
        spread = "" if half_width is None else f"± {half_width:.{self.digits}f}"
        return Cell(_text(value, self.digits, row.quoted), spread, best)


@dataclass(frozen=True)
class Figure:
    """A plot. `name` is its file's, without ending, and no other's."""

    name: str
    caption: str
    drawing: Drawing
    kind = "figure"


@dataclass(frozen=True)
class Figures:
    """Plots that stand side by side."""

    figures: tuple[Figure, ...]
    kind = "figures"


@dataclass(frozen=True)
class Message:
    speaker: str
    text: str

    @property
    def long(self) -> bool:
        return len(self.text) > 400


@dataclass(frozen=True)
class Case:
    """An item and what a model made of it."""

    id: str
    gold: str
    predicted: str
    dialogue: tuple[Message, ...]
    follow_up: str
    rationale: str
    answer: Message


@dataclass(frozen=True)
class Cases:
    caption: str
    cases: tuple[Case, ...]
    kind = "cases"


@dataclass(frozen=True)
class Listing:
    """Lines to be copied, e.g. commands."""

    caption: str
    lines: tuple[str, ...]
    kind = "listing"


Block = Table | Figures | Cases | Listing


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    note: str
    blocks: tuple[Block, ...] = field(default=())


def percent(share: float | None) -> float | None:
    """A share in percent."""
    return None if share is None else 100 * share


def bounds(interval: Sequence[float] | None) -> str | None:
    """An interval of shares in percent."""
    return None if interval is None else f"{100 * interval[0]:.2f} to {100 * interval[1]:.2f}"


def p_value(p: float | None) -> str | None:
    """A p-value to four digits."""
    if p is None:
        return None
    return f"{p:.4f}" if p >= 1e-4 else "< 0.0001"


def counted(kinds: Mapping[str, int]) -> Value:
    """Failures by kind: their number, and the kinds if there are any."""
    listed = ", ".join(f"{kind.replace('_', ' ')} {n}" for kind, n in kinds.items() if n)
    return f"{sum(kinds.values())} ({listed})" if listed else 0


def quoted(table: Published, digits: int = 2, folded: bool = False) -> Table:
    """A published table as it was printed; columns named alike but for their last word stand under one title."""
    caption = f"Published: {table.title}. {table.table} of {table.source}."
    rows = tuple(Row(row, quoted=True) for row in table.rows)
    columns: list[str] = []
    spans: list[tuple[str, int]] = []
    for title, group in groupby(table.columns, lambda name: name.rpartition(" ")[0]):
        names = list(group)
        alike = bool(title) and len(names) > 1
        columns += [name.rpartition(" ")[2] for name in names] if alike else names
        spans.append((title if alike else "", len(names)))
    titled = tuple(spans) if any(title for title, _ in spans) else ()
    return Table(caption, tuple(columns), rows, titled, digits=digits, folded=folded)


def _mean(value: Value) -> float | None:
    if isinstance(value, Estimate):
        return value.mean
    return float(value) if isinstance(value, int | float) else None


def _text(value: Value, digits: int, exact: bool) -> str:
    """`exact`: a number that has more digits than `digits` keeps them all."""
    if value is None:
        return "–"
    if isinstance(value, Estimate):
        return f"{value.mean:.{digits}f}"
    if not isinstance(value, float):
        return value if isinstance(value, str) else f"{value:,}"
    fixed = f"{value:.{digits}f}"
    return repr(value) if exact and float(fixed) != value else fixed
