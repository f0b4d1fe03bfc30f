"""What a project has found, as files: UC-Bench, a spot check's labels, people's verdicts, or another tool's records.

A record of UC-Bench (`eval/bench.py`) has here one more field, which its reader leaves alone:

    annotation   origin       "natural" or "rewritten"
                 labels       of the two annotators, by person; agreed: whether they are the same
                 adjudicated  the third annotator's label, where they were not
                 rewrite      for a rewritten one: goal, round, writer, confirmed (findings that the writer stands by),
                              reviews (by person, of this candidate), and votes if there were two

People are named p1, p2, ...: the same person is the same name throughout a project.

A line of a spot check has the sample's `id`, its `synthetic` label, the reviewers' `labels`, what they agreed on
(`label`, null where they didn't) and, where it is known, the `run` that made the sample.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from eval.bench import BenchItem
from eval.bench_mapping import Fields, item_values
from eval.records import Unfit
from review.argilla import argilla_records
from review.balance import Row, balanced
from review.checks import turns_saying
from review.config import ReviewConfig, ReviewError
from review.content import Content
from review.forms import Kind, Labelled, Reviewed, Rewritten, Side, Step, Voted, Why
from review.items import content_of, state_of
from review.labelstudio import label_studio_tasks
from review.models import Item
from review.states import Act, State
from synuc.folder import json_line, write_whole
from synuc.types import Dialogue, Label

SHAPES = ("own", "label-studio", "argilla")
NAMES = {Kind.BENCHMARK: "bench.jsonl", Kind.SPOT_CHECK: "spot-check.jsonl", Kind.PAIRWISE: "human.csv"}


@dataclass(frozen=True)
class Exported:
    """A file that was written: how many rows it has, and what was left out, counted by the reason."""

    path: Path
    rows: int
    left_out: Mapping[str, int]


def export(
    session: Session,
    project: int,
    config: ReviewConfig,
    shape: str,
    path: Path,
    shares: Mapping[Label, int] | None = None,
) -> Exported:
    """Write a project's items to `path` in one of the `SHAPES`; of a benchmark, with `shares`, that many of each label.

    `own` is, by the kind of project, a benchmark (finished items), a spot check's labels (finished items), or the CSV
    that `synuc eval pairwise --human` reads. The other two hold every item, with the labels of finished ones: whoever
    works on an open one there mustn't see what others say of it.

    Raises:
        ReviewError: there is nothing to write yet, or too little for the shares, or the shape doesn't go with the
            project.
    """
    kind = config.kind
    if shape not in SHAPES:
        raise ReviewError(f"--as {shape}: choose one of {', '.join(SHAPES)}")
    if kind is Kind.PAIRWISE and shape != "own":
        raise ReviewError(f"--as {shape} is for labels; comparisons are exported as the CSV of `synuc eval pairwise`")
    if shares and (kind is not Kind.BENCHMARK or shape != "own"):
        raise ReviewError("--sample is for a benchmark in our own shape; leave it out here")
    left_out: Counter[str] = Counter()
    if shape != "own":
        everything = list(_all(session, project, kind))
        rows = list((label_studio_tasks if shape == "label-studio" else argilla_records)(everything))
        write_whole(path, _array(rows))
        if shape == "label-studio":
            write_whole(path.with_suffix(".xml"), _labelling_config())
        left_out["labels of open items"] = sum(len(state.at(Step.LABEL)) for _, _, state in everything if state.open)
    elif kind is Kind.PAIRWISE:
        rows = list(_verdicts(session, project, left_out))
        if rows:
            write_whole(path, _csv(rows))
    else:
        rows = _finished(session, project, config, left_out)
        if rows and shares:
            rows, beyond = balanced(rows, shares)
            left_out.update(beyond)
        if rows:
            write_whole(path, "".join(map(json_line, rows)))
    if not rows:
        raise ReviewError(f"nothing is finished yet ({sum(left_out.values())} items are open), so nothing was written")
    return Exported(path, len(rows), dict(+left_out))


def _all(session: Session, project: int, kind: Kind) -> Iterator[tuple[Item, Content, State]]:
    query = select(Item).where(Item.project_id == project).order_by(Item.position).options(selectinload(Item.answers))
    for item in session.scalars(query.execution_options(yield_per=200)):
        yield item, content_of(item), state_of(kind, item)


def _finished(session: Session, project: int, config: ReviewConfig, left_out: Counter[str]) -> list[Row]:
    """The records of all items that are done."""
    rows = []
    for item, content, state in _all(session, project, config.kind):
        if state.step is not Step.DONE:
            left_out["excluded" if state.step is Step.EXCLUDED else "unfinished"] += 1
        elif config.kind is Kind.SPOT_CHECK:
            rows.append(_checked_row(item, content, state, config.run))
        elif (row := _bench_row(item, content, state)) is None:
            left_out["unusable"] += 1
        else:
            rows.append(row)
    return rows


def _bench_row(item: Item, content: Content, state: State) -> Row | None:
    """A record of the benchmark; None if its reader wouldn't take it."""
    why = state.chosen.why if state.chosen else _why(state)
    follow_up = state.chosen.follow_up.strip() if state.chosen else content.follow_up
    row = {
        "id": item.key,
        "subset": content.subset,
        "language": item.language,
        **({"system": content.dialogue.system} if content.dialogue.system else {}),
        "history": [
            {"role": role, "content": text}
            for turn in content.dialogue.turns
            for role, text in (("user", turn.user), ("assistant", turn.assistant))
        ],
        "follow_up": follow_up,
        "label": state.result,
        **({"rationale": rationale(why, content.dialogue)} if why and state.result != "ND" else {}),
        **({"task": content.task} if content.task else {}),
        "annotation": _annotation(state),
    }
    try:
        BenchItem.model_validate(item_values(row, Fields(), content.subset))
    except (Unfit, ValidationError):
        return None
    return row


def _why(state: State) -> Why | None:
    """The rationale of a natural item: the adjudicator's, else that of the first annotator who wrote one."""
    acts = state.at(Step.ADJUDICATE) or state.at(Step.LABEL)
    whys = [act.form.why for act in acts if isinstance(act.form, Labelled)]
    return next((why for why in whys if why is not None and why.text.strip()), None)


def rationale(why: Why, dialogue: Dialogue) -> Row:
    """The rationale as a record of the benchmark has it, with the last turn in which the evidence stands."""
    pair: Row = {}
    if why.historical and why.new:
        said = turns_saying(why.historical.evidence, dialogue) if why.historical.evidence.strip() else []
        turn = {"turn": said[-1]} if said else {}
        pair = {"historical": [{**_side(why.historical), **turn}], "new": [_side(why.new)]}
    return {**pair, "text": why.text.strip()}


def _side(side: Side) -> Row:
    return {name: value for name, value in side.model_dump().items() if value}


def _annotation(state: State) -> Row:
    labels = _words(state.at(Step.LABEL))
    third = _words(state.at(Step.ADJUDICATE))
    row: Row = {
        "origin": "rewritten" if state.chosen else "natural",
        "labels": labels,
        "agreed": len(set(labels.values())) == 1,
        **({"adjudicated": third} if third else {}),
    }
    if state.chosen:
        row["rewrite"] = _rewrite(state, state.chosen)
    return row


def _rewrite(state: State, chosen: Rewritten) -> Row:
    acts = [act for act in state.at(Step.REWRITE) if act.form == chosen]
    written = acts[-1]
    place = ("first", "second")[[act.person for act in state.at(Step.REWRITE, written.round)].index(written.person)]
    reviews = {
        _name(act): getattr(act.form, place).approve
        for act in state.at(Step.REVIEW, written.round)
        if isinstance(act.form, Reviewed)
    }
    votes = {_name(act): act.form.better == place for act in state.at(Step.VOTE) if isinstance(act.form, Voted)}
    return {
        "goal": chosen.goal.strip(),
        "round": written.round,
        "writer": _name(written),
        "confirmed": list(chosen.confirmed),
        "reviews": reviews,
        **({"votes": votes} if votes else {}),
    }


def _checked_row(item: Item, content: Content, state: State, run: Path | None) -> Row:
    """What the reviewers of a spot check say of a synthetic label."""
    labels = _words(state.at(Step.LABEL))
    verdict = "disputed" if state.result is None else "confirmed" if state.result == content.synthetic else "refuted"
    return {
        "id": item.key,
        "language": item.language,
        "synthetic": content.synthetic,
        "labels": labels,
        "label": state.result,
        "verdict": verdict,
        **({"run": str(run)} if run else {}),
    }


def _words(acts: tuple[Act, ...]) -> dict[str, str]:
    return {_name(act): act.form.label.value for act in acts if isinstance(act.form, Labelled)}


def _name(act: Act) -> str:
    return f"p{act.person}"


def _verdicts(session: Session, project: int, left_out: Counter[str]) -> Iterator[Row]:
    """The verdicts of finished items. Raters are the two places at an item and the third, whoever took them."""
    for item, _, state in _all(session, project, Kind.PAIRWISE):
        if state.step is not Step.DONE:
            left_out["excluded" if state.step is Step.EXCLUDED else "unfinished"] += 1
            continue
        places = zip(("first evaluator", "second evaluator"), state.at(Step.COMPARE), strict=True)
        for rater, act in [*places, *(("third evaluator", act) for act in state.at(Step.ADJUDICATE))]:
            yield {"id": item.key, "rater": rater, "verdict": act.form.model_dump()["verdict"]}


def _csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["id", "rater", "verdict"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _array(rows: list[Row]) -> str:
    return "[\n" + ",\n".join(json_line(row).rstrip() for row in rows) + "\n]\n"


def _labelling_config() -> str:
    return (Path(__file__).parent / "labelstudio.xml").read_text("utf-8")
