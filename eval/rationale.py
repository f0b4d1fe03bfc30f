"""Rationale coverage (paper, section 3.2, finding 4, and Appendix A): does a model's reasoning find the gold rationale?

It is asked of the answers of a finished classification run, on its implicit conflicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from eval.folder import EvalFolder
from eval.judging import accuracy, ask_judge, conflicts, described, failures, grouped, joined
from eval.metrics import LABELS, UNPARSEABLE
from eval.protocol import Item, Result
from synuc.effects import Program
from synuc.reading import visible
from synuc.replies import Reason, Reply
from synuc.types import CallFailed, Label

Degree = Literal["complete", "partial", "none"]
DEGREES: tuple[Degree, ...] = get_args(Degree)


class Coverage(Reply):
    """The judge's verdict: what the reasoning says of the historical and of the new constraint, then the degree."""

    historical: Reason
    new: Reason
    coverage: Degree


@dataclass(frozen=True)
class RationaleCoverage:
    """How far the reasoning in an answer covers the gold rationale: completely, partly or not at all.

    As in the paper the judge sees the rationale and the reasoning, and nothing of the chat. An answer with nothing to
    read covers nothing, and the judge isn't asked. Items are those of `answered`.

    A result: `historical`, `new`, `coverage`, and the item's `predicted` label.
    """

    name = "rationale"

    def snapshot(self) -> dict[str, Any]:
        return {}

    def program(self, item: Item) -> Program[dict[str, Any]]:
        """The judge's verdict on an item's answer. An item that has none fails with the kind `unanswered`."""
        if item["answer"] is None:
            raise CallFailed("unanswered", "the classification run has no answer to this item")
        verdict = Coverage(historical="nothing to read", new="nothing to read", coverage="none")
        if said := visible(item["answer"]):
            verdict = yield from ask_judge(
                "judge_rationale", item["id"], Coverage, rationale=described(item), answer=said
            )
        return {**verdict.model_dump(), "predicted": item["predicted"]}

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """`overall`, and by name `subsets`, each with

        - `n`: judged answers;
        - `joint`: how many of each degree of coverage were given each label, or `unparseable` (paper, Figure 10);
        - `by_coverage`: `n`, `correct` (predicted IC), `accuracy` and its `interval`, for each degree and for
          `covered`, which is complete or partial (paper, Figure 11).

        Failures are excluded and counted by kind: `failed`, where the run has no answer, and `judge_failed`.
        """
        rows = joined(items, results)
        parts = {name: [value for _, value in part if value] for name, part in grouped(rows, "subset").items()}
        return {
            "items": len(items),
            "overall": _table([value for _, value in rows if value]),
            "subsets": {name: _table(values) for name, values in parts.items()},
            **failures(results),
        }


def _table(values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    joint: dict[str, dict[str, int]] = {degree: dict.fromkeys([*LABELS, UNPARSEABLE], 0) for degree in DEGREES}
    for value in values:
        joint[value["coverage"]][value["predicted"] or UNPARSEABLE] += 1
    covered = {label: joint["complete"][label] + joint["partial"][label] for label in joint["complete"]}
    rows = {**joint, "covered": covered}
    return {
        "n": len(values),
        "joint": joint,
        "by_coverage": {
            degree: accuracy(counts[Label.IC.value], sum(counts.values())) for degree, counts in rows.items()
        },
    }


def answered(run: EvalFolder) -> list[Item]:
    """The implicit conflicts of a finished classification run, with its `answer` and `predicted` label to each.

    Both are None where the run failed on an item, `predicted` also where the answer has no readable label.

    Raises:
        NoConflicts: the run has none.
    """
    values = {result.id: result.value or {} for result in run.results()}
    return [
        {**item, "answer": values[item["id"]].get("answer"), "predicted": values[item["id"]].get("predicted")}
        for item in conflicts(run.items())
    ]
