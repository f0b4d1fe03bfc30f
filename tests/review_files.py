"""Files that go into a review project and come out of it, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from review import export, projects
from review.config import ReviewConfig
from review.database import Database
from synuc.types import Label
from tests.reviewing import ROLES, Team

BENCH = Path(__file__).parent / "data" / "uc_bench.jsonl"


def write_candidates(path: Path, number: int = 6) -> Path:
    """Candidates as `synuc bench mine` writes them, made of the items written by hand."""
    rows = []
    for line in BENCH.read_text("utf-8").splitlines()[:number]:
        record = json.loads(line)
        kept = {name: record[name] for name in ("id", "language", "history", "follow_up") if name in record}
        rows.append({**kept, "task": "planning", "suitability": 5, "suitability_reason": "clear", "source": "chats"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def people_file(path: Path, roles: dict[str, tuple[str, ...]] = ROLES) -> Path:
    people = [{"name": name, "roles": list(does)} for name, does in roles.items()]
    path.write_text(yaml.safe_dump({"people": people}), "utf-8")
    return path


def exported(
    config: ReviewConfig, path: Path, shape: str = "own", shares: Mapping[Label, int] | None = None
) -> export.Exported:
    database = Database(config.db)
    with database.reading() as session:
        done = export.export(session, projects.find(session, config).id, config, shape, path, shares)
    database.close()
    return done


def label_all(team: Team, number: int) -> None:
    """Ana and Bo agree on ER, ND and IC in turn."""
    for _ in range(number):
        id = team["Ana"].next()["item"]["id"]
        label = ("IC", "ER", "ND")[id % 3]
        team["Ana"].label(label)
        assert team["Bo"].label(label)["item"]["id"] == id
