"""What an item is about; it never changes."""

from __future__ import annotations

import hashlib

from review.forms import Why
from synuc.types import Dialogue, Frozen, Label


class Content(Frozen):
    """A dialogue, a follow-up, and what only some kinds of projects have.

    `synthetic`: the label that a spot check is about. `why`: the gold rationale, and `answers` the two models'
    reasonings, that are compared.
    """

    dialogue: Dialogue
    follow_up: str
    subset: str
    task: str | None = None
    synthetic: Label | None = None
    why: Why | None = None
    answers: tuple[str, str] | None = None


class Entry(Frozen):
    """An item to be made. `key` is its id in the file or run that it came from."""

    key: str
    language: str
    content: Content


def fingerprint(dialogue: Dialogue) -> str:
    """Sixteen hex digits that are another's if a single character of the dialogue is."""
    return hashlib.sha256(dialogue.model_dump_json().encode()).hexdigest()[:16]
