"""A small drawing board for SVG, so that plots follow the page's light or dark theme and its fonts.

Nothing is coloured here: every mark has a class, and the style sheet (`style.css`) says what a class looks like.
Lengths are pixels; y grows downwards.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from xml.etree import ElementTree

FONT_SIZE = 12
STYLE = files("eval.report").joinpath("style.css").read_text("utf-8")
NAMESPACE = "http://www.w3.org/2000/svg"


def text_width(text: str) -> float:
    """About how wide a text is: a Chinese character takes a square, a Latin one some 0.6 of it."""
    return FONT_SIZE * sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.6 for letter in text)


class Drawing:
    """A picture that is drawn mark by mark. `label` is read out in its place."""

    def __init__(self, width: float, height: float, label: str) -> None:
        size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
        self._root = ElementTree.Element("svg", {"class": "plot", "role": "img", "aria-label": label, **size})

    def _add(self, tag: str, kind: str, tip: str = "", **attributes: float | str) -> ElementTree.Element:
        values = {
            name.replace("_", "-"): value if isinstance(value, str) else f"{round(value, 2):g}"
            for name, value in attributes.items()
        }
        element = ElementTree.SubElement(self._root, tag, {"class": kind, **values})
        if tip:
            ElementTree.SubElement(element, "title").text = tip
        return element

    def rect(self, x: float, y: float, width: float, height: float, kind: str, tip: str = "", shade: float = 1) -> None:
        """`shade` is the fill's opacity."""
        self._add("rect", kind, tip, x=x, y=y, width=width, height=height, fill_opacity=shade)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self._add("line", kind, x1=x1, y1=y1, x2=x2, y2=y2)

    def polyline(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        self._add("polyline", kind, points=" ".join(f"{x:.2f},{y:.2f}" for x, y in points))

    def text(
        self, x: float, y: float, text: str, kind: str = "label", anchor: str = "start", turned: bool = False
    ) -> None:
        """`turned`: it reads upwards."""
        turn = {"transform": f"rotate(-90 {x:g} {y:g})"} if turned else {}
        self._add("text", kind, x=x, y=y, text_anchor=anchor, **turn).text = text

    def mark(self, x: float, y: float, kind: str, tip: str = "", size: float = 4) -> None:
        """A point. Its shape tells labels apart where colours can't: ND round, ER square, IC a triangle."""
        if kind == "er":
            self._add("rect", kind, tip, x=x - size, y=y - size, width=2 * size, height=2 * size)
        elif kind == "ic":
            corners = ((x, y - 1.2 * size), (x - 1.1 * size, y + size), (x + 1.1 * size, y + size))
            self._add("polygon", kind, tip, points=" ".join(f"{a:.2f},{b:.2f}" for a, b in corners))
        else:
            self._add("circle", kind, tip, cx=x, cy=y, r=size)

    def inline(self) -> str:
        """The picture for a page that holds the style sheet."""
        return ElementTree.tostring(self._root, encoding="unicode")

    def standalone(self) -> str:
        """The picture as a file of its own."""
        root = ElementTree.fromstring(self.inline())
        root.set("xmlns", NAMESPACE)
        style = ElementTree.Element("style")
        style.text = STYLE
        root.insert(0, style)
        return ElementTree.tostring(root, encoding="unicode") + "\n"


@dataclass(frozen=True)
class Frame:
    """The plotting area inside a drawing, and the ranges of the values along its sides."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float] = (0.0, 1.0)
    y_range: tuple[float, float] = (0.0, 1.0)

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + self.width * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.top + self.height * (high - value) / (high - low)

    @property
    def bottom(self) -> float:
        return self.top + self.height

    @property
    def right(self) -> float:
        return self.left + self.width

    def x_axis(self, drawing: Drawing, title: str, ticks: Sequence[float]) -> None:
        """Ticks are shares, written in percent."""
        for tick in ticks:
            drawing.line(self.x(tick), self.top, self.x(tick), self.bottom, "grid")
            drawing.text(self.x(tick), self.bottom + 16, f"{100 * tick:.0f}", "label soft", "middle")
        drawing.text(self.left + self.width / 2, self.bottom + 34, title, anchor="middle")

    def y_axis(self, drawing: Drawing, title: str, ticks: Sequence[float]) -> None:
        """Ticks are shares, written in percent."""
        for tick in ticks:
            drawing.line(self.left, self.y(tick), self.right, self.y(tick), "grid")
            drawing.text(self.left - 8, self.y(tick) + 4, f"{100 * tick:.0f}", "label soft", "end")
        drawing.text(self.left - 40, self.top + self.height / 2, title, anchor="middle", turned=True)
