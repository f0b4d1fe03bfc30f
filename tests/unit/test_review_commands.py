"""The commands `synuc review ...`: what they make, what they print, and what they say is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, SessionTransaction
from typer.testing import CliRunner

from pipelines.export import export as export_samples
from review import jobs
from review.app import place
from review.config import ReviewError, load_project
from synuc.cli import app
from synuc.formatting import Retention
from synuc.problem import Problem
from tests.review_files import people_file, write_candidates
from tests.reviewing import ROLES, a_project, entries, running
from tests.runs import a_run


def run(*arguments: str | Path) -> str:
    """What `synuc review ...` prints."""
    result = CliRunner().invoke(app, ["review", *map(str, arguments)], env={"COLUMNS": "200"})
    if result.exception:
        raise result.exception
    return result.output


def test_the_commands_make_a_project_and_say_the_links(tmp_path: Path) -> None:
    path = write_candidates(tmp_path / "candidates.jsonl")
    people = people_file(tmp_path / "people.yaml")
    made = run("create", "--project", tmp_path, "--from", path, "--people", people)
    links = re.findall(r"(\w+)  http://127\.0\.0\.1:8010/#([\w-]{43})$", made, re.MULTILINE)
    assert [name for name, _ in links] == list(ROLES)
    there = "There are 3 annotators, 2 adjudicators, 4 evaluators, 1 lead."
    assert there in made
    config = load_project(tmp_path)
    old = dict(links)["Ana"]
    with running(config, dict(links)) as team:
        team["Ana"].label("ND")
        new = run("link", "--project", tmp_path, "Ana").strip().partition("#")[2]
        assert team["Ana"].client.get("/api/me").status_code == 401  # signed in with the old link
        assert team["Bo"].client.post("/api/session", json={"token": old}).status_code == 401
        assert team["Bo"].client.post("/api/session", json={"token": new}).json()["name"] == "Ana"
    said = run("agreement", "--project", tmp_path)
    assert "0 of 6 items are finished" in said
    assert there in said
    figures = json.loads(run("agreement", "--project", tmp_path, "--json"))
    assert figures["progress"]["items"] == 6


def test_a_spot_check_knows_the_run_that_it_is_about(tmp_path: Path) -> None:
    made = a_run(tmp_path / "first")
    export_samples(made.folder, Retention.PARTIAL)
    people = people_file(tmp_path / "people.yaml")
    arguments = ("--kind", "spot-check", "--sample", "0/0/1", "--people", people)
    run("create", "--project", tmp_path / "check", "--from", tmp_path / "first", *arguments)
    assert load_project(tmp_path / "check").run == tmp_path / "first"
    copy = tmp_path / "uc-data.jsonl"
    copy.write_bytes((tmp_path / "first" / "export" / "uc-data.jsonl").read_bytes())
    run("create", "--project", tmp_path / "other", "--from", copy, *arguments)
    assert load_project(tmp_path / "other").run is None


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
        (("--db", "review.db"), "no URL of a database, like sqlite:///review.db"),
        (("--db", "sqlite://"), "in memory"),
        (("--db", "postgresql://me:secret@host/x"), "leave the password out"),
        (("--db", "postgresql://me@host/x?password=secret"), "leave the password out"),
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
    with pytest.raises(Problem, match="--sample 1/2: write how many"):
        run("export", "--project", tmp_path / "p", "--sample", "1/2")
    for port in ("0", "-1", "99999"):
        with pytest.raises(Problem, match=f"--port {port}: choose one from 1 to 65535"):
            run("serve", "--project", tmp_path / "p", "--port", port)


def test_a_database_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, people = write_candidates(tmp_path / "candidates.jsonl"), people_file(tmp_path / "people.yaml")
    folder = tmp_path / "what? 50% 评审"
    folder.mkdir()
    monkeypatch.chdir(folder)
    command = ("create", "--project", folder, "--from", path, "--people", people, "--db", "sqlite:///own.db")
    with pytest.raises(ReviewError, match="name: a project's --name has letters"):
        run(*command)
    run(*command, "--name", "trial")
    monkeypatch.chdir(tmp_path)
    assert "0 of 6 items" in run("agreement", "--project", folder)
    (folder / "own.db").rename(tmp_path / "moved.db")
    assert "0 of 6 items" in run("agreement", "--project", folder, "--db", "sqlite:///moved.db")


@pytest.mark.parametrize(
    ("db", "message"),
    [
        ("review.db", "--db: db: that is no URL of a database"),
        ("sqlite://", "in memory"),
        ("mysql://x/y", "SQLite and PostgreSQL"),
        ("sqlite:///elsewhere.db", "database isn't there: .*elsewhere.db; name another --db"),
        ("postgresql://me:secret@127.0.0.1:1/x", "leave the password out"),
        ("postgresql://me@127.0.0.1:1/x", "can't open the database"),
    ],
)
def test_another_database_is_there_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, db: str, message: str
) -> None:
    path, people = write_candidates(tmp_path / "candidates.jsonl"), people_file(tmp_path / "people.yaml")
    run("create", "--project", tmp_path / "p", "--from", path, "--people", people)
    monkeypatch.chdir(tmp_path)
    before = _files(tmp_path)
    for command in (["serve", "--port", "0"], ["agreement"], ["export"], ["import", "labels.json"]):
        if command[0] == "serve" and db.startswith("postgresql://me@"):
            continue  # it looks at its port first
        with pytest.raises(Problem, match=message) as raised:
            run(command[0], "--project", tmp_path / "p", "--db", db, *command[1:])
        assert "secret" not in str(raised.value)
    assert _files(tmp_path) == before


def test_a_lost_database_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    path, people = write_candidates(tmp_path / "candidates.jsonl"), people_file(tmp_path / "people.yaml")
    run("create", "--project", tmp_path / "p", "--from", path, "--people", people)
    (tmp_path / "p" / "review.db").rename(tmp_path / "kept.db")
    with pytest.raises(ReviewError, match=r"isn't there: .*review\.db; bring it back, or change db in .*review\.yaml"):
        run("link", "--project", tmp_path / "p", "Ana")
    assert not (tmp_path / "p" / "review.db").exists()
    elsewhere = ("--project", tmp_path / "p", "--db", f"sqlite:///{tmp_path / 'kept.db'}")
    assert "0 of 6 items" in run("agreement", *elsewhere)
    assert run("link", *elsewhere, "Ana").startswith("http://127.0.0.1:8010/#")


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
