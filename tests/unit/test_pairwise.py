"""Pairwise attribution: both orders, the verdict of the two, position bias, and people's verdicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.pairwise import ComparisonError, Human, Pairwise, paired, read_human
from eval.protocol import Result
from synuc.types import CallFailed, LLMRequest
from tests.evaluation import drive
from tests.unit.test_rationale import classified, finished
from tests.unit.test_response import fields, item

ONE, OTHER = "It names the kids.", "It names the crowds."


def pair(id: str = "a", subset: str = "WildChat-UC") -> dict[str, Any]:
    return item(id, subset, first=f"<think>hm</think>{ONE}", second=OTHER)


def says(better: Callable[[str], str]) -> Callable[[LLMRequest], dict[str, str]]:
    """A judge that decides by what it is shown."""
    return lambda request: {"analysis_a": "a", "analysis_b": "b", "better": better(request.messages[-1]["content"])}


def prefers(answer: str) -> Callable[[LLMRequest], dict[str, str]]:
    return says(lambda shown: "A" if answer in shown.split("# Reasoning B")[0] else "B")


@pytest.mark.parametrize(
    ("judge", "verdict", "inconsistent", "judged"),
    [
        (prefers(ONE), "win", False, ["win", "win"]),
        (prefers(OTHER), "loss", False, ["loss", "loss"]),
        (says(lambda _: "tie"), "tie", False, ["tie", "tie"]),
        (says(lambda _: "A"), "tie", True, ["win", "loss"]),
        (says(lambda _: "B"), "tie", True, ["loss", "win"]),
        (says(lambda shown: "A" if shown.index(ONE) < shown.index(OTHER) else "tie"), "tie", True, ["win", "tie"]),
    ],
)
def test_a_verdict_counts_if_both_orders_give_it(
    judge: Callable[[LLMRequest], dict[str, str]], verdict: str, inconsistent: bool, judged: list[str]
) -> None:
    value = drive(Pairwise().program(pair()), judge)
    assert (value["verdict"], value["inconsistent"]) == (verdict, inconsistent)
    assert [judgment["verdict"] for judgment in value["judgments"]] == judged
    assert [judgment["shown_first"] for judgment in value["judgments"]] == ["first", "second"]


def test_the_judge_sees_the_rationale_and_both_reasonings() -> None:
    asked: list[LLMRequest] = []
    drive(Pairwise().program(pair()), prefers(ONE), asked)
    first, second = (request.messages[-1]["content"] for request in asked)
    for shown in (first, second):
        assert "> Earlier requirement: implicit audience: suitable for children" in shown
        assert "<think>" not in shown
    assert f"# Reasoning A\n> {ONE}\n\n# Reasoning B\n> {OTHER}\n" in first
    assert f"# Reasoning A\n> {OTHER}\n\n# Reasoning B\n> {ONE}\n" in second
    assert {request.role for request in asked} == {"judge"}
    assert fields(asked[0]) == ["analysis_a", "analysis_b", "better"]


def test_in_random_order_the_judge_is_asked_once() -> None:
    asked: list[LLMRequest] = []
    values = [drive(Pairwise("random").program(pair(f"i{n}")), prefers(ONE), asked) for n in range(40)]
    assert len(asked) == 40
    assert {value["verdict"] for value in values} == {"win"}
    shown_first = [value["judgments"][0]["shown_first"] for value in values]
    assert 10 < shown_first.count("first") < 30


@given(st.text(min_size=1, max_size=20))
def test_the_random_order_depends_on_the_id_alone(id: str) -> None:
    first, again = (drive(Pairwise("random").program(pair(id)), prefers(one)) for one in (ONE, OTHER))
    assert first["judgments"][0]["shown_first"] == again["judgments"][0]["shown_first"]
    assert (first["verdict"], again["verdict"]) == ("win", "loss")


def test_what_has_no_verdict_is_a_failure_of_its_kind() -> None:
    with pytest.raises(CallFailed, match="unanswered: the second run"):
        drive(Pairwise().program(pair() | {"second": None}), prefers(ONE))
    with pytest.raises(CallFailed, match="judge_truncated: "):
        drive(Pairwise().program(pair()), lambda _: CallFailed("truncated", "no end"))


def test_human_verdicts_can_be_added_to_a_finished_run() -> None:
    human = (Human(id="a", evaluators=("win", "win"), final="win"),)
    assert Pairwise("random", human).snapshot() == Pairwise("random").snapshot() == {"orders": "random"}


def result(id: str, *judged: str) -> Result:
    judgments = [
        {"shown_first": shown, "verdict": verdict, "analysis_a": "", "analysis_b": ""}
        for shown, verdict in zip(("first", "second"), judged, strict=False)
    ]
    agreed = len(set(judged)) == 1
    verdict = judged[0] if agreed else "tie"
    return Result(id=id, value={"verdict": verdict, "inconsistent": not agreed, "judgments": judgments})


ITEMS = [*(pair(f"w{n}") for n in range(5)), *(pair(f"s{n}", "ShareGPT-UC") for n in range(3))]
RESULTS = [
    result("w0", "win", "win"),
    result("w1", "win", "win"),
    result("w2", "loss", "loss"),
    result("w3", "win", "loss"),
    result("w4", "tie", "tie"),
    result("s0", "win", "tie"),
    Result(id="s1", kind="judge_truncated", reason="no end"),
    Result(id="s2", kind="unanswered", reason="no answer"),
]


def test_figures() -> None:
    figures = Pairwise().figures(ITEMS, RESULTS)
    shares = {"win": pytest.approx(2 / 6), "tie": pytest.approx(3 / 6), "loss": pytest.approx(1 / 6)}
    assert figures["items"] == 8
    assert figures["overall"] == {"n": 6, "win": 2, "tie": 3, "loss": 1, "shares": shares}
    assert figures["subsets"]["ShareGPT-UC"] == {
        "n": 1,
        "win": 0,
        "tie": 1,
        "loss": 0,
        "shares": {"win": 0, "tie": 1, "loss": 0},
    }
    assert figures["inconsistent"] == {"n": 2, "share": pytest.approx(2 / 6)}
    # Decided: two each of w0 to w3 and one of s0. The one shown first won once each in w0, w1, w2 and s0, twice in w3.
    assert figures["position"] == {"decided": 9, "first_shown": 6, "share": pytest.approx(6 / 9)}
    assert (figures["failed"], figures["judge_failed"]) == ({"unanswered": 1}, {"truncated": 1})
    assert figures["human"] is None


def test_one_order_can_not_be_inconsistent() -> None:
    figures = Pairwise("random").figures([pair("a")], [result("a", "win")])
    assert figures["inconsistent"] is None
    assert figures["position"] == {"decided": 1, "first_shown": 1, "share": 1.0}


def test_without_verdicts_there_are_no_shares() -> None:
    figures = Pairwise().figures([pair("a")], [Result(id="a", kind="judge_truncated", reason="no end")])
    assert figures["overall"] == {"n": 0, "win": 0, "tie": 0, "loss": 0, "shares": None}
    assert figures["inconsistent"] == {"n": 0, "share": None}
    assert figures["position"] == {"decided": 0, "first_shown": 0, "share": None}


def test_human_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval.metrics.RESAMPLES", 50)
    human = (
        Human(id="w0", evaluators=("win", "win"), final="win"),
        Human(id="w1", evaluators=("win", "tie"), final="tie"),
        Human(id="w2", evaluators=("loss", "loss"), final="loss"),
        Human(id="w3", evaluators=("tie", "tie"), final="tie"),
        Human(id="s1", evaluators=("win", "win"), final="win"),
        Human(id="elsewhere", evaluators=("win", "win"), final="win"),
    )
    figures = Pairwise(human=human).figures(ITEMS, RESULTS)["human"]
    assert {key: figures[key] for key in ("n", "unlabelled", "unknown", "adjudicated")} == {
        "n": 5,
        "unlabelled": 3,
        "unknown": 1,
        "adjudicated": 1,
    }
    overall = figures["overall"]
    assert (overall["verdicts"]["win"], overall["verdicts"]["tie"], overall["verdicts"]["loss"]) == (2, 2, 1)
    # Evaluators: 4 of 5 agree. By chance (3·2 + 1·2 + 1·1) / 25 = 0.36, so kappa is 0.44 / 0.64.
    assert overall["evaluators"]["n"] == 5
    assert overall["evaluators"]["raw"] == pytest.approx(0.8)
    assert overall["evaluators"]["kappa"] == pytest.approx(0.44 / 0.64)
    low, high = overall["evaluators"]["intervals"]["raw"]
    assert low < 0.8 < high
    # Judge: no verdict on s1; w0, w2 and w3 of the other four agree. By chance (2·1 + 1·2 + 1·1) / 16 = 5/16.
    assert overall["judge"]["n"] == 4
    assert overall["judge"]["raw"] == pytest.approx(0.75)
    assert overall["judge"]["kappa"] == pytest.approx((0.75 - 5 / 16) / (11 / 16))
    assert figures["subsets"]["ShareGPT-UC"]["evaluators"]["n"] == 1
    assert figures["subsets"]["ShareGPT-UC"]["judge"] is None


def csv(folder: Path, *lines: str) -> Path:
    path = folder / "human.csv"
    path.write_text("\n".join(["id,rater,verdict", *lines]), "utf-8-sig")
    return path


def test_two_raters_agree_or_the_third_decides(tmp_path: Path) -> None:
    lines = ("a,eve,win", "b,third,loss", "b,eve, Tie", "b,max,win", "a,max,win", "c,max,tie", "c,eve,tie")
    assert read_human(csv(tmp_path, *lines)) == (
        Human(id="a", evaluators=("win", "win"), final="win"),
        Human(id="b", evaluators=("tie", "win"), final="loss"),
        Human(id="c", evaluators=("tie", "tie"), final="tie"),
    )


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (("a,eve,better",), r"line 2: 'better' is no verdict; write win, tie, loss"),
        (("a,eve,win", "a,eve,tie"), r"line 3: 'eve' has already judged 'a'"),
        (("a,eve,win", "b,eve,win"), r"verdicts of two raters are needed"),
        (("a,eve,win", "a,max,win", "b,eve,tie"), r"'max' has not judged 'b'"),
        (("a,eve,win", "a,max,tie"), r"disagree on 'a'; add the verdict of one third rater"),
        ((), r"verdicts of two raters are needed"),
    ],
)
def test_unusable_human_verdicts(tmp_path: Path, lines: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ComparisonError, match=problem):
        read_human(csv(tmp_path, *lines))


def test_a_file_that_is_no_table_of_verdicts(tmp_path: Path) -> None:
    path = tmp_path / "human.csv"
    with pytest.raises(ComparisonError, match="No such file"):
        read_human(path)
    path.write_text("id,verdict\na,win\n", "utf-8")
    with pytest.raises(ComparisonError, match="no column rater; it needs id, rater, verdict"):
        read_human(path)
    path.write_bytes("id,rater,verdict\n项目,人,win\n".encode("gbk"))
    with pytest.raises(ComparisonError, match="is not UTF-8"):
        read_human(path)


def test_two_runs_over_the_same_items_are_paired(tmp_path: Path) -> None:
    failed = Result(id="b", kind="context_length", reason="too long")
    one = finished(tmp_path / "one", [item("a"), item("b")], [classified("a", "IC", ONE), failed])
    other = finished(
        tmp_path / "other", [item("b"), item("a")], [classified("b", "ND", "fine"), classified("a", None, OTHER)]
    )
    assert paired(one, other) == [item("a", first=ONE, second=OTHER), item("b", first=None, second="fine")]


def test_runs_over_different_items_are_no_pair(tmp_path: Path) -> None:
    one = finished(tmp_path / "one", [item("a")], [classified("a", "IC", ONE)])
    other = finished(tmp_path / "other", [item("b")], [classified("b", "IC", ONE)])
    with pytest.raises(ComparisonError, match="are about different items"):
        paired(one, other)
