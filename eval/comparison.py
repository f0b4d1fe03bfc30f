"""Two models on the same items, and two figures over the same models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy.stats import binomtest, linregress, pearsonr, permutation_test, rankdata, spearmanr

from eval.metrics import classification, percentiles, resampled
from synuc.types import Label

EXACT = 8
"""Up to so many models, all orders are tried for the p-value of Spearman's rho; its t-approximation needs more."""


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> dict[str, float]:
    """McNemar's exact test of two models by which items each gets right, in the same order.

    `only_first` and `only_second` count the items that just one gets right, of `n`; `p` is the two-sided binomial
    probability, 1 where there are none.

    Raises:
        ValueError: there are no items, or not as many of one model as of the other.
    """
    if not first or len(first) != len(second):
        raise ValueError(f"{len(first)} items of one model against {len(second)} of the other")
    only_first = sum(a and not b for a, b in zip(first, second, strict=True))
    only_second = sum(b and not a for a, b in zip(first, second, strict=True))
    discordant = only_first + only_second
    p = float(binomtest(only_first, discordant).pvalue) if discordant else 1.0
    return {"only_first": only_first, "only_second": only_second, "n": len(first), "p": p}


def paired_difference(
    gold: Sequence[Label],
    first: Sequence[Label | None],
    second: Sequence[Label | None],
    figure: Literal["f1", "accuracy"],
    seed: int = 0,
) -> dict[str, float]:
    """By how much the first model is better: `difference`, and `low` and `high` of its 95% paired bootstrap interval.

    Both models are resampled on the same items.

    Raises:
        ValueError: there are no items, or not as many answers of a model as items.
    """
    whole = classification(gold, first)[figure] - classification(gold, second)[figure]
    low, high = percentiles(resampled(gold, first, seed)[figure] - resampled(gold, second, seed)[figure])
    return {"difference": whole, "low": low, "high": high}


def correlation(x: Sequence[float], y: Sequence[float]) -> dict[str, float | None]:
    """How two figures of the same models go together (paper, section 3.2): there IC recall and response accuracy.

    `n`, `pearson_r`, `pearson_p`, `spearman_rho`, `spearman_p`, and `slope`, `intercept` and `r_squared` of the least
    squares line y = slope * x + intercept. All but `n` are None where one of the figures is the same for all models.
    The p-values are two-sided; that of rho is exact for up to eight models, else from the t-distribution.

    Raises:
        ValueError: there are fewer than three points, or not as many of one figure as of the other.
    """
    if len(x) != len(y) or len(x) < 3:
        raise ValueError(f"a correlation needs three or more pairs of values, not {len(x)} and {len(y)}")
    names = ("pearson_r", "pearson_p", "spearman_rho", "spearman_p", "slope", "intercept", "r_squared")
    if len(set(x)) == 1 or len(set(y)) == 1:
        return {"n": len(x), **dict.fromkeys(names)}
    line = linregress(x, y)
    rho, rho_p = spearmanr(x, y)
    if len(x) <= EXACT:
        rho_p = _exact_p(x, y)
    values = (*pearsonr(x, y), rho, rho_p, line.slope, line.intercept, line.rvalue**2)
    return {"n": len(x)} | {name: float(value) for name, value in zip(names, values, strict=True)}


def _exact_p(x: Sequence[float], y: Sequence[float]) -> float:
    """The share of all pairings of `x` with `y` whose rank correlation is as strong, doubled from the likelier side."""
    ranks, others = rankdata(x), rankdata(y)

    def products(ranks: Any, axis: int) -> Any:
        return np.sum(ranks * others, axis=axis)  # grows with rho, as nothing else of it depends on the pairing

    tested = permutation_test((ranks,), products, permutation_type="pairings", n_resamples=np.inf, vectorized=True)
    return float(tested.pvalue)
