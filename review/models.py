"""What the database holds. Times are seconds since 1970; answers are never deleted, only withdrawn."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, Float, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

Json = dict[str, Any]


class Base(DeclarativeBase):
    type_annotation_map: ClassVar[dict[Any, Any]] = {Json: JSON, float: Float(53), str: Text}


class Project(Base):
    """`about` says where its items came from."""

    __tablename__ = "project"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    kind: Mapped[str] = mapped_column(String(16))
    about: Mapped[Json]
    created: Mapped[float]


class Person(Base):
    """`token`: the SHA-256 of the personal link's token."""

    __tablename__ = "person"
    __table_args__ = (UniqueConstraint("project_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("project.id"))
    name: Mapped[str] = mapped_column(String(100))
    roles: Mapped[str] = mapped_column(String(100))
    token: Mapped[str] = mapped_column(String(64), unique=True)


class SignIn(Base):
    """A browser that is signed in. `secret`: the SHA-256 of the cookie."""

    __tablename__ = "sign_in"

    secret: Mapped[str] = mapped_column(String(64), primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), index=True)
    until: Mapped[float]

    person: Mapped[Person] = relationship(lazy="joined")


class Item(Base):
    """A dialogue and what is judged about it. `content` never changes.

    `step`, `round` and `answered` (answers of this step and round) follow from the answers and are kept for queries.
    """

    __tablename__ = "item"
    __table_args__ = (
        UniqueConstraint("project_id", "key"),
        Index("item_queue", "project_id", "step", "answered", "position"),
        # Counting reads this alone, and not the dialogues.
        Index("item_progress", "project_id", "step", "language", "result"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("project.id"))
    key: Mapped[str] = mapped_column(String(200))
    position: Mapped[int]
    language: Mapped[str] = mapped_column(String(16))
    content: Mapped[Json]
    step: Mapped[str] = mapped_column(String(16))
    round: Mapped[int]
    answered: Mapped[int]
    result: Mapped[str | None] = mapped_column(String(16))

    answers: Mapped[list[Answer]] = relationship(
        order_by="Answer.id", primaryjoin="and_(Item.id == Answer.item_id, Answer.withdrawn.is_(None))", viewonly=True
    )


class Answer(Base):
    """`verdict`: the answer in a word, for counting. `withdrawn`: when it was taken back."""

    __tablename__ = "answer"
    __table_args__ = (
        # The last word on double answers: an answer that counts is the only one of its person, step and round.
        Index(
            "answer_once",
            "item_id",
            "step",
            "round",
            "person_id",
            unique=True,
            sqlite_where=text("withdrawn IS NULL"),
            postgresql_where=text("withdrawn IS NULL"),
        ),
        Index("answer_last", "person_id", "id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    item_id: Mapped[int] = mapped_column(ForeignKey("item.id"))
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"))
    step: Mapped[str] = mapped_column(String(16))
    round: Mapped[int]
    verdict: Mapped[str] = mapped_column(String(16))
    form: Mapped[Json]
    sealed: Mapped[bool]
    at: Mapped[float]
    withdrawn: Mapped[float | None]


class Claim(Base):
    """That a person has an item in hand. `state`: `held` for a while, `bound` until it is answered, or `skipped`."""

    __tablename__ = "claim"
    __table_args__ = (UniqueConstraint("person_id", "item_id"), Index("claim_item", "item_id"))

    id: Mapped[int] = mapped_column(primary_key=True)
    item_id: Mapped[int] = mapped_column(ForeignKey("item.id"))
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"))
    state: Mapped[str] = mapped_column(String(8))
    at: Mapped[float]


class Draft(Base):
    """What a person has begun to say about an item; only they ever see it."""

    __tablename__ = "draft"
    __table_args__ = (UniqueConstraint("person_id", "item_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    item_id: Mapped[int] = mapped_column(ForeignKey("item.id"))
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"))
    form: Mapped[Json]
    at: Mapped[float]


class Event(Base):
    """The audit log: what was changed, by whom and when. Triggers refuse to change or delete a row.

    `person_id` is None for what was done on the command line.
    """

    __tablename__ = "event"
    __table_args__ = (Index("event_project", "project_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("project.id"))
    person_id: Mapped[int | None] = mapped_column(ForeignKey("person.id"))
    item_id: Mapped[int | None] = mapped_column(ForeignKey("item.id"))
    what: Mapped[str] = mapped_column(String(32))
    detail: Mapped[Json]
    at: Mapped[float]
