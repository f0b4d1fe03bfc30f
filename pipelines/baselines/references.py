"""The good samples that REFED and DESIGNER learn from: a few for every label, in English and Chinese, written for this.

They stand where the two methods have curated collections, and are no part of any benchmark.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import yaml
from pydantic import BaseModel

from pipelines.baselines.common import FOLDER, ask
from synuc.effects import Once, Program
from synuc.types import Dialogue, Frozen, Label, LLMRequest, Turn


class Reference(Frozen):
    """A sample with the reason for its label."""

    id: str
    label: Label
    turns: tuple[Turn, ...]
    follow_up: str
    why: str

    @property
    def dialogue(self) -> Dialogue:
        return Dialogue(turns=self.turns)


@lru_cache(maxsize=1)
def _all() -> tuple[Reference, ...]:
    rows = yaml.safe_load(FOLDER.joinpath("references.yaml").read_text("utf-8"))
    return tuple(Reference.model_validate(row) for row in rows)


def references(label: Label | None) -> tuple[Reference, ...]:
    """The references of a label."""
    return tuple(reference for reference in _all() if reference.label is label)


def learned(
    baseline: str, reference: Reference, template: str, reply: type[BaseModel], max_tokens: int
) -> Program[Any]:
    """What a baseline learns from a reference, which is shown with its message and the reason: asked for once."""
    key = f"{baseline}/{reference.id}"
    shown: dict[str, Any] = {"label": reference.label, "message": reference.follow_up, "why": reference.why}
    request = ask(template, key, reply, reference.dialogue, max_tokens=max_tokens, **shown)
    return (yield Once(key, _answer(request)))


def _answer(request: LLMRequest) -> Program[Any]:
    return (yield request)
