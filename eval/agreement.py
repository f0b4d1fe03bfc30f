"""How far raters agree on the same items: people with people, and judges with people (paper, Appendices B and D)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from sklearn.metrics import accuracy_score, cohen_kappa_score

from eval.metrics import bootstrap_interval

Ratings = Sequence[str] | Sequence[bool]
"""One rater's verdicts, one per item."""


def raw_agreement(first: Ratings, second: Ratings) -> float:
    """The share of items on which two raters say the same.

    Raises:
        ValueError: there are no items, or not as many ratings of one rater as of the other.
    """
    _check(first, second)
    return float(accuracy_score(first, second))


def kappa(first: Ratings, second: Ratings) -> float | None:
    """Cohen's kappa of two raters; None where both give one and the same class to all items, so that it is 0/0.

    Raises as `raw_agreement` does.
    """
    _check(first, second)
    if len({*first, *second}) == 1:
        return None
    return float(cohen_kappa_score(first, second))


def exact_agreement(*raters: Ratings) -> float:
    """The share of items on which all raters say the same: with three, the three-way exact agreement (Appendix B).

    Raises:
        ValueError: there are fewer than two raters or no items, or the raters rated different numbers of items.
    """
    _check(*raters)
    return fmean(len(set(verdicts)) == 1 for verdicts in zip(*raters, strict=True))


def pairwise_agreement(*raters: Ratings) -> float:
    """The mean raw agreement over all pairs of raters (Appendix B). Raises as `exact_agreement` does."""
    _check(*raters)
    return fmean(raw_agreement(first, second) for first, second in combinations(raters, 2))


def agreement(*raters: Ratings, intervals: bool = False, seed: int = 0) -> dict[str, Any]:
    """All that is reported of the raters: `n` items, and `raw` and `kappa` of two, `exact` and `pairwise` of more.

    With `intervals`, also the 95% bootstrap interval of each over items under that key, None where it is undefined.
    Raises as `exact_agreement` does.
    """
    _check(*raters)
    statistics: dict[str, Callable[..., float | None]] = (
        {"raw": raw_agreement, "kappa": kappa}
        if len(raters) == 2
        else {"exact": exact_agreement, "pairwise": pairwise_agreement}
    )
    figures: dict[str, Any] = {"n": len(raters[0])} | {name: of(*raters) for name, of in statistics.items()}
    if intervals:
        figures["intervals"] = {name: bootstrap_interval(raters, of, seed) for name, of in statistics.items()}
    return figures


def _check(*raters: Ratings) -> None:
    counts = [len(ratings) for ratings in raters]
    if len(counts) < 2 or not counts[0] or len(set(counts)) > 1:
        raise ValueError(f"agreement is of two or more raters on the same items, not of {counts} ratings")
