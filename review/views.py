"""What a person is shown of an item, and how their answer comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from review.auth import Caller
from review.content import Content, fingerprint
from review.forms import Kind, Step, Why
from review.items import content_of, state_of
from review.models import Item, Person
from review.states import Act, Refused, Role, State, target, visible
from review.tasks import claimed, draft_of, seal
from synuc.types import Frozen, Label

SHOWN = {"win": ("a", "b"), "loss": ("b", "a"), "tie": ("tie", "tie")}
"""A verdict as the page words it: with the first model as A, and as B."""


class Turn(Frozen):
    """A turn of the dialogue."""

    user: str
    assistant: str


class Shown(Frozen):
    """An item without anything that would give a label away.

    `history` is the dialogue's fingerprint. `why`, `a` and `b` are there where reasonings are compared.
    """

    id: int
    language: str
    subset: str
    task: str | None
    system: str
    turns: tuple[Turn, ...]
    follow_up: str
    history: str
    why: Why | None = None
    a: str | None = None
    b: str | None = None


class Said(Frozen):
    """What somebody said. `number` tells apart those who answered the same step; leads also see `who` it was."""

    step: Step
    round: int
    number: int
    mine: bool
    who: str | None
    form: dict[str, Any]


class Task(Frozen):
    """An item, what is asked about it, and what this person may know.

    `asked`: whether an answer of this person is wanted now. `target`: the category to rewrite it as. `draft`: what they
    have written so far at this step and round. `result` and `synthetic`: once it is done.
    """

    item: Shown
    step: Step
    round: int
    asked: bool
    target: Label | None
    said: tuple[Said, ...]
    draft: dict[str, Any] | None
    result: str | None
    synthetic: Label | None


def task(session: Session, caller: Caller, kind: Kind, item: Item) -> Task:
    """What the person sees of an item. Once it has moved on, that seals their own answers.

    Raises:
        Refused: the item isn't theirs to see.
    """
    state = state_of(kind, item)
    lead = Role.LEAD in caller.roles
    held = claimed(session, caller, item) is not None
    if not (lead or held or any(act.person == caller.id for act in state.acts)):
        raise Refused("unknown", "there is no such item among yours")
    content = content_of(item)
    swapped = _swapped(item, caller)
    acts = visible(state, caller.id, caller.roles)
    if not lead:
        seal(session, caller, item, state)
    draft = draft_of(session, caller, item)
    begun = draft.form if draft and (draft.form["step"], draft.form["round"]) == (state.step, state.round) else None
    names = {act.person: session.get_one(Person, act.person).name for act in acts} if lead else {}
    return Task(
        item=_shown(item, content, swapped),
        step=state.step,
        round=state.round,
        asked=held and state.open and all(act.person != caller.id for act in state.current),
        target=target(state) if state.step is Step.REWRITE else None,
        said=tuple(_said(state, act, caller, names.get(act.person), swapped) for act in acts),
        draft=_to_page(begun["form"], swapped) if begun else None,
        result=_worded(state.result, swapped) if lead or not state.open else None,
        synthetic=content.synthetic if lead or not state.open else None,
    )


def from_page(kind: Kind, item: Item, caller: Caller, form: Mapping[str, Any]) -> dict[str, Any]:
    """A form as the page sends it, with verdicts on A and B turned into those on the first model."""
    verdict = form.get("verdict")
    if kind is not Kind.PAIRWISE or verdict is None:
        return dict(form)
    side = _swapped(item, caller)
    own = next((name for name, shown in SHOWN.items() if shown[side] == verdict), None)
    return {**form, "verdict": own}


def _to_page(form: Mapping[str, Any], swapped: bool) -> dict[str, Any]:
    verdict = form.get("verdict")
    return {**form, "verdict": SHOWN[verdict][swapped]} if isinstance(verdict, str) and verdict in SHOWN else dict(form)


def _worded(result: str | None, swapped: bool) -> str | None:
    return SHOWN[result][swapped] if result in SHOWN else result


def _swapped(item: Item, caller: Caller) -> bool:
    """Whether the second model is shown to this person as A. Leads see the first model as A."""
    if Role.LEAD in caller.roles:
        return False
    return hashlib.sha256(f"order/{item.key}/{caller.id}".encode()).digest()[0] % 2 == 1


def _shown(item: Item, content: Content, swapped: bool) -> Shown:
    first, second = content.answers or (None, None)
    return Shown(
        id=item.id,
        language=item.language,
        subset=content.subset,
        task=content.task,
        system=content.dialogue.system,
        turns=tuple(Turn(user=turn.user, assistant=turn.assistant) for turn in content.dialogue.turns),
        follow_up=content.follow_up,
        history=fingerprint(content.dialogue),
        why=content.why,
        a=second if swapped else first,
        b=first if swapped else second,
    )


def _said(state: State, act: Act, caller: Caller, who: str | None, swapped: bool) -> Said:
    peers = [other.person for other in state.at(act.step, act.round)]
    return Said(
        step=act.step,
        round=act.round,
        number=peers.index(act.person) + 1,
        mine=act.person == caller.id,
        who=who,
        form=_to_page(act.form.model_dump(mode="json"), swapped),
    )
