"""When the memory's journal becomes a new snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors import journal as journals
from actors.journal import MemoryJournal, load_memory
from synuc.speaking import Speaking
from tests.scripted import a_trajectory


def test_snapshots_come_less_often_the_more_they_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "OPERATIONS_PER_SNAPSHOT", 10)
    monkeypatch.setattr(journals, "SNAPSHOT_GROWTH", 0.5)
    journal = MemoryJournal(tmp_path, 3, 10_000)
    at = []
    for n in range(200):
        before = journal.generation
        trajectory = a_trajectory(f"t{n}").model_copy(update={"speaking": Speaking.KEY})
        journal.write({"do": "record", "trajectory": trajectory.model_dump(mode="json")})
        if journal.generation != before:
            at.append(n)
    # One after the first ten, and then one whenever the journal has as many as half of all there are.
    assert at == [10, 20, 40, 80, 160]
    assert len(load_memory(tmp_path).shelves[Speaking.KEY].seen) == 200
