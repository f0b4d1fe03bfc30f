"""What the service says about a follow-up."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Literal

from synuc.types import ConstraintType, Dialogue, Frozen, Label, Relation

Mode = Literal["reasoned", "fast"]
"""Reason, then give a label; or the label and its probability at once, in one decoding step."""

Verdict = Literal["ND", "ER", "IC", "undetermined"]
UNDETERMINED: Verdict = "undetermined"


class Span(Frozen):
    """Where the words that support a constraint stand: user turn (from 1, the follow-up is the last) and characters."""

    turn: int
    start: int
    end: int


class Found(Frozen):
    """A constraint as the detector names it. `evidence`: the words it is stated in or inferred from, if they are known;
    `where` they stand in the dialogue, if they do.
    """

    type: ConstraintType
    dimension: str
    value: str
    evidence: str = ""
    where: Span | None = None


class Choice(Frozen):
    """An answer that a user can give with one click: what the button says, and the message that it sends."""

    id: Literal["keep", "change", "other"]
    label: str
    message: str


class Clarification(Frozen):
    """A question in the user's language that names both sides, and its choices."""

    language: str
    question: str
    choices: tuple[Choice, ...]


class DetectRequest(Frozen):
    """A follow-up and the dialogue before it. `mode` and `adapter` None: as the configuration says."""

    dialogue: Dialogue
    follow_up: str
    mode: Mode | None = None
    adapter: str | None = None

    @property
    def message(self) -> str:
        """Sixteen hex digits over the follow-up and all that was said before."""
        text = f"{self.dialogue.model_dump_json()}\0{self.follow_up}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Detection(Frozen):
    """The verdict on a follow-up, and what it rests on.

    `probabilities` of the labels, None where the model gave none. `historical` and `new` are the decisive pair of ER
    and IC; `constraints` all historical ones that the detector lists, `new_constraints` those of the follow-up.
    `reason` says why there is no label, else it is empty. `adapter` is empty for the model itself; `version` names its
    weights: those of the adapter, or the model. Seconds: `queued` before the model began, `seconds` in all.
    """

    label: Verdict
    reason: str = ""
    probabilities: dict[Label, float] | None = None
    relation: Relation | None = None
    historical: Found | None = None
    new: Found | None = None
    constraints: tuple[Found, ...] = ()
    new_constraints: tuple[Found, ...] = ()
    reasoning: str = ""
    clarification: Clarification | None = None
    mode: Mode
    model: str
    adapter: str = ""
    version: str = ""
    queued: float = 0.0
    seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class DetectorBusy(Exception):
    """As many detections wait as may; `retry_after` seconds is a good time for another try."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"the detector's queue is full; try again in {retry_after:g} s")
        self.retry_after = retry_after


class DetectorDown(Exception):
    """No detector answers, or not in time."""


class TooLong(Exception):
    """The dialogue has more tokens than the detector takes; the message has the numbers."""


class UnknownAdapter(Exception):
    """The request names an adapter that isn't there; the message lists those that are."""


Detect = Callable[[DetectRequest], Awaitable[Detection]]
"""How the gateway asks a detector. Raises DetectorBusy, DetectorDown, TooLong or UnknownAdapter."""
