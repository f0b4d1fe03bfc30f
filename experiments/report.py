"""The report of a run's experiments: our figures beside the published ones, as one page and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval.report.blocks import Block, Figure, Figures, Row, Section, Table, quoted
from eval.report.html import write_page
from eval.report.plots import Bar, bars
from eval.report.published import published
from experiments.config import TRAININGS
from experiments.record import Record, read
from experiments.table import Line, lines, tables

COLUMNS = {"Overall F1": "macro F1, %", "Overall R(IC)": "recall on implicit conflicts, %"}
"""What is drawn of a classification."""

TOY = (
    "At toy size a tiny model takes a few steps on a few dialogues: these figures show that the machinery works, and "
    "nothing else. "
)


def build(run: Path, out: Path) -> None:
    """Write the report to `out` (.html), and the same as Markdown beside it.

    Raises:
        RunError: the run holds no experiment.
        ReportError: `out` doesn't end in .html or can't be written.
    """
    write_page("Experiments", [_section(one, run) for one in read(run)], out)


def _section(kept: Record, run: Path) -> Section:
    blocks: list[Block] = [*tables(kept, run)]
    if "uc" in kept.evaluations:
        blocks.append(_bars(kept, lines(kept, run, "uc")))
    if missing := _missing(kept, run):
        blocks.append(missing)
    for one in dict.fromkeys(quote.table for quote in kept.published.values()):
        blocks.append(quoted(published(one), folded=True))
    note = f"Reproduces: {kept.reproduces}. {TOY if kept.scale == 'toy' else ''}Intervals are over seeds; one has none."
    if kept.published:
        note += (
            ' Rows "paper", in grey, are on the paper\'s UC-Bench: they compare with ours only where that was asked.'
        )
    title = f"{kept.title} ({kept.scale} scale)"
    return Section(f"{kept.name}-{kept.scale}", title, note, tuple(blocks))


def _bars(kept: Record, found: Sequence[Line]) -> Figures:
    figures = []
    for n, (column, title) in enumerate(COLUMNS.items()):
        rows = [bar for line in found if (bar := _bar(line, column))]
        if rows:
            caption = f"Overall {title.removesuffix(', %')}, with 95% t-intervals over seeds."
            figures.append(Figure(f"{kept.name}-{kept.scale}-{n}", caption, bars(title, rows)))
    return Figures(tuple(figures))


def _bar(line: Line, column: str) -> Bar | None:
    value = line.value(column)
    if value is None:
        return None
    name, mean = f"{line.variant}, {line.training}", value.mean / 100
    if value.half_width is None:
        return Bar(name, mean)
    # An interval of a few runs may reach beyond what a share can be.
    return Bar(name, mean, (max(0.0, mean - value.half_width / 100), min(1.0, mean + value.half_width / 100)))


def _missing(kept: Record, run: Path) -> Table | None:
    """The cells without a result, and why; None if all are done."""
    rows = [
        Row((cell.variant, TRAININGS[cell.training], str(cell.seed), state, cell.why(run) or ""))
        for cell in kept.cells
        if (state := cell.state(run)) != "done"
    ]
    caption = f"Cells without a result: {len(rows)} of {len(kept.cells)}."
    return Table(caption, ("Variant", "Training", "Seed", "State", "Why"), tuple(rows)) if rows else None
