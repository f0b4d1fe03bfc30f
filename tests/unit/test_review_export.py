"""What comes out of a review project: UC-Bench, a spot check's labels, verdicts, and the shapes of other tools."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from eval.bench import read_bench
from eval.pairwise import read_human
from review import export
from review.checks import findings
from review.config import ReviewError
from review.content import Content
from review.forms import Kind, Labelled, Side, Why
from synuc.types import Dialogue, Label, Turn
from tests.review_files import exported, label_all
from tests.reviewing import a_project, entries, rewrite_all, running


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'review.db'}"


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


@pytest.mark.parametrize("kind", Kind)
def test_nothing_finished_writes_nothing(db: str, tmp_path: Path, kind: Kind) -> None:
    config, _ = a_project(db, entries(2, kind), kind)
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
