"""The review app's interface on a real server: work, blindness, sign-in, leads, crashes, two at once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from review.database import Database
from review.forms import Kind
from tests.reviewing import HOSTILE, RECORD, ROLES, Team, a_project, entries, rewrite_all, running, serving_process

Start = Callable[..., Team]


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'review.db'}"


@pytest.fixture
def start(db: str) -> Iterator[Start]:
    """Starts a project with that many items."""
    with ExitStack() as stack:

        def start(number: int = 1, kind: Kind = Kind.BENCHMARK, **more: Any) -> Team:
            return stack.enter_context(running(*a_project(more.pop("db", db), entries(number, kind), kind, **more)))

        yield start


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_a_benchmark_item_from_label_to_vote(start: Start) -> None:
    team = start()
    rewrite_all(team, lambda n: (True, n > 0))
    votes = ("second", "first", "second")
    for name, better in zip(("Cai", "Dee", "Eli"), votes, strict=True):
        task = team[name].give("vote", {"better": better})
        assert [said["number"] for said in task["said"] if said["step"] == "rewrite"] == [1, 2]
    seen = team["Lea"].client.get(f"/api/items/{task['item']['id']}").json()
    assert (seen["step"], seen["result"]) == ("done", "IC")
    assert [said["who"] for said in seen["said"]] == ["Ana", "Bo"] * 3 + ["Cai", "Dee", "Eli"] * 2
    assert all(team[name].idle() for name in ROLES if name != "Lea")


def test_nobody_sees_anothers_answer_before_they_have_finished(start: Start) -> None:
    team = start(kind=Kind.SPOT_CHECK)
    first = team["Ana"].label("IC")
    id = first["item"]["id"]
    second = team["Bo"].next()
    assert second["item"]["id"] == id
    assert second["said"] == []
    for reply in (second, team["Bo"].client.get(f"/api/items/{id}").json()):
        assert "because it is IC" not in json.dumps(reply)
        assert (reply["result"], reply["synthetic"]) == (None, None)
    # Nor by the figures, nor by the items and the log, which are for leads.
    progress = team["Bo"].client.get("/api/progress").json()
    assert progress["agreement"] is None
    assert progress["progress"]["people"] == {"Bo": 0}
    assert progress["progress"]["steps"]["all"] == {"waiting": 1, "judged": 0}
    assert progress["team"]["needed"] == {"annotator": 2}
    assert progress["team"]["there"] == {"annotator": 3, "adjudicator": 2, "evaluator": 4, "lead": 1}
    assert error(team["Bo"].client.get("/api/items")) == (403, "role")
    assert error(team["Bo"].client.get("/api/audit")) == (403, "role")
    # Who has no part in the item doesn't see it at all.
    assert error(team["Cai"].client.get(f"/api/items/{id}")) == (404, "unknown")
    team["Bo"].label("ND")
    assert {said["form"]["label"] for said in team["Bo"].client.get(f"/api/items/{id}").json()["said"]} == {"IC", "ND"}


def test_what_was_seen_seals_what_was_said(start: Start) -> None:
    team = start(2, Kind.SPOT_CHECK)
    id = team["Ana"].label("IC")["item"]["id"]
    team["Bo"].label("IC")
    undone = team["Bo"].client.post("/api/undo", json={})
    assert undone.json()["draft"]["label"] == "IC"  # what was taken back is a draft
    team["Bo"].label("ER")
    team["Bo"].client.get(f"/api/items/{id}").raise_for_status()
    assert error(team["Bo"].client.post("/api/undo", json={})) == (409, "seen")
    (seal,) = [event for event in team["Lea"].client.get("/api/audit").json() if event["what"] == "seal"]
    assert (seal["who"], seal["item"], seal["detail"]) == ("Bo", id, {"steps": ["label"]})
    assert error(team["Ana"].client.post("/api/undo", json={})) == (409, "too_late")


def test_a_dispute_goes_to_a_third_who_sees_both_reasons(start: Start) -> None:
    team = start()
    team["Ana"].label("IC")
    team["Bo"].label("ER")
    assert team["Ana"].idle()
    task = team["Dee"].label("IC", step="adjudicate")
    assert [said["form"]["why"]["text"] for said in task["said"]] == ["because it is IC", "because it is ER"]
    assert {said["who"] for said in task["said"]} == {None}


def test_the_order_of_compared_reasonings_is_hidden_and_undone(start: Start, db: str) -> None:
    team = start(24, Kind.PAIRWISE)
    shown = set()
    for _ in range(24):
        task = team["Ana"].next()
        first = task["item"]["a"].startswith("first")
        shown.add(first)
        team["Ana"].answer(task, {"verdict": "a" if first else "b"}).raise_for_status()  # always for the first model
    assert shown == {True, False}
    with Database(db).reading() as session:
        assert set(session.scalars(text("SELECT verdict FROM answer"))) == {"win"}


def test_a_faulty_rewrite_is_refused_with_its_findings(start: Start) -> None:
    team = start()
    for name in ("Ana", "Bo"):
        team[name].label("ND")
    for name in ("Ana", "Bo"):
        team[name].give("target", {"target": "IC"})
    task = team["Ana"].next()
    assert task["target"] == "IC"
    form = {**RECORD, "history": task["item"]["history"], "follow_up": "Instead, a jazz show, please."}
    refused = team["Ana"].answer(task, form)
    assert error(refused) == (422, "findings")
    assert refused.json()["error"]["findings"] == [{"code": "revision_signal", "must": False, "words": ["instead"]}]
    sent = {"step": "rewrite", "round": 1, "form": form}
    found = team["Ana"].client.post(f"/api/items/{task['item']['id']}/check", json=sent).json()
    assert found == refused.json()["error"]["findings"]
    team["Ana"].answer(task, {**form, "confirmed": ["revision_signal"]}).raise_for_status()
    changed = {**RECORD, "history": "of another dialogue"}
    assert team["Bo"].answer(team["Bo"].next(), changed).json()["error"]["findings"][0]["code"] == "history_changed"


def test_a_draft_outlives_the_browser(start: Start) -> None:
    team = start()
    task = team["Ana"].next()
    sent = {"step": "label", "round": 1, "form": {"label": "IC", "why": {"text": "half a sen"}, "note": "\x00é"}}
    team["Ana"].client.put(f"/api/items/{task['item']['id']}/draft", json=sent).raise_for_status()
    del team.clients["Ana"]
    again = team["Ana"].next()
    assert again["item"]["id"] == task["item"]["id"]
    assert again["draft"] == {"label": "IC", "why": {"text": "half a sen"}, "note": "é"}  # cleaned as answers are
    assert team["Bo"].next()["draft"] is None


def test_the_same_answer_twice_counts_once(start: Start) -> None:
    team = start()
    task = team["Ana"].next()
    for _ in range(2):  # as if the first reply was lost
        assert team["Ana"].answer(task, {"label": "ND"}).status_code == 204
    assert error(team["Ana"].answer(task, {"label": "ER"})) == (409, "not_in_hand")
    assert team["Lea"].client.get("/api/progress").json()["progress"]["people"] == {"Ana": 1}


def test_two_at_once_on_one_item(start: Start) -> None:
    team = start()
    tasks = {name: team[name].next() for name in ("Ana", "Bo")}
    assert team["Cai"].idle()  # both places are taken
    with ThreadPoolExecutor(16) as pool:
        sent = [
            pool.submit(team[name].answer, tasks[name], {"label": label})
            for _ in range(4)
            for name in tasks
            for label in ("ND", "ER")
        ]
        codes = [one.result().status_code for one in sent]
    assert set(codes) <= {204, 409}
    audit = team["Lea"].client.get("/api/audit").json()
    answers = [event for event in audit if event["what"] == "answer"]
    assert sorted(event["who"] for event in answers) == ["Ana", "Bo"]
    said = team["Lea"].client.get(f"/api/items/{tasks['Ana']['item']['id']}").json()["said"]
    assert [one["form"] for one in said] == [
        event["detail"]["form"] for event in sorted(answers, key=lambda e: e["who"])
    ]


def test_an_item_that_was_left_lying_goes_to_others(start: Start) -> None:
    team = start(claim_hours=1e-9)
    lying = team["Ana"].next()
    team["Bo"].label("ND")
    team["Cai"].label("ND")
    refused = team["Ana"].answer(lying, {"label": "ND"})
    assert error(refused) == (409, "not_in_hand")


def test_who_passes_isnt_asked_again(start: Start) -> None:
    team = start(2)
    task = team["Ana"].next()
    skip = f"/api/items/{task['item']['id']}/skip"
    team["Ana"].client.post(skip, json={"reason": "I know this person"}).raise_for_status()
    assert team["Ana"].label("ND")["item"]["id"] != task["item"]["id"]
    assert team["Ana"].idle()
    assert error(team["Ana"].client.post(skip, json={"reason": "again"})) == (409, "not_in_hand")


def test_nobody_passes_what_they_alone_can_answer(start: Start) -> None:
    team = start()
    for name in ("Ana", "Bo"):
        team[name].label("ND")
    for name, target in (("Ana", "IC"), ("Bo", "ER")):
        team[name].give("target", {"target": target})
    task = team["Ana"].next()
    skip = f"/api/items/{task['item']['id']}/skip"
    assert error(team["Ana"].client.post(skip, json={"reason": "too hard"})) == (409, "bound")


def test_only_who_was_given_an_item_may_do_something_with_it(start: Start) -> None:
    team = start(2)
    for n, name in enumerate(("Ana", "Bo", "Cai")):
        id = team[name].next()["item"]["id"]
        assert (id == 1) == (n < 2)
    # Cai could be given item 1 one day, but wasn't; Dee is no annotator; Lea is a lead.
    task = team["Lea"].client.get("/api/items/1").json()
    sent = {"step": "label", "round": 1, "form": {"label": "ND"}}
    for name in ("Cai", "Dee", "Lea"):
        client = team[name].client
        assert error(team[name].answer(task, {"label": "ND"})) == (409, "not_in_hand")
        assert error(client.put("/api/items/1/draft", json=sent)) == (409, "not_in_hand")
        assert error(client.post("/api/items/1/check", json=sent)) == (409, "not_in_hand")
        assert error(client.post("/api/items/1/skip", json={"reason": "x"})) == (409, "not_in_hand")
    assert team["Lea"].client.get("/api/items/1").json()["said"] == []


def test_a_lead_excludes_and_reopens(start: Start) -> None:
    team = start()
    id = team["Ana"].label("IC")["item"]["id"]
    team["Bo"].label("IC")
    lead = team["Lea"].client
    lead.post(f"/api/items/{id}/exclude", json={"reason": "names a person"}).raise_for_status()
    assert lead.get("/api/items", params={"step": "excluded"}).json()["total"] == 1
    lead.post(f"/api/items/{id}/reopen", json={"step": "label", "reason": "it doesn't"}).raise_for_status()
    assert team["Cai"].label("ND")["item"]["id"] == id
    whats = [event["what"] for event in lead.get("/api/audit").json()]
    assert [what for what in whats if what in ("exclude", "reopen")] == ["reopen", "exclude"]
    assert error(team["Ana"].client.post(f"/api/items/{id}/exclude", json={"reason": "x"})) == (403, "role")


def test_the_audit_log_tells_that_a_draft_changed_and_not_the_words(start: Start) -> None:
    team = start()
    task = team["Ana"].next()
    for why in ("a secret", "a secret", "another secret"):
        sent = {"step": "label", "round": 1, "form": {"why": why}}
        team["Ana"].client.put(f"/api/items/{task['item']['id']}/draft", json=sent).raise_for_status()
    audit = team["Lea"].client.get("/api/audit")
    drafts = [(one["who"], one["detail"]) for one in audit.json() if one["what"] == "draft"]
    assert drafts == [("Ana", {"step": "label", "round": 1})] * 2
    assert "secret" not in audit.text


def test_changes_need_the_pages_token(start: Start) -> None:
    team = start()
    task = team["Ana"].next()
    client = team["Ana"].client
    for token in ("", "guessed", team["Bo"].client.headers["X-CSRF-Token"]):
        client.headers["X-CSRF-Token"] = token
        assert error(team["Ana"].answer(task, {"label": "ND"})) == (403, "csrf")
        assert error(client.post("/api/next", json={})) == (403, "csrf")
        assert error(client.delete("/api/session")) == (403, "csrf")
    assert client.get("/api/me").is_success
    cookie = client.post("/api/session", json={"token": team.tokens["Ana"]}).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_a_form_of_another_site_isnt_json(start: Start) -> None:
    team = start()
    for body in ({"data": {"token": team.tokens["Ana"]}}, {"content": json.dumps({"token": team.tokens["Ana"]})}):
        sent = httpx.post(f"{team.url}/api/session", headers={"Content-Type": "text/plain"}, **body)
        assert sent.status_code == 422
        assert "set-cookie" not in sent.headers


def test_tokens_of_another_project_are_refused(start: Start) -> None:
    ours, theirs = start(), start(name="other")  # in one database, on one machine
    foreign = {"token": theirs.tokens["Ana"]}
    assert error(httpx.post(f"{ours.url}/api/session", json=foreign)) == (401, "sign_in")
    ((name, cookie),) = theirs["Ana"].client.cookies.items()
    headers = {"X-CSRF-Token": theirs["Ana"].client.headers["X-CSRF-Token"]}
    own = next(iter(ours["Ana"].client.cookies))
    for key in (name, own):
        reply = httpx.post(f"{ours.url}/api/next", json={}, cookies={key: cookie}, headers=headers)
        assert error(reply) == (401, "sign_in")
    item = theirs["Ana"].next()["item"]["id"]
    assert error(ours["Lea"].client.get(f"/api/items/{item}")) == (404, "unknown")
    assert ours["Lea"].client.get("/api/items").json()["total"] == 1


def test_only_hashes_of_secrets_are_kept(start: Start, db: str) -> None:
    team = start()
    team["Ana"].next()
    secrets = [*team.tokens.values(), *team["Ana"].client.cookies.values()]
    data = b"".join(path.read_bytes() for path in Path(db.removeprefix("sqlite:///")).parent.glob("review.db*"))
    assert not [secret for secret in secrets if secret.encode() in data]


def test_signing_out_ends_it(start: Start) -> None:
    team = start()
    cookies = dict(team["Ana"].client.cookies)
    team["Ana"].client.delete("/api/session").raise_for_status()
    assert httpx.get(f"{team.url}/api/me", cookies=cookies).status_code == 401


def test_texts_come_back_as_they_are(start: Start) -> None:
    team = start()
    item = team["Ana"].next()["item"]
    assert HOSTILE in item["turns"][0]["user"]
    assert item["follow_up"].endswith(HOSTILE)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"step": "label", "round": 1, "form": {"label": "XX"}}, (422, "form")),
        ({"step": "label", "round": 1, "form": {"label": "ND", "extra": 1}}, (422, "form")),
        ({"step": "done", "round": 1, "form": {}}, (422, "form")),
        ({"step": "label", "round": 2, "form": {"label": "ND"}}, (409, "moved")),
        (
            {"step": "review", "round": 1, "form": {"first": {"approve": True}, "second": {"approve": True}}},
            (409, "moved"),
        ),
        ({"step": "label"}, (422, "form")),
    ],
)
def test_what_isnt_asked_is_refused(start: Start, body: dict[str, Any], status: tuple[int, str]) -> None:
    team = start()
    id = team["Ana"].next()["item"]["id"]
    assert error(team["Ana"].client.post(f"/api/items/{id}/answer", json=body)) == status
    assert team["Lea"].client.get(f"/api/items/{id}").json()["said"] == []


def test_a_body_has_bounds(start: Start) -> None:
    team = start()
    huge = {"step": "label", "round": 1, "form": {"note": "x" * 1_100_000}}
    assert team["Ana"].client.put("/api/items/1/draft", json=huge).status_code == 413


def test_the_audit_log_only_grows(start: Start, db: str) -> None:
    start()["Ana"].label("ND")
    for change in ("UPDATE event SET what = 'nothing'", "DELETE FROM event"):
        with pytest.raises(DBAPIError, match="only grows"), Database(db).writing() as session:
            session.execute(text(change))


def test_what_was_acknowledged_survives_a_crash(tmp_path: Path, db: str) -> None:
    config, tokens = a_project(db, entries(30))
    acknowledged = []
    with serving_process(tmp_path, config) as (process, url):
        team = Team(url, tokens)
        ana = team["Ana"]
        for n in range(12):
            task = ana.next()
            sent = {"step": "label", "round": 1, "form": {"label": None, "note": f"draft {n}"}}
            ana.client.put(f"/api/items/{task['item']['id']}/draft", json=sent).raise_for_status()
            if n == 11:
                break
            acknowledged.append(task["item"]["id"])
            ana.answer(task, {"label": "ND", "note": f"note {n}"}).raise_for_status()
        process.send_signal(signal.SIGKILL)
        process.wait()
        team.close()
    with running(config, tokens) as team:
        for n, id in enumerate(acknowledged):
            said = team["Lea"].client.get(f"/api/items/{id}").json()["said"]
            assert [one["form"]["note"] for one in said] == [f"note {n}"]
        again = team["Ana"].next()
        assert again["item"]["id"] == task["item"]["id"]
        assert again["draft"]["note"] == "draft 11"


def test_a_save_that_the_crash_cut_short_is_whole_or_not_there(tmp_path: Path, db: str) -> None:
    config, tokens = a_project(db, entries(60))
    with serving_process(tmp_path, config) as (process, url):
        team = Team(url, tokens)
        people = [team["Ana"], team["Bo"]]
        acknowledged = 0

        def work(n: int) -> int:
            done = 0
            try:
                while True:
                    people[n].label("ND")
                    done += 1
                    if n == 0 and done == 5:
                        process.send_signal(signal.SIGKILL)  # while the other one is in the middle of something
            except (httpx.TransportError, AssertionError):
                return done

        with ThreadPoolExecutor(2) as pool:
            acknowledged = sum(pool.map(work, range(2)))
        team.close()
    with running(config, tokens) as team:
        kept = sum(team["Lea"].client.get("/api/progress").json()["progress"]["people"].values())
        assert acknowledged <= kept <= acknowledged + 2
        items = team["Lea"].client.get("/api/items").json()["items"]
        for item in items:
            said = team["Lea"].client.get(f"/api/items/{item['id']}").json()["said"]
            assert item["answered"] == (len(said) if item["step"] == "label" else 0)
