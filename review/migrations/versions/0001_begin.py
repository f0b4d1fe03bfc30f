"""The first tables, and triggers that keep the audit log as it is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NAME = sa.String(100)
WORD = sa.String(16)
HASH = sa.String(64)
TIME = sa.Float(53)


def upgrade() -> None:
    """Make all tables."""
    _people()
    _items()
    op.create_table(
        "event",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("project_id", sa.Integer, sa.ForeignKey("project.id"), nullable=False),
        sa.Column("person_id", sa.Integer, sa.ForeignKey("person.id")),
        sa.Column("item_id", sa.Integer, sa.ForeignKey("item.id")),
        sa.Column("what", sa.String(32), nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Column("at", TIME, nullable=False),
    )
    op.create_index("event_project", "event", ["project_id", "id"])
    _append_only()


def _people() -> None:
    op.create_table(
        "project",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", NAME, nullable=False, unique=True),
        sa.Column("kind", WORD, nullable=False),
        sa.Column("about", sa.JSON, nullable=False),
        sa.Column("created", TIME, nullable=False),
    )
    op.create_table(
        "person",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("project_id", sa.Integer, sa.ForeignKey("project.id"), nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("roles", NAME, nullable=False),
        sa.Column("token", HASH, nullable=False, unique=True),
        sa.UniqueConstraint("project_id", "name"),
    )
    op.create_table(
        "sign_in",
        sa.Column("secret", HASH, primary_key=True),
        sa.Column("person_id", sa.Integer, sa.ForeignKey("person.id"), nullable=False, index=True),
        sa.Column("until", TIME, nullable=False),
    )


def _items() -> None:
    op.create_table(
        "item",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("project_id", sa.Integer, sa.ForeignKey("project.id"), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("language", WORD, nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
        sa.Column("step", WORD, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("answered", sa.Integer, nullable=False),
        sa.Column("result", WORD),
        sa.UniqueConstraint("project_id", "key"),
    )
    op.create_index("item_queue", "item", ["project_id", "step", "answered", "position"])
    op.create_index("item_progress", "item", ["project_id", "step", "language", "result"])

    def belongs() -> list[sa.Column[int]]:
        return [
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("item_id", sa.Integer, sa.ForeignKey("item.id"), nullable=False),
            sa.Column("person_id", sa.Integer, sa.ForeignKey("person.id"), nullable=False),
        ]

    op.create_table(
        "answer",
        *belongs(),
        sa.Column("step", WORD, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("verdict", WORD, nullable=False),
        sa.Column("form", sa.JSON, nullable=False),
        sa.Column("sealed", sa.Boolean, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("withdrawn", TIME),
    )
    counts = sa.text("withdrawn IS NULL")
    once = ["item_id", "step", "round", "person_id"]
    op.create_index("answer_once", "answer", once, unique=True, sqlite_where=counts, postgresql_where=counts)
    op.create_index("answer_last", "answer", ["person_id", "id"])
    op.create_table(
        "claim",
        *belongs(),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.UniqueConstraint("person_id", "item_id"),
    )
    op.create_index("claim_item", "claim", ["item_id"])
    op.create_table(
        "draft",
        *belongs(),
        sa.Column("form", sa.JSON, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.UniqueConstraint("person_id", "item_id"),
    )


def _append_only() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION event_stays() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the audit log only grows'; END $$"
        )
        op.execute(
            "CREATE TRIGGER event_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON event "
            "FOR EACH STATEMENT EXECUTE FUNCTION event_stays()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER event_no_{change.lower()} BEFORE {change} ON event "
            "BEGIN SELECT RAISE(ABORT, 'the audit log only grows'); END"
        )
