"""The figures of the classification protocol, and their spread over runs. Values are shares between 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from scipy.stats import t
from sklearn.metrics import precision_recall_fscore_support

from synuc.types import Label

CONFIDENCE = 0.95
UNPARSEABLE = "unparseable"
"""What stands for an answer with no readable label: no class of its own in a mean over classes, but always wrong."""

LABELS = [label.value for label in Label]


def classification(gold: Sequence[Label], predicted: Sequence[Label | None]) -> dict[str, float]:
    """Macro `precision`, `recall` and `f1` over the three labels, `recall_ic`, `accuracy`, `unparseable` and `n`.

    A label that nobody has or nobody predicts counts with 0, so that figures of small sets are comparable.

    Raises:
        ValueError: there are no items, or not as many answers as items.
    """
    truth, answers = _names(gold, predicted)
    macro = precision_recall_fscore_support(truth, answers, labels=LABELS, average="macro", zero_division=0)
    per_label = precision_recall_fscore_support(truth, answers, labels=LABELS, average=None, zero_division=0)
    return {
        "precision": float(macro[0]),
        "recall": float(macro[1]),
        "f1": float(macro[2]),
        "recall_ic": float(per_label[1][LABELS.index(Label.IC.value)]),
        "accuracy": sum(a == b for a, b in zip(truth, answers, strict=True)) / len(truth),
        "unparseable": answers.count(UNPARSEABLE) / len(answers),
        "n": float(len(truth)),
    }


def confusion(gold: Sequence[Label], predicted: Sequence[Label | None]) -> dict[str, dict[str, int]]:
    """How many items of each gold label were given each label, or `unparseable`. Raises as `classification` does."""
    truth, answers = _names(gold, predicted)
    counts = {label: dict.fromkeys([*LABELS, UNPARSEABLE], 0) for label in LABELS}
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


def _names(gold: Sequence[Label], predicted: Sequence[Label | None]) -> tuple[list[str], list[str]]:
    if not gold or len(gold) != len(predicted):
        raise ValueError(f"{len(predicted)} answers to {len(gold)} items")
    return [label.value for label in gold], [UNPARSEABLE if label is None else label.value for label in predicted]
