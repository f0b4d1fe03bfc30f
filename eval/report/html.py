"""The report of evaluations: one page that needs nothing beside it, and the same as Markdown."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from eval.folder import EvalFolder
from eval.report import inside, related, sections
from eval.report.blocks import Block, Figure, Figures, Listing, Row, Section, Table, Value
from eval.report.classification import classification
from eval.report.drawing import STYLE, Drawing
from eval.report.runs import Run, read
from synuc.folder import write_whole
from synuc.problem import Problem
from synuc.progress import duration

TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")

ORDER: tuple[tuple[str, Callable[[Sequence[Run]], Section]], ...] = (
    ("rationale", sections.rationale),
    ("pairwise", sections.pairwise),
    ("verifier", inside.verifier),
    ("coninstruct-detect", related.detect),
    ("coninstruct-resolve", related.resolve),
    ("coninstruct-priority", related.priority),
    ("conflictprobe", related.conflictprobe),
)
"""The protocols after classification and response, in the order of a report."""


class ReportError(Problem):
    """A report that can't be made as asked."""


def build(runs: Sequence[EvalFolder], out: Path) -> None:
    """Write the report of finished evaluations to `out` (.html), and the same as Markdown beside it.

    The Markdown file has the same name with .md; its pictures are in the folder of that name with `-figures`.

    Raises:
        ReportError: there are no runs, one is named twice, or `out` doesn't end in .html or can't be written.
    """
    if not runs:
        raise ReportError("no runs to report on; name the folders of finished evaluations")
    counts = Counter(run.path.resolve() for run in runs)
    if twice := next((path for path, n in counts.items() if n > 1), None):
        # It would be taken for two runs that agree in everything.
        raise ReportError(f"{twice} is named twice; name each run once")
    write_page("Evaluation report", contents_of(read(runs)), out)


def write_page(title: str, contents: Sequence[Section], out: Path) -> None:
    """Write sections as a page, and as Markdown with its pictures beside it.

    Raises:
        ReportError: `out` doesn't end in .html or can't be written.
    """
    if out.suffix != ".html":
        raise ReportError(f"{out} is no HTML file; choose a name that ends in .html")
    environment = _environment()
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    values: dict[str, Any] = {"title": title, "made": made, "sections": contents}
    figures = out.with_name(f"{out.stem}-figures")
    page = environment.get_template("template.html.j2").render(style=Markup(STYLE), **values)
    text = environment.get_template("template.md.j2").render(figures=figures.name, **values)
    try:
        write_whole(out, page)
        write_whole(out.with_suffix(".md"), text)
        for figure in (figure for section in contents for figure in _figures(section.blocks)):
            write_whole(figures / f"{figure.name}.svg", figure.drawing.standalone())
    except OSError as error:
        raise ReportError(f"can't write the report to {out}: {error.strerror or error}") from None


def contents_of(runs: Sequence[Run]) -> list[Section]:
    """The sections that the runs have something for."""
    by_protocol: dict[str, list[Run]] = {}
    for run in runs:
        by_protocol.setdefault(run.protocol, []).append(run)
    classified = by_protocol.get("uc", [])
    contents = [overview(runs)]
    if classified:
        contents.append(classification(classified))
    if answered := by_protocol.get("response"):
        contents.append(sections.response(answered, classified))
    if drawn := [run for run in classified if "states" in run.metrics]:
        contents.append(inside.states(drawn))
    return contents + [section(by_protocol[name]) for name, section in ORDER if name in by_protocol]


def overview(runs: Sequence[Run]) -> Section:
    """What was evaluated, when, at which cost, and by which commands it is made again."""
    described, used, decided = [], [], []
    for run in runs:
        calls = list(run.folder.calls())
        items = run.folder.items()
        subsets = ", ".join(dict.fromkeys(item["subset"] for item in items if "subset" in item))
        asked = (len(items), len(run.folder.refused()), subsets or None, _begun(calls))
        model = run.model or (run.judged and f"answers of {run.judged}")
        described.append(Row((run.name, run.protocol, model, run.judge, *asked)))
        used.append(Row((run.name, *_usage(calls))))
        fixed = run.method
        decided.append(Row((run.name, fixed["items"], str(fixed["seed"]), fixed["prompts"], _settings(fixed))))
    columns = ("Run", "Protocol", "Model", "Judge", "Items", "Refused", "Subsets", "Begun (UTC)")
    costs = ("Run", "Calls", "Errors", "Prompt tokens", "Cached", "Completion tokens", "Cost", "First to last call")
    commands = tuple(f"# {run.name}\n{shlex.join(run.run.command)}" for run in runs)
    caption = "What it took, with repeated attempts; cost in the currency of the engines' prices."
    what = (
        "What else decides the results: the same commands repeat them if the items and the prompts have these digests. "
        "The config.yaml of a run's folder holds all of its settings."
    )
    blocks: tuple[Block, ...] = (
        Table("What was evaluated; refused: records of the files that give no item.", columns, tuple(described)),
        Table(caption, costs, tuple(used), digits=4),
        Listing("The commands that make these runs.", commands),
        Table(what, ("Run", "Items", "Seed", "Prompts", "Settings"), tuple(decided), folded=True),
    )
    return Section("runs", "Runs", "", blocks)


def _settings(method: Mapping[str, Any]) -> str:
    """A protocol's own settings; longer ones, as system prompts, are in the run's method.json alone."""
    common = ("protocol", "engines", "items", "seed", "prompts", "fingerprint")
    own = {name: value for name, value in method.items() if name not in common}
    return ", ".join(f"{name} {value}" for name, value in own.items() if not isinstance(value, dict | list))


def _begun(calls: Sequence[Mapping[str, Any]]) -> str | None:
    if not calls:
        return None
    return datetime.fromtimestamp(min(call["started"] for call in calls), UTC).strftime("%Y-%m-%d %H:%M")


def _usage(calls: Sequence[Mapping[str, Any]]) -> list[Value]:
    tokens = [sum(call[name] for call in calls) for name in TOKENS]
    errors = sum(bool(call["error"]) for call in calls)
    cost = sum(call["cost"] for call in calls)
    ends = [call["started"] + call["seconds"] for call in calls]
    span = duration(max(ends) - min(call["started"] for call in calls)) if calls else None
    return [len(calls), errors, *tokens, float(cost) or None, span]


def _figures(blocks: Sequence[Block]) -> list[Figure]:
    return [figure for block in blocks if isinstance(block, Figures) for figure in block.figures]


def _environment() -> jinja2.Environment:
    folder = files("eval.report")
    names = ("template.html.j2", "template.md.j2")
    environment = jinja2.Environment(
        loader=jinja2.DictLoader({name: folder.joinpath(name).read_text("utf-8") for name in names}),
        undefined=jinja2.StrictUndefined,
        autoescape=jinja2.select_autoescape(("html.j2",)),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"drawn": _drawn, "md": _plain, "fenced": _fenced}
    return environment


def _drawn(drawing: Drawing) -> Markup:
    return Markup(drawing.inline())


def _plain(text: str) -> str:
    """Text in a line of Markdown, where nothing in it is markup."""
    line = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", line).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _fenced(text: str) -> str:
    """A block of Markdown that shows the text as it is: its fence is longer than any in the text."""
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
