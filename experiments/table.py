"""The tables of an experiment: of each variant and training the mean over seeds with its 95% t-interval, and below it
what the paper has published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table as Printed

from eval.metrics import interval
from eval.report.blocks import Estimate, Row, Table, Value
from eval.report.published import Published, published
from experiments.config import TRAININGS, Evaluation, Quoted
from experiments.record import Record
from experiments.steps import StepFolder
from synuc.types import Label

Figures = Mapping[str, float | None]
"""The figures of a cell by the titles of their columns, shares in percent; None where one is undefined."""

CLASSIFICATION = {"P": "precision", "R": "recall", "F1": "f1", "R(IC)": "recall_ic"}


@dataclass(frozen=True)
class Shown:
    """How an evaluation's metrics.json becomes columns."""

    caption: str
    figures: Callable[[Mapping[str, Any]], Figures]
    digits: int


def _classification(metrics: Mapping[str, Any]) -> Figures:
    parts = {"Overall": metrics["overall"], **metrics["subsets"]}
    return {
        f"{part} {title}": _percent(shares[key])
        for part, shares in parts.items()
        for title, key in CLASSIFICATION.items()
    }


def _states(metrics: Mapping[str, Any]) -> Figures:
    return {"Silhouette": metrics["silhouette"], "States": metrics["n"]}


def _pairwise(metrics: Mapping[str, Any]) -> Figures:
    overall = metrics["overall"]
    shares = overall["shares"] or {}
    return {title: _percent(shares.get(title.lower())) for title in ("Win", "Tie", "Loss")} | {"Judged": overall["n"]}


def _quality(metrics: Mapping[str, Any]) -> Figures:
    accepted = metrics["balance"]["label"]["counts"]
    found: dict[str, float | None] = {f"Accepted {label.value}": accepted.get(label.value, 0) for label in Label}
    for language, told in metrics["giveaways"].items():
        for by in ("words", "style", "chance"):
            found[f"{language} {by}"] = _percent(told[by]["f1"]) if told["computed"] else None
    return found


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


SHOWN: dict[Evaluation, Shown] = {
    "uc": Shown(
        "Classification in percent: macro precision (P), recall (R) and F1, and recall on implicit conflicts, R(IC)",
        _classification,
        2,
    ),
    "states": Shown("Decision states: silhouette of the gold labels in the full space", _states, 3),
    "pairwise": Shown(
        "Whose reasoning is closer to the gold rationale, the reference's against this, in percent", _pairwise, 2
    ),
    "quality": Shown(
        "The data: accepted samples, and how well the follow-up alone gives the label away (macro F1 in percent, by a "
        "bag of words and by length and punctuation, beside chance)",
        _quality,
        1,
    ),
}


@dataclass(frozen=True)
class Line:
    """A variant with a training: the figures of each run that is done, of `planned` ones. Data have no training."""

    variant: str
    training: str
    planned: int
    figures: tuple[Figures, ...]

    def values(self, columns: Sequence[str]) -> list[Value]:
        """Means over seeds; a figure that one of them hasn't is left empty, as it would bend the mean."""
        return [self.value(column) for column in columns]

    def value(self, column: str) -> Estimate | None:
        values = [figures.get(column) for figures in self.figures]
        known = [float(value) for value in values if value is not None]
        return Estimate(*interval(known)) if known and len(known) == len(values) else None


def lines(kept: Record, run: Path, evaluation: Evaluation) -> list[Line]:
    """The lines of an evaluation's table, in the order of the experiment."""
    steps: dict[tuple[str, str], dict[str, None]] = {}
    for cell in kept.cells:
        if evaluation in cell.steps:
            training = "" if evaluation == "quality" else TRAININGS[cell.training]
            steps.setdefault((cell.variant, training), {})[cell.steps[evaluation]] = None
    return [_line(*key, list(names), run, evaluation) for key, names in steps.items()]


def _line(variant: str, training: str, steps: Sequence[str], run: Path, evaluation: Evaluation) -> Line:
    folders = [StepFolder(run, name) for name in steps]
    figures = tuple(SHOWN[evaluation].figures(folder.metrics()) for folder in folders if folder.done)
    return Line(variant, training, len(steps), figures)


def tables(kept: Record, run: Path) -> list[Table]:
    """A table for each evaluation."""
    return [_table(kept, run, evaluation) for evaluation in kept.evaluations]


def _table(kept: Record, run: Path, evaluation: Evaluation) -> Table:
    found, shown, quoted = lines(kept, run, evaluation), SHOWN[evaluation], kept.published.get(evaluation)
    columns = list(dict.fromkeys(column for line in found for figures in line.figures for column in figures))
    papers = [None if quoted is None else _published(line, quoted, columns) for line in found]
    rows = []
    for line, values in zip(found, papers, strict=True):
        runs = f"{len(line.figures)} of {line.planned}" if len(line.figures) < line.planned else str(line.planned)
        rows.append(Row((line.variant, line.training, runs, *line.values(columns))))
        if values is not None:
            rows.append(Row((line.variant, line.training, "paper", *values), quoted=True))
    caption = f"{shown.caption}. Means over runs ± half the 95% t-interval."
    if quoted is not None and any(values is not None for values in papers):
        source = published(quoted.table)
        caption += f' Rows "paper": {source.table} of {source.source}.'
    spans, names = [("", 3)], []
    for title, group in groupby(columns, lambda column: column.rpartition(" ")[0]):
        part = list(group)
        spans.append((title, len(part)))
        names += [column.rpartition(" ")[2] for column in part]
    return Table(caption, ("Variant", "Training", "Runs", *names), tuple(rows), tuple(spans), digits=shown.digits)


def _published(line: Line, quoted: Quoted, columns: Sequence[str]) -> list[Value] | None:
    """What the paper has for these columns; None where it has no such row, or none is named."""
    table = published(quoted.table)
    names = {"variant": line.variant, "training": line.training}
    wanted = {column: text.format(**names) for column, text in quoted.rows.items()}
    record = _row(table, wanted)
    if record is None or not wanted:
        return None
    spread = (_row(table, {**wanted, "Statistic": "95% CI"}) if "Statistic" in wanted else None) or {}
    return [_estimate(record, spread, column) for column in columns]


def _row(table: Published, wanted: Mapping[str, str]) -> dict[str, Any] | None:
    return next(
        (row for row in table.records() if all(str(row.get(column)) == text for column, text in wanted.items())), None
    )


def _estimate(record: Mapping[str, Any], spread: Mapping[str, Any], column: str) -> Value:
    # A table that has overall figures only doesn't say so in its columns.
    name = column if column in record else column.removeprefix("Overall ")
    mean, half_width = record.get(name), spread.get(name)
    return Estimate(mean, half_width) if isinstance(mean, float) and isinstance(half_width, float) else mean


def printed(table: Table) -> Printed:
    """A table for a terminal: without the columns of subsets, which would not fit."""
    titles = table.titles()
    subsets = {title for title in titles if title.rpartition(" ")[2] in CLASSIFICATION}
    shown = [at for at, title in enumerate(titles) if title not in subsets or title.startswith("Overall ")]
    made = Printed(box=box.SIMPLE_HEAD, pad_edge=False, caption=table.caption, caption_justify="left")
    for at in shown:
        made.add_column(titles[at].removeprefix("Overall "), justify="left" if at < 3 else "right")
    for row, cells in table.printed():
        texts = [f"{cells[at].text} {cells[at].spread}".strip() for at in shown]
        made.add_row(*texts, style="dim" if row.quoted else None)
    return made
