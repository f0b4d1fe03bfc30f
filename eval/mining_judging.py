"""What is asked about a dialogue that may become an item of a benchmark (paper, Appendix B.1).

What is judged is what annotators will be shown: the dialogue without its last turn, and that turn's user message as the
follow-up. Three calls at most: the semantic filter, the task category, and the suitability for implicit conflicts.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from eval.prompting import render
from synuc.effects import Program
from synuc.replies import CATEGORIES, Category, Reason, Reply
from synuc.types import Frozen, LLMRequest, Seed

SemanticVerdict = Literal["usable", "invalid", "meaningless", "not_a_task"]
SCORES = (1, 2, 3, 4, 5)
MAX_TOKENS = {"mine_semantic": 400, "mine_category": 400, "mine_suitability": 600}


class Semantic(Reply):
    """The semantic filter; `usable` passes."""

    reason: Reason
    verdict: SemanticVerdict


class Task(Reply):
    reason: Reason
    category: Category


class Suitability(Reply):
    """How well implicit conflicts can be analysed and made here: 5 is best."""

    reason: Reason
    score: Annotated[int, Field(ge=SCORES[0], le=SCORES[-1])]


class Judged(Frozen):
    """What was found out about a dialogue. What isn't asked after a step that it didn't pass is None."""

    semantic: Semantic
    task: Task | None = None
    suitability: Suitability | None = None


def judge(seed: Seed) -> Program[Judged]:
    """Raises CallFailed: a call has no usable answer."""
    semantic: Semantic = yield _request("mine_semantic", seed, Semantic)
    if semantic.verdict != "usable":
        return Judged(semantic=semantic)
    task: Task = yield _request("mine_category", seed, Task)
    if task.category not in CATEGORIES:
        return Judged(semantic=semantic, task=task)
    suitability: Suitability = yield _request("mine_suitability", seed, Suitability)
    return Judged(semantic=semantic, task=task, suitability=suitability)


def _request(stage: str, seed: Seed, reply: type[BaseModel]) -> LLMRequest:
    # The dialogue comes before the job, so that the three calls about it share a prefix.
    shown = render("mine_dialogue", dialogue=seed.dialogue.before_last(), follow_up=seed.dialogue.turns[-1].user)
    return LLMRequest(
        stage=stage,
        role="judge",
        key=seed.id,
        messages=(
            {"role": "system", "content": render("mine_system")},
            {"role": "user", "content": f"{shown}\n\n{render(stage)}"},
        ),
        reply=reply,
        max_tokens=MAX_TOKENS[stage],
    )
