"""The settings of a review project, kept as `review.yaml` in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

import yaml
from pydantic import Field, StringConstraints, model_validator
from sqlalchemy.engine import make_url
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

    name: Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,100}$")]
    kind: Kind
    db: str = Field(description="SQLAlchemy's URL of the database, without a password")
    url: str = Field("http://127.0.0.1:8010", description="where people reach the app; their links begin with it")
    claim_hours: float = Field(24.0, gt=0, description="how long an item waits for whoever began it and went away")
    session_days: float = Field(14.0, gt=0, description="how long a browser stays signed in")
    run: Path | None = Field(None, description="of a spot check, the synthesis run whose samples are checked, if known")

    @model_validator(mode="after")
    def _usable(self) -> Self:
        try:
            url = make_url(self.db)
        except ArgumentError:
            raise ValueError(f"db={self.db} is no URL of a database, like sqlite:///review.db") from None
        if url.get_backend_name() not in ("sqlite", "postgresql"):
            raise ValueError(f"db={self.db}: SQLite and PostgreSQL are supported")
        if url.password:
            raise ValueError("db: leave the password out of the URL; it is read from PGPASSWORD or ~/.pgpass")
        if not _is_address(self.url):
            raise ValueError(f"url={self.url} is no address, like http://127.0.0.1:8010 or https://review.example.com")
        return self


def load_project(folder: Path) -> ReviewConfig:
    """The settings of the project in a folder.

    Raises:
        ReviewError: there is none.
        ConfigError: its file was edited into something that can't be used.
    """
    if not (folder / FILE).is_file():
        raise ReviewError(f"{folder} holds no review project; make one with: synuc review create --project {folder}")
    return compose(ReviewConfig, [folder / FILE])


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


def default_db(folder: Path) -> str:
    """The URL of the SQLite file in a project's folder."""
    return f"sqlite:///{(folder / 'review.db').resolve()}"
