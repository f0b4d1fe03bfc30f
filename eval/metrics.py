"""The figures of the classification protocol, and their spread over runs and within one. Values are shares, 0 to 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, t
from sklearn.metrics import precision_recall_fscore_support

from synuc.types import Label

Bounds = tuple[float, float]
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

CONFIDENCE = 0.95
RESAMPLES = 1000
UNPARSEABLE = "unparseable"
"""What stands for an answer with no readable label: no class of its own in a mean over classes, but always wrong."""

LABELS = [label.value for label in Label]
NAMES = [*LABELS, UNPARSEABLE]


def classification(gold: Sequence[Label], predicted: Sequence[Label | None]) -> dict[str, float]:
    """Macro `precision`, `recall` and `f1` over the three labels, `recall_ic`, `accuracy`, `unparseable` and `n`.

    A label that nobody has or nobody predicts counts with 0, so that figures of small sets are comparable.

    Raises:
        ValueError: there are no items, or not as many answers as items.
    """
    truth, answers = _codes(gold, predicted)
    shares = {name: float(values[0]) for name, values in _shares(truth[None], answers[None]).items()}
    return shares | {"n": float(len(gold))}


def by_subset(
    subsets: Sequence[str], gold: Sequence[Label], predicted: Sequence[Label | None]
) -> dict[str, dict[str, Any]]:
    """The figures of `classification` as in the paper's Table 4: `overall`, and `subsets` with those of each subset.

    `subsets` names the subset of each item. Overall pools all items; it is no mean over subsets. `absent` lists the
    labels that no item has, which count with 0 in the means; without implicit conflicts `recall_ic` is None.

    Raises:
        ValueError: there are no items, or not as many answers or subsets as items.
    """
    if len(subsets) != len(gold):
        raise ValueError(f"{len(subsets)} names of subsets for {len(gold)} items")
    overall = _with_absent(gold, predicted)
    parts = {
        name: _with_absent(
            [label for label, subset in zip(gold, subsets, strict=True) if subset == name],
            [answer for answer, subset in zip(predicted, subsets, strict=True) if subset == name],
        )
        for name in sorted(set(subsets))
    }
    return {"overall": overall, "subsets": parts}


def _with_absent(gold: Sequence[Label], predicted: Sequence[Label | None]) -> dict[str, Any]:
    figures: dict[str, Any] = classification(gold, predicted)
    if Label.IC not in gold:
        figures["recall_ic"] = None
    return {**figures, "absent": [label.value for label in Label if label not in gold]}


def confusion(gold: Sequence[Label], predicted: Sequence[Label | None]) -> dict[str, dict[str, int]]:
    """How many items of each gold label were given each label, or `unparseable`. Raises as `classification` does."""
    truth, answers = _names(gold, predicted)
    counts = {label: dict.fromkeys(NAMES, 0) for label in LABELS}
    for label, answer in zip(truth, answers, strict=True):
        counts[label][answer] += 1
    return counts


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean over runs and half the width of its 95% t-interval; one run alone has none.

    Raises:
        ValueError: there are no runs.
    """
    if not values:
        raise ValueError("no runs to take a mean over")
    n = len(values)
    mean = float(np.mean(values))
    if n == 1:
        return mean, None
    return mean, float(t.ppf((1 + CONFIDENCE) / 2, n - 1) * np.std(values, ddof=1) / sqrt(n))


def resampled(gold: Sequence[Label], predicted: Sequence[Label | None], seed: int = 0) -> dict[str, Floats]:
    """The shares that `classification` gives, each on the same `RESAMPLES` bootstrap samples of the items.

    With one seed, models on the same items are resampled alike and can be compared in pairs. Raises as it does.
    """
    truth, answers = _codes(gold, predicted)
    samples = _samples(len(gold), seed)
    return _shares(truth[samples], answers[samples])


def intervals(gold: Sequence[Label], predicted: Sequence[Label | None], seed: int = 0) -> dict[str, Bounds]:
    """The 95% bootstrap intervals of the shares that `classification` gives. Raises as it does."""
    return {name: percentiles(values) for name, values in resampled(gold, predicted, seed).items()}


def bootstrap_interval(
    columns: Sequence[Sequence[Any]], statistic: Callable[..., float | None], seed: int = 0
) -> Bounds | None:
    """The 95% percentile bootstrap interval of `statistic(*columns)`; an item keeps its values in all columns together.

    A statistic that is None on some of the samples has no interval: leaving those out would bend it.

    Raises:
        ValueError: there are no items, or the columns differ in length.
    """
    lengths = {len(column) for column in columns}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"columns of {[len(column) for column in columns]} items to resample")
    samples = _samples(lengths.pop(), seed).tolist()
    drawn = [statistic(*([column[i] for i in sample] for column in columns)) for sample in samples]
    values = [value for value in drawn if value is not None]
    return percentiles(values) if len(values) == len(drawn) else None


def percentiles(values: Sequence[float] | Floats) -> Bounds:
    """The bounds of the middle 95% of the values."""
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def wilson(hits: int, n: int) -> Bounds:
    """The 95% Wilson interval of the share `hits / n`; `n` is at least 1."""
    low, high = binomtest(hits, n).proportion_ci(confidence_level=CONFIDENCE, method="wilson")
    return float(low), float(high)


def _samples(n: int, seed: int) -> Codes:
    return np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))


def _shares(truth: Codes, answers: Codes) -> dict[str, Floats]:
    """The shares on each of several samples, which are the rows of both arrays."""
    # Each sample gets names of its own for the labels, so that one call counts them all.
    own = len(NAMES) * np.arange(len(truth))[:, None]
    labels = own + np.arange(len(LABELS))
    precision, recall, f1, _ = (
        np.reshape(values, labels.shape)
        for values in precision_recall_fscore_support(
            (truth + own).ravel(), (answers + own).ravel(), labels=labels.ravel(), average=None, zero_division=0
        )
    )
    return {
        "precision": precision.mean(axis=1),
        "recall": recall.mean(axis=1),
        "f1": f1.mean(axis=1),
        "recall_ic": recall[:, LABELS.index(Label.IC.value)],
        "accuracy": (truth == answers).mean(axis=1),
        "unparseable": (answers == NAMES.index(UNPARSEABLE)).mean(axis=1),
    }


def _codes(gold: Sequence[Label], predicted: Sequence[Label | None]) -> tuple[Codes, Codes]:
    truth, answers = _names(gold, predicted)
    return np.array([NAMES.index(name) for name in truth]), np.array([NAMES.index(name) for name in answers])


def _names(gold: Sequence[Label], predicted: Sequence[Label | None]) -> tuple[list[str], list[str]]:
    if not gold or len(gold) != len(predicted):
        raise ValueError(f"{len(predicted)} answers to {len(gold)} items")
    return [label.value for label in gold], [UNPARSEABLE if label is None else label.value for label in predicted]
