"""Labels that go to Label Studio and come back from there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from review import projects
from review.config import ReviewConfig, ReviewError
from review.database import Database
from review.labelstudio import import_label_studio
from tests.review_files import exported, label_all
from tests.reviewing import a_project, entries, running


@pytest.fixture
def both(tmp_path: Path) -> Sequence[tuple[ReviewConfig, dict[str, str]]]:
    """The same items in two projects."""
    return [a_project(f"sqlite:///{tmp_path / name}.db", entries(4), name=name) for name in ("here", "there")]


def bring_in(config: ReviewConfig, path: Path, raters: dict[str, str]) -> dict[str, int]:
    database = Database(config.db)
    with database.writing() as session:
        project = projects.find(session, config).id
        counts = import_label_studio(session, project, config.kind, path, raters).counts
    database.close()
    return dict(counts)


def test_labels_go_to_label_studio_and_come_back(
    both: Sequence[tuple[ReviewConfig, dict[str, str]]], tmp_path: Path
) -> None:
    (here, tokens), (there, others) = both
    with running(here, tokens) as team:
        label_all(team, 4)
        for name in ("Ana", "Bo"):
            team[name].give("target", {"target": "ND"})
    path = exported(here, tmp_path / "tasks.json", "label-studio").path
    assert "<Choices" in path.with_suffix(".xml").read_text("utf-8")
    tasks = json.loads(path.read_text("utf-8"))
    assert all("synthetic" not in task["data"] for task in tasks)
    raters = {str(one["completed_by"]) for task in tasks for one in task["annotations"]}
    names = dict(zip(sorted(raters), ("Ana", "Bo"), strict=True))
    assert bring_in(there, path, names) == {"taken": 8}
    assert bring_in(there, path, names) == {"already here": 8}
    with running(there, others) as team:
        progress = team["Lea"].client.get("/api/progress").json()["progress"]
    assert progress["people"] == {"Ana": 4, "Bo": 4}


def test_what_label_studio_cant_say_is_counted(
    both: Sequence[tuple[ReviewConfig, dict[str, str]]], tmp_path: Path
) -> None:
    there = both[1][0]
    path = exported(there, tmp_path / "tasks.json", "label-studio").path
    tasks = json.loads(path.read_text("utf-8"))

    def said(label: str, **more: Any) -> dict[str, Any]:
        result = {"from_name": "label", "to_name": "follow_up", "type": "choices", "value": {"choices": [label]}}
        return {"completed_by": {"id": 7, "email": "ana@example.org"}, "result": [result], **more}

    tasks[0]["annotations"] = [said("ND")]
    tasks[1]["annotations"] = [said("IC")]  # without the rationale that a conflict needs
    tasks[2]["annotations"] = [said("XX"), said("ND", was_cancelled=True)]
    tasks[3]["annotations"] = [said("ND")]
    tasks[3]["data"]["history"] = "of another dialogue"
    tasks.append({"data": {"item": "unknown"}, "annotations": [said("ND")]})
    path.write_text(json.dumps(tasks), "utf-8")
    with pytest.raises(ReviewError, match=r"--rater ana@example\.org=NAME"):
        bring_in(there, path, {})
    counts = bring_in(there, path, {"ana@example.org": "Ana"})
    assert sum(counts.values()) == 6
    assert counts["taken"] == counts["skipped there"] == counts["the dialogue was changed"] == 1
    assert counts["no readable label"] == counts["no such item"] == 1


def test_an_import_says_what_differs_from_what_is_here(
    both: Sequence[tuple[ReviewConfig, dict[str, str]]], tmp_path: Path
) -> None:
    config, tokens = both[0]
    with running(config, tokens) as team:
        for _ in range(3):
            team["Ana"].label("IC")
    path = exported(config, tmp_path / "tasks.json", "label-studio").path
    tasks = json.loads(path.read_text("utf-8"))
    for task, (label, why) in zip(tasks, [("IC", "because it is IC"), ("ER", ""), ("IC", "the kids")], strict=False):
        values = {"label": {"choices": [label]}, **({"rationale": {"text": [why]}} if why else {})}
        result = [{"from_name": name, "value": value} for name, value in values.items()]
        task["annotations"] = [{"completed_by": "Ana", "result": result}]
    path.write_text(json.dumps(tasks), "utf-8")
    counts = {"already here": 1, "another label is here": 1, "another rationale is here": 1}
    assert bring_in(config, path, {}) == counts
    with running(config, tokens) as team:
        said = [team["Lea"].client.get(f"/api/items/{id}").json()["said"] for id in (1, 2, 3)]
    assert [one["form"]["label"] for (one,) in said] == ["IC"] * 3


def test_an_import_fills_places_that_the_app_has_given_out(
    both: Sequence[tuple[ReviewConfig, dict[str, str]]], tmp_path: Path
) -> None:
    config, tokens = both[0]
    path = exported(config, tmp_path / "tasks.json", "label-studio").path
    tasks = json.loads(path.read_text("utf-8"))
    result = [{"from_name": "label", "value": {"choices": ["ND"]}}]
    tasks[0]["annotations"] = [{"completed_by": "Cai", "result": result}]
    path.write_text(json.dumps(tasks), "utf-8")
    with running(config, tokens) as team:
        given = [team[name].next() for name in ("Ana", "Bo")]
        assert bring_in(config, path, {}) == {"taken": 1}
        assert team["Ana"].answer(given[0], {"label": "ND"}).status_code == 204
        assert team["Bo"].answer(given[1], {"label": "ND"}).status_code == 409
        assert team["Bo"].next()["item"]["id"] != given[1]["item"]["id"]


@pytest.mark.parametrize("annotation", ["ND", None, ["ND"], 3])
def test_an_annotation_is_an_object(
    both: Sequence[tuple[ReviewConfig, dict[str, str]]], tmp_path: Path, annotation: object
) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"data": {}, "annotations": [annotation]}]), "utf-8")
    with pytest.raises(ReviewError, match="annotations, which are objects"):
        bring_in(both[0][0], path, {})
