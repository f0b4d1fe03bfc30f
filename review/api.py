"""The app's HTTP interface. All bodies are JSON.

Whoever has a personal link is signed in with its token and gets a cookie; every change needs the header `X-CSRF-Token`
with the token that `POST /api/session` and `GET /api/me` give. An error is `{"error": {"code", "message"}}`; that of an
answer with faults also has `findings`.

    POST   /api/session          {token} -> Me                     sign in
    DELETE /api/session                                            sign out
    GET    /api/me               -> Me
    POST   /api/next             -> Task, or null                  the item to look at now
    GET    /api/items/{id}       -> Task                           one of the caller's own items; any for a lead
    PUT    /api/items/{id}/draft {step, round, form}               what is written so far
    POST   /api/items/{id}/check {step, round, form} -> [Finding]  what is to be said about an answer
    POST   /api/items/{id}/answer {step, round, form}
    POST   /api/items/{id}/skip  {reason}                          for others to answer
    POST   /api/undo             -> Task                           the caller's last answer is a draft again
    GET    /api/progress         -> {progress, agreement, team}    agreement: for leads, and for all at the end;
                                                                   team: how many are needed, and there, by role

For leads:

    GET    /api/items?step=&page=  GET /api/audit?before=
    POST   /api/items/{id}/exclude {reason}
    POST   /api/items/{id}/reopen  {step, reason}
"""

from __future__ import annotations

import hashlib
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import AfterValidator, Field, ValidationError

from review import figures, leading, tasks
from review.auth import Caller, csrf_token, csrf_valid, sign_in, sign_out, signed_in
from review.checks import Finding, findings
from review.config import ReviewConfig
from review.database import Database
from review.forms import Form, Kind, Step, Text, form_of
from review.items import content_of, load, state_of
from review.models import Item
from review.people import fewest, needed
from review.projects import note
from review.states import Refused, Role
from review.views import Task, from_page, task
from synuc.types import Frozen, clean

UNSAFE = ("POST", "PUT", "DELETE")
LARGEST = 2**31 - 1
"""The largest number that every database takes as an id."""

Reason = Annotated[Text, Field(min_length=1)]
Id = Annotated[int, Path(ge=1, le=LARGEST)]
Clean = Annotated[str, AfterValidator(clean)]
Word = Clean | bool | None
Words = Word | list[Clean] | dict[Clean, Word | dict[Clean, Word]]
"""What a field of a form may hold: in drafts, whatever the page had there; an answer is read as its step's form."""


class Link(Frozen):
    """What stands behind the `#` of a personal link."""

    token: Clean


class Me(Frozen):
    """Who is signed in, where, and the token for changes."""

    name: str
    roles: tuple[Role, ...]
    project: str
    kind: Kind
    csrf: str


class Sent(Frozen):
    """A form of the step and round for which it was written; of a draft it may be incomplete."""

    step: Step
    round: Annotated[int, Field(ge=1, le=LARGEST)]
    form: dict[Clean, Words]


class Because(Frozen):
    """Why something is done."""

    reason: Reason


class Reopening(Frozen):
    """Back to before anything was said at `step`."""

    step: Step
    reason: Reason


class NotSignedIn(Refused):
    """Nobody is signed in."""

    def __init__(self) -> None:
        super().__init__("sign_in", "open your personal link; if it doesn't work any more, ask a lead for a new one")


def routes(config: ReviewConfig, database: Database, project: int) -> APIRouter:
    """All routes of the project."""
    router = APIRouter(prefix="/api")
    router.include_router(_session(config, database, project))
    router.include_router(_look(config, database))
    router.include_router(_say(config.kind, database))
    router.include_router(_lead(config, database))
    return router


def cookie_name(config: ReviewConfig) -> str:
    """The cookie of a project. Browsers don't tell ports apart, so two projects on one machine need two names."""
    return f"synuc-review-{hashlib.sha256(f'{config.db} {config.name}'.encode()).hexdigest()[:16]}"


def who(request: Request) -> Caller:
    """The signed-in person. With an unsafe method, the request also proves to come from the page.

    Raises:
        Refused: nobody is signed in, or the proof is missing.
    """
    state = request.app.state
    cookie = request.cookies.get(state.cookie, "")
    with state.database.reading() as session:
        caller = signed_in(session, state.project, cookie, time.time()) if cookie else None
    if caller is None:
        raise NotSignedIn
    if request.method in UNSAFE and not csrf_valid(cookie, request.headers.get("x-csrf-token", "")):
        raise Refused("csrf", "this request doesn't come from the page; reload it")
    return caller


def lead(caller: Annotated[Caller, Depends(who)]) -> Caller:
    """The signed-in person, if they are a lead. Raises Refused otherwise."""
    if Role.LEAD not in caller.roles:
        raise Refused("role", "only a lead may do that")
    return caller


Who = Annotated[Caller, Depends(who)]
Lead = Annotated[Caller, Depends(lead)]


def _session(config: ReviewConfig, database: Database, project: int) -> APIRouter:
    router = APIRouter()
    seconds = config.session_days * 86_400
    name = cookie_name(config)

    def me(caller: Caller, cookie: str) -> Me:
        roles = tuple(sorted(caller.roles))
        return Me(name=caller.name, roles=roles, project=config.name, kind=config.kind, csrf=csrf_token(cookie))

    @router.post("/session")
    def enter(link: Link, request: Request, response: Response) -> Me:
        """Sign in. The link's token is the proof, so nothing else is asked for."""
        with database.writing() as session:
            found = sign_in(session, project, link.token, time.time(), seconds)
            if found is None:
                raise NotSignedIn
            note(session, project, "sign in", {}, found[0].id)
        response.set_cookie(
            name,
            found[1],
            max_age=int(seconds),
            httponly=True,
            samesite="strict",
            secure=config.url.startswith("https:"),
        )
        return me(*found)

    @router.get("/me")
    def myself(caller: Who, request: Request) -> Me:
        """Who is signed in."""
        return me(caller, request.cookies[name])

    @router.delete("/session", status_code=204)
    def leave(caller: Who, request: Request, response: Response) -> None:
        """Sign out."""
        with database.writing() as session:
            sign_out(session, request.cookies[name])
            note(session, caller.project, "sign out", {}, caller.id)
        response.delete_cookie(name)

    return router


def _read(kind: Kind, item: Item, caller: Caller, sent: Sent) -> Form:
    """The answer that was sent. Raises Refused if it is incomplete."""
    try:
        return form_of(kind, sent.step).model_validate(from_page(kind, item, caller, sent.form))
    except (KeyError, ValidationError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else f"{sent.step} asks for nothing"
        raise Refused("form", f"the answer is incomplete: {why}") from None


def _look(config: ReviewConfig, database: Database) -> APIRouter:
    router = APIRouter()
    kind, claim_s = config.kind, config.claim_hours * 3600

    @router.post("/next")
    def next_item(caller: Who) -> Task | None:
        """What the caller should look at now: what they have begun, or a new item; null if nothing is left."""
        with database.writing() as session:
            item = tasks.next_item(session, caller, kind, time.time(), claim_s)
            return task(session, caller, kind, item) if item else None

    @router.get("/items/{id}")
    def look(id: Id, caller: Who) -> Task:
        """One of the caller's own items. Once it has moved on, that seals the caller's answers."""
        with database.writing() as session:
            return task(session, caller, kind, load(session, caller.project, id, lock=True))

    @router.get("/progress")
    def progress(caller: Who) -> dict[str, Any]:
        """How far the project is, and how far people agree: before the end, that would tell annotators too much."""
        with database.reading() as session:
            done = figures.progress(session, caller.project)
            shown = Role.LEAD in caller.roles or done["finished"] == done["items"]
            agreement = figures.agreement(session, caller.project, kind) if shown else None
            team = {"needed": needed(kind), "fewest": fewest(kind), "there": figures.roles(session, caller.project)}
        done = done if shown else figures.discreet(done, caller.name)
        return {"progress": done, "agreement": agreement, "team": team}

    return router


def _say(kind: Kind, database: Database) -> APIRouter:
    router = APIRouter()

    @router.put("/items/{id}/draft", status_code=204)
    def draft(id: Id, sent: Sent, caller: Who) -> None:
        """Keep what is written so far."""
        with database.writing() as session:
            form = from_page(kind, load(session, caller.project, id), caller, sent.form)
            tasks.save_draft(session, caller, kind, id, {**sent.model_dump(), "form": form}, time.time())

    @router.post("/items/{id}/check")
    def look_over(id: Id, sent: Sent, caller: Who) -> list[Finding]:
        """What is to be said about an answer before it is given."""
        with database.reading() as session:
            item = load(session, caller.project, id)
            tasks.in_hand(session, caller, item, state_of(kind, item))
            return list(findings(kind, _read(kind, item, caller, sent), content_of(item)))

    @router.post("/items/{id}/answer", status_code=204)
    def answer(id: Id, sent: Sent, caller: Who) -> None:
        """Answer. The same answer again changes nothing."""
        with database.writing() as session:
            form = _read(kind, load(session, caller.project, id), caller, sent)
            tasks.answer(session, caller, kind, id, sent.step, sent.round, form)

    @router.post("/items/{id}/skip", status_code=204)
    def skip(id: Id, because: Because, caller: Who) -> None:
        """Give the item back for others to answer."""
        with database.writing() as session:
            tasks.skip(session, caller, kind, id, because.reason, time.time())

    @router.post("/undo")
    def undo(caller: Who) -> Task:
        """Take the caller's last answer back."""
        with database.writing() as session:
            return task(session, caller, kind, tasks.undo(session, caller, kind, time.time()))

    return router


def _lead(config: ReviewConfig, database: Database) -> APIRouter:
    router = APIRouter()

    @router.get("/items")
    def items(
        caller: Lead, step: Step | None = None, page: Annotated[int, Query(ge=0, le=LARGEST)] = 0
    ) -> dict[str, Any]:
        """A page of the items."""
        with database.reading() as session:
            return leading.items(session, caller.project, step, page)

    @router.get("/audit")
    def audit(caller: Lead, before: Annotated[int | None, Query(ge=1, le=LARGEST)] = None) -> list[dict[str, Any]]:
        """The audit log, the newest entries first."""
        with database.reading() as session:
            return leading.audit(session, caller.project, before)

    @router.post("/items/{id}/exclude", status_code=204)
    def exclude(id: Id, because: Because, caller: Lead) -> None:
        """End an item as unsuitable."""
        with database.writing() as session:
            leading.exclude(session, caller, config.kind, id, because.reason)

    @router.post("/items/{id}/reopen", status_code=204)
    def reopen(id: Id, reopening: Reopening, caller: Lead) -> None:
        """Take an item back to an earlier step."""
        with database.writing() as session:
            leading.reopen(session, caller, config.kind, id, reopening.step, reopening.reason)

    return router
