"""Difficulty from the files of repeated evaluations, by hand; and how it finds its samples."""

from __future__ import annotations

import json
from math import log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.quality.difficulty import (
    UNREADABLE,
    Difficulty,
    DifficultyError,
    Level,
    attached,
    difficulties,
    difficulty,
)
from synuc.types import Label
from tests.quality import a_row, an_eval_run

GOLD = {"a": "IC", "b": "ND", "c": "ER"}


def test_by_hand() -> None:
    assert difficulty(Label.IC, ["IC", "IC", "IC"]) == Difficulty(3, 0, 0, 0, 0, Level.EASY)
    assert difficulty(Label.IC, ["ND", "ND", "ND"]) == Difficulty(3, 1, 0, 0, 0.5, Level.HARD)
    one = difficulty(Label.IC, ["IC", "ND", "ND", UNREADABLE])
    bits = 2 * 0.25 * 2 + 0.5 * 1
    assert (one.runs, one.wrong, one.unreadable, one.level) == (4, 0.75, 0.25, Level.CONTESTED)
    assert one.entropy == pytest.approx(bits / 2)
    assert one.score == pytest.approx((0.75 + bits / 2) / 2)
    assert difficulty(Label.IC, ["IC", "ND"]).entropy == 1
    assert difficulty(Label.IC, ["IC", "ND", "ER"]).entropy == pytest.approx(log2(3) / log2(3))


def test_one_run_disagrees_with_nobody() -> None:
    assert difficulty(Label.IC, ["ND"]) == Difficulty(1, 1, 0, 0, 0.5, Level.UNKNOWN)


@given(st.sampled_from(Label), st.lists(st.sampled_from([*(label.value for label in Label), UNREADABLE]), min_size=1))
def test_all_are_shares_and_easy_is_zero(gold: Label, given: list[str]) -> None:
    one = difficulty(gold, given)
    for value in (one.wrong, one.unreadable, one.entropy, one.score):
        assert 0 <= value <= 1 + 1e-9
    assert one.unreadable <= one.wrong
    assert (one.score == 0) == (set(given) == {gold.value})


def test_runs_are_read_by_their_files(tmp_path: Path) -> None:
    runs = [
        an_eval_run(tmp_path / "1", GOLD, {"a": "IC", "b": "ND", "c": None}),
        an_eval_run(tmp_path / "2", GOLD, {"a": "ND", "b": "ND"}),  # c failed
        an_eval_run(tmp_path / "3", GOLD, {"a": "IC", "b": "ND", "c": "ER"}),
    ]
    with (runs[1] / "results.jsonl").open("a", encoding="utf-8") as file:
        # Tried again: the later line counts. What has no end doesn't.
        file.write(json.dumps({"id": "a", "value": {"predicted": "ER"}}) + "\n")
        file.write(json.dumps({"id": "b", "value": {"predicted": "IC"}}))
    found = difficulties(runs)
    assert found == {
        "a": difficulty(Label.IC, ["IC", "ER", "IC"]),
        "b": difficulty(Label.ND, ["ND", "ND", "ND"]),
        "c": difficulty(Label.ER, [UNREADABLE, UNREADABLE, "ER"]),
    }
    assert found["c"].unreadable == pytest.approx(2 / 3)


def test_an_item_that_one_run_lacks_has_those_of_the_others(tmp_path: Path) -> None:
    runs = [an_eval_run(tmp_path / "1", GOLD, GOLD), an_eval_run(tmp_path / "2", {"a": "IC"}, {"a": "IC"})]
    assert {id: (one.runs, one.level) for id, one in difficulties(runs).items()} == {
        "a": (2, Level.EASY),
        "b": (1, Level.UNKNOWN),
        "c": (1, Level.UNKNOWN),
    }


def test_runs_that_give_none_are_named_with_what_to_do(tmp_path: Path) -> None:
    good = an_eval_run(tmp_path / "good", GOLD, GOLD)
    with pytest.raises(DifficultyError, match="two or more runs of synuc eval uc"):
        difficulties([good, tmp_path / "good"])
    with pytest.raises(DifficultyError, match="nowhere is no run of synuc eval uc"):
        difficulties([good, tmp_path / "nowhere"])
    with pytest.raises(DifficultyError, match="is no run of synuc eval uc"):
        difficulties([good, an_eval_run(tmp_path / "other", GOLD, GOLD, "response")])
    with pytest.raises(DifficultyError, match="holds a as ND, another run as IC"):
        difficulties([good, an_eval_run(tmp_path / "changed", {"a": "ND"}, {})])
    half = an_eval_run(tmp_path / "half", GOLD, GOLD)
    (half / "metrics.json").unlink()
    with pytest.raises(DifficultyError, match="half is not finished; give its command again"):
        difficulties([good, half])


def test_means_per_label_and_what_is_elsewhere() -> None:
    rows = [a_row("1-IC", Label.IC), a_row("2-IC", Label.IC), a_row("3-ND", Label.ND), a_row("4-ND", Label.ND)]
    found = {
        "1-IC": difficulty(Label.IC, ["IC", "IC"]),
        "2-IC": difficulty(Label.IC, ["ND", "IC"]),
        "3-ND": difficulty(Label.ND, ["ND"]),
        "x": difficulty(Label.ND, ["ND", "ND"]),
    }
    data = attached(rows, found)
    assert data["elsewhere"] == 1
    assert set(data["labels"]) == {"ND", "IC", "all"}
    assert data["labels"]["IC"] == {
        "samples": 2,
        "levels": {"easy": 1, "contested": 1, "hard": 0, "unknown": 0},
        "score": pytest.approx((0 + 0.75) / 2),
        "wrong": 0.25,
        "unreadable": 0,
        "entropy": 0.5,
    }
    assert data["labels"]["ND"]["levels"]["unknown"] == 2
    assert data["labels"]["ND"]["score"] is None
    assert data["labels"]["all"]["samples"] == 4


def test_runs_on_something_else_are_said() -> None:
    with pytest.raises(DifficultyError, match=r"evaluate the uc-bench\.jsonl of this run's export"):
        attached([a_row("1-IC", Label.IC)], {"x": difficulty(Label.ND, ["ND", "ND"])})
