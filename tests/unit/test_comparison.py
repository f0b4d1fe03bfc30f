"""Comparisons of models against values worked out by hand and against the paper's correlation."""

from __future__ import annotations

import pytest

from eval.comparison import correlation, mcnemar, paired_difference
from synuc.types import Label

ND, ER, IC = Label.ND, Label.ER, Label.IC

# Table 1 of the paper: IC recall and response accuracy of the 16 models on WildChat-UC, in percent.
IC_RECALL = [40, 35, 11.67, 10, 40, 53.33, 18.33, 11.67, 20, 11.67, 5, 41.67, 50, 28.33, 15, 8.33]
RESPONSE = [28.33, 21.67, 30, 25, 28.33, 31.67, 11.67, 15, 6.67, 8.33, 6.67, 31.67, 30, 18.33, 11.67, 11.67]


def test_the_correlation_of_the_paper() -> None:
    # Section 3.2 and Figure 9.
    figures = correlation(IC_RECALL, RESPONSE)
    assert figures["n"] == 16
    assert figures["pearson_r"] == pytest.approx(0.7223, abs=5e-5)
    assert figures["pearson_p"] == pytest.approx(0.0016, abs=5e-5)
    assert figures["spearman_rho"] == pytest.approx(0.6696, abs=5e-5)
    assert figures["spearman_p"] == pytest.approx(0.0045, abs=5e-5)
    assert figures["r_squared"] == pytest.approx(0.5217, abs=1e-4)


def test_the_line_by_hand() -> None:
    # Deviations of x -1, 0, 1 and of y -1, 1, 0: products 1, squares 2 and 2. Slope 1/2, r 1/2.
    figures = correlation([1, 2, 3], [1, 3, 2])
    assert figures["slope"] == pytest.approx(1 / 2)
    assert figures["intercept"] == pytest.approx(2 - 1 / 2 * 2)
    assert figures["pearson_r"] == pytest.approx(1 / 2)
    assert figures["spearman_rho"] == pytest.approx(1 / 2)
    assert figures["r_squared"] == pytest.approx(1 / 4)


def test_few_models_have_an_exact_p_of_rho() -> None:
    # Of 6 orders of three, one has rho 1 and one -1; of 24 orders of four, four have a rho of 0.8 or more.
    assert correlation([1, 2, 3], [10, 20, 40])["spearman_p"] == pytest.approx(2 / 6)
    assert correlation([1, 2, 3], [40, 20, 10])["spearman_p"] == pytest.approx(2 / 6)
    assert correlation([1, 2, 3, 4], [1, 2, 4, 3])["spearman_rho"] == pytest.approx(0.8)
    assert correlation([1, 2, 3, 4], [1, 2, 4, 3])["spearman_p"] == pytest.approx(2 * 4 / 24)
    # With a tie: the largest meets the largest in one of three orders.
    assert correlation([1, 2, 3], [5, 5, 6])["spearman_p"] == pytest.approx(2 / 3)
    # The largest number of models whose orders are all tried.
    eight = list(range(8))
    assert correlation(eight, eight)["spearman_p"] == pytest.approx(2 / 40320)


@pytest.mark.parametrize(("x", "y"), [([0, 0, 0], [1, 2, 3]), ([1, 2, 3], [0, 0, 0])])
def test_a_figure_that_does_not_vary_correlates_with_nothing(x: list[float], y: list[float]) -> None:
    figures = correlation(x, y)
    assert figures.pop("n") == 3
    assert len(figures) == 7
    assert set(figures.values()) == {None}


@pytest.mark.parametrize(("x", "y"), [([], []), ([1, 2], [1, 2]), ([1, 2, 3], [1, 2, 3, 4])])
def test_a_correlation_needs_pairs(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError, match=f"three or more pairs of values, not {len(x)} and {len(y)}"):
        correlation(x, y)


def test_mcnemar_by_hand() -> None:
    # 1 against 5 of 6 discordant items: twice (1 + 6) of 64 ways.
    first = [True] * 10 + [True] + [False] * 5 + [False] * 4
    second = [True] * 10 + [False] + [True] * 5 + [False] * 4
    assert mcnemar(first, second) == pytest.approx({"only_first": 1, "only_second": 5, "n": 20, "p": 14 / 64})
    assert mcnemar(second, first) == pytest.approx({"only_first": 5, "only_second": 1, "n": 20, "p": 14 / 64})


def test_models_that_are_right_on_the_same_items_do_not_differ() -> None:
    assert mcnemar([True, False], [True, False]) == {"only_first": 0, "only_second": 0, "n": 2, "p": 1}


@pytest.mark.parametrize(("first", "second"), [([], []), ([True], []), ([True], [True, False])])
def test_mcnemar_needs_the_same_items(first: list[bool], second: list[bool]) -> None:
    with pytest.raises(ValueError, match="items of one model against"):
        mcnemar(first, second)


def test_the_difference_of_accuracy() -> None:
    # The second model is wrong on 10 of 100 items: the difference in a resample is binomial, 95% between 5 and 16.
    gold = [IC] * 100
    figures = paired_difference(gold, gold, [*[None] * 10, *[IC] * 90], "accuracy")
    assert figures["difference"] == pytest.approx(0.1)
    assert figures["low"] == pytest.approx(0.05, abs=0.011)
    assert figures["high"] == pytest.approx(0.16, abs=0.011)


def test_the_difference_of_f1_by_hand() -> None:
    # Of the second model: ND 1/2 (precision 1/2, recall 1/2), ER 1, IC 1/2. Macro 2/3.
    gold = [ND, ND, ER, ER, IC, IC]
    figures = paired_difference(gold, gold, [ND, IC, ER, ER, IC, ND], "f1")
    assert figures["difference"] == pytest.approx(1 / 3)
    assert figures["low"] < figures["difference"] < figures["high"]


def test_the_difference_is_paired() -> None:
    # Both err on the same items, so every resample treats them alike; resampled apart they would differ.
    gold = [ND, ER, IC] * 10
    answers = [ND, ND, IC] * 10
    assert paired_difference(gold, answers, answers, "f1") == {"difference": 0, "low": 0, "high": 0}


def test_the_order_turns_the_difference_round() -> None:
    gold, first, second = [ND, ER, IC] * 8, [ND, ER, ND] * 8, [ND, None, IC, *[IC] * 21]
    one, other = paired_difference(gold, first, second, "f1"), paired_difference(gold, second, first, "f1")
    assert one["difference"] == pytest.approx(-other["difference"])
    assert (one["low"], one["high"]) == pytest.approx((-other["high"], -other["low"]))


def test_a_difference_needs_answers_of_both_models() -> None:
    with pytest.raises(ValueError, match="1 answers to 2 items"):
        paired_difference([ND, IC], [ND, IC], [ND], "accuracy")
