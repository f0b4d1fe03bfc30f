"""Between the rows of an item and its state."""

from __future__ import annotations

import time

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from review.content import Content
from review.forms import Kind, Step, form_of, verdict
from review.models import Answer, Claim, Item
from review.states import Act, Refused, State, bound, replay


def load(session: Session, project: int, id: int, lock: bool = False) -> Item:
    """An item of the project; with `lock`, nobody else changes it before the transaction ends.

    Raises:
        Refused: there is none.
    """
    query = select(Item).where(Item.id == id, Item.project_id == project)
    if lock:
        query = query.with_for_update().execution_options(populate_existing=True)
    item = session.scalar(query)
    if item is None:
        raise Refused("unknown", "there is no such item")
    return item


def state_of(kind: Kind, item: Item) -> State:
    """The state that the item's answers make."""
    return replay(kind, [_act(kind, answer) for answer in item.answers])


def content_of(item: Item) -> Content:
    return Content.model_validate(item.content)


def keep(session: Session, item: Item, state: State) -> None:
    """Bring the rows of an item in line with its state: withdraw, seal or add answers, say where it stands, and put it
    into the hands of those who alone may answer now."""
    now = time.time()
    standing = list(item.answers)
    kept = 0
    while kept < min(len(standing), len(state.acts)) and _same(standing[kept], state.acts[kept]):
        standing[kept].sealed = state.acts[kept].sealed
        kept += 1
    for answer in standing[kept:]:
        answer.withdrawn = now
    session.flush()
    for act in state.acts[kept:]:
        session.add(
            Answer(
                item_id=item.id,
                person_id=act.person,
                step=act.step,
                round=act.round,
                verdict=verdict(act.form),
                form=act.form.model_dump(mode="json"),
                sealed=act.sealed,
                at=now,
            )
        )
    moved = (item.step, item.round) != (state.step, state.round)
    item.step, item.round, item.result = state.step, state.round, state.result
    item.answered = len(state.current) if state.open else 0
    _hand_over(session, item, state, moved, now)
    session.flush()
    session.expire(item, ["answers"])


def _hand_over(session: Session, item: Item, state: State, moved: bool, now: float) -> None:
    claims = {claim.person_id: claim for claim in session.scalars(select(Claim).where(Claim.item_id == item.id))}
    only = bound(state) - {act.person for act in state.current} if state.open else frozenset()
    for person, claim in claims.items():
        if person not in only and (claim.state == "bound" or (claim.state == "held" and moved)):
            session.execute(delete(Claim).where(Claim.id == claim.id))
    for person in only:
        if person in claims:
            claims[person].state = "bound"
        else:
            session.add(Claim(item_id=item.id, person_id=person, state="bound", at=now))


def _act(kind: Kind, answer: Answer) -> Act:
    step = Step(answer.step)
    form = form_of(kind, step).model_validate(answer.form)
    return Act(step, answer.round, answer.person_id, form, answer.sealed)


def _same(answer: Answer, act: Act) -> bool:
    return (answer.step, answer.round, answer.person_id) == (act.step, act.round, act.person)
