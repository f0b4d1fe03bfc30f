"""A sample as an item of a benchmark, in the shape that `synuc eval uc --bench` reads (see `eval/bench.py`)."""

from __future__ import annotations

from typing import Any

from synuc.sample import Sample
from synuc.types import Label


def bench_item(sample: Sample) -> dict[str, Any]:
    """The item of an accepted sample, under the sample's id: results of an evaluation find their samples again.

    The subset is the source of its seed, the rationale the pair of constraints.
    """
    assert sample.label is not None
    dialogue = sample.dialogue
    said = [pair for turn in dialogue.turns for pair in (("user", turn.user), ("assistant", turn.assistant))]
    item: dict[str, Any] = {
        "id": sample.id,
        "subset": sample.source,
        "language": sample.language,
        **({"system": dialogue.system} if dialogue.system else {}),
        "history": [{"role": role, "content": text} for role, text in said],
        "follow_up": sample.follow_up,
        "label": sample.label.value,
    }
    if sample.speaking:
        item["speaking"] = sample.speaking.value
    if sample.eligibility:
        item["task"] = sample.eligibility.category
    if sample.label is not Label.ND and sample.anchor and sample.new:
        names = {"type", "dimension", "value", "evidence", "turn"}
        item["rationale"] = {
            "historical": [sample.anchor.model_dump(include=names)],
            "new": [sample.new.model_dump(include=names)],
        }
    return item
