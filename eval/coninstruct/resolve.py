"""Conflict resolution: what does a model do about conflicts in an instruction? (ConInstruct, 5.1 and 5.2.)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eval import prompting
from eval.coninstruct.data import COUNTS, MAX_TOKENS, Case, answered, cases_without, free_items, multi_items, prompted
from eval.judging import judged, kinds
from eval.protocol import Item, Result
from synuc.effects import Program
from synuc.reading import visible
from synuc.replies import Reason, Reply
from synuc.types import Spoken

BEHAVIOURS = {1: "unacknowledged", 2: "clarification", 3: "resolved", 4: "other"}
"""By the number that the judge gives (ConInstruct, Appendix E): the conflict is passed over in silence, the user is
asked, the model settles it and says so, anything else."""

GROUPS = ((1, 2), (3, 4), (5, 6))
"""Numbers of conflicts that Figure 4 of ConInstruct puts together."""

JUDGE_TOKENS = 800


class Behaviour(Reply):
    reason: Reason
    behaviour: Literal[1, 2, 3, 4]


def items(cases: Sequence[Case], seed: int = 0) -> list[dict[str, Any]]:
    """All that resolution asks about: conflict-free instructions, and those with one to six conflicts."""
    return free_items(cases) + multi_items(cases, seed=seed)


@dataclass(frozen=True)
class Resolve:
    """Has each instruction answered and the answer's behaviour judged.

    `guided`: a system text asks the model to point out conflicts and to ask before it answers (section 5.2).
    """

    guided: bool = False

    @property
    def name(self) -> str:
        return "coninstruct-resolve"

    def snapshot(self) -> dict[str, Any]:
        return {"guided": self.guided, "max_tokens": MAX_TOKENS}

    def program(self, item: Item) -> Program[dict[str, Any]]:
        """Returns the `response`, whether it was `cut` at its bound, its `behaviour` and the judge's `reason`."""
        answer: Spoken = yield answered(item, prompting.render("coninstruct_guide") if self.guided else "")
        response = visible(answer.text)
        values = {"instruction": item["instruction"], "response": response}
        request = prompted("behaviour", "judge", item["id"], Behaviour, JUDGE_TOKENS, **values)
        behaviour: Behaviour = yield from judged(request)
        return {
            "response": response,
            "cut": answer.cut,
            "behaviour": BEHAVIOURS[behaviour.behaviour],
            "reason": behaviour.reason,
        }

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """How often each behaviour is shown (ConInstruct, Figure 4 and Table 3).

        `free`: on conflict-free instructions; `groups`: by `1-2`, `3-4` and `5-6` conflicts; `counts`: by each number,
        with `cases_without` so many. Each has `n`, the shares of all `n` of the four BEHAVIOURS and of `failed`, which
        sum to 1 (None if `n` is 0), and `acknowledged`, the share of behaviours 2 and 3.
        `failures`: items by kind, with `judge_` before it where it was the judge's; `cut`: answers cut at their bound.
        `unneeded_clarification` is the share of conflict-free instructions about which the model asks.
        """
        shown = {result.id: result.value["behaviour"] for result in results if result.value is not None}
        by_count = {
            count: [item for item in items if item["part"] == "multi" and len(item["kinds"]) == count]
            for count in COUNTS
        }
        free = _shares([item for item in items if item["part"] == "free"], shown)
        return {
            "guided": self.guided,
            "n": len(items),
            "failed": len(items) - len(shown),
            "failures": kinds(results),
            "cut": sum(result.value["cut"] for result in results if result.value is not None),
            "free": free,
            "unneeded_clarification": free["clarification"],
            "groups": {f"{a}-{b}": _shares(by_count[a] + by_count[b], shown) for a, b in GROUPS},
            "counts": {
                str(count): {**_shares(group, shown), "cases_without": cases_without(items, count)}
                for count, group in by_count.items()
            },
        }


def _shares(group: Sequence[Item], shown: Mapping[str, str]) -> dict[str, Any]:
    names = (*BEHAVIOURS.values(), "failed")
    if not group:
        return {"n": 0, **dict.fromkeys((*names, "acknowledged"))}
    counts = Counter(shown.get(item["id"], "failed") for item in group)
    shares = {name: counts[name] / len(group) for name in names}
    return {"n": len(group), **shares, "acknowledged": (counts["clarification"] + counts["resolved"]) / len(group)}
