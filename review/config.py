"""The settings of a review project, kept as `review.yaml` in its folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import yaml
from pydantic import Field, field_validator, model_validator
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from review.forms import Kind
from synuc.folder import write_whole
from synuc.layers import Section, compose
from synuc.problem import Problem

FILE = "review.yaml"


class ReviewError(Problem):
    """A project that can't be made or used as asked; the message says what to do."""


class ReviewConfig(Section):
    """A review project. Its items and answers are in the database."""

    name: str
    kind: Kind
    db: str = Field(description="SQLAlchemy's URL of the database, without a password")
    url: str = Field("http://127.0.0.1:8010", description="where people reach the app; their links begin with it")
    claim_hours: float = Field(24.0, gt=0, description="how long an item waits for whoever began it and went away")
    session_days: float = Field(14.0, gt=0, description="how long a browser stays signed in")
    run: Path | None = Field(None, description="of a spot check, the synthesis run whose samples are checked, if known")

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not re.fullmatch(r"[\w.-]{1,100}", name):
            raise ValueError("a project's --name has letters, digits, '_', '.' and '-', at most 100")
        return name

    @field_validator("db")
    @classmethod
    def _database(cls, db: str) -> str:
        """A URL that can be used, SQLite's with an absolute path: later commands may be given in another folder."""
        try:
            url = make_url(db)
        except ArgumentError:
            raise ValueError("that is no URL of a database, like sqlite:///review.db") from None
        if url.get_backend_name() not in ("sqlite", "postgresql"):
            raise ValueError("SQLite and PostgreSQL are supported")
        if url.get_backend_name() == "postgresql":
            return db
        if url.database in (None, "", ":memory:"):
            raise ValueError("that is in memory, and gone when the command ends; name a file, like sqlite:///review.db")
        return sqlite_url(Path(str(url.database)))

    @model_validator(mode="after")
    def _usable(self) -> Self:
        url = make_url(self.db)
        if url.password or "password" in url.query:
            raise ValueError("db: leave the password out of the URL; it is read from PGPASSWORD or ~/.pgpass")
        if not _is_address(self.url):
            raise ValueError(f"url={self.url} is no address, like http://127.0.0.1:8010 or https://review.example.com")
        return self


def load_project(folder: Path, db: str | None = None) -> ReviewConfig:
    """The settings of the project in a folder, with the database `db` in place of its own.

    Raises:
        ReviewError: there is none, or its SQLite file isn't there.
        ConfigError: `db` can't be used, or its file was edited into something that can't.
    """
    if not (folder / FILE).is_file():
        raise ReviewError(
            f"{folder} holds no review project; make one with: "
            f"synuc review create --project {folder} --from CANDIDATES --people PEOPLE"
        )
    config = compose(ReviewConfig, [folder / FILE], over={"--db": {"db": db}} if db else None)
    file = sqlite_file(config.db)
    if file is not None and not file.is_file():
        what = "name another --db" if db else f"bring it back, or change db in {folder / FILE}"
        raise ReviewError(f"the project's database isn't there: {file}; {what}")
    return config


def save_project(folder: Path, config: ReviewConfig) -> None:
    """Write `review.yaml`."""
    write_whole(folder / FILE, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    rest = parts.query or parts.fragment or port == 0 or any(character.isspace() for character in url)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not rest


def sqlite_url(file: Path) -> str:
    """The URL of a SQLite file, wherever a command is given."""
    return URL.create("sqlite", database=str(file.resolve())).render_as_string()


def sqlite_file(db: str) -> Path | None:
    """The file of a database, if it is one."""
    url = make_url(db)
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None
