"""Plots against places worked out by hand: marks stand where their values say, and nothing leaves the picture."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.report.plots import (
    SIDE,
    Bar,
    Point,
    Series,
    bars,
    cloud,
    correlation,
    heat_map,
    reliability,
    roc,
    stacked,
)
from eval.report.svg import Drawing, Frame, text_width

SHARES = st.floats(0, 1)
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)
LABELS = {"ND": {"ND": 3, "ER": 0, "IC": 1}, "ER": {"ND": 0, "ER": 0, "IC": 0}}


def marks(drawing: Drawing, kind: str) -> list[Element]:
    return [element for element in fromstring(drawing.inline()) if element.get("class") == kind]


def texts(drawing: Drawing) -> list[str]:
    return [element.text or "" for element in fromstring(drawing.inline()) if element.tag == "text"]


def at(element: Element, *names: str) -> tuple[float, ...]:
    return tuple(float(element.attrib[name]) for name in names)


def ends(element: Element) -> list[tuple[float, ...]]:
    return [tuple(map(float, pair.split(","))) for pair in element.attrib["points"].split()]


def test_a_frame_puts_values_in_their_places() -> None:
    frame = Frame(10, 20, 200, 100, (0, 2), (-1, 1))
    assert (frame.x(0), frame.x(1), frame.x(2)) == (10, 110, 210)
    assert (frame.y(1), frame.y(0), frame.y(-1)) == (20, 70, 120)


def test_a_confusion_matrix_shows_counts_and_shares_of_the_row() -> None:
    drawing = heat_map("c", LABELS, "gold", "predicted")
    assert texts(drawing)[:5] == ["predicted", "gold", "ND", "ER", "IC"]
    assert texts(drawing)[5:12] == ["ND", "3", "75.0%", "0", "0.0%", "1", "25.0%"]
    shades = [float(cell.attrib["fill-opacity"]) for cell in marks(drawing, "heat")]
    assert shades == [0.75, 0, 0.25, 0, 0, 0]  # a row without items is all 0


def test_a_heat_map_can_show_shares_of_all() -> None:
    drawing = heat_map("c", {"a": {"x": 3, "y": 1}, "b": {"x": 4, "y": 0}}, "", "", of_all=True)
    assert [text for text in texts(drawing) if text.endswith("%")] == ["37.5%", "12.5%", "50.0%", "0.0%"]


def test_bars_are_as_long_as_their_values_and_have_whiskers() -> None:
    drawing = bars("F1", [Bar("half", 0.5, (0.25, 0.75)), Bar("whole", 1.0)])
    half, whole = marks(drawing, "c0")
    assert at(half, "width") == (210,)
    assert at(whole, "width") == (420,)
    (left,) = at(half, "x")
    line, low, high = marks(drawing, "whisker")
    assert list(at(line, "x1", "x2")) == pytest.approx([left + 105, left + 315])
    assert at(low, "x1") + at(high, "x1") == at(line, "x1", "x2")


def test_stacked_bars_are_whole() -> None:
    kinds = {"win": "c2", "tie": "none", "loss": "c1"}
    drawing = stacked("s", {"a": {"win": 2, "tie": 1, "loss": 1}, "none": {"win": 0, "tie": 0, "loss": 0}}, kinds)
    parts = [next(part for part in marks(drawing, kind) if part.tag == "rect") for kind in kinds.values()]
    assert [at(part, "width")[0] for part in parts] == [210, 105, 105]
    edges = [at(part, "x", "width") for part in parts]
    assert [x + width for x, width in edges[:2]] == [pytest.approx(x) for x, _ in edges[1:]]
    assert [title.text for part in parts for title in part] == ["a, win: 2 of 4", "a, tie: 1 of 4", "a, loss: 1 of 4"]


def test_a_reliable_answer_lies_on_the_diagonal() -> None:
    drawing = reliability("r", [(0.5, 0.5, 1), (0.9, 0.6, 4)])
    (diagonal,) = marks(drawing, "dashed")
    x1, y1, x2, y2 = at(diagonal, "x1", "y1", "x2", "y2")
    few, many = marks(drawing, "c0")
    assert list(at(few, "cx", "cy")) == pytest.approx([(x1 + x2) / 2, (y1 + y2) / 2])
    assert at(many, "cy")[0] > y1 - 0.9 * (y1 - y2)  # less right than sure: below the diagonal
    assert at(many, "r")[0] == 9
    assert at(few, "r")[0] == 6


def test_the_linear_fit_goes_through_points_of_a_line() -> None:
    ours = [Point("a", 0.2, 0.3), Point("b", 0.4, 0.4), Point("c", 0.8, 0.6)]
    drawing = correlation("c", ours, [Point("paper", 0.5, 0.5)], "x", "y")
    (line,) = marks(drawing, "curve c0")
    first, _, last = marks(drawing, "c0")
    assert ends(line) == [pytest.approx(at(first, "cx", "cy")), pytest.approx(at(last, "cx", "cy"))]
    assert len(marks(drawing, "published")) == 1
    names = [element for element in fromstring(drawing.inline()) if element.get("class") == "label halo"]
    assert [name.text for name in names] == ["a", "b", "c"]
    assert marks(correlation("c", ours[:2], [], "x", "y"), "curve c0") == []


def test_labels_have_shapes_of_their_own() -> None:
    series = [Series(kind.upper(), kind, (Point("p", 0, 0), Point("q", 3, 1))) for kind in ("nd", "er", "ic")]
    drawing = cloud("states", series)
    # One of each is in the legend.
    shapes = {kind: [mark.tag for mark in marks(drawing, kind)] for kind in ("nd", "er", "ic")}
    assert shapes == {"nd": ["circle"] * 3, "er": ["rect"] * 3, "ic": ["polygon"] * 3}


def test_points_in_one_place_are_drawn_in_the_middle() -> None:
    drawing = cloud("states", [Series("ND", "nd", (Point("p", 5, 5), Point("q", 5, 5)))])
    (area,) = marks(drawing, "area")
    x, y, width, height = at(area, "x", "y", "width", "height")
    assert [at(mark, "cx", "cy") for mark in marks(drawing, "nd")[1:]] == [(x + width / 2, y + height / 2)] * 2


def test_a_roc_curve_begins_and_ends_in_the_corners() -> None:
    drawing = roc("roc", {"v": [(0, 0), (0.2, 0.9), (1, 1)]})
    (diagonal,) = marks(drawing, "dashed")
    (curve,) = marks(drawing, "curve c0")
    start, middle, end = ends(curve)
    assert start + end == at(diagonal, "x1", "y1", "x2", "y2")
    assert list(middle) == pytest.approx([start[0] + 0.2 * SIDE, start[1] - 0.9 * SIDE])


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, SHARES, SHARES, SHARES), min_size=1, max_size=5))
def test_nothing_leaves_a_picture(rows: list[tuple[str, float, float, float]]) -> None:
    points = [Point(name, x, y) for name, x, y, _ in rows]
    counts = {name: {name[::-1]: round(100 * x), "b": 1} for name, x, _, _ in rows}
    width = {len(row) for row in counts.values()}
    drawings = [
        bars("share, %", [Bar(name, x, (min(y, z), max(y, z))) for name, x, y, z in rows]),
        stacked("s", {name: {"a": x, name: y} for name, x, y, _ in rows[:1]}, {"a": "c0", rows[0][0]: "c1"}),
        correlation("c", points, points, "x", "y"),
        roc("roc", {name: [(0, 0), (x, y), (1, 1)] for name, x, y, _ in rows}),
        reliability("r", [(x, y, round(1 + 100 * z)) for _, x, y, z in rows]),
        cloud("states", [Series(name, "ic", (point,)) for (name, *_), point in zip(rows, points, strict=True)]),
        *([heat_map("h", counts, "gold", "predicted")] if len(width) == 1 else []),
    ]
    for drawing in drawings:
        inside(fromstring(drawing.inline()))


def inside(root: Element) -> None:
    width, height = at(root, "width", "height")
    for element in root:
        for name, most in (("x", width), ("cx", width), ("x1", width), ("x2", width), ("y", height), ("cy", height)):
            assert -0.01 <= float(element.get(name, 0)) <= most + 0.01, element.attrib
        if element.tag == "rect":
            assert float(element.attrib["x"]) + float(element.attrib["width"]) <= width + 0.01
        if element.tag == "text" and not element.get("transform"):
            x, size = float(element.attrib["x"]), text_width(element.text or "")
            begin = {"start": x, "middle": x - size / 2, "end": x - size}[element.attrib["text-anchor"]]
            # Widths are estimates: half a letter may stand over.
            assert -6 <= begin <= begin + size <= width + 6, element.text


def test_names_of_points_in_one_place_stand_above_each_other() -> None:
    drawing = correlation("c", [Point("a", 0.5, 0.5), Point("b", 0.5, 0.5)], [], "x", "y")
    lower, upper = marks(drawing, "label halo")
    assert at(lower, "y")[0] - at(upper, "y")[0] == 14


@pytest.mark.parametrize("text", ["<script>&\"'", "中文标签", "\u202eabc"])
def test_text_is_text(text: str) -> None:
    draw: list[Callable[[], Drawing]] = [lambda: bars(text, [Bar(text, 0.5)]), lambda: roc(text, {text: [(0, 0)]})]
    for one in draw:
        root = fromstring(one().inline())
        assert root.attrib["aria-label"] == text
        assert text in texts(one())


def test_a_file_holds_its_style_and_a_page_holds_it_once() -> None:
    drawing = bars("F1", [Bar("a", 0.5)])
    assert "<style" not in drawing.inline()
    root = fromstring(drawing.standalone())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in (root[0].text or "")
