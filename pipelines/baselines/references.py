"""The good samples that REFED and DESIGNER learn from: a few for every label, in English and Chinese, written for this.

They stand where the two methods have curated collections, and are no part of any benchmark.
"""

from __future__ import annotations

from functools import lru_cache

import yaml

from pipelines.baselines.common import FOLDER
from synuc.types import Dialogue, Frozen, Label, Turn


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
