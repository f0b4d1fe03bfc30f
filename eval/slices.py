"""The figures on parts of a benchmark: where a detector is weak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import eq
from typing import Any

from sklearn.metrics import f1_score

from eval.bench import BenchItem
from eval.metrics import UNPARSEABLE, classification, wilson
from synuc.types import Label

Steps = tuple[tuple[int, str], ...]
TURNS: Steps = ((2, "1-2"), (5, "3-5"), (10, "6-10"))
CHARACTERS: Steps = ((1000, "<=1000"), (2000, "1001-2000"), (4000, "2001-4000"))
TOKENS: Steps = ((1500, "<=1500"), (2000, "1501-2000"), (3000, "2001-3000"))
DISTANCE: Steps = ((1, "1"), (2, "2"), (5, "3-5"))
STEPS = {"turns": TURNS, "characters": CHARACTERS, "prompt_tokens": TOKENS, "distance": DISTANCE}
NONE = "none"
UNKNOWN = "unknown"


def features(item: BenchItem, prompt_tokens: int | None = None) -> dict[str, str]:
    """The parts of a benchmark an item belongs to, by feature.

    `language`, `subset`; `turns` of the history, and its `characters` without its system message; `prompt_tokens`, the
    length of all that the model was asked, `unknown` where it isn't given; `relation`, `speaking` and `task`, or
    `none`; `distance` in turns from the evidence of the decisive historical constraint to the follow-up, `none` where
    no pair is annotated and `unknown` where the evidence is in no known turn of the history.
    """
    turns = item.history.turns
    characters = sum(len(turn.user) + len(turn.assistant) for turn in turns)
    return {
        "language": item.language,
        "turns": _bucket(len(turns), TURNS),
        "characters": _bucket(characters, CHARACTERS),
        "prompt_tokens": _bucket(prompt_tokens, TOKENS) if prompt_tokens else UNKNOWN,
        "relation": str(item.relation or NONE),
        "speaking": str(item.speaking or NONE),
        "task": item.task or NONE,
        "subset": item.subset,
        "distance": _distance(item),
    }


def sliced(
    items: Sequence[BenchItem], predicted: Sequence[Label | None], prompt_tokens: Sequence[int | None] | None = None
) -> dict[str, dict[str, dict[str, Any]]]:
    """The figures of every value of every feature.

    `n`; `labels`, the number of items of each gold label; `accuracy` and its 95% Wilson interval
    `accuracy_interval`; `f1`, the mean over the labels that occur in the slice; `recall_ic`, None without IC items.

    Raises:
        ValueError: there are no items, or not as many answers or lengths as items.
    """
    counts: Sequence[int | None] = [None] * len(items) if prompt_tokens is None else prompt_tokens
    if not items or not len(items) == len(predicted) == len(counts):
        raise ValueError(f"{len(predicted)} answers and {len(counts)} lengths to {len(items)} items")
    parts: dict[str, dict[str, list[int]]] = {}
    for place, (item, count) in enumerate(zip(items, counts, strict=True)):
        for feature, value in features(item, count).items():
            parts.setdefault(feature, {}).setdefault(value, []).append(place)
    return {
        feature: {
            value: _figures([items[place].label for place in places], [predicted[place] for place in places])
            for value, places in sorted(values.items(), key=lambda part: _order(feature, part[0]))
        }
        for feature, values in parts.items()
    }


def _figures(gold: Sequence[Label], predicted: Sequence[Label | None]) -> dict[str, Any]:
    whole = classification(gold, predicted)
    counts = Counter(gold)
    f1 = f1_score(gold, [answer or UNPARSEABLE for answer in predicted], labels=list(counts), average="macro")
    return {
        "n": len(gold),
        "labels": {label.value: counts[label] for label in Label},
        "accuracy": whole["accuracy"],
        "accuracy_interval": wilson(sum(map(eq, gold, predicted)), len(gold)),
        "f1": float(f1),
        "recall_ic": whole["recall_ic"] if Label.IC in counts else None,
    }


def _bucket(number: int, steps: Steps) -> str:
    return next((name for most, name in steps if number <= most), f">{steps[-1][0]}")


def _distance(item: BenchItem) -> str:
    if item.rationale is None or item.relation is None:
        return NONE
    turn, turns = item.rationale.historical[0].turn, len(item.history.turns)
    return _bucket(turns + 1 - turn, DISTANCE) if turn is not None and 1 <= turn <= turns else UNKNOWN


def _order(feature: str, value: str) -> tuple[int, str]:
    """Steps from small to large, other values by name, and what there is none of or isn't known at the end."""
    names = [name for _, name in STEPS.get(feature, ())]
    if value in names:
        return names.index(value), value
    return len(names) + (value in (NONE, UNKNOWN)), value
