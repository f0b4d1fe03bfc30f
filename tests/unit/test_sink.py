"""What the driver keeps of the rows that come back: samples once, and every call that was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from rich.console import Console

from actors.replies import ReplyFiles, kept
from pipelines.budget import Purse
from pipelines.progress import Progress
from pipelines.run_folder import RunFolder
from pipelines.sink import Sink
from synuc.config import RunConfig
from tests.runs import Run, a_run


def row(run: Run, seed: int, fatal: str = "", moment: float = 0.0) -> dict[str, Any]:
    """As a worker gives it back that began at this moment."""
    id = run.seeds[seed].id
    samples = [] if fatal else [s.model_dump(mode="json") for s in run.samples if s.seed_id == id]
    calls = [
        {**{key: value for key, value in call.items() if key != "seed_id"}, "started": moment + n}
        for n, call in enumerate(run.calls[:2])
    ]
    return {"seed_id": id, "samples": json.dumps(samples), "calls": json.dumps(calls), "fatal": fatal, "held": False}


def test_calls_count_even_where_their_samples_do_not(tmp_path: Path) -> None:
    run = a_run(tmp_path / "made")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    config = RunConfig.model_validate({"engine": {"kind": "openai", "model": "m", "price": {"prompt": 1}}})
    purse, progress = Purse(config, folder), Progress(Console(quiet=True), 9, 0)
    with Sink(folder, progress, purse) as sink:
        sink.add(row(run, 0))
        sink.add(row(run, 0, moment=100.0))  # its block was repeated after the loss of a node
        sink.add(row(run, 1, fatal="the endpoint is gone"))
    samples, calls = folder.read("samples"), folder.read("calls")
    assert pc.count_distinct(samples["id"]).as_py() == len(samples) > 0
    assert set(samples["seed_id"].to_pylist()) == {run.seeds[0].id}
    assert progress.done == 1
    assert len(calls) == 6
    assert purse.usd == sum(calls["cost"].to_pylist())
    assert folder.spent() == (purse.usd, purse.tokens)


def test_calls_that_come_with_a_dialogue_again_are_in_the_ledger_once(tmp_path: Path) -> None:
    run = a_run(tmp_path / "made")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    purse = Purse(RunConfig.model_validate({"engine": {"kind": "openai", "model": "m"}}), folder)
    replies = ReplyFiles(str(folder.path))
    replies.add({run.seeds[0].id: ["{}"], run.seeds[1].id: ["{}"]})
    with Sink(folder, Progress(Console(quiet=True), 9, 0), purse) as sink:
        sink.add(row(run, 0, fatal="the endpoint is gone"))
    assert kept(folder.path)
    with Sink(folder, Progress(Console(quiet=True), 9, 0), purse) as sink:
        sink.add(row(run, 0))
        sink.add(row(run, 1))
        sink.add(row(run, 1))  # its block was repeated, and its replies were still kept
    assert len(folder.read("calls")) == 4
    assert kept(folder.path) == []
