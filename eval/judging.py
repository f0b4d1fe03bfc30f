"""What the protocols with a judge share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from eval.bench import Rationale
from eval.metrics import wilson
from eval.prompting import render
from eval.protocol import Item, Result
from synuc.effects import Program
from synuc.problem import Problem
from synuc.types import CallFailed, Label, LLMRequest

JUDGE_TOKENS = 1500
"""Bound on the tokens of a judge's verdict; the replies bound the characters."""

JUDGE = "judge_"
"""How the kind of a failure begins that is the judge's."""

Row = tuple[Item, dict[str, Any] | None]
"""An item and what came of it, None if it failed."""


class NoConflicts(Problem):
    """There is no implicit conflict to ask about."""


def conflicts(items: Sequence[Item]) -> list[Item]:
    """The implicit conflicts among bench items.

    Raises:
        NoConflicts: there are none.
    """
    found = [item for item in items if item["label"] == Label.IC]
    if not found:
        raise NoConflicts(
            f"none of the {len(items)} items is an implicit conflict (IC); name a benchmark that has some"
        )
    return found


def described(item: Item) -> str:
    """The gold rationale of an item, as judges read it: a line for each constraint, then the annotators' words."""
    rationale = Rationale.model_validate(item["rationale"])
    lines = [f"Earlier requirement: {constraint}" for constraint in rationale.historical]
    lines += [f"New requirement: {constraint}" for constraint in rationale.new]
    return "\n".join([*lines, rationale.text]).strip()


def ask_judge(stage: str, key: str, reply: type[BaseModel], **values: Any) -> Program[Any]:
    """The judge's answer to the template that is named like the stage. Raises as `judged` does."""
    return (
        yield from judged(
            LLMRequest(
                stage=stage,
                role="judge",
                key=key,
                messages=({"role": "user", "content": render(stage, **values)},),
                reply=reply,
                max_tokens=JUDGE_TOKENS,
            )
        )
    )


def judged(request: LLMRequest) -> Program[Any]:
    """The judge's answer to a request.

    Raises:
        CallFailed: of a kind that begins with `judge_`, so that it isn't taken for a failure of the evaluated model.
    """
    try:
        return (yield request)
    except CallFailed as failed:
        raise CallFailed(f"{JUDGE}{failed.kind}", failed.reason) from None


def accuracy(correct: int, n: int) -> dict[str, Any]:
    """`n`, `correct`, `accuracy` and its 95% Wilson `interval`; the last two are None if `n` is 0."""
    share, interval = (correct / n, wilson(correct, n)) if n else (None, None)
    return {"n": n, "correct": correct, "accuracy": share, "interval": interval}


def joined(items: Sequence[Item], results: Sequence[Result]) -> list[Row]:
    """Each item with its result's value."""
    values = {result.id: result.value for result in results}
    return [(item, values[item["id"]]) for item in items]


def grouped(rows: Sequence[Row], field: str) -> dict[str, list[Row]]:
    """The rows by a field of their items, in the order of its names."""
    names = sorted({item[field] for item, _ in rows})
    return {name: [row for row in rows if row[0][field] == name] for name in names}


def kinds(results: Sequence[Result]) -> dict[str, int]:
    """How many items failed, by kind."""
    return dict(sorted(Counter(result.kind for result in results if result.kind).items()))


def failures(results: Sequence[Result]) -> dict[str, Mapping[str, int]]:
    """How many items failed, by kind: `failed`, and `judge_failed` where it was the judge."""
    counts = kinds(results).items()
    return {
        "failed": {kind: n for kind, n in counts if not kind.startswith(JUDGE)},
        "judge_failed": {kind.removeprefix(JUDGE): n for kind, n in counts if kind.startswith(JUDGE)},
    }
