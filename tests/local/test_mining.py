"""`synuc bench mine` as a Ray job against a stand-in endpoint: what it leaves behind, and that it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eval.folder import EvalFolder
from eval.mining import MiningConfig, draw, mine
from synuc.replies import CATEGORIES
from synuc.types import Dialogue, Seed, Turn
from tests.standin import running

pytestmark = pytest.mark.usefixtures("ray_running")

ITEMS = 60


def seeds() -> list[Seed]:
    found = []
    for at in range(ITEMS):
        turn = Turn(user=f"Write story {at}.", assistant="Once upon a time.")
        dialogue = Dialogue(turns=(turn, turn))
        language = "en" if at % 2 else "zh"
        found.append(Seed(id=f"{at:02}", language=language, dialogue=dialogue, source="s", origin=f"s:{at}"))
    return found


def test_a_mining_goes_on_and_its_counts_add_up(tmp_path: Path) -> None:
    read = {"read": ITEMS, "taken": ITEMS, "refused": {}}
    with running("--service-time", "0.005", "--booleans", "random") as endpoint:
        engine = {"kind": "openai", "model": "standin", "base_url": endpoint.url, "give_up_after_s": 2}
        config = MiningConfig.model_validate({"engine": engine, "keep": 1})

        def run() -> dict[str, Any]:
            return mine(config, draw(seeds(), None, 0), read, [], tmp_path / "run", Console())

        figures = run()
        step = figures["overall"]
        assert step["asked"] == ITEMS == sum(step["rejected"].values()) + sum(step["categories"].values())
        lines = (tmp_path / "run" / "candidates.jsonl").read_text("utf-8").splitlines()
        cells = [(row["language"], row["task"]) for row in map(json.loads, lines)]
        assert len(cells) == len(set(cells)) == sum(step["kept"].values()) > 0
        assert all(category in CATEGORIES for _, category in cells)

        folder = EvalFolder(tmp_path / "run")
        # As a killed process leaves it.
        done = (folder.path / "results.jsonl").read_text("utf-8").splitlines(keepends=True)
        (folder.path / "results.jsonl").write_text("".join(done[:20]) + done[20][:30], "utf-8")
        (folder.path / "metrics.json").unlink()
        asked = endpoint.stats()["requests"]
        assert run() == figures
        # The look before a run asks once; every answer was there.
        assert endpoint.stats()["requests"] == asked + 1
