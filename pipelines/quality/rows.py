"""What the figures need of an accepted sample, and a bounded number of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest

from pipelines.run_folder import RunFolder
from synuc.sample import Outcome, Sample
from synuc.types import Label


@dataclass(frozen=True, slots=True)
class Row:
    """An accepted sample. `users` is what the user wrote in the history; `distance` in user turns from the anchor's
    evidence to the follow-up, 1 if it is in the last turn, None where there is no anchor or its turn isn't one.
    """

    id: str
    seed_id: str
    label: Label
    language: str
    schema: str | None
    relation: str | None
    anchor_dimension: str | None
    new_dimension: str | None
    distance: int | None
    follow_up: str
    users: str


def row(sample: Sample) -> Row:
    """The row of an accepted sample."""
    assert sample.label is not None
    assert sample.follow_up is not None
    turns, anchor = sample.dialogue.turns, sample.anchor
    known = anchor is not None and 1 <= anchor.turn <= len(turns)
    return Row(
        id=sample.id,
        seed_id=sample.seed_id,
        label=sample.label,
        language=sample.language,
        schema=sample.speaking,
        relation=sample.relation,
        anchor_dimension=anchor.dimension if anchor else None,
        new_dimension=sample.new.dimension if sample.new else None,
        distance=len(turns) + 1 - anchor.turn if anchor and known else None,
        follow_up=sample.follow_up,
        users="\n".join(turn.user for turn in turns),
    )


def rows(folder: RunFolder) -> Iterator[Row]:
    """The accepted samples of a run, one after the other."""
    return map(row, folder.samples(Outcome.ACCEPTED.value))


def lot(id: str) -> str:
    """An order of ids that has nothing to do with their content, and is the same everywhere."""
    return hashlib.sha256(id.encode()).hexdigest()


def at_most(limit: int, given: Iterable[Row]) -> list[Row]:
    """Some `limit` rows, drawn by lot and the same whatever the order of the rows; sorted by id."""
    return sorted(nsmallest(limit, given, key=lambda one: lot(one.id)), key=lambda one: one.id)
