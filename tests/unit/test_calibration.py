"""Calibration against values worked out by hand."""

from __future__ import annotations

from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.calibration import calibration
from synuc.types import Label

ND, ER, IC = Label.ND, Label.ER, Label.IC


def row(nd: float, er: float, ic: float) -> dict[Label, float]:
    return {ND: nd, ER: er, IC: ic}


GOLD = [ND, ER, IC, IC]
ROWS = [row(0.9, 0.05, 0.05), row(0.92, 0.04, 0.04), row(0.2, 0.2, 0.6), row(0.25, 0.45, 0.3)]


def test_the_figures_of_four_items() -> None:
    # Confidences 0.9 (right) and 0.92 (wrong) share the bin up to 14/15; 0.6 (right) and 0.45 (wrong) lie alone.
    figures = calibration(GOLD, ROWS)
    assert figures["n"] == 4
    assert figures["ece"] == pytest.approx((2 * abs(0.91 - 0.5) + abs(0.6 - 1) + abs(0.45 - 0)) / 4)
    assert figures["mce"] == pytest.approx(0.45)
    squares = [
        0.1**2 + 0.05**2 + 0.05**2,
        0.92**2 + 0.96**2 + 0.04**2,
        0.2**2 + 0.2**2 + 0.4**2,
        0.25**2 + 0.45**2 + 0.7**2,
    ]
    assert figures["brier"] == pytest.approx(sum(squares) / 4)
    assert figures["nll"] == pytest.approx(-(log(0.9) + log(0.04) + log(0.6) + log(0.3)) / 4)


def test_the_bins() -> None:
    bins = calibration(GOLD, ROWS)["bins"]
    assert len(bins) == 15
    assert [place for place, part in enumerate(bins) if part["n"]] == [6, 8, 13]
    assert bins[13] == pytest.approx({"low": 13 / 15, "high": 14 / 15, "n": 2, "confidence": 0.91, "accuracy": 0.5})
    assert bins[0] == pytest.approx({"low": 0, "high": 1 / 15, "n": 0, "confidence": None, "accuracy": None})
    assert bins[14]["high"] == 1


@pytest.mark.parametrize("label", list(Label))
def test_the_first_of_equally_likely_labels_is_the_predicted_one(label: Label) -> None:
    bins = calibration([label], [row(0.5, 0.5, 0)])["bins"]
    assert bins[7]["accuracy"] == (1 if label is ND else 0)


def test_certain_and_right_is_perfect_and_certain_and_wrong_the_worst() -> None:
    right = calibration([ND, ER, IC], [row(1, 0, 0), row(0, 1, 0), row(0, 0, 1)])
    assert [right[name] for name in ("ece", "mce", "brier")] == [0, 0, 0]
    assert right["nll"] == pytest.approx(0)
    wrong = calibration([ND, ER, IC], [row(0, 1, 0), row(0, 0, 1), row(1, 0, 0)])
    assert [wrong[name] for name in ("ece", "mce", "brier")] == [1, 1, 2]
    assert wrong["nll"] == pytest.approx(36.04, abs=0.01)


def test_the_order_in_a_row_does_not_matter() -> None:
    assert calibration(GOLD, [dict(reversed(list(part.items()))) for part in ROWS]) == calibration(GOLD, ROWS)


@given(st.lists(st.tuples(st.sampled_from(Label), *[st.integers(1, 1000)] * 3), min_size=1, max_size=40))
@settings(deadline=None)
def test_the_errors_keep_their_bounds(items: list[tuple[Label, int, int, int]]) -> None:
    rows = [row(*(weight / sum(weights) for weight in weights)) for _, *weights in items]
    figures = calibration([label for label, *_ in items], rows)
    assert sum(part["n"] for part in figures["bins"]) == figures["n"] == len(items)
    assert 0 <= figures["ece"] <= figures["mce"] + 1e-12 <= 1 + 1e-12
    assert 0 <= figures["brier"] <= 2
    for part in figures["bins"]:
        assert not part["n"] or part["low"] <= part["confidence"] <= part["high"] + 1e-12


def test_rounded_probabilities_are_taken() -> None:
    third = 0.3333333
    assert calibration([ND], [row(third, third, third)])["nll"] == pytest.approx(log(3))


@pytest.mark.parametrize(
    "bad", [row(0.5, 0.5, 0.00001), row(0.5, 0.4, 0), row(1.2, -0.2, 0), row(float("nan"), 0.5, 0.5)]
)
def test_a_row_is_a_distribution(bad: dict[Label, float]) -> None:
    with pytest.raises(ValueError, match=r"sum to 1 or are negative: .* \(row 1, counted from 0\)"):
        calibration([ND, ND, ND], [row(1, 0, 0), bad, row(1, 0, 0)])


@pytest.mark.parametrize(("gold", "rows"), [([], []), ([ND], []), ([ND], [row(1, 0, 0)] * 2)])
def test_rows_belong_to_items(gold: list[Label], rows: list[dict[Label, float]]) -> None:
    with pytest.raises(ValueError, match=f"of {len(rows)} items to {len(gold)} gold labels"):
        calibration(gold, rows)
