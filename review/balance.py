"""Which finished items make a benchmark of a chosen size and balance.

Of the paper's subsets, of 100 items each, WildChat-UC has implicit conflict, explicit revision and normal dialogue at
3:1:1 and about as many Chinese as English items; the two others have a third of each label (Appendix B.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain, zip_longest
from typing import Any

from review.config import ReviewError
from synuc.types import Label

Row = dict[str, Any]


def balanced(rows: Sequence[Row], shares: Mapping[Label, int]) -> tuple[list[Row], dict[str, int]]:
    """That many rows of each label, of every language alike as far as they go, and how many others each label has.

    Of a label and language the first rows are taken, so the same rows always give the same choice; it is a random one,
    since a project's items are in a random order. That order is kept.

    Raises:
        ReviewError: a label has fewer; the message says what would do.
    """
    there = Counter(row["label"] for row in rows)
    if any(there[label] < share for label, share in shares.items()):
        scale = min(Fraction(there[label], share) for label, share in shares.items() if share)
        most = {label: int(share * scale) for label, share in shares.items()}
        raise ReviewError(
            f"--sample {_written(shares)} of ND, ER and IC: only {_written(there)} are finished and usable; "
            f"{_written(most)} is the most in these proportions"
        )
    taken = {row["id"] for label, share in shares.items() for row in _in_turn(rows, label)[:share]}
    others = {f"{label} beyond the sample": there[label] - share for label, share in shares.items()}
    return [row for row in rows if row["id"] in taken], others


def _in_turn(rows: Sequence[Row], label: Label) -> list[Row]:
    """The rows of a label, the languages taking turns."""
    languages: dict[str, list[Row]] = {}
    for row in rows:
        if row["label"] == label:
            languages.setdefault(row["language"], []).append(row)
    return [row for row in chain.from_iterable(zip_longest(*languages.values())) if row is not None]


def _written(shares: Mapping[Label, int]) -> str:
    return "/".join(str(shares[label]) for label in Label)
