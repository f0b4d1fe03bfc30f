"""What goes into a review project and what comes out: sources, people, exports, Label Studio and back, the commands."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session, SessionTransaction
from typer.testing import CliRunner

from eval.bench import read_bench
from eval.pairwise import read_human
from review import export, jobs, projects
from review.app import place
from review.checks import findings
from review.config import People, ReviewConfig, ReviewError, check_people, load_project
from review.content import Content
from review.database import Database
from review.forms import Kind, Labelled, Side, Why
from review.labelstudio import import_label_studio
from review.sources import candidates, read_shares, samples, shuffled, stratified
from synuc.cli import app
from synuc.layers import ConfigError, compose
from synuc.problem import Problem
from synuc.types import Dialogue, Label, Turn
from tests.reviewing import ROLES, Team, a_project, entries, rewrite_all, running
from tests.runs import a_run

BENCH = Path(__file__).parents[1] / "data" / "uc_bench.jsonl"


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


def exported(config: ReviewConfig, path: Path, shape: str = "own") -> export.Exported:
    database = Database(config.db)
    with database.reading() as session:
        done = export.export(session, projects.find(session, config).id, config.kind, shape, path)
    database.close()
    return done


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'review.db'}"


def test_candidates_are_read_as_they_were_mined(tmp_path: Path) -> None:
    found = candidates(write_candidates(tmp_path / "candidates.jsonl"), "WildChat-UC")
    gold = {item.id: item for item in read_bench([BENCH]).items}
    assert len(found) == 6
    for entry in found:
        assert entry.content.dialogue == gold[entry.key].history
        assert entry.content.follow_up == gold[entry.key].follow_up
        assert (entry.content.subset, entry.content.task) == ("WildChat-UC", "planning")
    assert candidates(tmp_path, "WildChat-UC") == found


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r":2: no valid JSON"),
        ("[]", r":2: a candidate is a JSON object"),
        ('{"id": "x", "follow_up": "y"}', r":2: no field `history`"),
    ],
)
def test_a_bad_candidate_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write_candidates(tmp_path / "candidates.jsonl", 1)
    path.write_text(path.read_text("utf-8") + line + "\n", "utf-8")
    with pytest.raises(ReviewError, match=message):
        candidates(path, "x")


def test_samples_come_from_an_export(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    rows = [json.dumps({**sample.model_dump(mode="json"), "made_by": {"run": "x"}}) + "\n" for sample in run.accepted()]
    target = tmp_path / "run" / "export" / "uc-data.jsonl"
    target.parent.mkdir()
    target.write_text("".join(rows), "utf-8")
    for path in (target, target.parent, tmp_path / "run"):
        found = samples(path)
        assert {entry.key: entry.content.synthetic for entry in found} == {one.id: one.label for one in run.accepted()}
    with pytest.raises(ReviewError, match="synuc export"):
        samples(tmp_path)


@given(st.integers(0, 30), st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 9))
def test_a_sample_has_its_shares_or_all_there_is(number: int, nd: int, er: int, ic: int, seed: int) -> None:
    everything = entries(number, Kind.SPOT_CHECK)
    shares = {Label.ND: nd, Label.ER: er, Label.IC: ic}
    drawn = stratified(everything, shares, seed)
    there = Counter(entry.content.synthetic for entry in everything)
    taken = Counter(entry.content.synthetic for entry in drawn)
    assert all(taken[label] == min(there[label], share) for label, share in shares.items())
    assert len({entry.key for entry in drawn}) == len(drawn)
    assert stratified(everything[::-1], shares, seed) == drawn


def test_the_seed_decides_the_order() -> None:
    everything = entries(50)
    orders = [tuple(one.key for one in shuffled(everything, seed)) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("text", ["33", "1/2/3/4", "a/b/c", "0/0/0", "1/-2/3"])
def test_shares_are_three_numbers(text: str) -> None:
    assert read_shares("33/33/34") == {Label.ND: 33, Label.ER: 33, Label.IC: 34}
    with pytest.raises(ReviewError, match="--sample"):
        read_shares(text)


@pytest.mark.parametrize(
    ("kind", "roles", "message"),
    [
        (Kind.BENCHMARK, {"Ana": ("annotator",)}, "two people"),
        (Kind.PAIRWISE, {"Ana": ("annotator",), "Bo": ("annotator", "adjudicator")}, "an adjudicator is needed"),
        (Kind.BENCHMARK, {**ROLES, "Fay": ("lead",), "Eli": ("lead",)}, "3 evaluators"),
    ],
)
def test_people_who_cant_finish_are_refused(kind: Kind, roles: dict[str, tuple[str, ...]], message: str) -> None:
    people = [{"name": name, "roles": does} for name, does in roles.items()]
    with pytest.raises(ReviewError, match=message):
        check_people(kind, People.model_validate({"people": people}))


def test_enough_people_pass() -> None:
    people = [{"name": name, "roles": does} for name, does in ROLES.items()]
    for kind in Kind:
        check_people(kind, People.model_validate({"people": people}))


@pytest.mark.parametrize(
    ("people", "message"),
    [
        ([{"name": "Ana", "roles": ["lead", "annotator"]}], "lead"),
        ([{"name": "Ana", "roles": ["annotator"]}] * 2, "named twice"),
        ([{"name": "Ana", "roles": ["anotator"]}], "roles"),
        ([{"name": "Ana", "role": ["annotator"]}], "did you mean"),
    ],
)
def test_a_wrong_file_of_people_is_explained(tmp_path: Path, people: list[dict[str, Any]], message: str) -> None:
    path = tmp_path / "people.yaml"
    path.write_text(yaml.safe_dump({"people": people}), "utf-8")
    with pytest.raises(ConfigError, match=message):
        compose(People, [path])


def label_all(team: Team, number: int) -> None:
    """Ana and Bo agree on ER, ND and IC in turn."""
    for _ in range(number):
        id = team["Ana"].next()["item"]["id"]
        label = ("IC", "ER", "ND")[id % 3]
        team["Ana"].label(label)
        assert team["Bo"].label(label)["item"]["id"] == id


def test_a_benchmark_reads_back(db: str, tmp_path: Path) -> None:
    config, tokens = a_project(db, entries(6))
    with running(config, tokens) as team:
        label_all(team, 6)  # two of them ND, of which one stays as it is
        for name in ("Ana", "Bo"):
            team[name].give("target", {"target": "ND"})
    done = exported(config, tmp_path / "bench.jsonl")
    assert (done.rows, done.left_out) == (5, {"unfinished": 1})
    bench = read_bench([done.path])
    assert bench.refused == ()
    originals = {entry.key: entry for entry in entries(6)}
    for item in bench.items:
        assert item.history == originals[item.id].content.dialogue
        assert item.follow_up == originals[item.id].content.follow_up
        assert (item.rationale is not None) == (item.label is not Label.ND)
    row = json.loads(done.path.read_text("utf-8").splitlines()[0])
    assert row["annotation"]["agreed"] is True
    assert set(row["annotation"]["labels"].values()) == {row["label"]}


def test_a_rewritten_item_has_its_record(db: str, tmp_path: Path) -> None:
    config, tokens = a_project(db, entries(1))
    with running(config, tokens) as team:
        rewrite_all(team, lambda n: (n == 0, n < 2))
    done = exported(config, tmp_path / "bench.jsonl")
    row = json.loads(done.path.read_text("utf-8"))
    (item,) = read_bench([done.path]).items
    assert item.label is Label.IC
    assert item.follow_up.endswith("Says Bo.")
    assert item.rationale is not None
    assert row["annotation"]["origin"] == "rewritten"
    assert sorted(row["annotation"]["rewrite"]["reviews"].values()) == [False, True, True]
    assert row["annotation"]["labels"] == dict.fromkeys(row["annotation"]["labels"], "ND")


def test_nothing_finished_writes_nothing(db: str, tmp_path: Path) -> None:
    config, _ = a_project(db, entries(2))
    with pytest.raises(ReviewError, match="nothing is finished yet"):
        exported(config, tmp_path / "bench.jsonl")
    assert not (tmp_path / "bench.jsonl").exists()


def test_a_spot_check_says_what_was_found(db: str, tmp_path: Path) -> None:
    config, tokens = a_project(db, entries(3, Kind.SPOT_CHECK), Kind.SPOT_CHECK)
    with running(config, tokens) as team:
        for said in (("IC", "IC"), ("IC", "ND"), ("ER", "ER")):
            team["Ana"].label(said[0])
            team["Bo"].label(said[1])
        agreement = team["Lea"].client.get("/api/progress").json()["agreement"]
    rows = [json.loads(line) for line in exported(config, tmp_path / "x.jsonl").path.read_text("utf-8").splitlines()]
    for row in rows:
        expected = (
            "disputed" if row["label"] is None else "confirmed" if row["label"] == row["synthetic"] else "refuted"
        )
        assert row["verdict"] == expected
    assert Counter(row["label"] for row in rows) == {"IC": 1, None: 1, "ER": 1}
    assert agreement["labels"]["all"]["n"] == 3
    assert agreement["labels"]["all"]["raw"] == pytest.approx(2 / 3)
    assert agreement["synthetic"]["all"]["n"] == 2
    assert set(agreement["labels"]) == {"all", "en", "zh"}


def test_comparisons_are_what_eval_pairwise_reads(db: str, tmp_path: Path) -> None:
    config, tokens = a_project(db, entries(4, Kind.PAIRWISE), Kind.PAIRWISE)
    with running(config, tokens) as team:
        for n in range(4):
            for name, first in (("Ana", True), ("Bo", n < 3)):
                task = team[name].next()
                shown = "a" if task["item"]["a"].startswith("first") else "b"
                verdict = shown if first else "tie"
                team[name].answer(task, {"verdict": verdict}).raise_for_status()
        team["Dee"].give("adjudicate", {"verdict": "tie"})
    done = exported(config, tmp_path / "human.csv")
    human = read_human(done.path)
    assert sorted(label.final for label in human) == ["tie", "win", "win", "win"]
    assert done.rows == 9


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


@pytest.mark.parametrize("shape", ["label-studio", "argilla"])
def test_what_goes_elsewhere_gives_no_label_away(db: str, tmp_path: Path, shape: str) -> None:
    plain = entries(4, Kind.SPOT_CHECK)
    items = [entry.model_copy(update={"key": f"s{n}-{entry.content.synthetic}"}) for n, entry in enumerate(plain)]
    config, tokens = a_project(db, items, Kind.SPOT_CHECK)
    with running(config, tokens) as team:
        for label in ("ER", "ND"):  # the first gets both its labels, the second one of them
            team["Ana"].label(label)
        team["Bo"].label("ER")
        order = [item["id"] for item in team["Lea"].client.get("/api/items").json()["items"]]
    done = exported(config, tmp_path / "out.json", shape)
    assert done.left_out == {"labels of open items": 1}
    text = done.path.read_text("utf-8")
    assert not [entry.key for entry in items if entry.key in text]
    rows = json.loads(text)
    assert [int(row["id"]) for row in rows] == order  # not that of the keys, which puts ER before IC before ND
    said = [row["annotations"] if shape == "label-studio" else row["responses"]["label"] for row in rows]
    assert [len(one) for one in said] == [2, 0, 0, 0]


def test_argilla_gets_fields_and_responses(db: str, tmp_path: Path) -> None:
    config, tokens = a_project(db, entries(3))
    with running(config, tokens) as team:
        for name in ("Ana", "Bo"):
            team[name].label("IC")
    records = json.loads(exported(config, tmp_path / "argilla.json", "argilla").path.read_text("utf-8"))
    assert len(records) == 3
    (labelled,) = [record for record in records if record["responses"]["label"]]
    assert labelled["responses"]["label"][0]["value"] == "IC"
    assert labelled["responses"]["rationale"][0]["value"] == "because it is IC"
    assert re.fullmatch(r"[0-9a-f-]{36}", labelled["responses"]["label"][0]["user_id"])
    assert labelled["fields"]["dialogue"][0]["role"] == "user"


def test_the_commands_make_a_project_and_say_the_links(tmp_path: Path) -> None:
    path = write_candidates(tmp_path / "candidates.jsonl")
    people = people_file(tmp_path / "people.yaml")
    made = run("create", "--project", tmp_path, "--from", path, "--people", people)
    links = re.findall(r"(\w+)  http://127\.0\.0\.1:8010/#([\w-]{43})$", made, re.MULTILINE)
    assert [name for name, _ in links] == list(ROLES)
    config = load_project(tmp_path)
    old = dict(links)["Ana"]
    with running(config, dict(links)) as team:
        team["Ana"].label("ND")
        new = run("link", "--project", tmp_path, "Ana").strip().partition("#")[2]
        assert team["Ana"].client.get("/api/me").status_code == 401  # signed in with the old link
        assert team["Bo"].client.post("/api/session", json={"token": old}).status_code == 401
        assert team["Bo"].client.post("/api/session", json={"token": new}).json()["name"] == "Ana"
    assert "0 of 6 items are finished" in run("agreement", "--project", tmp_path)
    figures = json.loads(run("agreement", "--project", tmp_path, "--json"))
    assert figures["progress"]["items"] == 6


def test_words_are_found_as_they_are_checked() -> None:
    turns = [Turn(user=user, assistant="Gladly.") for user in ("For my  Wife\nand kids.", "Wife only", "Thanks.")]
    side = {"type": "implicit", "dimension": "audience", "value": "kids", "evidence": "my wife AND kids"}
    why = Why.model_validate({"text": "x", "historical": side, "new": {**side, "evidence": "late"}})
    content = Content(dialogue=Dialogue(turns=tuple(turns)), follow_up="A Late show.", subset="test")
    assert findings(Kind.BENCHMARK, Labelled(label=Label.IC, why=why), content) == ()
    row = export.rationale(why, content.dialogue)
    assert row["historical"][0]["turn"] == 1
    across = why.model_copy(update={"historical": Side.model_validate({**side, "evidence": "kids. Wife"})})
    (found,) = findings(Kind.BENCHMARK, Labelled(label=Label.IC, why=across), content)
    assert found.code == "not_said"  # there is no turn to name
    blank = why.model_copy(update={"historical": Side.model_validate({**side, "evidence": " "})})
    assert "turn" not in export.rationale(blank, content.dialogue)["historical"][0]


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("fails", ["people", "name", "yaml", "commit"])
def test_a_project_that_cant_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, new: bool
) -> None:
    path = write_candidates(tmp_path / "candidates.jsonl")
    people = people_file(tmp_path / "people.yaml", {"Ana": ("annotator",)} if fails == "people" else ROLES)
    a_project(f"sqlite:///{tmp_path / 'other.db'}", entries(1), name="trial")
    folder = tmp_path / "deep" / "p"
    if not new:
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("mine", "utf-8")
    more = ["--db", f"sqlite:///{tmp_path / 'other.db'}", "--name", "trial"] if fails == "name" else []
    before = _files(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if fails == "yaml":
        monkeypatch.setattr(jobs, "save_project", full)
    if fails == "commit":
        monkeypatch.setattr(Session, "commit", full)
        monkeypatch.setattr(SessionTransaction, "commit", full)
    with pytest.raises(Problem):
        run("create", "--project", folder, "--from", path, "--people", people, *more)
    assert _files(tmp_path) == before
    monkeypatch.undo()
    good = people_file(tmp_path / "people.yaml")
    assert "Ana  http" in run("create", "--project", folder, "--from", path, "--people", good)


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.name.startswith("other.db")}


def test_a_folder_that_cant_be_made_is_one_clear_error(tmp_path: Path) -> None:
    path, people = write_candidates(tmp_path / "candidates.jsonl"), people_file(tmp_path / "people.yaml")
    with pytest.raises(ReviewError, match="name another --project"):
        run("create", "--project", people / "p", "--from", path, "--people", people)


def test_the_commands_say_what_is_wrong(tmp_path: Path) -> None:
    path = write_candidates(tmp_path / "candidates.jsonl")
    people = people_file(tmp_path / "people.yaml")
    base = ("create", "--project", tmp_path / "p", "--from", path, "--people", people)
    for more, message in [
        (("--kind", "other"), "choose one of benchmark, spot-check, pairwise"),
        (("--kind", "pairwise"), "two finished runs"),
        (("--db", "mysql://x"), "SQLite and PostgreSQL"),
        (("--db", "postgresql://me:secret@host/x"), "leave the password out"),
        (("--url", "review.example.com"), "url=review.example.com is no address"),
        (("--url", "ftp://review.example.com"), "is no address"),
        (("--url", "http://localhost:99999"), "is no address"),
        (("--url", "https://review.example.com/#x"), "is no address"),
    ]:
        with pytest.raises(Problem, match=message):
            run(*base, *more)
    with pytest.raises(Problem, match="holds no review project"):
        run("agreement", "--project", tmp_path / "nowhere")
    run(*base)
    with pytest.raises(Problem, match="already"):
        run(*base)
    with pytest.raises(Problem, match="nothing is finished"):
        run("export", "--project", tmp_path / "p")
    for port in ("0", "-1", "99999"):
        with pytest.raises(Problem, match=f"--port {port}: choose one from 1 to 65535"):
            run("serve", "--project", tmp_path / "p", "--port", port)


@pytest.mark.parametrize(
    ("url", "listens"),
    [
        ("http://127.0.0.1:8010", ("127.0.0.1", 8010)),
        ("http://localhost:9000/", ("localhost", 9000)),
        ("http://10.1.2.3:8080", ("10.1.2.3", 8080)),
        ("http://10.1.2.3", ("10.1.2.3", 80)),
        ("http://[::1]:9000", ("::1", 9000)),
        ("https://review.example.com", ("127.0.0.1", 8010)),
        ("http://review.example.com:9000", ("127.0.0.1", 8010)),
        ("https://10.1.2.3", ("127.0.0.1", 8010)),
    ],
)
def test_a_public_name_is_a_proxys(url: str, listens: tuple[str, int]) -> None:
    assert place(url) == listens


def run(*arguments: str | Path) -> str:
    """What `synuc review ...` prints."""
    result = CliRunner().invoke(app, ["review", *map(str, arguments)], env={"COLUMNS": "200"})
    if result.exception:
        raise result.exception
    return result.output
