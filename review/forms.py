"""What a person says at each step, as the page sends it and the database keeps it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from synuc.types import ConstraintType, Frozen, Label, clean

CHARS = 20_000
"""The most characters of one text that a person writes."""

Text = Annotated[str, Field(max_length=CHARS), AfterValidator(clean)]


class Kind(StrEnum):
    """What a project is for."""

    BENCHMARK = "benchmark"
    SPOT_CHECK = "spot-check"
    PAIRWISE = "pairwise"


class Step(StrEnum):
    """Where an item stands: what is asked about it now, or how it ended."""

    LABEL = "label"
    COMPARE = "compare"
    ADJUDICATE = "adjudicate"
    TARGET = "target"
    REWRITE = "rewrite"
    REVIEW = "review"
    VOTE = "vote"
    DONE = "done"
    EXCLUDED = "excluded"


Target = Label
"""What an item labelled ND becomes: ER or IC, or ND if it is kept as it is."""


class Side(Frozen):
    """A constraint of the decisive pair. `evidence`: words of the dialogue or of the follow-up."""

    type: ConstraintType
    dimension: Annotated[Text, Field(min_length=1)]
    value: Annotated[Text, Field(min_length=1)]
    evidence: Text = ""


class Why(Frozen):
    """Why a follow-up conflicts with, or revises, an earlier requirement."""

    text: Text
    historical: Side | None = None
    new: Side | None = None


class Labelled(Frozen):
    """Step `label`, and `adjudicate` of a label."""

    label: Label
    why: Why | None = None
    note: Text = ""


class Proposed(Frozen):
    """Step `target`: what the dialogue is best rewritten as (Appendix B.1)."""

    target: Target
    note: Text = ""


class Rewritten(Frozen):
    """Step `rewrite`: the record of Appendix B.2.

    `history`: the fingerprint of the dialogue that was read. `confirmed`: codes of findings that the writer has looked
    at and stands by.
    """

    goal: Text
    target: Target
    why: Why
    follow_up: Text
    history: str
    confirmed: tuple[str, ...] = ()


class Opinion(Frozen):
    """An evaluator's opinion of one candidate: is the category valid, and does it sound natural?"""

    approve: bool
    reason: Text = ""


class Reviewed(Frozen):
    """Step `review`: the opinions of the first and the second candidate."""

    first: Opinion
    second: Opinion


class Voted(Frozen):
    """Step `vote`: the better one of two accepted candidates."""

    better: Literal["first", "second"]


class Compared(Frozen):
    """Step `compare`, and `adjudicate` of a comparison: which model's reasoning is closer to the gold rationale.

    Of the project's first model against its second. The page shows them as A and B and never says which is which.
    """

    verdict: Literal["win", "tie", "loss"]
    note: Text = ""


class Excluded(Frozen):
    """A lead's decision that an item is unsuitable."""

    reason: Annotated[Text, Field(min_length=1)]


Form = Labelled | Proposed | Rewritten | Reviewed | Voted | Compared | Excluded


def form_of(kind: Kind, step: Step) -> type[Form]:
    """What is to be said at a step."""
    forms: dict[Step, type[Form]] = {
        Step.LABEL: Labelled,
        Step.COMPARE: Compared,
        Step.ADJUDICATE: Compared if kind is Kind.PAIRWISE else Labelled,
        Step.TARGET: Proposed,
        Step.REWRITE: Rewritten,
        Step.REVIEW: Reviewed,
        Step.VOTE: Voted,
        Step.EXCLUDED: Excluded,
    }
    return forms[step]


def verdict(form: Form) -> str:
    """The answer in a word, for counting: a label, `win`, `first`; of a review its two approvals, e.g. `yn`."""
    match form:
        case Labelled():
            return form.label.value
        case Proposed() | Rewritten():
            return form.target.value
        case Reviewed():
            return "".join("y" if opinion.approve else "n" for opinion in (form.first, form.second))
        case Voted():
            return form.better
        case Compared():
            return form.verdict
        case Excluded():
            return "excluded"
