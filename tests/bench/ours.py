"""Our pipeline as a command, against an endpoint."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

EIGHT_CALLS = {
    "method.labels": "[IC]",
    "method.task_filter": "false",
    # The memory takes every trajectory and is never merged: no call but the dialogue's own eight.
    "method.update_threshold": "1000000",
}
"""Settings under which a dialogue is eight calls, each of which depends on the one before."""

ROOT = Path(__file__).parents[2]


def synthesis(run: Path | str, seeds: Path, url: str, in_flight: int, settings: Mapping[str, str]) -> list[str]:
    """The command that synthesises from `seeds` into `run`; `in_flight` calls at most at a time, over all workers."""
    chosen = {
        "engine.kind": "openai",
        "engine.model": "standin",
        "engine.base_url": url,
        "engine.max_in_flight": str(in_flight),
        **settings,
    }
    command = [sys.executable, "-m", "synuc.cli", "synthesize", "--run", str(run), "--seeds", str(seeds)]
    return command + [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
