"""The cells of a sweep: one backbone on one data set with one seed, through SFT, GRPO and the test.

RUN/config.yaml  method.json           the sweep's settings, and those that may not change
RUN/cells/NAME/sft/  grpo/             training runs as `synuc train` makes them
RUN/cells/NAME/answers-STAGE.jsonl     what the stage's adapter answered to the test samples
RUN/cells/NAME/result.json             the figures; the cell is done
RUN/cells/NAME/failed.json             why the last try ended without
RUN/table.md  table.json               the figures of all cells
RUN/tune/                              Ray Tune's own records; nothing is read from them
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from rich.console import Console

from eval.metrics import classification, confusion
from synuc.folder import Folder, json_line, write_whole
from synuc.layers import compose
from synuc.problem import Problem
from synuc.types import Label
from training.card import last_figures
from training.config import Backbone, Cluster, Data, GrpoConfig, SftConfig, SweepConfig, TrainConfig
from training.data import data_fingerprint
from training.driver import (
    grpo_snapshot,
    resources_per_worker,
    sft_snapshot,
    train_grpo,
    train_sft,
    worker_environment,
)
from training.folder import TrainFolder


@dataclass(frozen=True)
class Cell:
    """One backbone (a YAML file) on one data set (by its name in the sweep) with one seed."""

    backbone: Path
    data: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.backbone.stem}--{self.data}--seed{self.seed}"


def cells(config: SweepConfig) -> list[Cell]:
    """All cells, every backbone and data set once before the second seed."""
    return [Cell(b, data, seed) for seed in config.seeds for data in config.data for b in config.backbones]


class CellFolder:
    """A cell's folder."""

    def __init__(self, sweep: Path, name: str) -> None:
        self.path = sweep.resolve() / "cells" / name
        self.result = self.path / "result.json"
        self.failure = self.path / "failed.json"
        # What a running cell is at: {"stage": ..., "step": ..., "steps": ...}; training's steps are in metrics.jsonl.
        self.state = self.path / ".state.json"

    def answers(self, stage: str) -> Path:
        return self.path / f"answers-{stage}.jsonl"

    def note(self, stage: str, step: int | None = None, steps: int | None = None) -> None:
        """Say for the progress display what the cell is at."""
        write_whole(self.state, json.dumps({"stage": stage, "step": step, "steps": steps}))

    def fail(self, message: str, trace: str = "") -> None:
        """Record why the cell ended without a result."""
        write_whole(self.failure, json.dumps({"message": message, "trace": trace}, indent=2, ensure_ascii=False))

    def why(self) -> str | None:
        """The message of a cell that failed."""
        return str(json.loads(self.failure.read_text("utf-8"))["message"]) if self.failure.exists() else None

    def now(self) -> str | None:
        """What a running cell is at, in words; None where none runs."""
        try:
            state = json.loads(self.state.read_text("utf-8"))
        except FileNotFoundError:
            return None
        if row := TrainFolder(self.path / state["stage"]).last_row():
            state |= {"step": row["step"], "steps": row["steps"]}
        return str(state["stage"]) + ("" if state["step"] is None else f" {state['step']}/{state['steps']}")


def stage_configs(config: SweepConfig, cell: Cell) -> dict[str, TrainConfig]:
    """What a cell's stages are trained with; where GRPO starts is the cell's to know.

    Raises:
        ConfigError: a layer can't be read, or they don't go together.
    """
    own = [f"data.path={str(config.data[cell.data].resolve())!r}", f"seed={cell.seed}"]
    made: dict[str, TrainConfig] = {
        "sft": compose(SftConfig, [*config.sft.files, cell.backbone], [*config.sft.set, *own])
    }
    if "grpo" in config.stages:
        made["grpo"] = compose(GrpoConfig, config.grpo.files, [*config.grpo.set, *own])
    return made


def sweep_snapshot(config: SweepConfig) -> dict[str, Any]:
    """What may not change while a sweep is continued: all but its backbones, data sets and seeds, and how it runs.

    Raises:
        Problem: a layer or the test data can't be read.
    """
    # The backbone's place in the layers, so that they are whole.
    stages: dict[str, TrainConfig] = {
        "sft": compose(SftConfig, config.sft.files, [*config.sft.set, "backbone.model=any"])
    }
    if "grpo" in config.stages:
        stages["grpo"] = compose(GrpoConfig, config.grpo.files, config.grpo.set)
    left_out: Any = {"backbone": True, "cluster": True, "record": True, "start": True, "seed": True, "data": {"path"}}
    test = held_out(config)
    return {
        "stages": list(config.stages),
        **{name: stage.model_dump(mode="json", exclude=left_out) for name, stage in stages.items()},
        "test": test and {"limit": test.limit, "fingerprint": data_fingerprint(test, "grpo")},
        "answer_tokens": config.answer_tokens,
    }


def held_out(config: SweepConfig) -> Data | None:
    """The test samples, if the sweep has some."""
    return Data(path=config.test.path.resolve(), limit=config.test.limit) if config.test else None


def check(folder: CellFolder, stages: Mapping[str, TrainConfig]) -> None:
    """Make sure that what a cell has trained so far was trained with these settings.

    Raises:
        Problem: it was not, or its data isn't there.
    """
    sft = TrainFolder(folder.path / "sft")
    for name, config in stages.items():
        run = Folder(folder.path / name)
        snapshot = sft_snapshot(config) if isinstance(config, SftConfig) else None
        if isinstance(config, GrpoConfig) and run.begun():
            snapshot = grpo_snapshot(config, sft)
        if snapshot is not None and run.begun():
            run.check(snapshot)


def run_cell(folder: CellFolder, stages: Mapping[str, TrainConfig], test: Data | None, answer_tokens: int) -> None:
    """Train and test a cell, from where it stands, inside Ray; how it ended is in its folder. Never raises."""
    folder.failure.unlink(missing_ok=True)
    try:
        figures = dict(_stages(folder, stages, test, answer_tokens))
        write_whole(folder.result, json.dumps({"stages": figures}, indent=2))
    except Problem as problem:
        folder.fail(str(problem))
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        folder.fail(f"{type(error).__name__}: {reason}", traceback.format_exc())
    finally:
        folder.state.unlink(missing_ok=True)


def _stages(
    folder: CellFolder, stages: Mapping[str, TrainConfig], test: Data | None, answer_tokens: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The stages one after the other, each with its figures: of its training, and of the test if there is one."""
    console = Console(quiet=True)
    for name, config in stages.items():
        run = TrainFolder(folder.path / name)
        folder.note(name)
        if isinstance(config, SftConfig):
            train_sft(config, run.path, console)
        elif isinstance(config, GrpoConfig):
            train_grpo(config.model_copy(update={"start": folder.path / "sft"}), run.path, console)
        figures: dict[str, Any] = {"training": last_figures(run.rows())}
        if test is not None:
            if not folder.answers(name).exists():
                _test(folder, name, config.cluster, test, answer_tokens)
            with folder.answers(name).open(encoding="utf-8") as file:
                rows = [json.loads(line) for line in file]
            gold = [Label(row["label"]) for row in rows]
            predicted = [row["predicted"] and Label(row["predicted"]) for row in rows]
            figures |= {"test": classification(gold, predicted), "confusion": confusion(gold, predicted)}
        yield name, figures


def _test(folder: CellFolder, stage: str, cluster: Cluster, test: Data, answer_tokens: int) -> None:
    """Let a stage's adapter answer, in a process that has what a training worker has."""
    each = resources_per_worker(cluster)
    nowhere: Any = None  # outside the placement group of the Tune trial, which holds nothing
    # After one call the process ends, and its memory is free.
    task = ray.remote(max_calls=1)(_answers).options(
        num_cpus=each["CPU"],
        num_gpus=each.get("GPU", 0),
        runtime_env={"env_vars": worker_environment(int(each["CPU"]))},
        scheduling_strategy=PlacementGroupSchedulingStrategy(nowhere),
    )
    run = TrainFolder(folder.path / stage)
    folder.note(folder.answers(stage).stem)
    try:
        rows = ray.get(task.remote(folder, stage, run.backbone(), run.adapter, test, answer_tokens))
    except RayTaskError as error:
        raise error.cause from None
    write_whole(folder.answers(stage), "".join(map(json_line, rows)))


def _answers(
    folder: CellFolder, stage: str, backbone: Backbone, adapter: Path, test: Data, answer_tokens: int
) -> list[dict[str, Any]]:
    from training.answers import answer

    return answer(backbone, adapter, test, answer_tokens, partial(folder.note, folder.answers(stage).stem))
