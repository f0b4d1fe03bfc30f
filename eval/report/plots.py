"""The plots of a report. Values are shares between 0 and 1, written in percent; colours are names of `COLOURS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter
from scipy.stats import linregress

from eval.report.drawing import COLOURS, FONT_SIZE, Canvas, Drawing, styled, text_width
from synuc.types import Label

SIDE = 300
"""The side of a square plotting area, in pixels."""

LENGTH = 420
"""The length of a bar of 100%, in pixels."""

KEY = 18
"""The height of a legend's row, in pixels."""

TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

LABELS = {Label.ND: "blue", Label.ER: "orange", Label.IC: "vermilion"}
"""The colours of the labels wherever they are drawn."""

MARKS = {"blue": "o", "orange": "s", "vermilion": "^"}
"""The labels' shapes, which tell them apart where colours can't."""


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
    """Points that belong together, and their colour."""

    name: str
    colour: str
    points: tuple[Point, ...]


@styled
def heat_map(
    label: str, counts: Mapping[str, Mapping[str, float]], rows: str, columns: str, of_all: bool = False
) -> Drawing:
    """A table of counts as shaded cells: the count, and its share of the row (confusion matrices; paper, Figure 8).

    `rows` and `columns` are the titles of the sides; `of_all`: shares are of all counts together (paper, Figure 10).
    """
    names = list(next(iter(counts.values())))
    across, down = 84 * len(names), 52 * len(counts)
    left = 38 + max(map(text_width, counts))
    canvas = Canvas(left + across + 2, 54 + down + 2, label)
    axes = canvas.axes(left, 54, across, down)
    axes.set(xlim=(0, len(names)), ylim=(len(counts), 0))
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xticks([at + 0.5 for at in range(len(names))], names)
    axes.set_yticks([at + 0.5 for at in range(len(counts))], list(counts))
    axes.tick_params(labelcolor=COLOURS["ink"])
    axes.set_xlabel(columns, color=COLOURS["soft"], labelpad=8)
    _upright(axes, rows, 14 - left)
    for y, (name, row) in enumerate(counts.items()):
        total = sum(sum(other.values()) for other in counts.values()) if of_all else sum(row.values())
        for x, count in enumerate(row.values()):
            share = count / total if total else 0.0
            fill = (COLOURS["blue"], share)
            cell = Rectangle((x, y), 1, 1, facecolor=fill, edgecolor=COLOURS["rule"], linewidth=1, clip_on=False)
            canvas.tip(axes.add_patch(cell), f"{name} as {names[x]}: {count:g}")
            colour = COLOURS["paper" if share > 0.75 else "ink"]
            axes.text(x + 0.5, y + 0.45, f"{count:g}", color=colour, ha="center", va="baseline", weight="bold")
            axes.text(x + 0.5, y + 0.76, f"{100 * share:.1f}%", color=colour, ha="center", va="baseline")
    return canvas.drawing()


@styled
def bars(label: str, rows: Sequence[Bar], colour: str = "blue") -> Drawing:
    """Shares as bars that lie, with whiskers where a share has an interval. `label` is also the axis' title."""
    canvas, axes = _lying(label, [row.name for row in rows], step=28, top=8, right=64)
    for at, row in enumerate(rows):
        (bar,) = axes.barh(at, row.value, height=18 / 28, color=COLOURS[colour])
        canvas.tip(bar, f"{row.name}: {100 * row.value:.2f}")
        if row.interval:
            axes.plot(row.interval, (at, at), "|-", color=COLOURS["ink"], lw=1.4, ms=8, mew=1.4, clip_on=False)
        end = max(row.value, *(row.interval or ()), 0.0)
        axes.text(end + 7 / LENGTH, at, f"{100 * row.value:.2f}", va="center_baseline")
    return canvas.drawing()


@styled
def stacked(label: str, rows: Mapping[str, Mapping[str, float]], colours: Mapping[str, str]) -> Drawing:
    """Counts of each row as parts of a whole bar (paper, Figures 4 and 11). `colours`: of the parts."""
    beside = max(24.0, _legend_width(colours) - LENGTH)
    canvas, axes = _lying(label, list(rows), step=32, top=16 + KEY, right=beside)
    for at, (name, row) in enumerate(rows.items()):
        total = sum(row[part] for part in colours)
        shares = [row[part] / total if total else 0.0 for part in colours]
        for (part, colour), share, end in zip(colours.items(), shares, accumulate(shares), strict=True):
            (bar,) = axes.barh(at, share, left=end - share, height=22 / 32, color=COLOURS[colour])
            canvas.tip(bar, f"{name}, {part}: {row[part]:g} of {total:g}")
            if share * LENGTH > 34:
                text = axes.text(end - share / 2, at, f"{100 * share:.0f}", color=COLOURS["deep"], weight="bold")
                text.set(ha="center", va="center_baseline")
    _legend(axes, colours, columns=len(colours))
    return canvas.drawing()


@styled
def reliability(label: str, bins: Sequence[tuple[float, float, int]]) -> Drawing:
    """How often answers are right against how sure they were: (mean confidence, accuracy, answers) of each filled bin.

    The dashed line is perfect calibration; a point's area grows with its number of answers.
    """
    canvas, axes = _square(label, "confidence, %", "accuracy, %")
    _diagonal(axes)
    confidence, accuracy, answers = zip(*bins, strict=True)
    axes.plot(confidence, accuracy, color=COLOURS["blue"], linewidth=2)
    widths = [6 + 12 * (n / max(answers)) ** 0.5 for n in answers]
    points = axes.scatter(confidence, accuracy, s=[width**2 for width in widths], color=COLOURS["blue"], linewidth=0)
    canvas.tip(points, *(f"confidence {100 * x:.1f}, accuracy {100 * y:.1f}, {n} answers" for x, y, n in bins))
    return canvas.drawing()


@styled
def correlation(label: str, ours: Sequence[Point], published: Sequence[Point], x_title: str, y_title: str) -> Drawing:
    """Our models and published ones, and the linear fit of ours where there are three or more (paper, Figure 9)."""
    ours = sorted(ours, key=lambda point: point.y)
    # Heights of the names over the plot's foot, from the lowest upwards, so that none stands on another.
    heights = list(accumulate((SIDE * point.y for point in ours), lambda last, height: max(height, last + 14)))
    beside = max(SIDE * point.x + text_width(point.name) - SIDE for point in ours)
    canvas, axes = _square(label, x_title, y_title, max(0.0, beside), max(0.0, heights[-1] - SIDE))
    for points, colour, opacity, area in ((published, "grey", 0.6, 64), (ours, "blue", 1, 100)):
        places = ([point.x for point in points], [point.y for point in points])
        marks = axes.scatter(*places, s=area, color=COLOURS[colour], alpha=opacity, linewidth=0, zorder=3)
        canvas.tip(marks, *(f"{point.name}: {100 * point.x:.2f}, {100 * point.y:.2f}" for point in points))
    if len({point.x for point in ours}) >= 3:
        fit = linregress([point.x for point in ours], [point.y for point in ours])
        ends = (min(point.x for point in ours), max(point.x for point in ours))
        axes.plot(ends, [fit.intercept + fit.slope * x for x in ends], color=COLOURS["blue"], linewidth=1.2, alpha=0.6)
    for point, height in zip(ours, heights, strict=True):
        axes.text(point.x + 9 / SIDE, height / SIDE, point.name, va="center_baseline", zorder=4)
    return canvas.drawing()


@styled
def cloud(label: str, series: Sequence[Series]) -> Drawing:
    """Points whose coordinates mean nothing by themselves, e.g. of a UMAP projection (paper, Figure 7)."""
    colours = {one.name: one.colour for one in series}
    canvas = Canvas(max(SIDE, _legend_width(colours)) + 4, SIDE + KEY + 14, label)
    axes = canvas.axes(2, KEY + 12, SIDE, SIDE)
    axes.set(xticks=[], yticks=[])
    axes.margins(0.05)
    for spine in axes.spines.values():
        spine.set_visible(True)
    for one in series:
        places = ([point.x for point in one.points], [point.y for point in one.points])
        marks = axes.scatter(*places, s=42, color=COLOURS[one.colour], marker=MARKS[one.colour], alpha=0.8, linewidth=0)
        canvas.tip(marks, *(f"{point.name} ({one.name})" for point in one.points))
    _legend(axes, colours, columns=len(colours), marks=MARKS)
    return canvas.drawing()


@styled
def roc(label: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> Drawing:
    """(false positive rate, true positive rate) of each curve; the dashed line is chance."""
    hues = cycle(("blue", "vermilion", "green", "purple", "orange", "sky"))
    colours = dict(zip(curves, hues, strict=False))
    beside, above = max(0.0, _legend_width(curves, stacked=True) - SIDE), 12 + KEY * len(curves)
    canvas, axes = _square(label, "false positive rate, %", "true positive rate, %", beside, above)
    _diagonal(axes)
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), color=COLOURS[colours[name]], linewidth=2)
    _legend(axes, colours, columns=1)
    return canvas.drawing()


@styled
def histogram(
    label: str, title: str, edges: Sequence[float], counts: Mapping[str, Sequence[int]], tau: float
) -> Drawing:
    """Counts between each two `edges`, right ones beside wrong ones; the dashed line is the threshold `tau`.

    `counts` has two rows, `title` is the axis' of what is counted over.
    """
    colours = dict(zip(counts, ("green", "vermilion"), strict=True))
    above = KEY + 12
    canvas = Canvas(56 + LENGTH + 16, above + 180 + 48, label)
    axes = canvas.axes(56, above, LENGTH, 180)
    axes.set(xlim=(edges[0], edges[-1]), xticks=edges)
    axes.set_xlabel(title, labelpad=6)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    _upright(axes, "offers", -40)
    axes.grid(axis="y")
    for side, (name, row) in enumerate(counts.items()):
        width = 0.44 * (edges[1] - edges[0])
        starts = [low + 0.06 * (edges[1] - edges[0]) + side * width for low in edges[:-1]]
        drawn = axes.bar(starts, row, width, align="edge", color=COLOURS[colours[name]])
        for bar, low, high, count in zip(drawn, edges, edges[1:], row, strict=False):
            canvas.tip(bar, f"{name}, {low:g} to {high:g}: {count}")
    axes.axvline(tau, color=COLOURS["soft"], linewidth=1.2, linestyle=(0, (5, 4)))
    _legend(axes, colours, columns=2)
    return canvas.drawing()


def _lying(title: str, names: Sequence[str], step: int, top: int, right: float) -> tuple[Canvas, Axes]:
    """A plotting area for a bar per name, over an axis in percent."""
    left = 16 + max(map(text_width, names))
    canvas = Canvas(left + LENGTH + right, top + step * len(names) + 44, title)
    axes = canvas.axes(left, top, LENGTH, step * len(names))
    axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5), xticks=TICKS)
    axes.set_yticks(range(len(names)), names, color=COLOURS["ink"])
    axes.xaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    axes.set_xlabel(title, labelpad=6)
    axes.grid(axis="x")
    return canvas, axes


def _square(label: str, x_title: str, y_title: str, beside: float = 0, above: float = 0) -> tuple[Canvas, Axes]:
    """A plotting area with axes in percent, and room beside and above it."""
    canvas = Canvas(56 + SIDE + 16 + beside, 12 + above + SIDE + 44, label)
    axes = canvas.axes(56, 12 + above, SIDE, SIDE)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=TICKS, yticks=TICKS)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, symbol=""))
    axes.set_xlabel(x_title, labelpad=6)
    _upright(axes, y_title, -40)
    axes.grid()
    return canvas, axes


def _upright(axes: Axes, title: str, x: float) -> None:
    """The title of the left side, which reads upwards; `x`: pixels from the plotting area's edge."""
    text = axes.annotate(title, (0, 0.5), (x, 0), xycoords="axes fraction", textcoords="offset pixels")
    text.set(rotation=90, rotation_mode="anchor", ha="center", va="center_baseline")


def _diagonal(axes: Axes) -> None:
    axes.plot((0, 1), (0, 1), color=COLOURS["soft"], linewidth=1.2, linestyle=(0, (5, 4)))


def _legend(axes: Axes, colours: Mapping[str, str], columns: int, marks: Mapping[str, str] = {}) -> None:
    """Names and their colours, right above the plotting area; `marks`: shapes by colour, else squares."""
    keys = [
        Line2D(
            [],
            [],
            linestyle="",
            color=COLOURS[one],
            marker=marks.get(one, "s"),
            markersize=FONT_SIZE - 2,
            markeredgewidth=0,
        )
        for one in colours.values()
    ]
    axes.legend(keys, list(colours), loc="lower left", bbox_to_anchor=(0, 1 + 8 / axes.bbox.height), ncols=columns)


def _legend_width(names: Mapping[str, object], stacked: bool = False) -> float:
    widths = [38 + text_width(name) for name in names]
    return max(widths) if stacked else sum(widths)
