"""What the figures need of an accepted sample, and a bounded number of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path

from pipelines.run_folder import RunFolder
from synuc.problem import Problem
from synuc.sample import UC_DATA, Outcome, Sample, of_uc_data
from synuc.types import Label


class NotUcData(Problem):
    """A file that isn't an export's; the message says where."""


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


def rows(source: RunFolder | Path) -> Iterator[Row]:
    """The accepted samples of a run, or of an export's `uc-data.jsonl`, one after the other.

    Raises:
        NotUcData: the file has none, or a line that is no sample.
    """
    samples = _exported(source) if isinstance(source, Path) else source.samples(Outcome.ACCEPTED.value)
    return map(row, samples)


def exported(place: str) -> Path | None:
    """The `uc-data.jsonl` at `place`, which is such a file or an export's folder; None if it is neither."""
    path = Path(place)
    return next((file for file in (path, path / UC_DATA) if file.suffix == ".jsonl" and file.is_file()), None)


def _exported(file: Path) -> Iterator[Sample]:
    number = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                sample = of_uc_data(json.loads(line))
            except ValueError as error:
                why = str(error).replace("\n", " ")
                raise NotUcData(f"{file}:{number}: no sample of UC-Data ({why}); name an export's {UC_DATA}") from None
            yield sample
    if not number:
        raise NotUcData(f"{file} is empty; export the run again")


def lot(id: str) -> str:
    """An order of ids that has nothing to do with their content, and is the same everywhere."""
    return hashlib.sha256(id.encode()).hexdigest()


def at_most(limit: int, given: Iterable[Row]) -> list[Row]:
    """Some `limit` rows, drawn by lot and the same whatever the order of the rows; sorted by id."""
    return sorted(nsmallest(limit, given, key=lambda one: lot(one.id)), key=lambda one: one.id)
