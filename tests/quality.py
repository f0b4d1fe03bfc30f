"""Rows and follow-ups for the tests of the quality figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.quality.rows import Row
from synuc.types import Label

TOPICS = (
    "a picnic in the park",
    "my grandmother's letters",
    "the history of the bicycle",
    "a cheap computer",
    "an allotment with beans",
    "the choir's next concert",
    "a night train to Vienna",
    "soup for twelve people",
)
ASKED = ("write about", "tell me more about", "summarise", "make a list of", "explain", "plan")


def a_row(id: str, label: Label, follow_up: str = "Go on.", **more: Any) -> Row:
    """A row whose dialogue is the part of its id before the first `-`."""
    values: dict[str, Any] = {
        "seed_id": id.partition("-")[0],
        "language": "en",
        "schema": None if label is Label.ND else "key",
        "relation": {Label.ND: None, Label.ER: "H_E_N_E", Label.IC: "H_I_N_I"}[label],
        "anchor_dimension": None if label is Label.ND else "tone",
        "new_dimension": None if label is Label.ND else "audience",
        "distance": None if label is Label.ND else 1,
        "users": f"Dialogue {id.partition('-')[0]}",
        **more,
    }
    return Row(id=id, label=label, follow_up=follow_up, **values)


def innocent(number: int) -> str:
    """A follow-up that has nothing to do with a label."""
    return f"Please {ASKED[number % 6]} {TOPICS[number % 8]}, {number % 11} of them, part {number * 7 % 13}."


def an_eval_run(path: Path, gold: Mapping[str, str], predicted: Mapping[str, str | None], protocol: str = "uc") -> Path:
    """The folder of a finished evaluation as `eval.folder` describes it; items without a prediction failed."""
    path.mkdir(parents=True)
    method = {"fingerprint": "f", "method": {"protocol": protocol}}
    (path / "method.json").write_text(json.dumps(method), "utf-8")
    items = [{"id": id, "label": label} for id, label in gold.items()]
    (path / "items.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in items), "utf-8")
    results = [
        {"id": id, "kind": "", "reason": "", "value": {"predicted": predicted[id], "answer": "..."}}
        if id in predicted
        else {"id": id, "kind": "timeout", "reason": "too late", "value": None}
        for id in gold
    ]
    (path / "results.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in results), "utf-8")
    (path / "metrics.json").write_text("{}", "utf-8")
    return path
