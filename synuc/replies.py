"""What the LLM answers at each stage. Fields come in the order in which one thinks: reasons before verdicts.

Every string and list is bounded, so that constrained decoding always ends. Answers are turned into the method's own
types by the programs in `synuc.synthesis` and `synuc.verifier`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, create_model

from synuc.speaking import Speaking
from synuc.types import ConstraintType, Label, NewConstraint, Scope, TaskLevel

CATEGORIES = ("writing", "roleplay", "coding", "text_editing", "summarization", "planning")
"""The eligible task categories (paper, Appendix C.1)."""

Category = Literal[
    "writing",
    "roleplay",
    "coding",
    "text_editing",
    "summarization",
    "planning",
    "question_answering",
    "chitchat",
    "other",
]


def _snake_case(text: str) -> str:
    name = re.sub(r"\W+", "_", text.casefold()).strip("_")
    if not name:
        raise ValueError("a dimension is a word")
    return name


Reason = Annotated[str, StringConstraints(max_length=700)]
Analysis = Annotated[str, StringConstraints(max_length=1200)]
Confidence = Annotated[int, Field(ge=0, le=100)]
Phrase = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=160)]
Dimension = Annotated[str, StringConstraints(min_length=1, max_length=40), AfterValidator(_snake_case)]


class Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Eligibility(Reply):
    reason: Reason
    category: Category
    clear_goal: bool
    persistent_constraints: bool

    @property
    def eligible(self) -> bool:
        return self.category in CATEGORIES and self.clear_goal and self.persistent_constraints


class Tasks(Reply):
    reason: Reason
    completed_main_tasks: Annotated[list[Phrase], Field(max_length=6)]
    active_main_task: Phrase
    completed_subtasks: Annotated[list[Phrase], Field(max_length=8)]
    active_subtask: Phrase


class Historical(Reply):
    turn: Annotated[int, Field(ge=1, le=200)]
    evidence: Phrase
    type: ConstraintType
    dimension: Dimension
    value: Phrase
    scope: Scope


class HistoricalConstraints(Reply):
    reason: Reason
    constraints: Annotated[list[Historical], Field(max_length=10)]


class New(Reply):
    evidence: Phrase
    type: ConstraintType
    dimension: Dimension
    value: Phrase


class NewConstraints(Reply):
    reason: Reason
    continues: TaskLevel
    constraints: Annotated[list[New], Field(max_length=6)]


class Generated(Reply):
    """The new constraint c_{t+1}; `carrier` is what the message will mention to bring it in."""

    reason: Reason
    type: ConstraintType
    dimension: Dimension
    value: Phrase
    carrier: Phrase

    def constraint(self) -> NewConstraint:
        return NewConstraint(type=self.type, dimension=self.dimension, value=self.value, evidence=self.carrier)


class GeneratedExplicit(Generated):
    type: Literal["explicit"]


class GeneratedImplicit(Generated):
    type: Literal["implicit"]


def _unquoted(text: str) -> str:
    # The prompt quotes the dialogue with ">", and some models write their message in the same way.
    if all(line.startswith(">") for line in text.splitlines() if line.strip()):
        text = re.sub(r"^[> ]+", "", text, flags=re.MULTILINE)
    text = text.strip()
    if not text:
        raise ValueError("a message is not empty")
    return text


Short = Annotated[str, StringConstraints(max_length=700, min_length=1), AfterValidator(_unquoted)]


class Message(Reply):
    plan: Reason
    message: Annotated[str, StringConstraints(max_length=1500, min_length=1), AfterValidator(_unquoted)]


class AnchorVerdict(Reply):
    pair_analysis: Reason
    pair_holds: bool
    message_analysis: Reason
    revision_signal: bool
    message_holds: bool


class Judgment(Reply):
    """The global stage's verdict. `confidence` is q in 0..100."""

    analysis: Analysis
    label: Label
    claim_holds: bool
    confidence: Confidence


# The answers below choose among ids that only the call knows, so their models are made at the call.


def ids(letter: str, items: Sequence[object]) -> tuple[str, ...]:
    """The names under which prompts list `items`, and by which answers choose among them: c1, c2, ..."""
    return tuple(f"{letter}{n}" for n in range(1, len(items) + 1))


def _one_of(ids: Sequence[str]) -> Any:
    return Literal[tuple(ids)]


def _several_of(ids: Sequence[str], most: int) -> Any:
    return Annotated[list[_one_of(ids)], Field(min_length=1, max_length=most)]  # type: ignore[misc]


@lru_cache(maxsize=256)
def match_reply(ids: tuple[str, ...]) -> type[BaseModel]:
    """The answer of schema matching: `constraint` is one of `ids`, `dimension` one of the eight schemas."""
    return create_model(
        "Match", __base__=Reply, reason=(Reason, ...), constraint=(_one_of(ids), ...), dimension=(Speaking, ...)
    )


@lru_cache(maxsize=256)
def pair_reply(ids: tuple[str, ...], explicit_only: bool) -> type[BaseModel]:
    """The answer of direct pair generation (ablation of the memory): a choice of anchor and a `Generated`."""
    return create_model(
        "Pair",
        __base__=Reply,
        reason=(Reason, ...),
        constraint=(_one_of(ids), ...),
        type=(_one_of(["explicit"] if explicit_only else ["explicit", "implicit"]), ...),
        dimension=(Dimension, ...),
        value=(Phrase, ...),
        carrier=(Phrase, ...),
    )


@lru_cache(maxsize=64)
def judgment_reply(ids: tuple[str, ...]) -> type[BaseModel]:
    """A `Judgment` that first says which of the message's constraints (`ids`) is the claimed one, or `none`."""
    return create_model(
        "PairJudgment",
        __base__=Reply,
        analysis=(Analysis, ...),
        claimed_new=(_one_of([*ids, "none"]), ...),
        label=(Label, ...),
        claim_holds=(bool, ...),
        confidence=(Confidence, ...),
    )


def message_field(label: Label) -> str:
    """The field of a triplet's answer with the message of this label."""
    return f"message_{label.value.lower()}"


@lru_cache(maxsize=16)
def triplet_reply(order: tuple[Label, ...]) -> type[BaseModel]:
    """A message for each label, in this order; before a normal one, `fits`: how it fits all that is valid."""
    fields: dict[str, Any] = {"plan": (Reason, ...)}
    if Label.ND in order:
        fields["fits"] = (Reason, ...)
    fields |= {message_field(label): (Short, ...) for label in order}
    return create_model("Triplet", __base__=Reply, **fields)


@lru_cache(maxsize=256)
def curation_reply(ids: tuple[str, ...], k: int) -> type[BaseModel]:
    """The ids of the trajectories to keep, at most `k`, best first."""
    return create_model(
        "Curation",
        __base__=Reply,
        reason=(Reason, ...),
        keep=(_several_of(ids, k), ...),
    )
