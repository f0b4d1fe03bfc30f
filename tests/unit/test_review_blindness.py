"""What a refusal may not tell: nobody learns from one what others said, and then takes their own answer back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from review.forms import Kind, Step
from tests.reviewing import RECORD, Team, a_project, entries, running

FORMS: dict[str, dict[str, Any]] = {
    "label": {"label": "IC", "why": {"text": "kids"}, "note": "another"},
    "compare": {"verdict": "a", "note": "another"},
    "adjudicate": {"label": "IC", "why": {"text": "kids"}},
    "target": {"target": "ER", "note": "another"},
    "rewrite": {**RECORD, "goal": "", "history": "x"},
    "review": {"first": {"approve": True}, "second": {"approve": True}},
    "vote": {"better": "first"},
}


def attempts(team: Team, name: str, id: int) -> list[tuple[str, int, str]]:
    """What a person hears who tries everything with an item, but looking at it."""
    client = team[name].client
    heard: list[tuple[str, int, str]] = []

    def hear(what: str, response: httpx.Response) -> None:
        heard.append((what, response.status_code, response.text))

    hear("skip", client.post(f"/api/items/{id}/skip", json={"reason": "x"}))
    for step, form in FORMS.items():
        for round in (1, 2):
            sent = {"step": step, "round": round, "form": form}
            hear(f"answer {step}", client.post(f"/api/items/{id}/answer", json=sent))
            hear(f"check {step}", client.post(f"/api/items/{id}/check", json=sent))
            hear(f"draft {step}", client.put(f"/api/items/{id}/draft", json=sent))
    return heard


def labels(ana: str) -> Callable[[Team], int]:
    """Ana says `ana`, and Bo ND."""

    def world(team: Team) -> int:
        id = int(team["Ana"].label(ana)["item"]["id"])
        team["Bo"].label("ND")
        return id

    return world


def targets(ana: str) -> Callable[[Team], int]:
    """Both have said ND; Ana proposes `ana`, and Bo IC."""

    def world(team: Team) -> int:
        for name in ("Ana", "Bo"):
            team[name].label("ND")
        id = int(team["Ana"].give("target", {"target": ana})["item"]["id"])
        team["Bo"].give("target", {"target": "IC"})
        return id

    return world


def comparisons(ana: str) -> Callable[[Team], int]:
    """Ana says `ana`, and Bo that both are alike."""

    def world(team: Team) -> int:
        id = int(team["Ana"].give("compare", {"verdict": ana})["item"]["id"])
        team["Bo"].give("compare", {"verdict": "tie"})
        return id

    return world


@pytest.mark.parametrize(
    ("kind", "worlds", "taken_back"),
    [
        (Kind.BENCHMARK, [labels(one) for one in ("ND", "ER", "IC")], "label"),
        (Kind.SPOT_CHECK, [labels(one) for one in ("ND", "ER", "IC")], "label"),
        (Kind.PAIRWISE, [comparisons(one) for one in ("a", "tie", "b")], "compare"),
        (Kind.BENCHMARK, [targets(one) for one in ("ND", "ER", "IC")], "target"),
    ],
)
def test_no_refusal_tells_what_the_other_said(
    tmp_path: Path, kind: Kind, worlds: list[Callable[[Team], int]], taken_back: Step
) -> None:
    heard = []
    for n, world in enumerate(worlds):
        with running(*a_project(f"sqlite:///{tmp_path / str(n)}.db", entries(1, kind), kind)) as team:
            heard.append(attempts(team, "Bo", world(team)))
            undone = team["Bo"].client.post("/api/undo", json={}).raise_for_status().json()
            assert undone["step"] == taken_back  # as if nothing had been tried
    assert heard[0] == heard[1] == heard[2]
    refusals = {(status, text) for _, status, text in heard[0] if status != 422}
    assert len(refusals) == 1
    assert all(status == 422 or "not_in_hand" in text for status, text in refusals)


def test_whoever_goes_on_without_looking_has_seen_it(tmp_path: Path) -> None:
    """Two answers in a row can't be taken back to change the first: between them stands a look at the item."""
    with running(*a_project(f"sqlite:///{tmp_path / 'review.db'}", entries(1))) as team:
        id = targets("IC")(team)
        form = {**RECORD, "history": team["Lea"].client.get(f"/api/items/{id}").json()["item"]["history"]}
        sent = {"step": "rewrite", "round": 1, "form": form}
        assert team["Bo"].client.post(f"/api/items/{id}/answer", json=sent).status_code == 409
        team["Bo"].next()
        assert team["Bo"].client.post(f"/api/items/{id}/answer", json=sent).status_code == 204
        team["Bo"].client.post("/api/undo", json={}).raise_for_status()
        assert team["Bo"].client.post("/api/undo", json={}).json()["error"]["code"] == "seen"
