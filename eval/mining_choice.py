"""Which of the judged dialogues become candidates of a benchmark, what is counted on the way, and their file.

candidates.jsonl holds an object per line, in the shape of `eval.bench` as far as nobody has given a label yet:

    id                   hash of the whole dialogue, as synthesis has it for a seed
    language             ISO 639-1 code
    system               the system message of the dialogue; may be missing
    history              list of {"role": "user" or "assistant", "content": text}, all turns but the last
    follow_up            the user's own next message
    task                 the task category: one of the six of `synuc.replies.CATEGORIES`
    suitability          1 to 5; suitability_reason says why
    source, origin       the file or data set, and where in it the dialogue stands, with the id that it had there
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, get_args

from eval.mining_judging import SCORES, Judged, SemanticVerdict
from eval.protocol import Item, Result
from synuc.folder import json_line, write_whole
from synuc.replies import CATEGORIES, Category
from synuc.types import Frozen, Seed


class Candidate(Frozen):
    """A dialogue that passed all filters, with its score."""

    seed: Seed
    task: Category
    suitability: int
    suitability_reason: str

    def row(self) -> dict[str, Any]:
        """As a line of candidates.jsonl."""
        history = self.seed.dialogue.before_last()
        said = [pair for turn in history.turns for pair in (("user", turn.user), ("assistant", turn.assistant))]
        return {
            "id": self.seed.id,
            "language": self.seed.language,
            **({"system": history.system} if history.system else {}),
            "history": [{"role": role, "content": text} for role, text in said],
            "follow_up": self.seed.dialogue.turns[-1].user,
            "task": self.task,
            "suitability": self.suitability,
            "suitability_reason": self.suitability_reason,
            "source": self.seed.source,
            "origin": self.seed.origin,
        }


def best(items: Sequence[Item], results: Sequence[Result], least: int, keep: int | None) -> list[Candidate]:
    """Of each language and task category the `keep` (None: all) most suitable with a score of `least` or more.

    In the order of languages, categories, scores from the best, ids: a tie is decided by the hash of the content.
    """
    suitable = [one for one in _scored(items, results) if one.suitability >= least]
    suitable.sort(key=lambda one: (*_cell(one), -one.suitability, one.seed.id))
    return [one for _, cell in groupby(suitable, _cell) for one in islice(cell, keep)]


def _cell(candidate: Candidate) -> tuple[str, int]:
    return candidate.seed.language, CATEGORIES.index(candidate.task)


def _scored(items: Sequence[Item], results: Sequence[Result]) -> Iterator[Candidate]:
    judged = _judged(results)
    for item in items:
        one = judged.get(item["id"])
        if one and one.task and one.suitability:
            yield Candidate(
                seed=Seed.model_validate(dict(item)),
                task=one.task.category,
                suitability=one.suitability.score,
                suitability_reason=one.suitability.reason,
            )


def _judged(results: Sequence[Result]) -> dict[str, Judged]:
    return {result.id: Judged.model_validate(result.value) for result in results if result.value is not None}


def steps(items: Sequence[Item], results: Sequence[Result], kept: Sequence[Candidate], least: int) -> dict[str, Any]:
    """How many of `items` were `asked` about, and what came of them, step by step.

    `failed` by kind, `rejected` by the semantic filter's verdict, `categories` of the others, `scores` of those in the
    six categories, and by category those that are `suitable` (scored `least` or more) and `kept`. So `asked` is the sum
    of `failed`, `rejected` and `categories`; the six of `categories` make the sum of `scores`, and those from `least`
    on that of `suitable`.
    """
    ids = {item["id"] for item in items}
    of_these = [result for result in results if result.id in ids]
    judged = _judged(of_these).values()
    verdicts = Counter(one.semantic.verdict for one in judged)
    tasks = Counter(one.task.category for one in judged if one.task)
    scores = Counter(one.suitability.score for one in judged if one.suitability)
    suitable: Counter[str] = Counter(
        one.task.category for one in judged if one.task and one.suitability and one.suitability.score >= least
    )
    chosen: Counter[str] = Counter(one.task for one in kept if one.seed.id in ids)
    return {
        "asked": len(items),
        "failed": dict(sorted(Counter(result.kind for result in of_these if result.kind).items())),
        "rejected": {verdict: verdicts[verdict] for verdict in get_args(SemanticVerdict) if verdict != "usable"},
        "categories": {category: tasks[category] for category in get_args(Category)},
        "scores": {str(score): scores[score] for score in SCORES},
        "suitable": {category: suitable[category] for category in CATEGORIES},
        "kept": {category: chosen[category] for category in CATEGORIES},
    }


def write_candidates(candidates: Sequence[Candidate], path: Path) -> None:
    write_whole(path, "".join(json_line(candidate.row()) for candidate in candidates))
