"""Making a project: its items, its people and their links."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from review.auth import new_token
from review.config import ReviewConfig, ReviewError
from review.content import Entry
from review.models import Event, Item, Person, Project, SignIn
from review.people import PersonEntry
from review.sources import shuffled
from review.states import begin

ROWS = 500
"""Items that one statement inserts."""


def create(
    session: Session,
    config: ReviewConfig,
    entries: Sequence[Entry],
    people: Sequence[PersonEntry],
    seed: int,
    about: Mapping[str, Any],
) -> dict[str, str]:
    """Make the project; the links of its people by their names. `about` is kept with it.

    Items come in an order that depends on the seed, so that labels and sources are mixed.

    Raises:
        ReviewError: the database holds a project of this name.
    """
    if session.scalar(select(Project).where(Project.name == config.name)):
        raise ReviewError(f"the database holds a project {config.name} already; choose another --name")
    now = time.time()
    project = Project(name=config.name, kind=config.kind, about={**about, "seed": seed}, created=now)
    session.add(project)
    session.flush()
    start = begin(config.kind)
    rows = [
        {
            "project_id": project.id,
            "key": entry.key,
            "position": position,
            "language": entry.language,
            "content": entry.content.model_dump(mode="json"),
            "step": start.step,
            "round": start.round,
            "answered": 0,
        }
        for position, entry in enumerate(shuffled(entries, seed))
    ]
    for at in range(0, len(rows), ROWS):
        session.execute(insert(Item), rows[at : at + ROWS])
    note(session, project.id, "create", {"items": len(rows), "kind": config.kind, **about})
    return {person.name: _add(session, config, project.id, person) for person in people}


def new_link(session: Session, config: ReviewConfig, name: str, roles: Sequence[str] = ()) -> str:
    """A new link for a person, whose old one and whose signed-in browsers are then refused; with `roles`, a new person.

    Raises:
        ReviewError: nobody has that name, or with `roles`, somebody has.
    """
    project = find(session, config).id
    person = session.scalar(select(Person).where(Person.project_id == project, Person.name == name))
    if roles:
        if person is not None:
            raise ReviewError(f"{name} is one of the people already; without --role they get a new link")
        return _add(session, config, project, PersonEntry.model_validate({"name": name, "roles": roles}))
    if person is None:
        names = ", ".join(session.scalars(select(Person.name).where(Person.project_id == project)))
        raise ReviewError(f"nobody is called {name}; there are {names}. Add somebody with --role")
    token, person.token = new_token()
    session.execute(delete(SignIn).where(SignIn.person_id == person.id))
    note(session, project, "new link", {"name": name})
    return _link(config, token)


def find(session: Session, config: ReviewConfig) -> Project:
    """The project of these settings.

    Raises:
        ReviewError: the database doesn't hold it.
    """
    project = session.scalar(select(Project).where(Project.name == config.name))
    if project is None:
        raise ReviewError(f"the database holds no project {config.name}; is it the right one?")
    return project


def note(
    session: Session,
    project: int,
    what: str,
    detail: Mapping[str, Any],
    person: int | None = None,
    item: int | None = None,
) -> None:
    """Write a change into the audit log."""
    session.add(
        Event(project_id=project, person_id=person, item_id=item, what=what, detail=dict(detail), at=time.time())
    )


def _add(session: Session, config: ReviewConfig, project: int, entry: PersonEntry) -> str:
    token, hashed = new_token()
    session.add(Person(project_id=project, name=entry.name, roles=",".join(entry.roles), token=hashed))
    note(session, project, "add person", {"name": entry.name, "roles": entry.roles})
    return _link(config, token)


def _link(config: ReviewConfig, token: str) -> str:
    return f"{config.url.rstrip('/')}/#{token}"
