"""Precision and recall of the matchers on labelled pairs of constraint wordings.

    python -m tests.measure_matching [--embedding FOLDER [--pooling mean]]

Thresholds are chosen on the split `dev`, what they are worth is read from the split `test`. Those pairs are hard on
purpose: paraphrases in other words, and different requirements in nearly the same words. What an answer can really
confuse are the constraints of one dialogue; how many of these pairs are held to be the same is the last number.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from synuc.matching import THRESHOLD, lexical
from synuc.rewards import Same

PAIRS = Path(__file__).parent / "data" / "constraint_pairs.jsonl"
ANNOTATED = PAIRS.with_name("annotated.jsonl")


@dataclass(frozen=True)
class Quality:
    """How often a matcher is right when it says `same`, and how many of the same it finds."""

    pairs: int
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def read(split: str, language: str | None = None) -> list[dict[str, Any]]:
    """The labelled pairs of a split and of one or all languages."""
    rows = [json.loads(line) for line in PAIRS.read_text("utf-8").splitlines()]
    return [row for row in rows if row["split"] == split and language in (None, row["language"])]


def quality(rows: Iterable[dict[str, Any]], same: Same) -> Quality:
    """Precision is 1 for a matcher that never says `same`."""
    verdicts = [(same(row["a"], row["b"]), row["equal"]) for row in rows]
    said, true = sum(v for v, _ in verdicts), sum(e for _, e in verdicts)
    right = sum(v and e for v, e in verdicts)
    return Quality(len(verdicts), right / said if said else 1.0, right / true if true else 1.0)


def confused(same: Same) -> tuple[int, int]:
    """How many pairs of different constraints of one dialogue are held to be the same, and of how many."""
    verdicts = []
    for line in ANNOTATED.read_text("utf-8").splitlines():
        sample = json.loads(line)
        listed = [*sample["constraints"], *sample["new_constraints"]]
        wordings = sorted({f"{constraint['dimension']}: {constraint['value']}" for constraint in listed})
        verdicts += [same(a, b) for a, b in combinations(wordings, 2)]
    return sum(verdicts), len(verdicts)


def table(name: str, matcher: Callable[[float], Same], thresholds: Iterable[float]) -> Iterator[str]:
    """A line for every threshold, split and language."""
    for threshold in thresholds:
        same = matcher(threshold)
        wrong, pairs = confused(same)
        for split in ("dev", "test"):
            for language in ("en", "zh"):
                q = quality(read(split, language), same)
                yield (
                    f"{name:<10} {threshold:>9.2f} {split:<5} {language:<8} {q.pairs:>5} {q.precision:>9.3f} "
                    f"{q.recall:>6.3f} {q.f1:>5.3f} {wrong:>5} of {pairs}"
                )


def lexical_at(threshold: float) -> Same:
    return lambda a, b: lexical(a, b) >= threshold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedding", metavar="FOLDER", help="measure this embedding model as well")
    parser.add_argument("--pooling", choices=("last", "mean"), default="last")
    options = parser.parse_args()
    print("strategy   threshold split language pairs precision recall    f1 confused")
    print(*table("lexical", lexical_at, sorted({THRESHOLD, 0.25, 0.35, 0.5, 0.65, 0.8})), sep="\n")
    if options.embedding:
        from training.matching import EMBEDDING_THRESHOLD, matcher

        def embedding_at(threshold: float) -> Same:
            return matcher("embedding", threshold=threshold, model=options.embedding, pooling=options.pooling)

        print(*table("embedding", embedding_at, sorted({EMBEDDING_THRESHOLD, 0.5, 0.6, 0.7, 0.9})), sep="\n")


if __name__ == "__main__":
    main()
