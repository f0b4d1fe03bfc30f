"""Whether a detector's probabilities can be taken at their word.

The errors are those of Guo et al. 2017, On Calibration of Modern Neural Networks, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import brier_score_loss, log_loss

from synuc.types import Label

BINS = 15


def calibration(gold: Sequence[Label], probabilities: Sequence[Mapping[Label, float]]) -> dict[str, Any]:
    """How well the three probabilities of each item fit its gold label.

    `n`; `ece` and `mce`, the expected and the maximum calibration error over 15 equal bins of the confidence in the
    predicted (likeliest) label; `brier`, the mean squared distance over the three labels together, 0 to 2; `nll` in
    nats, where a probability of 0 counts as the smallest step of a float, so at most 36; and `bins` for a reliability
    plot, each with its `low` (exclusive) and `high` edge, its `n`, and mean `confidence` and `accuracy`, None if empty.

    Raises:
        ValueError: there are no items, not as many rows as items, or a row is no distribution over the labels.
    """
    if not gold or len(gold) != len(probabilities):
        raise ValueError(f"probabilities of {len(probabilities)} items to {len(gold)} gold labels")
    labels = list(Label)
    table = np.array([[row[label] for label in labels] for row in probabilities], dtype=np.float64)
    sums = table.sum(axis=1)
    # Written so that NaN fails it.
    if wrong := np.flatnonzero(~((table >= 0).all(axis=1) & (np.abs(sums - 1) <= 1e-6))).tolist():
        row = table[wrong[0]].tolist()
        raise ValueError(f"probabilities that don't sum to 1 or are negative: {row} (row {wrong[0]}, counted from 0)")
    table /= sums[:, None]
    truth = np.array([labels.index(label) for label in gold])
    bins = _bins(table.max(axis=1), table.argmax(axis=1) == truth)
    gaps = [(abs(part["accuracy"] - part["confidence"]), part["n"]) for part in bins if part["n"]]
    classes = range(len(labels))
    return {
        "n": len(gold),
        "ece": sum(gap * n for gap, n in gaps) / len(gold),
        "mce": max(gap for gap, _ in gaps),
        "brier": float(brier_score_loss(truth, table, labels=classes, scale_by_half=False)),
        "nll": float(log_loss(truth, table, labels=classes)),
        "bins": bins,
    }


def _bins(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> list[dict[str, Any]]:
    edges = np.linspace(0, 1, BINS + 1)
    places = np.digitize(confidence, edges[1:-1], right=True)
    bins = []
    for place in range(BINS):
        there = places == place
        n = int(there.sum())
        bins.append(
            {
                "low": float(edges[place]),
                "high": float(edges[place + 1]),
                "n": n,
                "confidence": float(confidence[there].mean()) if n else None,
                "accuracy": float(right[there].mean()) if n else None,
            }
        )
    return bins
