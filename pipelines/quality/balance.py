"""How evenly labels, schemas, relations, languages and dimensions occur, and how far apart the two constraints are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import log
from statistics import fmean, median
from typing import Any

from pipelines.quality.rows import Row
from synuc.speaking import Speaking
from synuc.types import Label, Relation

SHOWN = 20
"""Dimensions that are listed; there may be hundreds."""


def balance(rows: Iterable[Row]) -> dict[str, Any]:
    """Figures of `spread` of `label`, `language`, `schema`, `schema_of_er`, `schema_of_ic`, `relation`,
    `anchor_dimension` and `new_dimension`, and `distance`.

    Schemas, relations and dimensions are those of ER and IC. `distance` is in user turns from the anchor's evidence to
    the follow-up: its `counts`, `mean` and `median` (None without any), and how many are `unknown`.
    """
    columns: dict[str, Counter[Any]] = {name: Counter() for name in (*COLUMNS, "distance")}
    for row in rows:
        columns["label"][row.label.value] += 1
        columns["language"][row.language] += 1
        if row.label is Label.ND:
            continue
        columns["schema"][row.schema] += 1
        columns[f"schema_of_{row.label.value.lower()}"][row.schema] += 1
        columns["relation"][row.relation] += 1
        columns["anchor_dimension"][row.anchor_dimension] += 1
        columns["new_dimension"][row.new_dimension] += 1
        columns["distance"][row.distance] += 1
    spreads = {name: spread(columns[name], possible) for name, possible in COLUMNS.items()}
    return {**spreads, "distance": _distances(columns["distance"])}


COLUMNS: dict[str, Sequence[str] | None] = {
    "label": list(Label),
    "language": None,
    "schema": list(Speaking),
    "schema_of_er": list(Speaking),
    "schema_of_ic": list(Speaking),
    "relation": list(Relation),
    "anchor_dimension": None,
    "new_dimension": None,
}
"""What is counted, with the values that there could be; None: as many as occur."""


def spread(counts: Counter[Any], possible: Sequence[str] | None = None) -> dict[str, Any]:
    """How a quantity is spread over its values.

    `counts`, most first, of all that are possible or else of the `SHOWN` most frequent; `values`, how many occur;
    `none`, how many samples have no value; `evenness`, the entropy over its maximum: 1 if all values are equally
    frequent, 0 if only one occurs, None if there is nothing to compare.
    """
    given = Counter({value: n for value, n in counts.items() if value is not None})
    listed = Counter({str(value): given[value] for value in possible}) if possible else given
    return {
        "counts": dict(listed.most_common(None if possible else SHOWN)),
        "values": len(given),
        "none": counts[None],
        "evenness": evenness(list(given.values()), len(possible or given)),
    }


def evenness(counts: Sequence[int], possible: int) -> float | None:
    """The Shannon entropy of the frequencies over that of `possible` equally frequent values."""
    total = sum(counts)
    if not total or possible < 2:
        return None
    return abs(sum(-n / total * log(n / total) for n in counts if n)) / log(possible)


def _distances(counts: Counter[int | None]) -> dict[str, Any]:
    known = sorted((turns, n) for turns, n in counts.items() if turns is not None)
    every = [turns for turns, n in known for _ in range(n)]
    return {
        "counts": {str(turns): n for turns, n in known},
        "mean": fmean(every) if every else None,
        "median": median(every) if every else None,
        "unknown": counts[None],
    }
