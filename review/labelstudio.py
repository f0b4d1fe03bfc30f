"""Label Studio's tasks, out and back in. `labelstudio.xml` is the labelling configuration that goes with them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from review.auth import Caller, caller_of
from review.config import ReviewError
from review.content import Content, fingerprint
from review.forms import Kind, Labelled, Step
from review.items import content_of, load, state_of
from review.models import Item, Person
from review.projects import note
from review.states import Act, Refused, State
from review.tasks import record

Row = dict[str, Any]
DONE, REPEATED = "taken", "already here"


@dataclass(frozen=True)
class Imported:
    """How many annotations were taken, were already here, or were refused, by reason."""

    counts: Mapping[str, int]


class _Unfit(Exception):
    """An annotation that gives no answer."""


def label_studio_tasks(items: Iterable[tuple[Item, Content, State]]) -> Iterator[Row]:
    """Every item as a task; once it is finished, with the labels that people have given it as annotations.

    Its `item` says which it is. The key isn't in there: that of a synthetic sample ends in its label.
    """
    for item, content, state in items:
        said = [
            pair for turn in content.dialogue.turns for pair in (("user", turn.user), ("assistant", turn.assistant))
        ]
        system = [("system", content.dialogue.system)] if content.dialogue.system else []
        yield {
            "id": item.id,
            "data": {
                "item": item.id,
                "history": fingerprint(content.dialogue),
                "language": item.language,
                "dialogue": [{"author": author, "text": text} for author, text in [*system, *said]],
                "follow_up": content.follow_up,
            },
            "annotations": [] if state.open else [_annotation(act) for act in state.at(Step.LABEL)],
        }


def import_label_studio(session: Session, project: int, kind: Kind, path: Path, raters: Mapping[str, str]) -> Imported:
    """Take the annotations of a JSON export as the labels of the project's people.

    `raters`: the names of people by what Label Studio calls them, an id or an email; who is called the same in both
    needs none. Annotations pass the same checks as answers in the app.

    Raises:
        ReviewError: the file is no such export, or somebody in it isn't known here.
    """
    if kind is Kind.PAIRWISE:
        raise ReviewError("labels can't be imported into a project of comparisons")
    tasks = _read(path)
    people = {person.name: person for person in session.scalars(select(Person).where(Person.project_id == project))}
    items = {str(item.id): item for item in session.scalars(select(Item).where(Item.project_id == project))}
    callers = _callers(tasks, people, raters)
    counts: Counter[str] = Counter()
    for task in tasks:
        item = items.get(str(task["data"].get("item")))
        for annotation in task["annotations"]:
            try:
                if item is None:
                    raise _Unfit("no such item")
                form = _labelled(task["data"], annotation, content_of(item))
                counts[_give(session, callers[_rater(annotation)], kind, item, form)] += 1
            except _Unfit as unfit:
                counts[str(unfit)] += 1
            except Refused as refused:
                counts[str(refused)] += 1
    note(session, project, "import", {"file": path.name, **counts})
    return Imported(dict(counts))


def _give(session: Session, caller: Caller, kind: Kind, item: Item, form: Labelled) -> str:
    item = load(session, caller.project, item.id, lock=True)
    state = state_of(kind, item)
    for act in state.at(Step.LABEL):
        if act.person == caller.id and isinstance(act.form, Labelled):
            return _compared(act.form, form)
    record(session, caller, item, state, Act(Step.LABEL, 1, caller.id, form))
    return DONE


def _compared(here: Labelled, there: Labelled) -> str:
    if here.label is not there.label:
        return "another label is here"
    reasons = [form.why.text.strip() if form.why else "" for form in (here, there)]
    return REPEATED if reasons[0] == reasons[1] else "another rationale is here"


def _annotation(act: Act) -> Row:
    assert isinstance(act.form, Labelled)
    results: list[Row] = [_result("label", "choices", {"choices": [act.form.label.value]})]
    if act.form.why:
        results.append(_result("rationale", "textarea", {"text": [act.form.why.text]}))
    return {"completed_by": act.person, "was_cancelled": False, "result": results}


def _result(name: str, type: str, value: Row) -> Row:
    return {"id": name, "from_name": name, "to_name": "follow_up", "type": type, "value": value}


def _read(path: Path) -> list[Row]:
    try:
        tasks = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ReviewError(f"can't read {path}: {error}") from None
    fits = isinstance(tasks, list) and all(
        isinstance(task, dict)
        and isinstance(task.get("data"), dict)
        and isinstance(task.get("annotations"), list)
        and all(isinstance(annotation, dict) for annotation in task["annotations"])
        for task in tasks
    )
    if not fits:
        raise ReviewError(
            f"{path} is no JSON export of Label Studio (a list of tasks with data and annotations, which are objects)"
        )
    return list(tasks)


def _callers(tasks: list[Row], people: Mapping[str, Person], raters: Mapping[str, str]) -> dict[str, Caller]:
    found = {_rater(annotation) for task in tasks for annotation in task["annotations"]}
    names = {rater: raters.get(rater, rater) for rater in found}
    if unknown := sorted(rater for rater, name in names.items() if name not in people):
        raise ReviewError(
            f"who is {', '.join(unknown)}? Say it with --rater {unknown[0]}=NAME; there are {', '.join(people)}"
        )
    return {rater: caller_of(people[name]) for rater, name in names.items()}


def _rater(annotation: Row) -> str:
    by = annotation.get("completed_by")
    return str(by.get("email") or by.get("id")) if isinstance(by, dict) else str(by)


def _labelled(data: Row, annotation: Row, content: Content) -> Labelled:
    """The answer that an annotation is. Raises _Unfit, with the reason in words."""
    if annotation.get("was_cancelled"):
        raise _Unfit("skipped there")
    if data.get("history") != fingerprint(content.dialogue) or data.get("follow_up") != content.follow_up:
        raise _Unfit("the dialogue was changed")
    try:
        values = {result["from_name"]: result["value"] for result in annotation["result"]}
        text = "\n".join(values["rationale"]["text"]) if "rationale" in values else ""
        return Labelled.model_validate(
            {"label": values["label"]["choices"][0], "why": {"text": text} if text.strip() else None}
        )
    except (KeyError, IndexError, TypeError, ValidationError):
        raise _Unfit("no readable label") from None
