"""What the synthesis of one label for one seed dialogue ends with, every intermediate kept (paper, section 5.2)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from synuc.replies import AnchorVerdict, Eligibility, Judgment
from synuc.speaking import Speaking
from synuc.types import (
    CallFailed,
    Constraint,
    Dialogue,
    Frozen,
    Label,
    NewConstraint,
    Relation,
    TaskHierarchy,
    TaskLevel,
)

UC_DATA = "uc-data.jsonl"
"""The file of an export that holds all of every sample, one in each line."""

BESIDE = ("difficulty", "made_by")
"""What such a line says beside the sample."""


class Outcome(StrEnum):
    """How a sample ends. Dialogues that never became a seed are `refused` and counted at reading."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    FAILED = "failed"


Stage = Literal["", "filter", "extract", "match", "generate", "realize", "anchor", "global", "confidence", "direct"]


class Contrast(Frozen):
    """What a hard ND stands against: it mentions the things that would bring in `new`, and keeps to `anchor`."""

    anchor: Constraint
    new: NewConstraint


class Sample(Frozen):
    """One sample. `id` is the seed's id and the label; `stage` and `reason` say where and why it ended if not accepted.

    `dialogue` is the history D_h; `label` is None only where the call that routes the dialogue failed. `kind` is the
    short name of a failure, e.g. `unparseable`. `contrast` is there where contrastive synthesis wrote an ND.
    """

    id: str
    seed_id: str
    label: Label | None
    outcome: Outcome
    stage: Stage = ""
    kind: str = ""
    reason: str = ""
    language: str
    source: str
    origin: str
    dialogue: Dialogue
    follow_up: str | None = None
    eligibility: Eligibility | None = None
    tasks: TaskHierarchy | None = None
    constraints: tuple[Constraint, ...] = ()
    speaking: Speaking | None = None
    repository_version: int | None = None
    anchor: Constraint | None = None
    new: NewConstraint | None = None
    contrast: Contrast | None = None
    continues: TaskLevel | None = None
    new_constraints: tuple[NewConstraint, ...] = ()
    anchor_verdict: AnchorVerdict | None = None
    judgment: Judgment | None = None

    @property
    def relation(self) -> Relation | None:
        """The type of the pair, None for ND."""
        if self.anchor is None or self.new is None:
            return None
        return Relation.of(self.anchor.type, self.new.type)

    def failed(self, stage: Stage, failure: CallFailed) -> Sample:
        """This sample, ended by a call without a usable answer."""
        return self.model_copy(
            update={"outcome": Outcome.FAILED, "stage": stage, "kind": failure.kind, "reason": failure.reason}
        )

    def rejected(self, stage: Stage, reason: str) -> Sample:
        """This sample, ended by a verdict."""
        return self.model_copy(update={"outcome": Outcome.REJECTED, "stage": stage, "reason": reason})


def of_uc_data(record: Any) -> Sample:
    """The sample of a line of `UC_DATA`, read as JSON.

    Raises:
        ValidationError: it is none.
    """
    if isinstance(record, dict):
        record = {name: value for name, value in record.items() if name not in BESIDE}
    return Sample.model_validate(record)
