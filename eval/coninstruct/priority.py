"""Constraint priority: which of two conflicting constraints does an answer follow? (ConInstruct, section 5.3.)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eval.coninstruct.data import (
    CONSTRAINT_KINDS,
    MAX_TOKENS,
    Case,
    answered,
    item_of,
    joined,
    prompted,
    with_conflicts,
)
from eval.judging import judged, kinds
from eval.protocol import Item, Result
from synuc.effects import Fork, Program
from synuc.reading import visible
from synuc.replies import Reason, Reply
from synuc.types import Spoken

KINDS = ("CC", "KK", "PP")
"""The kinds of conflict that Figure 6 of ConInstruct is about."""

POSITIONS = ("new_later", "new_earlier")
OUTCOMES = ("original", "new", "neither", "disagreed", "failed")
"""What an answer satisfies. `disagreed`: the judge says otherwise when it sees the two in the other order."""

ORDERS = (("original", "new"), ("new", "original"))
"""In which a judge sees the two constraints; each item is judged in both."""

JUDGE_TOKENS = 1000


class Satisfaction(Reply):
    extract: Reason
    assessment: Reason
    verdict: Literal["YES", "NO"]


class Preference(Reply):
    first: Reason
    second: Reason
    verdict: Literal[1, 2, -1]


def items(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The conflict-free instructions, and each conflict of kind CC, KK or PP with the new constraint at either end.

    `position` is `free`, `new_later` (appended to the instruction) or `new_earlier` (put in front of it). A conflict's
    items have `original` and `new`; a conflict-free one has `constraints` and, under `originals`, what its conflicts
    of these kinds begin from: lists of `kind` and `text`.
    """
    rows = []
    for case in cases:
        conflicts = [conflict for conflict in case.conflicts if conflict.kind in KINDS]
        stated = [constraint.model_dump() for constraint in case.constraints]
        originals = [{"kind": conflict.kind, "text": conflict.original} for conflict in conflicts]
        rows.append(
            item_of(case, "free", case.instruction, (), position="free", constraints=stated, originals=originals)
        )
        for conflict in conflicts:
            texts = (with_conflicts(case, [conflict]), joined(conflict.new, case.instruction))
            rows += [
                item_of(
                    case,
                    f"{conflict.kind}/{position}",
                    text,
                    [conflict],
                    position=position,
                    original=conflict.original,
                    new=conflict.new,
                )
                for position, text in zip(POSITIONS, texts, strict=True)
            ]
    return rows


@dataclass(frozen=True)
class Priority:
    """Has each instruction answered and judged for what the answer satisfies."""

    @property
    def name(self) -> str:
        return "coninstruct-priority"

    def snapshot(self) -> dict[str, Any]:
        return {"max_tokens": MAX_TOKENS, "orders": "both"}

    def program(self, item: Item) -> Program[dict[str, Any]]:
        """Returns the `response`, whether it was `cut` at its bound, and the judge's answers.

        Of a conflict: `satisfied` (one of OUTCOMES), and as `judgments` for each of ORDERS the `order`, what is
        `satisfied` by it, and the `judgment`. Of a conflict-free instruction: `judgments` by the constraint's text.
        """
        answer: Spoken = yield answered(item)
        response = visible(answer.text)
        judge = _satisfactions if item["position"] == "free" else _preferences
        return {"response": response, "cut": answer.cut, **(yield from judge(item, response))}

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """Shares between 0 and 1; failures satisfy nothing (ConInstruct, Figures 5 and 6).

        `failures`: items by kind, with `judge_` before it where it was the judge's; `cut`: answers cut at their bound.
        `constraints`: on conflict-free instructions by kind of constraint, `n`, `satisfied` and `failed`.
        `without_new`: the same for the constraints that the conflicts begin from, `all` and by kind of conflict.
        `new_later` and `new_earlier`: `all` and by kind of conflict, `n` and the shares of OUTCOMES, which sum to 1. A
        share of nothing is None.
        """
        values = {result.id: result.value for result in results if result.value is not None}
        free = [item for item in items if item["position"] == "free"]
        stated, originals = _verdicts(free, values, "constraints"), _verdicts(free, values, "originals")
        figures: dict[str, Any] = {
            "n": len(items),
            "failed": len(items) - len(values),
            "failures": kinds(results),
            "cut": sum(value["cut"] for value in values.values()),
            "constraints": {kind: _satisfied([v for k, v in stated if k == kind]) for kind in CONSTRAINT_KINDS},
            "without_new": {
                "all": _satisfied([v for _, v in originals]),
                **{kind: _satisfied([v for k, v in originals if k == kind]) for kind in KINDS},
            },
        }
        for position in POSITIONS:
            group = [item for item in items if item["position"] == position]
            figures[position] = {
                "all": _followed(group, values),
                **{kind: _followed([item for item in group if item["kinds"] == [kind]], values) for kind in KINDS},
            }
        return figures


def _satisfactions(item: Item, response: str) -> Program[dict[str, Any]]:
    texts = list(dict.fromkeys(constraint["text"] for constraint in (*item["constraints"], *item["originals"])))
    judgments: list[Satisfaction] = yield Fork(tuple(_satisfaction(item, text, response) for text in texts))
    return {"judgments": {text: judgment.model_dump() for text, judgment in zip(texts, judgments, strict=True)}}


def _satisfaction(item: Item, text: str, response: str) -> Program[Satisfaction]:
    values = {"instruction": item["instruction"], "constraint": text, "response": response}
    request = prompted("satisfied", "judge", item["id"], Satisfaction, JUDGE_TOKENS, **values)
    satisfaction: Satisfaction = yield from judged(request)
    return satisfaction


def _preferences(item: Item, response: str) -> Program[dict[str, Any]]:
    judgments: list[dict[str, Any]] = yield Fork(tuple(_preference(item, order, response) for order in ORDERS))
    sides = {judgment["satisfied"] for judgment in judgments}
    return {"satisfied": sides.pop() if len(sides) == 1 else "disagreed", "judgments": judgments}


def _preference(item: Item, order: tuple[str, str], response: str) -> Program[dict[str, Any]]:
    values = {"first": item[order[0]], "second": item[order[1]], "response": response}
    request = prompted("priority", "judge", item["id"], Preference, JUDGE_TOKENS, **values)
    preference: Preference = yield from judged(request)
    satisfied = "neither" if preference.verdict == -1 else order[preference.verdict - 1]
    return {"order": list(order), "satisfied": satisfied, "judgment": preference.model_dump()}


def _verdicts(free: Sequence[Item], values: Mapping[str, Any], field: str) -> list[tuple[str, bool | None]]:
    """Kind and verdict of each constraint in that field of the items, None where the item failed."""
    verdicts = []
    for item in free:
        judgments = values[item["id"]]["judgments"] if item["id"] in values else None
        for constraint in item[field]:
            satisfied = None if judgments is None else judgments[constraint["text"]]["verdict"] == "YES"
            verdicts.append((constraint["kind"], satisfied))
    return verdicts


def _satisfied(verdicts: Sequence[bool | None]) -> dict[str, Any]:
    n = len(verdicts)
    return {
        "n": n,
        "satisfied": verdicts.count(True) / n if n else None,
        "failed": verdicts.count(None) / n if n else None,
    }


def _followed(group: Sequence[Item], values: Mapping[str, Any]) -> dict[str, Any]:
    if not group:
        return {"n": 0, **dict.fromkeys(OUTCOMES)}
    counts = Counter(values[item["id"]]["satisfied"] if item["id"] in values else "failed" for item in group)
    return {"n": len(group), **{outcome: counts[outcome] / len(group) for outcome in OUTCOMES}}
