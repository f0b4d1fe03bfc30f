"""One run of each kind of kill on a cluster of three nodes; `make chaos` makes many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.runs import FAULTS, IN_FLIGHT, KILLS, KINDS, one_run
from tests.chaos.victims import cluster
from tests.standin import Running


@pytest.mark.parametrize("kind", KINDS)
def test_kills_lose_and_double_nothing(kind: str, tmp_path: Path, standin: Callable[..., Running]) -> None:
    with cluster(3) as made:
        outcome = one_run(made, kind, 0, standin(*FAULTS), tmp_path)
    assert outcome.kills == KILLS
    assert outcome.faults > 0
    assert (outcome.lost, outcome.doubled, outcome.forgotten) == (0, 0, 0)
    assert outcome.repeated <= IN_FLIGHT
    assert outcome.unaccounted <= IN_FLIGHT
