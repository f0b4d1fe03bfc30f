"""What an evaluation is: items, a program for each that asks models and returns a result, and figures over the results.

A program is sans-IO, as those of the method (`synuc.effects`): it yields an `LLMRequest` of role `model` or `judge` (or
a `Fork` of programs), receives the reply, and returns what is kept of the item, as plain JSON. A `CallFailed` that it
doesn't catch makes the item a failure with its kind and reason, which the same command tries again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from synuc.effects import Program
from synuc.types import Frozen

Item = Mapping[str, Any]
"""A row of items.jsonl: plain JSON with an `id` that no other item of the run has."""


class Result(Frozen):
    """A row of results.jsonl: what an item's program returned, or the kind of its failure and the reason.

    `draw`: how many times other answers have to be drawn when the item is tried again, because its program failed
    although every call of it was answered.
    """

    id: str
    kind: str = ""
    reason: str = ""
    value: dict[str, Any] | None = None
    draw: int = 0


class Evaluation(Protocol):
    """A protocol with its settings. It is sent to workers, so it is a frozen dataclass of plain values."""

    @property
    def name(self) -> str:
        """As the command is named, e.g. `uc`."""

    def snapshot(self) -> dict[str, Any]:
        """The settings that decide the results: they may not change while a run is continued."""

    def program(self, item: Item) -> Program[dict[str, Any]]:
        """What has to be asked about an item, and what is kept of it."""

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """The figures over all results, as plain JSON (metrics.json). Failures are counted, never left out silently."""
