"""Plots against places worked out by hand: marks stand where their values say, and nothing leaves the picture."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree.ElementTree import Element, fromstring

import matplotlib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.report.drawing import COLOURS, Drawing, text_width
from eval.report.plots import (
    LABELS,
    LENGTH,
    MARKS,
    SIDE,
    Bar,
    Point,
    Series,
    bars,
    cloud,
    correlation,
    heat_map,
    histogram,
    reliability,
    roc,
    stacked,
)
from synuc.types import Label

SHARES = st.floats(0, 1)
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn")), min_size=1, max_size=40)
COUNTS = {"ND": {"ND": 3, "ER": 0, "IC": 1}, "ER": {"ND": 0, "ER": 0, "IC": 0}}
DECLARATION = re.compile(r"([\w-]+): ([^;]+)")


def style(element: Element) -> dict[str, str]:
    return dict(DECLARATION.findall(element.get("style", "")))


def texts(drawing: Drawing) -> list[str]:
    return [element.text or "" for element in fromstring(drawing.inline()).iter("text")]


def corners(path: Element) -> list[tuple[float, float]]:
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.attrib["d"])]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def span(path: Element) -> tuple[float, float]:
    """The left and the right end of a path."""
    places = [x for x, _ in corners(path)]
    return min(places), max(places)


def tipped(drawing: Drawing) -> dict[str, Element]:
    """Shapes by what is shown when a reader points at them."""
    shapes = {}
    for shape in fromstring(drawing.inline()).iter():
        if (title := shape.find("title")) is not None:
            shapes[title.text or ""] = shape
    return shapes


def place(element: Element) -> tuple[float, float]:
    """Where a text or a mark that is drawn more often stands, or the middle of a path."""
    if element.tag != "path":
        return float(element.attrib["x"]), float(element.attrib["y"])
    xs, ys = zip(*corners(element), strict=True)
    return (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2


def lines(drawing: Drawing, colour: str) -> list[Element]:
    paths = fromstring(drawing.inline()).iter("path")
    return [path for path in paths if style(path).get("fill") == "none" and style(path)["stroke"] == f"var(--{colour})"]


def dashed(drawing: Drawing) -> list[Element]:
    return [path for path in lines(drawing, "soft") if "stroke-dasharray" in style(path)]


def test_a_confusion_matrix_shows_counts_and_shares_of_the_row() -> None:
    drawing = heat_map("c", COUNTS, "gold", "predicted")
    found = texts(drawing)
    assert {"predicted", "gold", "ND", "ER", "IC"} <= set(found)
    assert found[-12:] == ["3", "75.0%", "0", "0.0%", "1", "25.0%", *["0", "0.0%"] * 3]
    # Shades: what isn't any share of its row has none.
    shades = [style(cell) for cell in tipped(drawing).values()]
    assert [shade["fill"] for shade in shades] == ["var(--blue)", "none", "var(--blue)", "none", "none", "none"]
    assert [float(shade.get("fill-opacity", 1)) for shade in shades if shade["fill"] != "none"] == [0.75, 0.25]
    assert list(tipped(drawing))[:3] == ["ND as ND: 3", "ND as ER: 0", "ND as IC: 1"]


def test_a_heat_map_can_show_shares_of_all() -> None:
    drawing = heat_map("c", {"a": {"x": 3, "y": 1}, "b": {"x": 4, "y": 0}}, "", "", of_all=True)
    assert [text for text in texts(drawing) if text.endswith("%")] == ["37.5%", "12.5%", "50.0%", "0.0%"]


def test_bars_are_as_long_as_their_values_and_have_whiskers() -> None:
    drawing = bars("F1", [Bar("half", 0.5, (0.25, 0.75)), Bar("whole", 1.0)])
    left, right = span(tipped(drawing)["half: 50.00"])
    assert right - left == pytest.approx(LENGTH / 2, abs=0.01)
    assert span(tipped(drawing)["whole: 100.00"]) == pytest.approx((left, left + LENGTH), abs=0.01)
    (whisker,) = (line for line in lines(drawing, "ink") if len(corners(line)) == 2)
    assert span(whisker) == pytest.approx((left + LENGTH / 4, left + 3 * LENGTH / 4), abs=0.01)


def test_stacked_bars_are_whole() -> None:
    colours = {"win": "green", "tie": "grey", "loss": "vermilion"}
    drawing = stacked("s", {"a": {"win": 2, "tie": 1, "loss": 1}, "b": {"win": 0, "tie": 0, "loss": 0}}, colours)
    parts = [tipped(drawing)[f"a, {name}"] for name in ("win: 2 of 4", "tie: 1 of 4", "loss: 1 of 4")]
    ends = [span(part) for part in parts]
    assert [right - left for left, right in ends] == pytest.approx([LENGTH / 2, LENGTH / 4, LENGTH / 4], abs=0.01)
    assert [right for _, right in ends[:2]] == pytest.approx([left for left, _ in ends[1:]], abs=0.01)
    assert [style(part)["fill"] for part in parts] == ["var(--green)", "var(--grey)", "var(--vermilion)"]


def test_a_reliable_answer_lies_on_the_diagonal() -> None:
    drawing = reliability("r", [(0.5, 0.5, 1), (0.9, 0.6, 4)])
    (diagonal,) = dashed(drawing)
    (x1, y1), (x2, y2) = corners(diagonal)
    few = place(tipped(drawing)["confidence 50.0, accuracy 50.0, 1 answers"])
    many = place(tipped(drawing)["confidence 90.0, accuracy 60.0, 4 answers"])
    assert few == pytest.approx(((x1 + x2) / 2, (y1 + y2) / 2))
    assert many == pytest.approx((x1 + 0.9 * SIDE, y1 - 0.6 * SIDE), abs=0.01)


def test_the_linear_fit_goes_through_points_of_a_line() -> None:
    ours = [Point("a", 0.2, 0.3), Point("b", 0.4, 0.4), Point("c", 0.8, 0.6)]
    drawing = correlation("c", ours, [Point("paper", 0.5, 0.5)], "x", "y")
    (line,) = lines(drawing, "blue")
    shapes = tipped(drawing)
    assert list(shapes) == ["paper: 50.00, 50.00", "a: 20.00, 30.00", "b: 40.00, 40.00", "c: 80.00, 60.00"]
    first, last = corners(line)
    assert first == pytest.approx(place(shapes["a: 20.00, 30.00"]), abs=0.01)
    assert last == pytest.approx(place(shapes["c: 80.00, 60.00"]), abs=0.01)
    assert texts(drawing)[-3:] == ["a", "b", "c"]
    assert lines(correlation("c", ours[:2], [], "x", "y"), "blue") == []


def test_names_of_points_in_one_place_stand_above_each_other() -> None:
    root = fromstring(correlation("c", [Point("a", 0.5, 0.5), Point("b", 0.5, 0.5)], [], "x", "y").inline())
    lower, upper = (float(text.attrib["y"]) for text in root.iter("text") if text.text in ("a", "b"))
    assert lower - upper == pytest.approx(14, abs=0.01)


def test_labels_have_colours_and_shapes_of_their_own() -> None:
    series = [Series(label, LABELS[label], (Point("p", 0, 0), Point("q", 3, 1))) for label in Label]
    drawing = cloud("states", series)
    points = tipped(drawing).values()
    fills = [style(point)["fill"] for point in points]
    assert fills == ["var(--blue)"] * 2 + ["var(--orange)"] * 2 + ["var(--vermilion)"] * 2
    paths = {f"#{path.get('id')}": path for path in fromstring(drawing.inline()).iter("path")}
    outlines = {re.sub("[^A-Z]", "", paths.get(point.get("href", ""), point).attrib["d"]) for point in points}
    assert outlines == {"MCCCCCCCC", "MLLL", "MLL"}
    assert set(MARKS) == set(LABELS.values())


def test_two_clouds_are_of_one_size() -> None:
    few = cloud("a", [Series("ND", "blue", (Point("p", 5, 5), Point("q", 5, 5)))])
    many = cloud("b", [Series(label, LABELS[label], (Point("p", -90, 0), Point("q", 3, 1))) for label in Label])
    assert few.width == many.width
    assert fromstring(few.svg).attrib["viewBox"] == fromstring(many.svg).attrib["viewBox"]


def test_a_roc_curve_begins_and_ends_in_the_corners() -> None:
    drawing = roc("roc", {"v": [(0, 0), (0.2, 0.9), (1, 1)]})
    (diagonal,) = dashed(drawing)
    (curve,) = lines(drawing, "blue")
    start, middle, end = corners(curve)
    assert [start, end] == corners(diagonal)
    assert middle == pytest.approx((start[0] + 0.2 * SIDE, start[1] - 0.9 * SIDE), abs=0.01)


def test_a_histogram_has_a_bar_for_each_bin_and_side() -> None:
    drawing = histogram("h", "q", [0, 50, 100], {"right": [1, 4], "wrong": [2, 0]}, tau=75)
    shapes = tipped(drawing)
    names = ["right, 0 to 50: 1", "right, 50 to 100: 4", "wrong, 0 to 50: 2", "wrong, 50 to 100: 0"]
    assert list(shapes) == names
    heights = [max(y for _, y in corners(bar)) - min(y for _, y in corners(bar)) for bar in shapes.values()]
    assert [height / heights[0] for height in heights] == pytest.approx([1, 4, 2, 0], abs=0.01)
    (threshold,) = dashed(drawing)
    (x, _), _ = corners(threshold)
    left, right = span(shapes[names[1]])
    # Bars of the second bin are right of its middle and beside each other; tau stands in the middle of the bin.
    assert left < x
    assert right == pytest.approx(x)
    assert span(shapes[names[3]])[0] == pytest.approx(x)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(NAMES, SHARES, SHARES, SHARES), min_size=1, max_size=5))
def test_nothing_leaves_a_picture(rows: list[tuple[str, float, float, float]]) -> None:
    points = [Point(name, x, y) for name, x, y, _ in rows]
    counts = {name: {"a": round(100 * x), "b": 1} for name, x, _, _ in rows}
    drawings = [
        bars("share, %", [Bar(name, x, (min(y, z), max(y, z))) for name, x, y, z in rows]),
        stacked("s", counts, {"a": "blue", "b": "vermilion"}),
        correlation("c", points, points, "x", "y"),
        roc("roc", {name: [(0, 0), (x, y), (1, 1)] for name, x, y, _ in rows}),
        reliability("r", [(x, y, round(1 + 100 * z)) for _, x, y, z in rows]),
        cloud("states", [Series("IC", "vermilion", tuple(points))]),
        heat_map("h", counts, "gold", "predicted"),
        histogram("h", "q", [0, 50, 100], {"a": [3, round(100 * rows[0][1])], "b": [0, 2]}, tau=80),
    ]
    for drawing in drawings:
        inside(fromstring(drawing.inline()))


def inside(root: Element) -> None:
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    for element in root.iter():
        places = [place(element)] if element.tag in ("use", "text") else []
        if element.tag == "path" and "id" not in element.attrib:
            places = corners(element)
        for x, y in places:
            assert -0.01 <= x <= width + 0.01, element.attrib
            assert -0.01 <= y <= height + 0.01, element.attrib
        if element.tag == "text" and not element.get("transform"):
            x, size = float(element.attrib["x"]), text_width(element.text or "")
            begin = {"start": x, "middle": x - size / 2, "end": x - size}[style(element)["text-anchor"]]
            # Widths are estimates: half a letter may stand over.
            assert -6 <= begin <= begin + size <= width + 6, element.text


@pytest.mark.parametrize("text", ["<script>&\"'", "中文标签", "\u202eabc", "$x^2$ costs $5", "a\\frac"])
def test_text_is_text(text: str) -> None:
    draw: list[Callable[[], Drawing]] = [
        lambda: bars(text, [Bar(text, 0.5)]),
        lambda: roc(text, {text: [(0, 0), (1, 1)]}),
        lambda: heat_map(text, {text: {text: 1}}, text, text),
        lambda: correlation(text, [Point(text, 0.5, 0.5)], [], text, text),
    ]
    for one in draw:
        root = fromstring(one().inline())
        assert root.attrib["aria-label"] == text
        assert text in texts(one())


def test_pictures_on_a_page_take_its_colours_and_files_have_their_own() -> None:
    drawing = bars("F1", [Bar("a", 0.5, (0.1, 0.9))])
    assert not re.search("#[0-9a-f]{6}", re.sub('(href|id)="[^"]*"', "", drawing.inline()))
    used = set(re.findall(r"var\(--(\w+)\)", drawing.inline()))
    assert {"blue", "ink", "soft", "rule"} <= used <= set(COLOURS)
    root = fromstring(drawing.standalone())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in drawing.standalone()
    assert COLOURS["blue"] in drawing.standalone()


def test_pictures_are_the_same_every_time_and_leave_matplotlib_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    series = [Series("ND", "blue", (Point("p", 0, 0), Point("q", 3, 1)))]
    assert cloud("a", series).standalone() == cloud("a", series).standalone()
    # No mark of one picture is taken for another's on the same page.
    ids = [set(re.findall('id="([^"]+)"', cloud(label, series).inline())) for label in ("a", "b")]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert dict(matplotlib.rcParams) == before
