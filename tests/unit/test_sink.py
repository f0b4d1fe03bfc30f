"""What the driver keeps of the rows that come back: samples once, and every call that was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from rich.console import Console

from pipelines.budget import Purse
from pipelines.progress import Progress
from pipelines.run_folder import RunFolder
from pipelines.synthesize import _Sink
from synuc.config import RunConfig
from tests.runs import Run, a_run


def row(run: Run, seed: int, fatal: str = "") -> dict[str, Any]:
    """As a worker gives it back."""
    id = run.seeds[seed].id
    samples = [] if fatal else [s.model_dump(mode="json") for s in run.samples if s.seed_id == id]
    calls = [{key: value for key, value in call.items() if key != "seed_id"} for call in run.calls[:2]]
    return {"seed_id": id, "samples": json.dumps(samples), "calls": json.dumps(calls), "fatal": fatal, "held": False}


def test_calls_count_even_where_their_samples_do_not(tmp_path: Path) -> None:
    run = a_run(tmp_path / "made")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    config = RunConfig.model_validate({"engine": {"kind": "openai", "model": "m", "price": {"prompt": 1}}})
    purse, progress = Purse(config, folder), Progress(Console(quiet=True), 9, 0)
    with _Sink(folder, progress, purse) as sink:
        sink.add(row(run, 0))
        sink.add(row(run, 0))  # its block was repeated after the loss of a node
        sink.add(row(run, 1, fatal="the endpoint is gone"))
    samples, calls = folder.read("samples"), folder.read("calls")
    assert pc.count_distinct(samples["id"]).as_py() == len(samples) > 0
    assert set(samples["seed_id"].to_pylist()) == {run.seeds[0].id}
    assert progress.done == 1
    assert len(calls) == 6
    assert purse.usd == sum(calls["cost"].to_pylist())
    assert folder.spent() == (purse.usd, purse.tokens)
