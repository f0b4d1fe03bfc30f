"""Making cases of ConInstruct: what is asked, what the check drops and why, what is counted and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from eval.coninstruct.builder import Builder, ConflictPairs, build, write_cases
from eval.coninstruct.data import CONFLICT_KINDS, CONSTRAINT_KINDS, Case, SeedInstruction, read_cases
from eval.protocol import Result
from synuc.types import CallFailed, LLMRequest
from tests.evaluation import Answer, drive

SEED = SeedInstruction(id="s", task="story", domain="sea", seed="Write a story.")
QUESTION = SeedInstruction(id="q", task="question answering", domain="sea", seed="Why is the sea salty?")
EXPANDED = "Write a story.\nBe brief."
PASSED = {"reason": "r", "original_present": True, "exclusive": True, "right_kind": True}
FAILS = {"KK": {"exclusive": False}, "PS": {"original_present": False, "right_kind": False}}


def expansion(instruction: str) -> dict[str, Any]:
    return {"plan": "p", **{kind: [f"Be {kind}."] for kind in CONSTRAINT_KINDS}, "instruction": instruction}


def script(request: LLMRequest) -> Answer:
    if request.stage == "coninstruct_expand":
        return expansion(EXPANDED)
    if request.stage == "coninstruct_conflicts":
        return {"plan": "p", **{kind: {"original": f"o {kind}", "new": f"n {kind}"} for kind in CONFLICT_KINDS}}
    return {**PASSED, **FAILS.get(request.key.removeprefix("s/"), {})}


def test_a_case_is_made_and_checked() -> None:
    value = drive(build(SEED), script)
    case = Case.model_validate(value["case"])
    assert (case.id, case.task, case.domain, case.seed) == ("s", "story", "sea", "Write a story.")
    assert case.instruction == "Write a story. Be brief."
    assert [constraint.kind for constraint in case.constraints] == list(CONSTRAINT_KINDS)
    assert [conflict.kind for conflict in case.conflicts] == ["CC", "PP", "LL", "FF", "SS", "KP", "PC"]
    assert case.conflicts[1].new == "n PP"
    assert value["dropped"] == [
        {"kind": "KK", "original": "o KK", "new": "n KK", "failed": ["exclusive"], "reason": "r"},
        {"kind": "PS", "original": "o PS", "new": "n PS", "failed": ["original_present", "right_kind"], "reason": "r"},
    ]


def test_the_writer_writes_and_a_judge_checks_each_pair() -> None:
    asked: list[LLMRequest] = []
    drive(build(SEED), script, asked)
    assert [(request.stage, request.role) for request in asked] == [
        ("coninstruct_expand", "model"),
        ("coninstruct_conflicts", "model"),
        *[("coninstruct_check", "judge")] * 9,
    ]
    assert len({request.key for request in asked[2:]}) == 9
    assert all(request.temperature == 0 and request.max_tokens <= 2048 for request in asked)
    expand, conflicts, check = (asked[n].messages[0]["content"] for n in (0, 1, 8))
    assert "> Write a story." in expand
    assert "- style: tone" in expand
    assert "unchanged" not in expand
    assert "> Write a story. Be brief." in conflicts
    assert "> keyword: Be keyword." in conflicts
    assert "> o KP" in check
    assert "> n KP" in check
    assert "the two are keyword against phrase" in check


def test_a_question_stays_unchanged_in_front() -> None:
    asked: list[LLMRequest] = []

    def answer(instruction: str) -> Any:
        def scripted(request: LLMRequest) -> Answer:
            return expansion(instruction) if request.stage == "coninstruct_expand" else script(request)

        return drive(build(QUESTION), scripted, asked)

    assert answer("Why is the sea salty? Be brief.")["case"]["instruction"] == "Why is the sea salty? Be brief."
    assert "It stays unchanged, letter by letter" in asked[0].messages[0]["content"]
    with pytest.raises(ValidationError, match="begins with the question"):
        answer("Explain why the sea is salty. Be brief.")


def test_no_kind_may_be_missing() -> None:
    def scripted(request: LLMRequest) -> Answer:
        return {**expansion(EXPANDED), "style": []}

    with pytest.raises(ValidationError, match="style"):
        drive(build(SEED), scripted)
    with pytest.raises(ValidationError, match="KK"):
        ConflictPairs.model_validate({"plan": "", "CC": {"original": "o", "new": "n"}})


def test_no_usable_answer_is_a_failure_of_the_seed() -> None:
    def scripted(request: LLMRequest) -> Answer:
        return CallFailed("unparseable", "no JSON") if request.key == "s/SS" else script(request)

    with pytest.raises(CallFailed):
        drive(Builder().program(SEED.model_dump()), scripted)


def test_figures_and_cases(tmp_path: Path) -> None:
    value = drive(Builder().program(SEED.model_dump()), script)
    whole = drive(build(QUESTION), lambda r: expansion(QUESTION.seed) if "expand" in r.stage else script(r))
    results = [
        Result(id="s", value=value),
        Result(id="q", value=whole),
        Result(id="x", kind="unparseable", reason="no JSON"),
    ]
    items = [{"id": id} for id in "sqx"]
    figures = Builder().figures(items, results)
    assert {name: figures[name] for name in ("seeds", "cases", "failed")} == {
        "seeds": 3,
        "cases": 2,
        "failed": {"unparseable": 1},
    }
    assert figures["conflicts_per_case"] == 8  # 7 of the one, 9 of the other
    assert list(figures["kinds"]) == list(CONFLICT_KINDS)
    nothing = {"original_present": 0, "exclusive": 0, "right_kind": 0}
    assert figures["kinds"]["CC"] == {"made": 2, "kept": 2, "dropped": 0, "reasons": nothing}
    assert figures["kinds"]["PS"] == {
        "made": 2,
        "kept": 1,
        "dropped": 1,
        "reasons": {"original_present": 1, "exclusive": 0, "right_kind": 1},
    }

    assert write_cases(results, tmp_path / "cases.jsonl") == 2
    assert [case.id for case in read_cases(tmp_path / "cases.jsonl")] == ["s", "q"]


def test_figures_without_cases() -> None:
    figures = Builder().figures([{"id": "s"}], [Result(id="s", kind="truncated")])
    assert (figures["cases"], figures["conflicts_per_case"], figures["failed"]) == (0, None, {"truncated": 1})
    assert figures["kinds"]["CC"]["made"] == 0
