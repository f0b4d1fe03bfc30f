"""What training says of how far it is."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from training import progress
from training.progress import Progress


def row(step: int, when: float) -> dict[str, float]:
    return {"step": step, "steps": 24, "time": when, "loss": 0.5, "tokens_per_second": 60.0}


def test_the_time_left_follows_from_the_steps_of_this_start_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synuc.progress.SECONDS_BETWEEN_LINES", 0.0)
    out = io.StringIO()
    shown = Progress(Console(file=out, width=200))
    now = time.time()
    for one in (row(4, now - 7200), row(5, now + 10), row(6, now + 20)):
        shown.show(one)
    lines = out.getvalue().splitlines()
    assert [line.split(" ·")[0] for line in lines] == ["step 5/24", "step 6/24"]
    assert "left" not in lines[0]
    assert lines[1].endswith("3m00s left")


def test_a_replaced_worker_that_repeats_steps_starts_the_count_anew() -> None:
    first = row(8, 100.0)
    assert "left" not in progress.line(row(8, 100.0), first)
    assert progress.line(row(12, 140.0), first).endswith("2m00s left")
