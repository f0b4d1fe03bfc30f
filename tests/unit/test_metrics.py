"""The figures of the classification protocol against values worked out by hand."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.metrics import (
    bootstrap_interval,
    by_subset,
    classification,
    confusion,
    interval,
    intervals,
    resampled,
    wilson,
)
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


# Answers that give Claude Opus 4.8's row of the paper's Table 4: how many items of a gold label were called ND, ER, IC,
# and nothing readable. Those on LMSYS-UC are the only ones that do, and on WildChat-UC one must be unreadable.
OPUS = {
    "WildChat-UC": {ND: (18, 1, 0, 1), ER: (4, 16, 0, 0), IC: (33, 3, 24, 0)},
    "LMSYS-UC": {ND: (34, 0, 0, 0), ER: (15, 18, 0, 0), IC: (18, 0, 15, 0)},
    "ShareGPT-UC": {ND: (31, 0, 2, 0), ER: (10, 22, 1, 0), IC: (13, 5, 16, 0)},
}


def published(figures: dict[str, float]) -> list[float]:
    return [round(100 * figures[name], 2) for name in ("precision", "recall", "f1", "recall_ic")]


def test_a_row_of_the_paper_comes_out_overall_and_by_subset() -> None:
    items = [
        (subset, gold, answer)
        for subset, counts in OPUS.items()
        for gold, row in counts.items()
        for answer, n in zip((ND, ER, IC, None), row, strict=True)
        for _ in range(n)
    ]
    figures = by_subset([subset for subset, _, _ in items], [gold for _, gold, _ in items], [a for _, _, a in items])
    assert published(figures["subsets"]["WildChat-UC"]) == [70.91, 70.00, 61.71, 40.00]
    assert published(figures["subsets"]["LMSYS-UC"]) == [83.58, 66.67, 66.80, 45.45]
    assert published(figures["subsets"]["ShareGPT-UC"]) == [74.37, 69.22, 68.33, 47.06]
    assert published(figures["overall"]) == [76.05, 67.94, 65.58, 43.31]
    assert figures["overall"]["n"] == 300
    assert figures["overall"]["recall_ic"] == pytest.approx((24 + 15 + 16) / 127)


def test_a_label_that_no_item_has_is_named() -> None:
    figures = by_subset(["a", "a", "b"], [ND, IC, ER], [ND, IC, IC])
    assert figures["overall"]["absent"] == []
    assert figures["subsets"]["a"]["absent"] == ["ER"]
    assert figures["subsets"]["a"]["recall_ic"] == 1
    assert figures["subsets"]["b"]["absent"] == ["ND", "IC"]
    assert figures["subsets"]["b"]["recall_ic"] is None


def test_items_have_subsets() -> None:
    with pytest.raises(ValueError, match="1 names of subsets for 2 items"):
        by_subset(["A"], [ND, IC], [ND, IC])
    with pytest.raises(ValueError, match="0 answers to 0 items"):
        by_subset([], [], [])
    with pytest.raises(ValueError, match="1 answers to 2 items"):
        by_subset(["A", "B"], [ND, IC], [ND])


def test_the_bootstrap_interval_of_a_share() -> None:
    # The number of hits in a resample is binomial with n = 100 and p = 0.7: 95% of it lies between 61 and 79.
    assert bootstrap_interval([[True] * 70 + [False] * 30], fmean) == pytest.approx((0.61, 0.79), abs=0.011)


def test_a_seed_gives_one_interval() -> None:
    values = [[1.5**n for n in range(20)]]
    assert bootstrap_interval(values, fmean) == bootstrap_interval(values, fmean)
    assert bootstrap_interval(values, fmean) != bootstrap_interval(values, fmean, seed=1)


def test_items_are_resampled_whole() -> None:
    samples = []

    def seen(first: list[int], second: list[int]) -> float:
        samples.append(tuple(first))
        return sum(first) + sum(second)

    assert bootstrap_interval([[1, 2, 3], [-1, -2, -3]], seen) == (0, 0)
    assert len(set(samples)) == 27


def test_a_statistic_that_some_samples_lack_has_no_interval() -> None:
    assert bootstrap_interval([[1, 2]], lambda x: None if x == [1, 1] else 1.0) is None


def test_the_intervals_of_all_figures() -> None:
    found = intervals(GOLD, PREDICTED)
    assert set(found) == {"precision", "recall", "f1", "recall_ic", "accuracy", "unparseable"}
    one_by_one = bootstrap_interval([GOLD, PREDICTED], lambda gold, answers: classification(gold, answers)["f1"])
    assert found["f1"] == pytest.approx(one_by_one)


def test_samples_are_told_apart() -> None:
    # One right and one unreadable answer: a sample has 0, 1 or 2 right ones, and its F1 is that of its own items.
    drawn = resampled([ND, ND], [ND, None])
    assert set(drawn["accuracy"]) == {0, 0.5, 1}
    assert drawn["unparseable"] == pytest.approx(1 - drawn["accuracy"])
    assert drawn["precision"] == pytest.approx((drawn["accuracy"] > 0) / 3)
    assert drawn["f1"] == pytest.approx(2 * drawn["accuracy"] / (1 + drawn["accuracy"]) / 3)


def test_nothing_to_resample() -> None:
    with pytest.raises(ValueError, match="0 answers to 0 items"):
        intervals([], [])
    bad: list[list[list[int]]] = [[], [[]], [[1, 2], [1]]]
    for columns in bad:
        with pytest.raises(ValueError, match=r"columns of \[.*\] items to resample"):
            bootstrap_interval(columns, lambda *_: 0)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@settings(deadline=None)
def test_the_wilson_interval(counts: tuple[int, int]) -> None:
    hits, n = counts
    z, p = 1.959963985, hits / n
    middle, spread = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    expected = ((middle - spread) / (1 + z * z / n), (middle + spread) / (1 + z * z / n))
    assert wilson(hits, n) == pytest.approx(expected, abs=1e-7)
