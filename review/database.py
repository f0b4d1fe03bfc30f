"""The database of review projects: SQLite by default, PostgreSQL by URL. Migrations run when it is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from review.config import ReviewError

MIGRATIONS = Path(__file__).parent / "migrations"
CONNECTIONS = 40
"""As many as requests that the server works on at once."""
WAIT_S = 15
MIGRATING = 770_261_119
"""The key of PostgreSQL's lock that only one migrating process holds."""


class Database:
    """Sessions for reading and for writing. What a writing session has done is on disk when its block ends."""

    def __init__(self, url: str) -> None:
        """Open, make or update the database.

        Raises:
            ReviewError: it can't be reached, or a newer version made it.
        """
        self.engine = _engine(url)
        try:
            with self.engine.execution_options(write=True).begin() as connection:
                _migrate(connection)
        except CommandError:
            raise ReviewError(f"{_shown(url)} was made by a newer version of SynUC; use that one") from None
        except DBAPIError as error:
            why = str(error.orig).strip().splitlines()[0]
            raise ReviewError(f"can't open the database {_shown(url)}: {why}") from None
        # SQLite has one writer at a time and lets others ask again and again; taking turns here is faster and fairer.
        sqlite = self.engine.dialect.name == "sqlite"
        self._turn: AbstractContextManager[object] = Lock() if sqlite else nullcontext()
        # SQLite's transactions see one state by themselves; PostgreSQL has to be asked.
        reading = self.engine if sqlite else self.engine.execution_options(isolation_level="REPEATABLE READ")
        self._read = sessionmaker(reading, expire_on_commit=False)
        self._write = sessionmaker(self.engine.execution_options(write=True), expire_on_commit=False)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that sees one state of the database throughout."""
        with self._read() as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session whose changes all come to be when the block ends, or none if it raises."""
        with self._turn, self._write.begin() as session:
            yield session

    def close(self) -> None:
        self.engine.dispose()


def _engine(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
        return create_engine(
            parsed, pool_size=CONNECTIONS, max_overflow=0, pool_pre_ping=True, connect_args={"connect_timeout": WAIT_S}
        )
    engine = create_engine(parsed, pool_size=CONNECTIONS, max_overflow=0, connect_args={"timeout": WAIT_S})

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin below, not where the driver thinks they should
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={WAIT_S * 1000}"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads first and writes then would fail if another has written in between.
        write = connection.get_execution_options().get("write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _migrate(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATING})
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _shown(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)
