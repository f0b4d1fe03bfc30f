"""Items in a real database, SQLite and PostgreSQL: what people do in any order leaves rows and answers of one mind."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from review import leading, tasks
from review.auth import Caller, caller_of
from review.config import ReviewError
from review.content import fingerprint
from review.database import Database
from review.forms import (
    Compared,
    Form,
    Kind,
    Labelled,
    Opinion,
    Proposed,
    Reviewed,
    Rewritten,
    Step,
    Voted,
    form_of,
)
from review.items import content_of, load, state_of
from review.models import Answer, Base, Claim, Event, Item, Person, Project
from review.states import NEEDED, Refused, bound, target
from synuc.types import Label
from tests.reviewing import RECORD, ROLES, a_project, entries

HOUR = 3600.0
PROBES: dict[type[Form], Form] = {
    Labelled: Labelled(label=Label.ND, note="probe"),
    Compared: Compared(verdict="tie", note="probe"),
    Proposed: Proposed(target=Label.IC, note="probe"),
    Rewritten: Rewritten.model_validate({**RECORD, "goal": "probe", "history": "none"}),
    Reviewed: Reviewed(first=Opinion(approve=True, reason="probe"), second=Opinion(approve=False)),
    Voted: Voted(better="second"),
}
"""Answers that nobody gives otherwise, since the same answer again is no new one."""


def postgres_programs() -> Path | None:
    """The folder of initdb and postgres, where PostgreSQL is installed."""
    found = shutil.which("initdb") or next(map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None)
    return Path(found).resolve().parent if found else None


def _unprivileged() -> list[str]:
    """What runs a command as somebody else, if this is root: PostgreSQL refuses root."""
    if os.getuid() != 0:
        return []
    with suppress(KeyError):
        pwd.getpwnam("postgres")
        return ["runuser", "-u", "postgres", "--"]
    pytest.skip("PostgreSQL doesn't run as root, and there is no user postgres")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL that lives as long as the tests."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL isn't installed here (Debian's package postgresql), so only SQLite is tested")
    user = _unprivileged()
    with TemporaryDirectory(prefix="synuc-pg-") as name, socket.create_server(("127.0.0.1", 0)) as probe:
        folder, port = Path(name), probe.getsockname()[1]
        probe.close()
        if user:
            shutil.chown(folder, "postgres")
        run = {"check": True, "cwd": folder, "stdout": subprocess.DEVNULL}
        cluster = ["-D", str(folder / "data")]
        subprocess.run([*user, str(programs / "initdb"), *cluster, "-U", "synuc", "-A", "trust", "-N"], **run)  # type: ignore[call-overload]
        options = ["-p", str(port), "-k", str(folder), "-h", "127.0.0.1", "-c", "fsync=off"]
        server = subprocess.Popen([*user, str(programs / "postgres"), *cluster, *options], cwd=folder)
        try:
            yield _once_ready(f"postgresql://synuc@127.0.0.1:{port}/postgres", server)
        finally:
            subprocess.run([*user, str(programs / "pg_ctl"), *cluster, "stop", "-m", "immediate"], **run)  # type: ignore[call-overload]
            server.wait()


def _once_ready(url: str, server: subprocess.Popen[bytes]) -> str:
    for _ in range(600):
        assert server.poll() is None, "PostgreSQL ended"
        with suppress(psycopg.OperationalError), psycopg.connect(url, connect_timeout=5):
            return url
        time.sleep(0.1)
    raise AssertionError("PostgreSQL doesn't answer")


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgres")
        return url
    return f"sqlite:///{tmp_path / 'review.db'}"


_NAMES = iter(range(1_000_000))


def fresh(db: str, items: int, kind: Kind = Kind.BENCHMARK) -> tuple[Database, dict[str, Caller]]:
    """A project of its own, and its people."""
    config, _ = a_project(db, entries(items, kind), kind, name=f"store-{next(_NAMES)}")
    database = Database(db)
    with database.reading() as session:
        project = session.scalars(select(Project).where(Project.name == config.name)).one()
        people = session.scalars(select(Person).where(Person.project_id == project.id))
        return database, {person.name: caller_of(person) for person in people}


def form(kind: Kind, item: Item, **values: Any) -> Form:
    """An answer that the item's step asks for."""
    state = state_of(kind, item)
    defaults: dict[Step, dict[str, Any]] = {
        Step.LABEL: {"label": "ND"},
        Step.ADJUDICATE: {"verdict": "tie"} if kind is Kind.PAIRWISE else {"label": "ND"},
        Step.COMPARE: {"verdict": "win"},
        Step.TARGET: {"target": "IC"},
        Step.REWRITE: {**RECORD, "target": target(state) or "IC", "history": fingerprint(content_of(item).dialogue)}
        | {"confirmed": ["no_revision_signal", "other_language"]},
        Step.REVIEW: {"first": {"approve": True}, "second": {"approve": False}},
        Step.VOTE: {"better": "first"},
    }
    return form_of(kind, state.step).model_validate({**defaults[state.step], **values})


def act(database: Database, caller: Caller, kind: Kind, now: float, **values: Any) -> int | None:
    """Take the next task and answer it; its item."""
    with database.writing() as session:
        item = tasks.next_item(session, caller, kind, now, HOUR)
        if item is None:
            return None
        tasks.seal(session, caller, item, state_of(kind, item))  # as views.task does when it shows the item
        said = form(kind, item, **values)
        tasks.answer(session, caller, kind, item.id, Step(item.step), item.round, said)
        return item.id


def check_rows(database: Database, project: int, kind: Kind) -> None:
    """What the rows say is what the answers say."""
    with database.reading() as session:
        for item in session.scalars(select(Item).where(Item.project_id == project)):
            state = state_of(kind, item)
            answered = len(state.current) if state.open else 0
            assert (item.step, item.round, item.answered, item.result) == (
                state.step,
                state.round,
                answered,
                state.result,
            )
            claims = session.scalars(select(Claim).where(Claim.item_id == item.id)).all()
            waiting = bound(state) - {one.person for one in state.current} if state.open else frozenset()
            assert {claim.person_id for claim in claims if claim.state == "bound"} == waiting
            held = [claim for claim in claims if claim.state == "held"]
            if state.open:
                assert len(held) + answered <= NEEDED[state.step]
            else:
                assert not held
        logged = session.scalar(select(func.count()).where(Event.project_id == project, Event.what == "answer"))
        given = select(func.count()).select_from(Answer).join(Item).where(Item.project_id == project)
        assert logged == session.scalar(given.where(Answer.step != Step.EXCLUDED))


@pytest.mark.parametrize("kind", list(Kind))
def test_a_team_finishes_a_project(db: str, kind: Kind) -> None:
    database, people = fresh(db, 6, kind)
    workers = [people[name] for name in ROLES if name != "Lea"]
    for now in range(100):
        if not [1 for worker in workers if act(database, worker, kind, float(now))]:
            break
        if now % 8 == 0:
            check_rows(database, people["Lea"].project, kind)
    with database.reading() as session:
        steps = set(session.scalars(select(Item.step).where(Item.project_id == people["Lea"].project)))
    assert steps == {"done"}
    check_rows(database, people["Lea"].project, kind)
    database.close()


@settings(max_examples=12)
@given(data=st.data())
@pytest.mark.parametrize("kind", list(Kind))
def test_no_order_of_actions_makes_rows_and_answers_disagree(kind: Kind, data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        database, people = fresh(f"sqlite:///{folder}/review.db", 2, kind)
        actions = st.sampled_from(["act"] * 10 + ["take", "undo", "skip", "exclude", "reopen", "look"])
        for now in range(data.draw(st.integers(5, 30))):
            caller = people[data.draw(st.sampled_from(list(ROLES)))]
            with suppress(Refused):
                _do(
                    data,
                    data.draw(actions),
                    database,
                    people,
                    caller,
                    kind,
                    now * data.draw(st.sampled_from([1.0, HOUR])),
                )
            check_blindness(data, database, people[data.draw(st.sampled_from(list(ROLES)))], kind)
        check_rows(database, people["Lea"].project, kind)
        database.close()


def check_blindness(data: st.DataObject, database: Database, caller: Caller, kind: Kind) -> None:
    """Who doesn't have an item in hand, or hasn't looked at it since it moved on, hears the same whatever they try."""
    with database.reading() as session:
        item = data.draw(st.sampled_from(session.scalars(select(Item).where(Item.project_id == caller.project)).all()))
        state = state_of(kind, item)
        hand = (Claim.item_id == item.id, Claim.person_id == caller.id, Claim.state != "skipped")
        earlier = [act for act in state.acts if act.person == caller.id and act not in state.current]
        if session.scalar(select(Claim.id).where(*hand)) and all(act.sealed for act in earlier):
            return
    step = data.draw(st.sampled_from(list(NEEDED)))
    said = PROBES[form_of(kind, step)]
    tries: list[Callable[[Session], object]] = [
        lambda session: tasks.answer(session, caller, kind, item.id, step, data.draw(st.integers(1, 2)), said),
        lambda session: tasks.save_draft(session, caller, kind, item.id, {}, 0.0),
        lambda session: tasks.skip(session, caller, kind, item.id, "probe", 0.0),
    ]
    for attempt in tries:
        with pytest.raises(tasks.NotInHand), database.writing() as session:
            attempt(session)


def _do(
    data: st.DataObject,
    action: str,
    database: Database,
    people: dict[str, Caller],
    caller: Caller,
    kind: Kind,
    now: float,
) -> None:
    if action == "act":
        values = {}
        if kind is Kind.BENCHMARK:
            label = data.draw(st.sampled_from(["ND", "ND", "IC"]))
            values = {"label": label, "target": data.draw(st.sampled_from(["IC", "ER"])), "why": {"text": "x"}}
        _guess(database, caller, kind, now, values)
        return
    with database.writing() as session:
        ids = session.scalars(select(Item.id).where(Item.project_id == caller.project).order_by(Item.id)).all()
        id = data.draw(st.sampled_from(ids))
        match action:
            case "take":
                tasks.next_item(session, caller, kind, now, HOUR)
            case "undo":
                tasks.undo(session, caller, kind, now)
            case "skip":
                tasks.skip(session, caller, kind, id, "no", now)
            case "exclude":
                leading.exclude(session, people["Lea"], kind, id, "no")
            case "reopen":
                leading.reopen(session, people["Lea"], kind, id, data.draw(st.sampled_from(list(Step))), "no")
            case "look":
                item = load(session, caller.project, id, lock=True)
                tasks.seal(session, caller, item, state_of(kind, item))


def _guess(database: Database, caller: Caller, kind: Kind, now: float, values: dict[str, Any]) -> None:
    """Answer the next task with those of the values that its form has."""
    with database.writing() as session:
        item = tasks.next_item(session, caller, kind, now, HOUR)
        if item is None:
            return
        tasks.seal(session, caller, item, state_of(kind, item))
        step = Step(item.step)
        fields = form_of(kind, step).model_fields
        fitting = {name: value for name, value in values.items() if name in fields}
        if fitting.get("label") == "ND" or step is Step.REWRITE:
            fitting.pop("why", None)
            fitting.pop("target", None)
        said = form(kind, item, **fitting)
        tasks.answer(session, caller, kind, item.id, step, item.round, said)


def test_many_who_take_at_once_never_share_a_place(db: str) -> None:
    database, people = fresh(db, 6)
    annotators = [people[name] for name in ("Ana", "Bo", "Cai")]

    def work(n: int) -> None:
        caller = annotators[n % 3]
        for now in range(4):
            act(database, caller, Kind.BENCHMARK, float(now), label="IC", why={"text": "x"})

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, n) for n in range(6)]:
            with suppress(Refused):
                done.result()
    check_rows(database, people["Lea"].project, Kind.BENCHMARK)
    with database.reading() as session:
        labels = select(Answer.item_id, func.count()).join(Item).where(Item.project_id == people["Lea"].project)
        counts = dict(session.execute(labels.group_by(Answer.item_id)).all())
    assert max(counts.values()) <= 2
    database.close()


def test_a_reader_sees_one_state_throughout(db: str) -> None:
    database, people = fresh(db, 3)
    count = select(func.count()).select_from(Answer).join(Item).where(Item.project_id == people["Lea"].project)
    with database.reading() as session:
        assert session.scalar(count) == 0
        act(database, people["Ana"], Kind.BENCHMARK, 1.0)
        assert session.scalar(count) == 0
    with database.reading() as session:
        assert session.scalar(count) == 1
    database.close()


def test_a_newer_database_is_left_alone(db: str) -> None:
    fresh(db, 1)[0].close()
    database = Database(db)
    with database.writing() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ReviewError, match="newer version"):
        Database(db)
    with database.writing() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    database.close()


def test_the_log_of_postgres_only_grows_too(postgres: str) -> None:
    database, _ = fresh(postgres, 1)
    for change in ("UPDATE event SET what = 'x'", "DELETE FROM event", "TRUNCATE event CASCADE"):
        with pytest.raises(DBAPIError, match="only grows"), database.writing() as session:
            session.execute(text(change))
    database.close()


def test_migrations_make_what_the_models_say(db: str) -> None:
    database = Database(db)
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    database.close()
