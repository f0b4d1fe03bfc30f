"""What the LLM answers to the baselines' calls, bounded as in `synuc.replies`, with reasons first."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints, create_model

from synuc.replies import Dimension, Message, New, Phrase, Reason, Reply
from synuc.types import ConstraintType, Label, Scope, TaskLevel

Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=240)]
Utterance = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=600)]


class Old(Reply):
    """A constraint of the history, its type aside: a pair's types follow from its relation."""

    turn: Annotated[int, Field(ge=1, le=200)]
    evidence: Phrase
    dimension: Dimension
    value: Phrase
    scope: Scope


class Brought(Reply):
    """A constraint of the follow-up, its type aside."""

    evidence: Phrase
    dimension: Dimension
    value: Phrase


class Listed(Old):
    type: ConstraintType


class Annotation(Reply):
    """Tasks and constraints of a finished sample: what its training example is made of."""

    reason: Reason
    completed_main_tasks: Annotated[list[Phrase], Field(max_length=6)]
    active_main_task: Phrase
    completed_subtasks: Annotated[list[Phrase], Field(max_length=8)]
    active_subtask: Phrase
    constraints: Annotated[list[Listed], Field(max_length=6)]
    continues: TaskLevel
    new_constraints: Annotated[list[New], Field(max_length=4)]


class PairAnnotation(Annotation):
    """The same for ER and IC, with the pair that clashes."""

    historical: Old
    new: Brought
    relation: Literal["H_E_N_E", "H_E_N_I", "H_I_N_E", "H_I_N_I"]

    @property
    def types(self) -> tuple[ConstraintType, ConstraintType]:
        """Of the historical and of the new constraint."""
        _, historical, _, new = self.relation.split("_")
        return _TYPES[historical], _TYPES[new]


_TYPES: dict[str, ConstraintType] = {"E": "explicit", "I": "implicit"}


class RevisionAnnotation(PairAnnotation):
    relation: Literal["H_E_N_E"]


class ConflictAnnotation(PairAnnotation):
    relation: Literal["H_E_N_I", "H_I_N_E", "H_I_N_I"]


def annotation_reply(label: Label | None) -> type[Annotation]:
    """The annotation of a sample of this label; only relations that the label allows can be answered."""
    if label is Label.ER:
        return RevisionAnnotation
    return ConflictAnnotation if label is Label.IC else Annotation


class Exchange(Reply):
    user: Utterance
    assistant: Utterance


class SelfChat(Reply):
    """Baize: the chat goes on for a while, and then comes the message that is asked for."""

    exchanges: Annotated[list[Exchange], Field(min_length=1, max_length=2)]
    following: Message


class Requirements(Reply):
    """ConInstruct: a requirement of one kind that the dialogue holds, and the one that the message will bring."""

    reason: Reason
    standing: Line
    added: Line


class Feedback(Reply):
    """REFED: what makes a reference good: its message as a message, and as an instance of its label."""

    reason: Reason
    message: Annotated[list[Line], Field(min_length=1, max_length=4)]
    label: Annotated[list[Line], Field(min_length=1, max_length=4)]


class Logic(Reply):
    """DESIGNER: how a sample was designed, in steps that fit other dialogues as well."""

    reason: Reason
    name: Phrase
    suits: Line
    steps: Annotated[list[Line], Field(min_length=2, max_length=6)]


@lru_cache(maxsize=8)
def choice_reply(ids: tuple[str, ...]) -> type[BaseModel]:
    """The choice of one of several logics."""
    one_of: Any = Literal[ids]
    return create_model("Choice", __base__=Reply, reason=(Reason, ...), logic=(one_of, ...))


SHAPES: tuple[type[BaseModel], ...] = (
    Annotation,
    RevisionAnnotation,
    ConflictAnnotation,
    Message,
    SelfChat,
    Requirements,
    Feedback,
    Logic,
    choice_reply(("l1",)),
)
