"""People's verdicts on a run's samples in the memory of the next: what is taken, what isn't, and what it changes."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from sqlalchemy import select
from typer.testing import CliRunner

from actors.engine import EngineUnavailable
from actors.journal import MemoryJournal, load_memory
from pipelines.export import export as export_samples
from pipelines.report import figures, print_report
from pipelines.reviewed import Reviewed, ReviewsError, read_reviews, remember, summary, take
from pipelines.run_folder import RunFolder
from review import export as exporting
from review import projects, sources
from review.database import Database
from review.forms import Kind
from review.models import Item
from synuc.cli import app
from synuc.config import Method, Reviews, load
from synuc.folder import RunError
from synuc.formatting import Retention
from synuc.layers import ConfigError
from synuc.memory import Trajectory
from synuc.problem import Problem
from synuc.speaking import Speaking
from synuc.types import Label
from tests.reviewing import a_project, running
from tests.runs import Run, a_run, of_label
from tests.scripted import Driver, Script, a_seed, prompt

METHOD = Method(alpha=1.0)
SAW_NOTHING = "people who read it saw no conflict with an earlier requirement (normal dialogue)"
SAW_A_REVISION = "people who read it saw the earlier requirement revised openly (explicit revision)"


@dataclass
class Checked:
    """A run, and the spot check in which two people confirmed its first IC, refuted the second, disputed the third."""

    run: Run
    project: Path
    ic: list[str]

    @property
    def reviews(self) -> Reviews:
        return Reviews(review=str(self.project), run=str(self.run.folder.path))

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.project / "spot-check.jsonl").read_text("utf-8").splitlines()]

    def row(self, n: int, label: str | None) -> dict[str, Any]:
        """The line of an IC sample, with another label of the people."""
        return {**next(row for row in self.rows() if row["id"] == self.ic[n]), "label": label}

    def said(self, path: Path, rows: Sequence[dict[str, Any]]) -> Reviews:
        """Another review of the same run."""
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return Reviews(review=str(path), run=str(self.run.folder.path))


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    folder = tmp_path_factory.mktemp("checked")
    run = a_run(folder / "run")
    export_samples(run.folder, Retention.PARTIAL)
    entries = sources.samples(run.folder.path)
    db, reviewed = f"sqlite:///{folder / 'review.db'}", str(run.folder.path)
    config, tokens = a_project(db, entries, Kind.SPOT_CHECK, run=reviewed)
    database = Database(config.db)
    with database.reading() as session:
        keys = {item.id: item.key for item in session.scalars(select(Item))}
    ic = [f"{seed.id}-IC" for seed in run.seeds[:3]]
    with running(config, tokens) as team:
        for name in ("Ana", "Bo"):
            said = {ic[0]: "IC", ic[1]: "ND", ic[2]: "IC" if name == "Ana" else "ER"}
            for _ in entries:
                task = team[name].next()
                key = keys[task["item"]["id"]]
                form = {"label": said.get(key, key.rpartition("-")[2]), "why": None}
                team[name].answer(task, form).raise_for_status()
    project = folder / "project"
    with database.reading() as session:
        number = projects.find(session, config).id
        exporting.export(session, number, config, "own", project / exporting.NAMES[config.kind])
    database.close()
    return Checked(run, project, ic)


def recorded(folder: Path) -> list[Trajectory]:
    return [trajectory for shelf in load_memory(folder / "memory").shelves.values() for trajectory in shelf.buffer]


def own_trajectory(checked: Checked, n: int, script: dict[str, Any]) -> Trajectory:
    """What the method itself records of a dialogue."""
    driver = Driver(Script(script))
    driver.samples(checked.run.seeds[n], METHOD)
    (trajectory,) = driver.memory.shelves[Speaking.KEY].buffer
    return trajectory


def test_confirmed_ones_are_successes_and_refuted_ones_failures(checked: Checked) -> None:
    assert {row["verdict"] for row in checked.rows()} == {"confirmed", "refuted", "disputed"}
    reviewed = read_reviews([checked.reviews])
    confirmed = own_trajectory(checked, 0, {})
    refuted = own_trajectory(checked, 1, {"match/IC": {"constraint": "c3"}, "generate/IC": {"type": "explicit"}})
    assert confirmed.success
    assert refuted.success
    by_id = {trajectory.id: trajectory for trajectory in reviewed.trajectories}
    assert by_id == {
        checked.ic[0]: confirmed,
        checked.ic[1]: refuted.model_copy(update={"success": False, "reason": SAW_NOTHING}),
    }
    nd, er = (len(of_label(checked.run.accepted(), label)) for label in (Label.ND, Label.ER))
    assert reviewed.counts == {
        "successes": 1,
        "failures": 1,
        "ignored": {"disputed": 1, "made for ER": er, "made for ND": nd},
    }
    assert summary(reviewed.counts) == (
        "Into the memory from people's reviews: successes 1, failures 1; "
        f"lines not taken: 1 disputed, {er} made for ER, {nd} made for ND."
    )


def test_the_export_itself_will_do(checked: Checked) -> None:
    named = Reviews(review=str(checked.project / "spot-check.jsonl"), run=str(checked.run.folder.path))
    assert read_reviews([named]) == read_reviews([checked.reviews])


def test_the_lines_say_which_run_was_reviewed(checked: Checked) -> None:
    for review in (checked.project, checked.project / "spot-check.jsonl"):
        assert read_reviews([Reviews(review=str(review))]) == read_reviews([checked.reviews])


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ((None, None), "don't say which run was reviewed, or not all the same"),
        (("runs/first", None), "don't say which run was reviewed, or not all the same"),
        (("runs/first", "runs/second"), "don't say which run was reviewed, or not all the same"),
        (("runs/gone", "runs/gone"), "runs/gone, the run that was reviewed by .*, isn't there any more"),
    ],
)
def test_a_run_that_cant_be_known_must_be_named(
    checked: Checked, tmp_path: Path, runs: tuple[str | None, ...], message: str
) -> None:
    rows = [{**checked.row(n, "IC"), "run": run} for n, run in enumerate(runs)]
    named = checked.said(tmp_path / "x.jsonl", rows)
    with pytest.raises(ReviewsError, match=f"{message}: name it with --memory-from {named.review}=RUN"):
        read_reviews([Reviews(review=named.review)])
    assert len(read_reviews([named]).trajectories) == 2


def test_what_people_saw_instead_is_the_reason(checked: Checked, tmp_path: Path) -> None:
    (trajectory,) = read_reviews([checked.said(tmp_path / "x.jsonl", [checked.row(2, "ER")])]).trajectories
    assert (trajectory.success, trajectory.reason) == (False, SAW_A_REVISION)


def test_samples_that_the_run_does_not_hold_or_made_without_schemas_are_counted(
    checked: Checked, tmp_path: Path
) -> None:
    run = a_run(tmp_path / "plain", memory=False)
    rows = [{**checked.row(0, "IC"), "id": "stranger-IC"}, checked.row(0, "IC")]
    review = checked.said(tmp_path / "x.jsonl", rows)
    assert read_reviews([review]).counts["ignored"] == {"no accepted sample of the run": 1}
    with pytest.raises(ReviewsError, match="1 made without a schema, 1 no accepted sample of the run"):
        read_reviews([review.model_copy(update={"run": str(run.folder.path)})])


LINES = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["ND", "ER", "IC", None])), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_every_line_is_counted_once_and_a_refutation_wins(
    checked: Checked, files: list[list[tuple[int, str | None]]], rng: random.Random
) -> None:
    usable = [{(n, label) for n, label in lines if label} for lines in files]
    with TemporaryDirectory() as name:
        reviews = [
            checked.said(Path(name, f"{number}.jsonl"), [checked.row(n, label) for n, label in lines])
            for number, lines in enumerate(files)
        ]
        if not all(usable):
            with pytest.raises(ReviewsError, match="nothing to take"):
                read_reviews(reviews)
            return
        reviewed = read_reviews(reviews)
        rng.shuffle(reviews)
        shuffled = read_reviews(reviews)
    refuted = {checked.ic[n] for judged in usable for n, label in judged if label != "IC"}
    judged_at_all = {checked.ic[n] for judged in usable for n, _ in judged}
    assert {t.id for t in reviewed.trajectories if not t.success} == refuted
    assert {t.id for t in reviewed.trajectories if t.success} == judged_at_all - refuted
    assert len(reviewed.trajectories) + sum(reviewed.ignored.values()) == sum(map(len, files))
    assert shuffled == reviewed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"x\.jsonl:2: no line of a spot check's export; name its spot-check\.jsonl"),
        ('{"id": "a", "label": "IC", "history": []}', r"x\.jsonl:2: no line of a spot check's export"),
        ('{"id": "a", "synthetic": "IC", "label": "maybe"}', r"x\.jsonl:2: no line of a spot check's export"),
    ],
)
def test_a_line_of_something_else_is_named(checked: Checked, tmp_path: Path, line: str, message: str) -> None:
    review = checked.said(tmp_path / "x.jsonl", [checked.row(0, "IC")])
    with (tmp_path / "x.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ReviewsError, match=message):
        read_reviews([review])


def test_a_project_that_was_not_exported_and_a_run_that_is_none(checked: Checked, tmp_path: Path) -> None:
    for missing in ("project", "project/spot-check.jsonl"):
        with pytest.raises(ReviewsError, match=f"synuc review export --project {tmp_path}/project "):
            read_reviews([Reviews(review=str(tmp_path / missing), run=str(checked.run.folder.path))])
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "bench.jsonl").write_text("")
    with pytest.raises(ReviewsError, match=r"made is a benchmark\. .* trained on what it is tested on"):
        read_reviews([Reviews(review=str(tmp_path / "made"))])
    with pytest.raises(RunError, match="is no run folder"):
        read_reviews([checked.reviews.model_copy(update={"run": str(tmp_path)})])
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ReviewsError, match="can't read"):
        read_reviews([checked.reviews.model_copy(update={"review": str(tmp_path / "binary")})])


def test_they_are_in_the_memory_once_and_on_disk(checked: Checked, tmp_path: Path) -> None:
    reviewed = read_reviews([checked.reviews])
    remember(reviewed, RunFolder(tmp_path), 3, 10)
    assert sorted(recorded(tmp_path), key=lambda t: t.id) == sorted(reviewed.trajectories, key=lambda t: t.id)
    assert take((), tmp_path) == reviewed
    before = {file.name: file.read_bytes() for file in (tmp_path / "memory").iterdir()}
    remember(reviewed, RunFolder(tmp_path), 3, 10)
    assert {file.name: file.read_bytes() for file in (tmp_path / "memory").iterdir()} == before


def test_a_start_that_was_killed_between_two_is_made_up_for(checked: Checked, tmp_path: Path) -> None:
    reviewed = read_reviews([checked.reviews])
    first = reviewed.trajectories[0].model_dump(mode="json")
    MemoryJournal(tmp_path / "memory", 3, 10).write({"do": "record", "trajectory": first})
    remember(reviewed, RunFolder(tmp_path), 3, 10)
    assert len(recorded(tmp_path)) == len(reviewed.trajectories) == 2


def test_a_full_buffer_is_left_to_the_first_worker(checked: Checked, tmp_path: Path) -> None:
    remember(read_reviews([checked.reviews]), RunFolder(tmp_path), 3, 2)
    assert load_memory(tmp_path / "memory").leasable(Speaking.KEY, 0.0)


def test_what_people_said_steers_the_next_run_and_is_not_overruled(checked: Checked, tmp_path: Path) -> None:
    remember(read_reviews([checked.reviews]), RunFolder(tmp_path), 3, 2)
    driver = Driver(memory=load_memory(tmp_path / "memory"))
    again = driver.samples(checked.run.seeds[1], METHOD)["IC"]
    assert (again.id, again.outcome) == (checked.ic[1], "accepted")
    view = driver.memory.view(Speaking.KEY)
    assert [t.id for t in view.successes] == [checked.ic[0]]
    assert [(t.id, t.reason) for t in view.failures] == [(checked.ic[1], SAW_NOTHING)]
    driver.samples(a_seed("new"), METHOD)
    shown = prompt(driver.asked("generate", "IC")[-1])
    assert f"because: {SAW_NOTHING}" in shown
    assert "Worked: task" in shown


# In a run


def settings_file(path: Path) -> Path:
    """A run on an endpoint that isn't there: it begins, and ends before it needs Ray."""
    messages = [{"role": role, "content": f"{role} says {n}"} for n in range(3) for role in ("user", "assistant")]
    (path / "chats.jsonl").write_text(json.dumps({"messages": messages}) + "\n", "utf-8")
    engine = {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1", "give_up_after_s": 0}
    values = {"engine": engine, "seeds": {"paths": [str(path / "chats.jsonl")], "languages": []}}
    (path / "run.yaml").write_text(json.dumps(values), "utf-8")
    return path / "run.yaml"


def start(config: Path, run: Path, *arguments: str) -> BaseException | None:
    return CliRunner().invoke(app, ["synthesize", "--config", str(config), "--run", str(run), *arguments]).exception


def test_a_run_begins_with_them_and_goes_on_with_them_only(
    checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    config, run = settings_file(tmp_path), tmp_path / "next"
    reviews = f"--memory-from={checked.project}={checked.run.folder.path}"
    for arguments in ((reviews,), (f"--memory-from={checked.project}",), ()):
        assert isinstance(start(config, run, *arguments), EngineUnavailable)
        assert {trajectory.id for trajectory in recorded(run)} == set(checked.ic[:2])
    method = json.loads((run / "method.json").read_text("utf-8"))["method"]
    assert method["reviewed"] == read_reviews([checked.reviews]).fingerprint
    other = checked.said(tmp_path / "more.jsonl", [checked.row(2, "IC")])
    changed = start(config, run, f"--memory-from={other.review}={other.run}")
    assert isinstance(changed, ReviewsError)
    assert "leave --memory-from out to go on" in str(changed)
    both = start(config, run, reviews, f"--memory-from={other.review}={other.run}")
    assert isinstance(both, ReviewsError)
    assert {trajectory.id for trajectory in recorded(run)} == set(checked.ic[:2])


def test_a_run_that_began_without_them_gets_none(
    checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    config, run = settings_file(tmp_path), tmp_path / "next"
    assert isinstance(start(config, run), EngineUnavailable)
    assert "reviewed" not in json.loads((run / "method.json").read_text("utf-8"))["method"]
    refused = start(config, run, f"--memory-from={checked.project}={checked.run.folder.path}")
    assert isinstance(refused, RunError)
    assert "reviewed: None -> " in str(refused)
    assert not (run / "reviewed.json").exists()
    assert not (run / "memory").exists()


@pytest.mark.parametrize("given", ["", "=runs/first", "runs/check="])
def test_a_review_is_named_with_its_run(tmp_path: Path, given: str) -> None:
    wrong = start(settings_file(tmp_path), tmp_path / "next", f"--memory-from={given}")
    assert isinstance(wrong, Problem)
    assert "REVIEW=RUN" in str(wrong)
    assert not (tmp_path / "next").exists()


@pytest.mark.parametrize("off", ["memory=false", "trajectory_update=false", "program=baize", "labels=[ND, ER]"])
def test_a_method_without_a_memory_takes_none(tmp_path: Path, off: str) -> None:
    with pytest.raises(ConfigError, match="memory_from: this method has no memory"):
        load([settings_file(tmp_path)], [f"method.{off}", "memory_from=[{review: a, run: b}]"])


def test_where_reviews_lie_is_not_part_of_the_method(checked: Checked, tmp_path: Path) -> None:
    moved = checked.said(tmp_path / "moved.jsonl", checked.rows()[::-1])
    assert read_reviews([moved]).fingerprint == read_reviews([checked.reviews]).fingerprint
    assert Reviewed().fingerprint == ""


def test_the_report_says_how_many_were_taken(checked: Checked, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    out = io.StringIO()
    print_report(figures(run.folder), Console(width=200, file=out))
    assert "people's reviews" not in out.getvalue()
    reviewed = read_reviews([checked.reviews])
    remember(reviewed, run.folder, 3, 10)
    data = figures(run.folder)
    assert data["reviewed"] == reviewed.counts
    print_report(data, Console(width=200, file=out))
    assert summary(reviewed.counts) in out.getvalue()
