"""A sweep on real Ray: two cells as trials of Ray Tune, each trained by Ray Train and tested; then what is skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from synuc.layers import compose
from tests.tiny import FAMILIES, export_folder, save_family
from training.config import SweepConfig
from training.sweep import sweep

CELLS = ("tiny--own--seed0", "tiny--own--seed1")
FILES = ("result.json", "answers-sft.jsonl", "sft/adapter/adapter_model.safetensors")


def prepared(home: Path) -> Path:
    """The file of a sweep of a tiny Llama over two seeds, SFT only, with everything that it names."""
    backbone = save_family(FAMILIES["llama-3.1"], home / "model")
    (home / "tiny.yaml").write_text(yaml.safe_dump({"backbone": backbone.model_dump()}), "utf-8")
    (home / "sft.yaml").write_text("optimizer: {learning_rate: 0.001, epochs: 100, batch_size: 2}\n", "utf-8")
    settings = {
        "backbones": [str(home / "tiny.yaml")],
        "data": {"own": str(export_folder(home / "export"))},
        "seeds": [0, 1],
        "stages": ["sft"],
        "sft": {"files": [str(home / "sft.yaml")], "set": ["optimizer.max_steps=1"]},
        "test": {"path": str(home / "export"), "limit": 3},
        "answer_tokens": 8,
    }
    (home / "sweep.yaml").write_text(yaml.safe_dump(settings), "utf-8")
    return home / "sweep.yaml"


def changed(run: Path) -> dict[str, int]:
    return {f"{cell}/{file}": (run / "cells" / cell / file).stat().st_mtime_ns for cell in CELLS for file in FILES}


def test_cells_are_trained_tested_and_then_skipped(
    tmp_path: Path, ray_running: None, capfd: pytest.CaptureFixture[str]
) -> None:
    config, run = compose(SweepConfig, [prepared(tmp_path)]), tmp_path / "run"
    capfd.readouterr()  # what saving a model says
    said = Console(record=True, width=140, file=(tmp_path / "said").open("w", encoding="utf-8"))
    sweep(config, run, said)
    # Neither Tune nor a worker says anything.
    assert capfd.readouterr().out == ""
    first = changed(run)
    rows = json.loads((run / "table.json").read_text("utf-8"))
    assert [(row["backbone"], row["data"], row["stage"], row["seeds"]) for row in rows] == [("tiny", "own", "sft", 2)]
    weights = [(run / "cells" / cell / FILES[2]).read_bytes() for cell in CELLS]
    assert weights[0] != weights[1]

    sweep(config, run, said)
    assert changed(run) == first
    (run / "cells" / CELLS[1] / "result.json").unlink()
    sweep(config, run, said)
    again = changed(run)
    assert {name for name in first if first[name] != again[name]} == {f"{CELLS[1]}/result.json"}
    text = said.export_text()
    assert [line for line in text.splitlines() if "cells are done" in line] == [
        f"{n} of 2 cells are done." for n in (0, 2, 1)
    ]
    assert "macro F1" in text
