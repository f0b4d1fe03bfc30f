"""UC-Bench items (paper, section 5.1): a dialogue, a follow-up, the gold label, and why."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from synuc.speaking import Speaking
from synuc.types import ConstraintType, Dialogue, Frozen, Label, Relation


class GoldConstraint(Frozen):
    """A constraint of a gold rationale. `turn` is the user turn of its evidence, from 1, if it is known."""

    type: ConstraintType
    dimension: str
    value: str
    evidence: str = ""
    turn: int | None = None

    def __str__(self) -> str:
        return f"{self.type} {self.dimension}: {self.value}"


class Rationale(Frozen):
    """Why an item has its label: the constraints that clash, the decisive ones first, and the annotators' words."""

    historical: tuple[GoldConstraint, ...] = ()
    new: tuple[GoldConstraint, ...] = ()
    text: str = ""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.text.strip() and not (self.historical and self.new):
            raise ValueError("a rationale names historical and new constraints, or says in `text` what clashes")
        return self


class BenchItem(Frozen):
    """An item of a benchmark. `history` ends with an assistant's turn; `task` is its task category, if it has one."""

    id: str
    subset: str
    language: str
    history: Dialogue
    follow_up: str
    label: Label
    rationale: Rationale | None = None
    speaking: Speaking | None = None
    task: str | None = None

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.label is Label.IC and self.rationale is None:
            raise ValueError("an implicit conflict needs a rationale")
        if self.label is Label.ND and self.rationale is not None:
            raise ValueError("a normal dialogue has no rationale")
        if (relation := self.relation) and relation.label is not self.label:
            raise ValueError(f"its constraints are of types {relation.value}, which is not {self.label.value}")
        return self

    @property
    def relation(self) -> Relation | None:
        """The relation of the decisive pair, where the rationale names it."""
        if self.rationale is None or not self.rationale.historical or not self.rationale.new:
            return None
        return Relation.of(self.rationale.historical[0].type, self.rationale.new[0].type)
