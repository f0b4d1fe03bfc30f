"""Sweeps: every backbone on every data set with every seed, as the trials of one Ray Tune run."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray import tune
from rich.console import Console

from cluster.connect import connected
from synuc.folder import Folder, RunError
from synuc.problem import Problem
from synuc.progress import Status, meanwhile
from training import table
from training.cells import CellFolder, cells, check, held_out, run_cell, stage_configs, sweep_snapshot
from training.config import SweepConfig, TrainConfig

TRIES = 3
"""Processes that a cell may lose, e.g. with their node, before it counts as failed."""

Stages = Mapping[str, TrainConfig]
Trained = TypeVar("Trained", bound=TrainConfig)


class SweepFailed(Problem):
    """Some cells ended without a result; the message lists them."""


def sweep(config: SweepConfig, run: Path | None, console: Console) -> None:
    """Train and test the cells that aren't done yet, and write the table of all.

    Raises:
        Problem: the settings can't be used, or some cells failed; the others are done all the same.
    """
    path = run or config.run
    if path is None:
        raise RunError("no folder for the sweep: give --run FOLDER, or set run")
    folder = Folder(path)
    with folder.locked():
        stages = {cell.name: stage_configs(config, cell) for cell in cells(config)}
        snapshot = sweep_snapshot(config)
        folders = {name: CellFolder(folder.path, name) for name in stages}
        for name, made in stages.items():
            check(folders[name], made)
        folder.begin(config, snapshot)
        left = [name for name, cell in folders.items() if not cell.result.exists()]
        console.print(f"{len(stages) - len(left)} of {len(stages)} cells are done.", highlight=False)
        if left:
            _run(config, folder.path, {name: stages[name] for name in left}, folders, console)
        console.print(table.write(config, folder.path))
        console.print(f"Also in {folder.path / 'table.md'} and table.json.", soft_wrap=True, highlight=False)
        if failed := {name: why for name in left if (why := folders[name].why())}:
            listed = "\n  ".join(f"{name}: {why}" for name, why in failed.items())
            raise SweepFailed(
                f"{len(failed)} of {len(stages)} cells failed; the same command tries them again:\n  {listed}"
            )


def _run(
    config: SweepConfig, run: Path, left: Mapping[str, Stages], folders: Mapping[str, CellFolder], console: Console
) -> None:
    """Run the cells that are left; how each ended is in its folder afterwards."""
    for name in left:
        for old in (folders[name].state, folders[name].failure):
            old.unlink(missing_ok=True)
    with connected(next(iter(left.values()))["sft"].cluster.address):
        cpus = ray.cluster_resources().get("CPU", 1)  # type: ignore[no-untyped-call]
        jobs = {
            name: {
                "folder": folders[name],
                "stages": {stage: share_of(made, cpus / config.concurrent) for stage, made in stages.items()},
                "test": held_out(config),
                "answer_tokens": config.answer_tokens,
            }
            for name, stages in left.items()
        }
        tuner = _tuner(jobs, run, config.concurrent)
        with Status(console, "Starting Ray Tune ...") as status:
            try:
                with meanwhile(lambda: status.say(_progress(folders))):
                    tuner.fit()
            except Exception as failure:
                raise SweepFailed(f"Ray Tune ended: {failure}; the same command goes on") from failure
    for name in left:
        if not folders[name].result.exists() and not folders[name].failure.exists():
            folders[name].fail("its process was lost; look at the memory of the machine, and at Ray's logs")


def share_of(config: Trained, cpus: float) -> Trained:
    """The configuration with a share of the cluster's CPUs where it doesn't say how many its workers get."""
    cluster = config.cluster
    each = cluster.cpus_per_worker or max(1, int(cpus / cluster.workers))
    return config.model_copy(update={"cluster": cluster.model_copy(update={"cpus_per_worker": each})})


def _tuner(jobs: Mapping[str, Mapping[str, Any]], run: Path, concurrent: int) -> tune.Tuner:
    # Nothing is read from the records of an earlier start: what is done stands in the cells' folders.
    shutil.rmtree(run / "tune", ignore_errors=True)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # Tune's would make of Ctrl-C an end like any other
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new output prints a box even at verbose=0
    # A trial computes nothing itself, and must not take a share of a CPU that its training asks for as a whole.
    trial = tune.with_resources(tune.with_parameters(_trial, jobs=jobs), {"memory": 1})
    return tune.Tuner(
        trial,
        param_space={"cell": tune.grid_search(list(jobs))},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=concurrent, trial_name_creator=_name, trial_dirname_creator=_name
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(run),
            failure_config=tune.FailureConfig(max_failures=TRIES - 1),
            verbose=0,
        ),
    )


def _trial(parameters: dict[str, Any], jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    job = jobs[parameters["cell"]]
    run_cell(**job)
    # Tune prints a line about a trial without a result.
    return {"failed": int(job["folder"].failure.exists())}


def _name(trial: Any) -> str:
    return str(trial.config["cell"])


def _progress(folders: Mapping[str, CellFolder]) -> str:
    """How many cells are done, and what the running ones are at."""
    done = sum(cell.result.exists() for cell in folders.values())
    failed = sum(cell.failure.exists() for cell in folders.values())
    parts = [f"{done}/{len(folders)} cells" + (f", {failed} failed" if failed else "")]
    parts += [f"{name}: {now}" for name, cell in folders.items() if (now := cell.now())]
    return " · ".join(parts)
