"""The figures of the classification protocol against values worked out by hand."""

from __future__ import annotations

import pytest

from eval.metrics import classification, confusion, interval
from synuc.types import Label

ND, ER, IC = Label.ND, Label.ER, Label.IC

GOLD = [ND, ND, ER, ER, IC, IC, IC, IC]
PREDICTED = [ND, IC, ER, None, IC, IC, ND, None]


def test_the_figures_of_a_mixed_set() -> None:
    # Precision: ND 1/2, ER 1/1, IC 2/3. Recall: ND 1/2, ER 1/2, IC 2/4. F1: ND 1/2, ER 2/3, IC 4/7.
    figures = classification(GOLD, PREDICTED)
    assert figures["precision"] == pytest.approx((1 / 2 + 1 + 2 / 3) / 3)
    assert figures["recall"] == pytest.approx(1 / 2)
    assert figures["f1"] == pytest.approx((1 / 2 + 2 / 3 + 4 / 7) / 3)
    assert figures["recall_ic"] == pytest.approx(1 / 2)
    assert figures["accuracy"] == pytest.approx(4 / 8)
    assert figures["unparseable"] == pytest.approx(2 / 8)
    assert figures["n"] == 8


def test_all_right_is_one() -> None:
    figures = classification([ND, ER, IC], [ND, ER, IC])
    assert {figures[name] for name in ("precision", "recall", "f1", "recall_ic", "accuracy")} == {1.0}
    assert figures["unparseable"] == 0


def test_no_readable_answer_is_nought_and_no_class_of_its_own() -> None:
    figures = classification([ND, ER, IC], [None, None, None])
    assert {figures[name] for name in ("precision", "recall", "f1", "recall_ic", "accuracy")} == {0.0}
    assert figures["unparseable"] == 1


def test_a_label_that_nobody_has_counts_with_nought() -> None:
    # Only ND and IC occur: their F1 is 1, that of ER 0.
    figures = classification([ND, IC], [ND, IC])
    assert figures["f1"] == pytest.approx(2 / 3)
    assert figures["accuracy"] == 1


def test_confusion() -> None:
    assert confusion(GOLD, PREDICTED) == {
        "ND": {"ND": 1, "ER": 0, "IC": 1, "unparseable": 0},
        "ER": {"ND": 0, "ER": 1, "IC": 0, "unparseable": 1},
        "IC": {"ND": 1, "ER": 0, "IC": 2, "unparseable": 1},
    }


@pytest.mark.parametrize(("gold", "predicted"), [([], []), ([ND], []), ([ND], [ND, ER])])
def test_answers_belong_to_items(gold: list[Label], predicted: list[Label | None]) -> None:
    with pytest.raises(ValueError, match="answers to"):
        classification(gold, predicted)


def test_the_interval_over_five_runs() -> None:
    # Deviations -2, -1, 0, 1, 2: variance 10/4, standard error sqrt(2.5 / 5) = 0.70711; t(0.975, 4) = 2.77645.
    mean, half_width = interval([68, 69, 70, 71, 72])
    assert mean == 70
    assert half_width == pytest.approx(2.77645 * 0.70711, abs=1e-4)


def test_the_interval_over_two_runs() -> None:
    # Standard deviation sqrt(2) / 10, standard error 0.1; t(0.975, 1) = 12.7062.
    mean, half_width = interval([0.4, 0.6])
    assert mean == pytest.approx(0.5)
    assert half_width == pytest.approx(1.27062, abs=1e-5)


def test_one_run_has_no_interval_and_none_no_mean() -> None:
    assert interval([0.5]) == (0.5, None)
    with pytest.raises(ValueError, match="no runs"):
        interval([])
