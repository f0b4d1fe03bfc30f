"""What leads do: look at items, exclude and reopen them, and read the audit log."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from review.auth import Caller
from review.forms import Excluded, Kind, Step
from review.items import keep, load, state_of
from review.models import Claim, Event, Item, Person
from review.projects import note
from review.states import Act, after, reopened

PAGE = 50


def exclude(session: Session, caller: Caller, kind: Kind, id: int, reason: str) -> None:
    """End an item as unsuitable. Raises Refused, if it is excluded already or unknown."""
    item = load(session, caller.project, id, lock=True)
    keep(session, item, after(state_of(kind, item), Act(Step.EXCLUDED, 1, caller.id, Excluded(reason=reason))))
    note(session, caller.project, "exclude", {"reason": reason}, caller.id, item.id)


def reopen(session: Session, caller: Caller, kind: Kind, id: int, step: Step, reason: str) -> None:
    """Take an item back to before anything was said at a step, for anyone to take. What was said stays in the log.

    Raises:
        Refused: nothing was said at that step, or the item is unknown.
    """
    item = load(session, caller.project, id, lock=True)
    keep(session, item, reopened(state_of(kind, item), step))
    session.execute(delete(Claim).where(Claim.item_id == item.id, Claim.state == "held"))
    note(session, caller.project, "reopen", {"step": step, "reason": reason}, caller.id, item.id)


def items(session: Session, project: int, step: Step | None, page: int) -> dict[str, Any]:
    """A page of the project's items, in their order: how many there are in `total`, and where each stands."""
    where = [Item.project_id == project, *([Item.step == step] if step else [])]
    columns = (Item.id, Item.key, Item.language, Item.step, Item.round, Item.answered, Item.result)
    rows = session.execute(select(*columns).where(*where).order_by(Item.position).offset(page * PAGE).limit(PAGE))
    total = session.scalar(select(func.count()).select_from(Item).where(*where))
    return {"total": total, "page_size": PAGE, "items": [dict(row._mapping) for row in rows]}


def audit(session: Session, project: int, before: int | None) -> list[dict[str, Any]]:
    """The audit log's latest entries, or those before the one with the id `before`, the newest first."""
    where = [Event.project_id == project, *([Event.id < before] if before else [])]
    query = (
        select(Event, Person.name)
        .outerjoin(Person, Person.id == Event.person_id)
        .where(*where)
        .order_by(Event.id.desc())
        .limit(PAGE)
    )
    return [
        {
            "id": event.id,
            "at": event.at,
            "who": name,
            "what": event.what,
            "item": event.item_id,
            "detail": event.detail,
        }
        for event, name in session.execute(query)
    ]
