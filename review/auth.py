"""Who is asking: personal links, signed-in browsers, and the token that every change needs.

A link holds a secret of 256 bits, of which only the hash is kept. It stands behind the `#` of the address, which
browsers don't send: the page posts it once and gets a cookie. The token against forged requests follows from that
cookie, which no script can read and no other site can send.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from review.models import Person, SignIn
from review.states import Role


@dataclass(frozen=True)
class Caller:
    """The person behind a request."""

    id: int
    name: str
    project: int
    roles: frozenset[Role]


def new_token() -> tuple[str, str]:
    """A secret for a personal link, and its hash."""
    token = secrets.token_urlsafe(32)
    return token, digest(token)


def digest(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def csrf_token(cookie: str) -> str:
    """The token that a browser with this cookie has to send with every change."""
    return hmac.new(cookie.encode(), b"csrf", hashlib.sha256).hexdigest()


def csrf_valid(cookie: str, token: str) -> bool:
    return hmac.compare_digest(csrf_token(cookie).encode(), token.encode())


def caller_of(person: Person) -> Caller:
    return Caller(person.id, person.name, person.project_id, frozenset(map(Role, person.roles.split(","))))


def sign_in(session: Session, project: int, token: str, now: float, seconds: float) -> tuple[Caller, str] | None:
    """The person whose link this is, and a cookie for their browser; None if it is no link of this project."""
    person = session.scalar(select(Person).where(Person.token == digest(token), Person.project_id == project))
    if person is None:
        return None
    session.execute(delete(SignIn).where(SignIn.until < now))
    cookie = secrets.token_urlsafe(32)
    session.add(SignIn(secret=digest(cookie), person_id=person.id, until=now + seconds))
    return caller_of(person), cookie


def signed_in(session: Session, project: int, cookie: str, now: float) -> Caller | None:
    """The person whose browser has this cookie; None if nobody of this project has."""
    found = session.get(SignIn, digest(cookie))
    if found is None or found.until < now or found.person.project_id != project:
        return None
    return caller_of(found.person)


def sign_out(session: Session, cookie: str) -> None:
    """Forget a browser."""
    session.execute(delete(SignIn).where(SignIn.secret == digest(cookie)))
