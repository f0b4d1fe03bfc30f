"""The vocabulary of the method (paper, sections 3.1 and 4.1): dialogues, constraints, labels, LLM requests."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Label(StrEnum):
    """The three relations between a follow-up and the dialogue history (paper, section 3.1)."""

    ND = "ND"
    ER = "ER"
    IC = "IC"

    @property
    def words(self) -> str:
        """The label as a detector writes it, e.g. `Implicit Conflict`."""
        return {"ND": "Normal Dialogue", "ER": "Explicit Revision", "IC": "Implicit Conflict"}[self.value]


class Relation(StrEnum):
    """Types of the historical (H) and the new (N) constraint of a pair, explicit (E) or implicit (I)."""

    H_E_N_E = "H_E_N_E"
    H_E_N_I = "H_E_N_I"
    H_I_N_E = "H_I_N_E"
    H_I_N_I = "H_I_N_I"

    @classmethod
    def of(cls, historical: ConstraintType, new: ConstraintType) -> Relation:
        return cls(f"H_{historical[0].upper()}_N_{new[0].upper()}")

    @property
    def label(self) -> Label:
        return Label.ER if self is Relation.H_E_N_E else Label.IC


ConstraintType = Literal["explicit", "implicit"]
Scope = Literal["main_task", "subtask"]
TaskLevel = Literal["current_subtask", "current_main_task", "new_task"]
Role = Literal["generator", "verifier", "curator"]
EvaluationRole = Literal["model", "judge"]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Turn(Frozen):
    """One turn (u_i, a_i)."""

    user: str
    assistant: str


class Dialogue(Frozen):
    """D(t): `t` turns and the system message they began with (empty if none)."""

    turns: tuple[Turn, ...]
    system: str = ""

    def before_last(self) -> Dialogue:
        """D(t-1)."""
        return Dialogue(turns=self.turns[:-1], system=self.system)

    @property
    def messages(self) -> int:
        return 2 * len(self.turns)


class Seed(Frozen):
    """A seed dialogue. `id` is a hash of its normalised content; `origin` says where it was read."""

    id: str
    language: str
    dialogue: Dialogue
    source: str
    origin: str


class TaskHierarchy(Frozen):
    """T = <M_done, M_act, S_done, S_act> (paper, section 4.1.1)."""

    completed_main_tasks: tuple[str, ...] = ()
    active_main_task: str
    completed_subtasks: tuple[str, ...] = ()
    active_subtask: str


class Constraint(Frozen):
    """c = <type, dimension, value, scope, evidence>; `turn` is the user turn of the evidence, from 1.

    For an implicit constraint the evidence is what it is inferred from.
    """

    type: ConstraintType
    dimension: str
    value: str
    scope: Scope
    evidence: str
    turn: int

    def __str__(self) -> str:
        return f"{self.dimension}: {self.value}"


class History(Frozen):
    """<T, C> of a dialogue, explicit constraints first, so that E is a prefix of C."""

    dialogue: Dialogue
    tasks: TaskHierarchy
    constraints: tuple[Constraint, ...]

    def candidates(self, label: Label | None) -> tuple[Constraint, ...]:
        """C_y: all constraints for IC; ER may only revise explicit ones."""
        if label is Label.IC:
            return self.constraints
        return tuple(c for c in self.constraints if c.type == "explicit")


class NewConstraint(Frozen):
    """A constraint that a follow-up brings in. `evidence`: the words that state it, or that it is inferred from."""

    type: ConstraintType
    dimension: str
    value: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.dimension}: {self.value}"


class Spoken(Frozen):
    """An answer in free text.

    `cut`: it ended because `max_tokens` were used up. `first`: the likeliest first tokens and their log-probabilities,
    where they were asked for and the engine gives them. `thoughts`: what the model thought, where the engine gives it
    apart from the answer. The tokens are those of this call.
    """

    text: str
    cut: bool = False
    thoughts: str = ""
    first: dict[str, float] = {}
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class LLMRequest:
    """One call that a program asks for. `reply` is the pydantic model of the answer; its JSON schema bounds decoding,
    unless it is `Spoken`: then the model may say anything.

    `key` names the dialogue or sample the call belongs to: sampling seeds derive from it. `begun` is how the answer
    begins; it is not repeated in the reply. `logprobs` asks for the candidates of the answer's first token. `adapter`
    names one of the engine's adapters; empty: its own, or the model itself.
    """

    stage: str
    role: Role | EvaluationRole
    key: str
    messages: tuple[dict[str, str], ...]
    reply: type[BaseModel]
    max_tokens: int
    temperature: float = 0.0
    begun: str = ""
    logprobs: bool = False
    adapter: str = ""


class CallFailed(Exception):
    """Thrown into a program when a call has no usable answer: `kind` is a short machine name, e.g. `unparseable`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason


PILED = 30
"""Combining marks that one letter may have, as in Unicode's stream-safe text; no language needs more."""


@lru_cache(maxsize=1)
def _heap() -> re.Pattern[str]:
    """More marks on one letter than `PILED`: of all that turns into marks alone when it is decomposed."""
    marks = "".join(
        char
        for char in map(chr, range(0x300, 0x1F000))
        if all(map(unicodedata.combining, unicodedata.normalize("NFD", char)))
    )
    return re.compile(rf"([{marks}]{{{PILED}}})[{marks}]+")


def clean(text: str) -> str:
    """Text that every encoder, file and tokenizer takes: no NUL, no lone surrogates, NFC, one kind of newline.

    Of a heap of combining marks `PILED` are left.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    # NFC sorts such a heap in time that grows with its square: two megabytes of it would take minutes.
    return unicodedata.normalize("NFC", _heap().sub(r"\1", text))
