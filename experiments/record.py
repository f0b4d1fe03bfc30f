"""What a run keeps of its experiments, RUN/experiments/NAME.json: enough to make tables of, without their files.

Several experiments in one run share its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from experiments.config import Evaluation, Experiment, Quoted, Scale, Training
from experiments.plan import Cell, Kind, distinct
from experiments.steps import StepFolder
from synuc.folder import RunError, write_whole
from synuc.layers import Section

State = Literal["done", "failed", "open"]


class CellRecord(Section):
    """A cell: the names of the steps whose results it shows, by kind, and of all that it needs."""

    variant: str
    training: Training
    seed: int
    steps: dict[Kind, str]
    needs: tuple[str, ...]

    def state(self, run: Path) -> State:
        """How far it is."""
        if all(StepFolder(run, name).done for name in self.needs):
            return "done"
        return "failed" if self.why(run) else "open"

    def why(self, run: Path) -> str | None:
        """The step that it waits for because that failed, and why."""
        failed = {name: why for name in self.needs if (why := StepFolder(run, name).why())}
        return next((f"{name}: {why}" for name, why in failed.items()), None)


class Record(Section):
    """An experiment at a scale, and its cells in the order of the table."""

    name: str
    title: str
    reproduces: str
    scale: Scale
    evaluations: tuple[Evaluation, ...]
    published: dict[Evaluation, Quoted]
    cells: tuple[CellRecord, ...]


def record(experiment: Experiment, name: str, scale: Scale, cells: Sequence[Cell]) -> Record:
    """What is kept of an experiment."""
    kept = [
        CellRecord(
            variant=cell.variant,
            training=cell.training,
            seed=cell.seed,
            steps={kind: step.name for kind, step in cell.steps.items()},
            needs=tuple(step.name for step in distinct([cell])),
        )
        for cell in cells
    ]
    head = experiment.model_dump(include={"title", "reproduces", "evaluations", "published"})
    return Record.model_validate({"name": name, "scale": scale, "cells": kept, **head})


def write(run: Path, kept: Record) -> None:
    """Put it into the run; an experiment at two scales is kept twice."""
    write_whole(run / "experiments" / f"{kept.name}--{kept.scale}.json", kept.model_dump_json(indent=2))


def read(run: Path) -> list[Record]:
    """All that the run keeps, by name.

    Raises:
        RunError: there is none.
    """
    files = sorted((run / "experiments").glob("*.json"))
    if not files:
        raise RunError(f"{run} is no run of experiments; make one with: synuc experiment run FILE --run {run}")
    return [Record.model_validate_json(file.read_text("utf-8")) for file in files]
