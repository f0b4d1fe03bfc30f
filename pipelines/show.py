"""One sample as a person wants to read it. Text of dialogues and models is shown as text, whatever it contains."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipelines.run_folder import SAMPLES, RunFolder
from synuc.problem import Problem
from synuc.sample import Outcome, Sample
from synuc.types import Constraint, NewConstraint, TaskHierarchy

FOLDED = 600
"""The characters of a long turn that are shown."""

NEAR = 5
STYLES = {Outcome.ACCEPTED: "bold green", Outcome.REJECTED: "bold yellow", Outcome.FAILED: "bold red"}
JOINERS = "\u200c\u200d"
"""Invisible, but needed by scripts and emoji, and harmless."""


class NoSuchSample(Problem):
    """No sample, or more than one, has the id; the message names some that come near."""


def show(folder: RunFolder, sample_id: str, full: bool, console: Console) -> None:
    """Print one sample: of this id, or beginning of an id; without one the first accepted, else the first, by id.

    Long turns are folded in the middle unless `full`.

    Raises:
        NoSuchSample: none has the id, several begin with it, or the run has none yet.
    """
    sample = _load(folder, _find(folder, sample_id))
    _print_header(sample, console)
    _print_dialogue(sample, full, console)
    if sample.tasks:
        _print_tasks(sample.tasks, console)
    if sample.constraints:
        _print_constraints(sample, console)
    if sample.new or sample.new_constraints:
        _print_new(sample, console)
    _print_verdicts(sample, console)


def _find(folder: RunFolder, wanted: str) -> str:
    """The id that is meant."""
    table = folder.read("samples", ["id", "outcome"])
    if not len(table):
        raise NoSuchSample(f"{folder.path} has no samples yet")
    if not wanted:
        accepted = table.filter(pc.equal(table["outcome"], Outcome.ACCEPTED.value))
        return str(pc.min((accepted if len(accepted) else table)["id"]).as_py())
    ids: list[str] = pc.unique(table["id"]).to_pylist()
    ids.sort()
    at = bisect_left(ids, wanted)
    found = [id for id in ids[at : at + NEAR + 1] if id.startswith(wanted)]
    if len(found) == 1 or wanted in found:
        return found[0]
    if found:
        more = ", ..." if len(found) > NEAR else ""
        raise NoSuchSample(f"{wanted} is the beginning of several samples' ids: {', '.join(found[:NEAR])}{more}")
    near = ids[max(0, at - 2) :][:NEAR]
    raise NoSuchSample(f"no sample of {folder.path} has the id {visible(wanted)}; near it are: {', '.join(near)}")


def _load(folder: RunFolder, id: str) -> Sample:
    rows = pa.dataset.dataset(folder.parts("samples"), format="parquet", schema=SAMPLES)
    table = rows.to_table(columns=["record"], filter=pc.field("id") == id)
    return Sample.model_validate_json(table["record"][0].as_py())


def visible(text: str) -> str:
    """`text` with what would move the cursor, reorder or hide characters made visible: `␛`, `‹U+202E›`."""
    return "".join(char if char in "\n\t" else _visible(char) for char in text)


def _visible(char: str) -> str:
    if unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") or char in JOINERS:
        return char
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    return f"‹U+{code:04X}›"


def _text(text: str, style: str = "") -> Text:
    """Text whose markup is not interpreted."""
    return Text(visible(text), style)


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, "bold underline"))


def _indented(console: Console, text: Text) -> None:
    console.print(Padding(text, (0, 0, 0, 2), expand=False))


def _fields(console: Console, rows: Iterable[tuple[str, Text | str]]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value if isinstance(value, Text) else _text(value))
    console.print(table)


def _print_header(sample: Sample, console: Console) -> None:
    console.print(_text(sample.id, "bold"))
    outcome = Text(sample.outcome.value, STYLES[sample.outcome])
    if sample.stage:
        outcome.append(f" at {sample.stage}", "default")
    if sample.kind:
        outcome.append(f" ({visible(sample.kind)})", "default")
    rows: list[tuple[str, Text | str]] = [
        (
            "label",
            f"{sample.label.value}, {sample.label.words}" if sample.label else "none: the dialogue wasn't routed",
        ),
        ("outcome", outcome),
    ]
    if sample.reason:
        rows.append(("reason", sample.reason))
    rows += [("language", sample.language), ("source", f"{sample.source}, {sample.origin}")]
    if sample.eligibility:
        verdict = "eligible" if sample.eligibility.eligible else "not eligible"
        category = sample.eligibility.category
        rows.append(("task", f"{category}, {verdict} for ER and IC: {sample.eligibility.reason}"))
    if sample.speaking:
        rows.append(("schema", sample.speaking.value))
    if sample.relation:
        rows.append(("relation", sample.relation.value))
    if sample.contrast:
        rows.append(("contrast", f"{sample.contrast.new}, which {sample.contrast.anchor} excludes"))
    if sample.repository_version is not None:
        rows.append(("memory", f"version {sample.repository_version} of the schema's repository"))
    _fields(console, rows)


def _print_dialogue(sample: Sample, full: bool, console: Console) -> None:
    _section(console, "Dialogue")
    if sample.dialogue.system:
        console.print(Text("System", "dim"))
        _indented(console, _text(sample.dialogue.system if full else fold(sample.dialogue.system)))
    for number, turn in enumerate(sample.dialogue.turns, 1):
        for speaker, text, style in (
            (f"User {number}", turn.user, "cyan"),
            (f"Assistant {number}", turn.assistant, ""),
        ):
            console.print(Text(speaker, f"bold {style}"))
            _indented(console, _text(text if full else fold(text)))
    if sample.follow_up is not None:
        console.print(Text("▶ Follow-up of the user", "bold magenta"))
        _indented(console, _text(sample.follow_up, "magenta"))


def fold(text: str) -> str:
    """A long text's beginning and end, with how much is left out between."""
    if len(text) <= FOLDED:
        return text
    half = FOLDED // 2
    return (
        f"{text[:half].rstrip()}\n[… {len(text) - 2 * half:,} characters; --full shows them …]\n{text[-half:].lstrip()}"
    )


def _print_tasks(tasks: TaskHierarchy, console: Console) -> None:
    _section(console, "Tasks")
    rows = (
        ("main, done", "; ".join(tasks.completed_main_tasks)),
        ("main, active", tasks.active_main_task),
        ("sub, done", "; ".join(tasks.completed_subtasks)),
        ("sub, active", tasks.active_subtask),
    )
    _fields(console, [(name, value) for name, value in rows if value])


def _print_constraints(sample: Sample, console: Console) -> None:
    _section(console, "Historical constraints (E explicit, I implicit; ▶ the anchor)")
    table = _table("turn")
    for constraint in sample.constraints:
        table.add_row(*_cells(constraint, constraint == sample.anchor), str(constraint.turn))
    console.print(table)


def _print_new(sample: Sample, console: Console) -> None:
    new, found = sample.new, sample.new_constraints
    _section(console, "New constraints" + (" (▶ the one the sample claims)" if new else ""))
    table = _table()
    # The verifier may not have found it, or not have been asked.
    for constraint in found if new is None or new in found else (new, *found):
        table.add_row(*_cells(constraint, constraint == new))
    console.print(table)
    if sample.continues:
        console.print(Text(f"The follow-up continues: {sample.continues}", "dim"))


def _table(*more: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("", "", "constraint", "evidence", *more):
        table.add_column(name, overflow="fold", justify="right" if name in more else "left")
    return table


def _cells(constraint: Constraint | NewConstraint, marked: bool) -> list[Text]:
    style = "bold magenta" if marked else ""
    texts = ("▶" if marked else "", constraint.type[0].upper(), str(constraint), constraint.evidence)
    return [_text(text, style) for text in texts]


def _print_verdicts(sample: Sample, console: Console) -> None:
    verdict, judgment = sample.anchor_verdict, sample.judgment
    if verdict:
        _section(console, "Verifier, anchor stage")
        rows = [
            (_mark(verdict.pair_holds), "the pair fits the label", verdict.pair_analysis),
            (_mark(verdict.message_holds), "the message brings it in", verdict.message_analysis),
        ]
        for mark, what, analysis in rows:
            console.print(mark, Text(what, "bold"))
            _indented(console, _text(analysis))
        console.print(Text("  revision signal: " + ("yes" if verdict.revision_signal else "no")))
    if judgment:
        _section(console, "Verifier, direct check" if sample.continues is None else "Verifier, global stage")
        judged = Text(f"judged {judgment.label.value}, confidence {judgment.confidence}", "bold")
        console.print(_mark(judgment.label is sample.label), judged)
        console.print(_mark(judgment.claim_holds), Text("the claim holds", "bold"))
        _indented(console, _text(judgment.analysis))


def _mark(holds: bool) -> Text:
    return Text("✓", "bold green") if holds else Text("✗", "bold red")
