"""Requests that nobody should send, and two projects on one machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from review.forms import Kind
from tests.reviewing import Team, a_project, entries, running

HUGE = 2**64
JSON = {"Content-Type": "application/json"}


@pytest.fixture(params=list(Kind))
def team(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Team]:
    kind = request.param
    with running(*a_project(f"sqlite:///{tmp_path / 'review.db'}", entries(2, kind), kind)) as team:
        yield team


def refused(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_no_link_is_half_a_character(team: Team) -> None:
    sent = httpx.post(f"{team.url}/api/session", content=rb'{"token": "\ud800"}', headers=JSON)
    assert refused(sent) == (401, "sign_in")


@pytest.mark.parametrize("number", [HUGE, 2**63, 0, -1])
def test_numbers_beyond_the_database_are_refused(team: Team, number: int) -> None:
    ana, lea = team["Ana"].client, team["Lea"].client
    sent = {"step": "label", "round": 1, "form": {}}
    for reply in (
        ana.get(f"/api/items/{number}"),
        ana.put(f"/api/items/{number}/draft", json=sent),
        ana.post(f"/api/items/{number}/check", json=sent),
        ana.post(f"/api/items/{number}/answer", json=sent),
        ana.put("/api/items/1/draft", json={**sent, "round": number}),
        ana.post(f"/api/items/{number}/skip", json={"reason": "x"}),
        lea.post(f"/api/items/{number}/exclude", json={"reason": "x"}),
        lea.post(f"/api/items/{number}/reopen", json={"step": "label", "reason": "x"}),
        lea.get("/api/audit", params={"before": number}),
        lea.get("/api/items", params={"page": number or -1}),
    ):
        assert refused(reply) == (422, "form")


@pytest.mark.parametrize("body", [b'{"token": \xff}', b'{"token": "\xff"}', b"[" * 100_000])
def test_a_body_that_cant_be_read_is_said_to_be_no_json(team: Team, body: bytes) -> None:
    sent = httpx.post(f"{team.url}/api/session", content=body, headers=JSON)
    assert refused(sent) == (400, "form")
    assert "no JSON" in sent.json()["error"]["message"]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["label", "verdict", "why", "note", "target", "step", "\ud800"])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(form=st.dictionaries(names, anything | st.sampled_from([[], {}, "a", "win", "\ud800", ["\ud800"]]), max_size=3))
def test_whatever_a_draft_holds_the_next_task_comes(team: Team, form: dict[str, Any]) -> None:
    task = team["Ana"].next()
    sent = json.dumps({"step": task["step"], "round": task["round"], "form": form}).encode()
    for method, what in (("PUT", "draft"), ("POST", "check"), ("POST", "answer")):
        url = f"/api/items/{task['item']['id']}/{what}"
        reply = team["Ana"].client.request(method, url, content=sent, headers=JSON)
        assert reply.status_code in (200, 204, 422)
        if reply.status_code == 204 and what == "answer":
            team["Ana"].client.post("/api/undo", json={}).raise_for_status()
        team["Ana"].next()


def test_a_message_names_the_field_and_no_type_of_ours(team: Team) -> None:
    sent = {"step": "label", "round": 1, "form": {"note": 3}}
    message = team["Ana"].client.put("/api/items/1/draft", json=sent).json()["error"]["message"]
    assert message == "body.form.note: Input should be a valid string"


def test_two_projects_on_one_machine_have_two_cookies(tmp_path: Path) -> None:
    """Each in a database of its own, as is usual, and of the same name: browsers don't tell ports apart."""
    made = [a_project(f"sqlite:///{tmp_path / str(n)}.db", entries(1)) for n in range(2)]
    with running(*made[0]) as one, running(*made[1]) as other, httpx.Client() as browser:
        for team in (one, other):
            browser.post(f"{team.url}/api/session", json={"token": team.tokens["Ana"]}).raise_for_status()
        assert len(browser.cookies) == 2
        for team in (one, other):
            assert browser.get(f"{team.url}/api/me").status_code == 200
