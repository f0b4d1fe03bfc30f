"""The plots of a report. Values are shares between 0 and 1 and are written in percent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from scipy.stats import linregress

from eval.report.svg import Drawing, Frame, text_width

TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SIDE = 300
"""The side of a square plotting area."""


@dataclass(frozen=True)
class Bar:
    """A share and its interval, if it has one."""

    name: str
    value: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Point:
    name: str
    x: float
    y: float


@dataclass(frozen=True)
class Series:
    """Points that belong together. `kind` is a class of the style sheet, e.g. `ic` or `c0`."""

    name: str
    kind: str
    points: tuple[Point, ...]


def heat_map(
    label: str, counts: Mapping[str, Mapping[str, float]], rows: str, columns: str, of_all: bool = False
) -> Drawing:
    """A table of counts as shaded cells: the count, and its share of the row (confusion matrices; paper, Figure 8).

    `rows` and `columns` are the titles of the sides; `of_all`: shares are of all counts together (paper, Figure 10).
    """
    names = list(next(iter(counts.values())))
    cell = 84.0
    left, top = 34 + max(map(text_width, counts)), 54.0
    drawing = Drawing(left + cell * len(names) + 6, top + 52 * len(counts) + 6, label)
    drawing.text(left + cell * len(names) / 2, 16, columns, "label soft", "middle")
    drawing.text(14, top + 26 * len(counts), rows, "label soft", "middle", turned=True)
    for at, name in enumerate(names):
        drawing.text(left + cell * (at + 0.5), top - 12, name, anchor="middle")
    for down, (name, row) in enumerate(counts.items()):
        y = top + 52 * down
        drawing.text(left - 8, y + 30, name, anchor="end")
        total = sum(sum(other.values()) for other in counts.values()) if of_all else sum(row.values())
        for at, count in enumerate(row.values()):
            share = count / total if total else 0.0
            drawing.rect(left + cell * at, y, cell - 2, 50, "heat", f"{name} as {names[at]}: {count:g}", share)
            kind = "label on-dark" if share > 0.5 else "label"
            drawing.text(left + cell * (at + 0.5) - 1, y + 23, f"{count:g}", f"{kind} strong", "middle")
            drawing.text(left + cell * (at + 0.5) - 1, y + 39, f"{100 * share:.1f}%", kind, "middle")
    return drawing


def bars(label: str, rows: Sequence[Bar], kind: str = "c0") -> Drawing:
    """Shares as bars that lie, with whiskers where a share has an interval. `label` is also the axis' title."""
    left = 16 + max(text_width(row.name) for row in rows)
    frame = Frame(left, 8, 420, 28 * len(rows))
    drawing = Drawing(frame.right + 64, frame.bottom + 44, label)
    frame.x_axis(drawing, label, TICKS)
    for at, row in enumerate(rows):
        y = frame.top + 28 * at
        drawing.text(left - 8, y + 18, row.name, anchor="end")
        drawing.rect(left, y + 5, frame.x(row.value) - left, 18, kind, f"{row.name}: {100 * row.value:.2f}")
        end = row.value
        if row.interval:
            low, end = row.interval
            drawing.line(frame.x(low), y + 14, frame.x(end), y + 14, "whisker")
            for edge in row.interval:
                drawing.line(frame.x(edge), y + 10, frame.x(edge), y + 18, "whisker")
        drawing.text(frame.x(max(end, row.value)) + 6, y + 18, f"{100 * row.value:.2f}")
    return drawing


def stacked(label: str, rows: Mapping[str, Mapping[str, float]], kinds: Mapping[str, str]) -> Drawing:
    """Counts of each row as parts of a whole bar (paper, Figures 4 and 11). `kinds`: the parts and their classes."""
    left = 16 + max(map(text_width, rows))
    frame = Frame(left, 34, 420, 32 * len(rows))
    drawing = Drawing(max(frame.right + 24, left + _legend_width(kinds)), frame.bottom + 44, label)
    _legend(drawing, left, kinds)
    frame.x_axis(drawing, label, TICKS)
    for at, (name, row) in enumerate(rows.items()):
        y = frame.top + 32 * at
        drawing.text(left - 8, y + 20, name, anchor="end")
        total = sum(row[part] for part in kinds)
        shares = [row[part] / total if total else 0.0 for part in kinds]
        for (part, kind), share, end in zip(kinds.items(), shares, accumulate(shares), strict=True):
            x, width = frame.x(end - share), frame.width * share
            drawing.rect(x, y + 5, width, 22, kind, f"{name}, {part}: {row[part]:g} of {total:g}")
            if width > 34:
                drawing.text(x + width / 2, y + 20, f"{100 * share:.0f}", "label on-colour", "middle")
    return drawing


def reliability(label: str, bins: Sequence[tuple[float, float, int]]) -> Drawing:
    """How often answers are right against how sure they were: (mean confidence, accuracy, answers) of each filled bin.

    The dashed line is perfect calibration; a point's area grows with its number of answers.
    """
    drawing, frame = _square(label, "confidence, %", "accuracy, %")
    drawing.line(frame.x(0), frame.y(0), frame.x(1), frame.y(1), "dashed")
    most = max(n for _, _, n in bins)
    drawing.polyline([(frame.x(confidence), frame.y(accuracy)) for confidence, accuracy, _ in bins], "curve c0")
    for confidence, accuracy, n in bins:
        tip = f"confidence {100 * confidence:.1f}, accuracy {100 * accuracy:.1f}, {n} answers"
        drawing.mark(frame.x(confidence), frame.y(accuracy), "c0", tip, 3 + 6 * (n / most) ** 0.5)
    return drawing


def correlation(label: str, ours: Sequence[Point], published: Sequence[Point], x_title: str, y_title: str) -> Drawing:
    """Our models and published ones, and the linear fit of ours where there are three or more (paper, Figure 9)."""
    ours = sorted(ours, key=lambda point: point.y)
    # Heights of the names over the plot's foot, from the lowest upwards, so that none stands on another.
    heights = list(accumulate((SIDE * point.y for point in ours), lambda last, height: max(height, last + 14)))
    beside, above = max(text_width(point.name) for point in ours), max(0.0, heights[-1] - SIDE)
    drawing, frame = _square(label, x_title, y_title, beside, above)
    for point in published:
        drawing.mark(frame.x(point.x), frame.y(point.y), "published", _tip(point))
    if len({point.x for point in ours}) >= 3:
        fit = linregress([point.x for point in ours], [point.y for point in ours])
        ends = (min(point.x for point in ours), max(point.x for point in ours))
        drawing.polyline([(frame.x(x), frame.y(fit.intercept + fit.slope * x)) for x in ends], "curve c0")
    for point, height in zip(ours, heights, strict=True):
        drawing.mark(frame.x(point.x), frame.y(point.y), "c0", _tip(point), 5)
        drawing.text(frame.x(point.x) + 9, frame.bottom - height + 4, point.name, "label halo")
    return drawing


def cloud(label: str, series: Sequence[Series]) -> Drawing:
    """Points whose coordinates mean nothing by themselves, e.g. of a UMAP projection (paper, Figure 7)."""
    points = [point for one in series for point in one.points]
    x_range, y_range = _range([point.x for point in points]), _range([point.y for point in points])
    frame = Frame(8, 34, SIDE, SIDE, x_range, y_range)
    kinds = {one.name: one.kind for one in series}
    drawing = Drawing(max(frame.right + 8, frame.left + _legend_width(kinds)), frame.bottom + 8, label)
    drawing.rect(frame.left, frame.top, frame.width, frame.height, "area")
    _legend(drawing, frame.left, kinds)
    for one in series:
        for point in one.points:
            drawing.mark(frame.x(point.x), frame.y(point.y), one.kind, f"{point.name} ({one.name})", 3)
    return drawing


def roc(label: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> Drawing:
    """(false positive rate, true positive rate) of each curve; the dashed line is chance."""
    kinds = {name: f"c{at % 6}" for at, name in enumerate(curves)}
    beside = max(0.0, _legend_width(kinds) - SIDE)
    drawing, frame = _square(label, "false positive rate, %", "true positive rate, %", beside, above=26)
    _legend(drawing, frame.left, kinds)
    drawing.line(frame.x(0), frame.y(0), frame.x(1), frame.y(1), "dashed")
    for name, points in curves.items():
        drawing.polyline([(frame.x(x), frame.y(y)) for x, y in points], f"curve {kinds[name]}")
    return drawing


def _square(label: str, x_title: str, y_title: str, beside: float = 0, above: float = 0) -> tuple[Drawing, Frame]:
    """A plotting area with axes in percent, and room beside and above it."""
    frame = Frame(56, 12 + above, SIDE, SIDE)
    drawing = Drawing(frame.right + 16 + beside, frame.bottom + 44, label)
    frame.x_axis(drawing, x_title, TICKS)
    frame.y_axis(drawing, y_title, TICKS)
    return drawing, frame


def _legend_width(kinds: Mapping[str, str]) -> float:
    return sum(34 + text_width(name) for name in kinds)


def _legend(drawing: Drawing, x: float, kinds: Mapping[str, str]) -> None:
    for name, kind in kinds.items():
        drawing.mark(x + 6, 14, kind, size=5)
        drawing.text(x + 16, 18, name)
        x += 34 + text_width(name)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """A little more than the values span, and never nothing."""
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin


def _tip(point: Point) -> str:
    return f"{point.name}: {100 * point.x:.2f}, {100 * point.y:.2f}"
