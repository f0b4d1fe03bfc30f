"""The reward of GRPO: label, format and constraint attribution (paper, section 4.2, equation 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from pydantic import model_validator

from synuc.formatting import Answer, Named, Value, parse_answer
from synuc.reading import read_label
from synuc.types import Frozen, Label, Relation

Same = Callable[[str, str], bool]
"""Whether two constraints, worded `dimension: value`, are the same requirement."""

ALPHA, BETA = 0.2, 0.4
"""The paper's weights of the format and of the attribution reward."""


class ReferenceConstraint(Named):
    """An annotated constraint and the words it stands in or is inferred from."""

    evidence: Value


class Reference(Frozen):
    """What a row of UC-Data-GRPO knows about its follow-up; a normal dialogue has neither pair nor relation."""

    label: Label
    relation: Relation | None
    historical_constraint: ReferenceConstraint | None
    new_constraint: ReferenceConstraint | None

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        historical, new = self.historical_constraint, self.new_constraint
        if self.label is Label.ND:
            if (historical, new, self.relation) != (None, None, None):
                raise ValueError("a reference to a normal dialogue has no pair")
        elif historical is None or new is None:
            raise ValueError(f"a reference to {self.label.value} needs both constraints")
        elif self.relation is not Relation.of(historical.type, new.type) or self.relation.label is not self.label:
            raise ValueError(f"relation {self.relation} fits neither {self.label.value} nor the constraints' types")
        return self


@dataclass(frozen=True)
class Reward:
    """R and its terms, and for the log what they were made of.

    `predicted` is the label that was read, if any. `found_anchor` and `found_new` say whether the answer's pair names
    the annotated constraints, `types_right` whether it calls both explicit or implicit as annotated.
    """

    total: float
    label: float
    fmt: float
    attr: float
    predicted: Label | None
    found_anchor: bool
    found_new: bool
    types_right: bool


def reward(text: str, reference: Reference, same: Same, alpha: float = ALPHA, beta: float = BETA) -> Reward:
    """R = R_label + alpha R_fmt + 1[R_fmt = 1 and R_label = 1] beta R_attr (equation 8) of the answer `text`.

    R_fmt is 1 for what `parse_answer` accepts. R_attr is 1 if the answer's decisive pair is the annotated one, both
    constraints with their right types, and else 0, as it is for normal dialogues. There is no credit for parts. The
    lists of constraints in front of the pair don't count, because whoever lists everything would always find it; and
    a wording of both constraints in both places names neither.
    """
    parsed = parse_answer(text)
    answer = parsed if isinstance(parsed, Answer) else None
    predicted = answer.label if answer else read_label(text)
    found_anchor = found_new = types_right = False
    if answer and answer.relation and reference.relation:
        found_anchor = _names(answer.anchor, reference.historical_constraint, same)
        found_new = _names(answer.new_constraint, reference.new_constraint, same)
        types_right = answer.relation is reference.relation
        if found_anchor and found_new and _is_one(answer.anchor, answer.new_constraint, reference, same):
            found_anchor = found_new = False
    label, fmt = float(predicted is reference.label), float(answer is not None)
    attr = float(found_anchor and found_new and types_right)
    gate = label == 1 and fmt == 1
    return Reward(
        total=label + alpha * fmt + (beta * attr if gate else 0.0),
        label=label,
        fmt=fmt,
        attr=attr,
        predicted=predicted,
        found_anchor=found_anchor,
        found_new=found_new,
        types_right=types_right,
    )


def _names(named: Named | None, annotated: Named | None, same: Same) -> bool:
    if named is None or annotated is None:
        return False
    return same(f"{named.dimension}: {named.value}", f"{annotated.dimension}: {annotated.value}")


def _is_one(anchor: Named | None, new: Named | None, reference: Reference, same: Same) -> bool:
    """Whether the answer's two constraints are the same, though the matcher can tell the annotated two apart."""
    return _names(anchor, new, same) and not _names(reference.historical_constraint, reference.new_constraint, same)
