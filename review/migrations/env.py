"""Alembic runs this for every migration; the connection is the one that `review.database` has opened."""

from __future__ import annotations

from alembic import context

from review.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
