"""Conflict detection: does a model see that an instruction holds conflicting constraints? (ConInstruct, section 4.)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from sklearn.metrics import precision_recall_fscore_support

from eval.coninstruct.data import (
    CONFLICT_KINDS,
    INTER,
    INTRA,
    MAX_TOKENS,
    Case,
    cases_without,
    detection_items,
    multi_items,
    prompted,
)
from eval.judging import kinds
from eval.protocol import Item, Result
from synuc.effects import Program
from synuc.replies import Analysis, Reply


class Detection(Reply):
    analysis: Analysis
    verdict: Literal["conflict", "no_conflict"]


def items(cases: Sequence[Case], seed: int = 0) -> list[dict[str, Any]]:
    """All that detection asks about: conflict-free instructions, single conflicts, one to six conflicts."""
    return detection_items(cases) + multi_items(cases, seed=seed)


@dataclass(frozen=True)
class Detect:
    """Classifies each instruction as `conflict` or `no_conflict`, zero-shot."""

    @property
    def name(self) -> str:
        return "coninstruct-detect"

    def snapshot(self) -> dict[str, Any]:
        return {"max_tokens": MAX_TOKENS}

    def program(self, item: Item) -> Program[dict[str, Any]]:
        """Returns `verdict` and the model's `analysis`."""
        answer: Detection = yield prompted(
            "detect", "model", item["id"], Detection, MAX_TOKENS, instruction=item["instruction"]
        )
        return {"verdict": answer.verdict, "analysis": answer.analysis}

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """Figures of the class `conflict`, shares between 0 and 1 (ConInstruct, Table 2 and Figure 3).

        `subsets`: by kind of conflict, the conflict-free instructions and those with that conflict alone; `average` of
        their F1 over the nine kinds, `intra` over the first six, `inter` over the last three; `counts`: by number of
        conflicts, the conflict-free instructions and those with so many, and `cases_without` any.
        Each set has `precision`, `recall`, `f1`, `conflicts` and `free` (instructions of either class) and `failed`.
        A failure counts as the wrong class, and `failures` has their number by kind. A set without conflicts has None
        for its figures and is in no average.
        """
        verdicts = {result.id: result.value["verdict"] for result in results if result.value is not None}
        free = [item for item in items if item["part"] == "free"]
        single = [item for item in items if item["part"] == "single"]
        multi = [item for item in items if item["part"] == "multi"]
        subsets = {
            kind: _set(free, [item for item in single if item["kinds"] == [kind]], verdicts) for kind in CONFLICT_KINDS
        }
        counts = {
            str(count): {
                **_set(free, [item for item in multi if len(item["kinds"]) == count], verdicts),
                "cases_without": cases_without(items, count),
            }
            for count in sorted({len(item["kinds"]) for item in multi})
        }
        return {
            "n": len(items),
            "failed": len(items) - len(verdicts),
            "failures": kinds(results),
            "subsets": subsets,
            "average": _mean(subsets[kind]["f1"] for kind in CONFLICT_KINDS),
            "intra": _mean(subsets[kind]["f1"] for kind in INTRA),
            "inter": _mean(subsets[kind]["f1"] for kind in INTER),
            "counts": counts,
        }


def _set(free: Sequence[Item], conflicts: Sequence[Item], verdicts: Mapping[str, str]) -> dict[str, Any]:
    gold = [False] * len(free) + [True] * len(conflicts)
    ids = [item["id"] for item in (*free, *conflicts)]
    predicted = [
        verdicts[id] == "conflict" if id in verdicts else not truth for id, truth in zip(ids, gold, strict=True)
    ]
    figures: dict[str, Any] = dict.fromkeys(("precision", "recall", "f1"))
    if conflicts:
        scores = precision_recall_fscore_support(gold, predicted, average="binary", zero_division=0)
        figures = dict(zip(figures, map(float, scores[:3]), strict=True))
    failed = sum(id not in verdicts for id in ids)
    return {**figures, "conflicts": len(conflicts), "free": len(free), "failed": failed}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
