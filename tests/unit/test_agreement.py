"""Agreement of raters against values worked out by hand and against the paper's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.agreement import agreement, exact_agreement, kappa, pairwise_agreement, raw_agreement

VERDICTS = st.sampled_from(["win", "tie", "loss"])
PAIRS = st.lists(st.tuples(VERDICTS, VERDICTS), min_size=1, max_size=30)


def test_raw_agreement_and_kappa() -> None:
    # Both yes 20, only the first 5, only the second 10, both no 15. Agreement 35/50; by chance 1/2 * 3/5 + 1/2 * 2/5.
    first = ["yes"] * 25 + ["no"] * 25
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert raw_agreement(first, second) == pytest.approx(0.7)
    assert kappa(first, second) == pytest.approx((0.7 - 0.5) / (1 - 0.5))


def test_kappa_against_agreement_by_chance_alone() -> None:
    assert kappa([True, True, False, False], [True, False, True, False]) == pytest.approx(0)
    # One rater has only one class: all the agreement is by chance.
    assert kappa(["ND", "ND"], ["ND", "IC"]) == pytest.approx(0)


def test_one_class_of_both_raters_has_no_kappa() -> None:
    assert kappa(["ND", "ND"], ["ND", "ND"]) is None
    assert raw_agreement(["ND", "ND"], ["ND", "ND"]) == 1


def test_three_raters() -> None:
    raters = (["a", "a", "a", "b"], ["a", "a", "b", "c"], ["a", "b", "b", "a"])
    # All agree on the first item. The pairs agree on 2, 1 and 2 of 4.
    assert exact_agreement(*raters) == pytest.approx(1 / 4)
    assert pairwise_agreement(*raters) == pytest.approx((2 + 1 + 2) / 12)


@pytest.mark.parametrize(("same", "n", "exact", "pairwise"), [(270, 304, 88.82, 92.54), (35, 40, 87.50, 91.67)])
def test_the_review_of_the_benchmark(same: int, n: int, exact: float, pairwise: float) -> None:
    # Appendix B. Three evaluators approve or not, so where they differ one of the three pairs agrees.
    most = [True] * n
    third = [True] * same + [False] * (n - same)
    figures = agreement(most, most, third)
    assert set(figures) == {"n", "exact", "pairwise"}
    assert round(100 * figures["exact"], 2) == exact
    assert round(100 * figures["pairwise"], 2) == pairwise


def test_two_raters_with_intervals() -> None:
    first = ["win"] * 30 + ["loss"] * 30
    second = ["win"] * 24 + ["loss"] * 36
    figures = agreement(first, second, intervals=True)
    assert figures["n"] == 60
    assert figures["raw"] == pytest.approx(0.9)
    assert figures["kappa"] == pytest.approx((0.9 - 0.5) / 0.5)
    # The number of agreements in a resample is binomial: 95% of it lies between 49 and 58 of 60.
    assert figures["intervals"]["raw"] == pytest.approx((49 / 60, 58 / 60), abs=0.6 / 60)
    low, high = figures["intervals"]["kappa"]
    assert 0.6 < low < figures["kappa"] < high < 0.96


def test_kappa_has_no_interval_where_resamples_have_none() -> None:
    # Most resamples of 4 items miss the one that is not a win.
    figures = agreement(["win", "win", "win", "tie"], ["win", "win", "win", "tie"], intervals=True)
    assert figures["kappa"] == 1
    assert figures["intervals"] == {"raw": (1, 1), "kappa": None}


@given(PAIRS)
@settings(deadline=None, max_examples=50)
def test_agreement_does_not_depend_on_who_is_first(pairs: list[tuple[str, str]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    value = kappa(first, second)
    assert value == pytest.approx(kappa(second, first))
    assert value is None or -1 <= value <= raw_agreement(first, second) + 1e-12
    assert exact_agreement(first, second) == pytest.approx(raw_agreement(first, second))
    assert pairwise_agreement(first, second) == pytest.approx(raw_agreement(first, second))


@pytest.mark.parametrize("raters", [[], [["a"]], [[], []], [["a"], ["a", "b"]], [["a"], ["a"], []]])
def test_raters_rate_the_same_items(raters: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="two or more raters on the same items"):
        agreement(*raters)


def test_two_raters_of_different_numbers_of_items() -> None:
    for figure in (raw_agreement, kappa):
        with pytest.raises(ValueError, match=r"not of \[1, 2\] ratings"):
            figure(["a"], ["a", "b"])
