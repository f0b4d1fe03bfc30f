"""From matplotlib's figures to SVG that follows the page's light or dark theme and the reader's fonts.

Figures are drawn in the light colours of `style.css`, one unit to a pixel; on a page each colour becomes the CSS
variable of its name. Text stays text, so how wide it comes out is up to the reader's fonts, and its room an estimate.
"""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLE = files("eval.report").joinpath("style.css").read_text("utf-8")
COLOURS: dict[str, str] = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", STYLE.partition("@media")[0]))
"""The light theme: names of colours and their values."""

NAMESPACE = "http://www.w3.org/2000/svg"
FONT_SIZE = 12
FONTS = 'system-ui, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif'
DPI = 72
"""Points are pixels."""

styled = rc_context(
    {
        "figure.dpi": DPI,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "axes.edgecolor": COLOURS["rule"],
        "axes.labelcolor": COLOURS["ink"],
        "axes.labelsize": FONT_SIZE,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.spines.bottom": False,
        "font.size": FONT_SIZE,
        "grid.color": COLOURS["rule"],
        "grid.linewidth": 1,
        "legend.fontsize": FONT_SIZE,
        "legend.frameon": False,
        "legend.handlelength": 1,
        "legend.handletextpad": 0.5,
        "legend.columnspacing": 1.3,
        "legend.borderaxespad": 0,
        "legend.borderpad": 0,
        "lines.solid_joinstyle": "miter",
        "path.simplify": False,
        "svg.fonttype": "none",
        "text.color": COLOURS["ink"],
        "text.parse_math": False,
        "xtick.color": COLOURS["rule"],
        "ytick.color": COLOURS["rule"],
        "xtick.labelcolor": COLOURS["soft"],
        "ytick.labelcolor": COLOURS["soft"],
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.major.pad": 6,
        "ytick.major.pad": 8,
    }
)
"""How the plots look. Whatever is drawn is drawn inside of it: `@styled`."""


def text_width(text: str) -> float:
    """About how many pixels a text is wide: a Chinese character takes a square, a Latin one some 0.6 of it."""
    return FONT_SIZE * sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.6 for letter in text)


@dataclass(frozen=True)
class Drawing:
    """A finished picture, as SVG in the light colours. `width` is in pixels."""

    svg: str
    width: int

    def inline(self) -> str:
        """The picture for a page that holds the style sheet."""
        root = ElementTree.fromstring(self.svg)
        names = {value: name for name, value in COLOURS.items()}
        for element in root.iter():
            if style := element.get("style"):
                element.set("style", re.sub("#[0-9a-f]{6}", lambda hit: f"var(--{names[hit[0]]})", style))
        return ElementTree.tostring(root, encoding="unicode")

    def standalone(self) -> str:
        """The picture as a file of its own, in the light colours on white."""
        root = ElementTree.fromstring(self.svg)
        root.set("xmlns", NAMESPACE)
        root.set("style", f"font: {FONT_SIZE}px {FONTS}; background: {COLOURS['paper']}")
        return ElementTree.tostring(root, encoding="unicode") + "\n"


class Canvas:
    """A picture in the making. Lengths are pixels; those of places are from its left and upper edge."""

    def __init__(self, width: float, height: float, label: str) -> None:
        """`label` is read out in the picture's place."""
        self._size = (round(width), round(height))
        self._label = label
        self._tips: list[Sequence[str]] = []
        self.figure = Figure(figsize=(self._size[0] / DPI, self._size[1] / DPI))

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """A plotting area."""
        across, down = self._size
        return self.figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))

    def tip(self, artist: Artist, *texts: str) -> None:
        """What is shown when a reader points at a shape, or at each of a collection's."""
        artist.set_gid(f"tips-{len(self._tips)}")
        self._tips.append(texts)

    def drawing(self) -> Drawing:
        """What has been drawn."""
        file = io.BytesIO()
        # The label in it tells this picture's ids from those of others on the page.
        with rc_context({"svg.hashsalt": self._label}), warnings.catch_warnings():
            # The reader's fonts have them.
            warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
            self.figure.savefig(file, format="svg", metadata={"Date": None})
        root = _plain(file.getvalue())
        width, height = map(str, self._size)
        root.attrib = {"class": "plot", "role": "img", "aria-label": self._label, "width": width, "height": height}
        root.set("viewBox", f"0 0 {width} {height}")
        for group in root.iter("g"):
            name = group.attrib.pop("id", "")
            if name.startswith("tips-"):
                shapes = [shape for part in group if part.tag != "defs" for shape in part.iter() if shape.tag != "g"]
                for shape, text in zip(shapes, self._tips[int(name[5:])], strict=True):
                    ElementTree.SubElement(shape, "title").text = text
        return Drawing(ElementTree.tostring(root, encoding="unicode"), self._size[0])


def _plain(svg: bytes) -> ElementTree.Element:
    """matplotlib's SVG without namespaces, the writer's metadata, fonts, clipping (all is drawn inside) and indents."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        element.attrib.pop("clip-path", None)
        if style := element.get("style"):
            kept = [part for part in style.split("; ") if not part.startswith(("font: ", "font-size", "font-family"))]
            element.set("style", "; ".join(kept))
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        element.tail = None
        if element.tag != "text":
            element.text = None
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in ("metadata", "clipPath") or not any(map(_seen, child.iter())):
                parent.remove(child)
    return root


def _seen(element: ElementTree.Element) -> bool:
    return element.tag in ("path", "use", "text") and element.get("style") != "fill: none"
