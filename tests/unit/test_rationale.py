"""Rationale coverage: what the judge is shown, and the joint table on a set worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.folder import EvalFolder
from eval.judging import NoConflicts
from eval.protocol import Result
from eval.rationale import RationaleCoverage, answered
from synuc.types import CallFailed, LLMRequest
from tests.evaluation import drive
from tests.unit.test_response import fields, item

VERDICT = {"historical": "children, yes", "new": "late show, yes", "coverage": "partial"}
ANSWER = "<think>wine!</think>[Final Judgment]\nNormal Dialogue"


def test_the_judge_sees_the_rationale_and_the_reasoning_without_thoughts() -> None:
    asked: list[LLMRequest] = []
    program = RationaleCoverage().program(item("a", answer=ANSWER, predicted="ND"))
    value = drive(program, lambda _: VERDICT, asked)
    (judge,) = asked
    shown = judge.messages[-1]["content"]
    assert judge.role == "judge"
    assert "> Earlier requirement: implicit audience: suitable for children" in shown
    assert "> [Final Judgment]\n> Normal Dialogue" in shown
    assert "wine!" not in shown
    assert fields(judge) == ["historical", "new", "coverage"]
    assert value == {**VERDICT, "predicted": "ND"}


def test_an_answer_with_nothing_to_read_covers_nothing() -> None:
    asked: list[LLMRequest] = []
    value = drive(RationaleCoverage().program(item("a", answer="<think>so", predicted=None)), lambda _: VERDICT, asked)
    assert (value["coverage"], value["predicted"], asked) == ("none", None, [])


def test_what_has_no_verdict_is_a_failure_of_its_kind() -> None:
    with pytest.raises(CallFailed, match="unanswered: "):
        drive(RationaleCoverage().program(item("a", answer=None, predicted=None)), lambda _: VERDICT)
    with pytest.raises(CallFailed, match="judge_unparseable: "):
        drive(
            RationaleCoverage().program(item("a", answer="x", predicted="IC")),
            lambda _: CallFailed("unparseable", "no JSON"),
        )


def result(id: str, coverage: str, predicted: str | None) -> Result:
    return Result(id=id, value={"historical": "", "new": "", "coverage": coverage, "predicted": predicted})


def test_figures() -> None:
    outcomes = [
        ("complete", "IC"),
        ("complete", "IC"),
        ("complete", "ND"),
        ("partial", "IC"),
        ("partial", "ER"),
        ("none", "ND"),
        ("none", None),
    ]
    items = [item(f"w{n}") for n in range(len(outcomes))]
    items += [item("s0", "ShareGPT-UC"), item("s1", "ShareGPT-UC"), item("s2", "ShareGPT-UC")]
    results = [result(f"w{n}", *outcome) for n, outcome in enumerate(outcomes)]
    results += [
        result("s0", "none", "IC"),
        Result(id="s1", kind="unanswered", reason="no answer"),
        Result(id="s2", kind="judge_unparseable", reason="no JSON"),
    ]
    figures = RationaleCoverage().figures(items, results)
    assert figures["items"] == 10
    assert figures["overall"]["n"] == 8
    assert figures["overall"]["joint"] == {
        "complete": {"ND": 1, "ER": 0, "IC": 2, "unparseable": 0},
        "partial": {"ND": 0, "ER": 1, "IC": 1, "unparseable": 0},
        "none": {"ND": 1, "ER": 0, "IC": 1, "unparseable": 1},
    }
    by_coverage = figures["overall"]["by_coverage"]
    assert {degree: (part["correct"], part["n"]) for degree, part in by_coverage.items()} == {
        "complete": (2, 3),
        "partial": (1, 2),
        "none": (1, 3),
        "covered": (3, 5),
    }
    assert by_coverage["covered"]["accuracy"] == 0.6
    assert by_coverage["covered"]["interval"] == pytest.approx([0.23072, 0.88238], abs=1e-5)
    assert figures["subsets"]["ShareGPT-UC"]["n"] == 1
    assert figures["subsets"]["ShareGPT-UC"]["by_coverage"]["covered"]["accuracy"] is None
    assert figures["failed"] == {"unanswered": 1}
    assert figures["judge_failed"] == {"unparseable": 1}


def finished(path: Path, items: list[dict[str, Any]], results: list[Result]) -> EvalFolder:
    """A finished classification run, as far as it is read here."""
    path.mkdir()
    rows = {"items": items, "results": [result.model_dump() for result in results]}
    for table, lines in rows.items():
        (path / f"{table}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return EvalFolder(path)


def classified(id: str, predicted: str | None, answer: str) -> Result:
    return Result(id=id, value={"predicted": predicted, "kind": "", "answer": answer, "probabilities": None})


def test_answers_are_read_from_a_classification_run(tmp_path: Path) -> None:
    normal = item("n") | {"label": "ND", "rationale": None}
    run = finished(
        tmp_path / "run",
        [item("a"), normal, item("b"), item("c")],
        [
            classified("n", "ND", "fine"),
            classified("b", None, "hm"),
            Result(id="a", kind="context_length", reason="too long"),
            classified("c", "IC", "clash"),
        ],
    )
    assert answered(run) == [
        item("a", answer=None, predicted=None),
        item("b", answer="hm", predicted=None),
        item("c", answer="clash", predicted="IC"),
    ]


def test_a_run_without_conflicts_has_nothing_to_cover(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", [item("n") | {"label": "ND", "rationale": None}], [classified("n", "ND", "x")])
    with pytest.raises(NoConflicts):
        answered(run)
