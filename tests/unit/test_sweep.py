"""Sweeps: their configuration, their cells, what is skipped, what is refused, and the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from synuc.folder import RunError
from synuc.layers import ConfigError, compose
from synuc.problem import Problem
from tests.tiny import export_folder
from training import cells as cells_module
from training import sweep as sweep_module
from training import table
from training.cells import Cell, CellFolder, cells, check, run_cell, stage_configs, sweep_snapshot
from training.config import Data, SftConfig, SweepConfig
from training.driver import sft_snapshot
from training.folder import TrainFolder, add_lines
from training.sweep import SweepFailed, sweep

ROOT = Path(__file__).parents[2]
QUIET = Console(quiet=True)
FIGURES = {
    "precision": 0.5,
    "recall": 0.25,
    "f1": 0.75,
    "recall_ic": 1.0,
    "accuracy": 0.5,
    "unparseable": 0.0,
    "n": 8.0,
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two backbones, two exports and layers for both stages."""
    for name in ("small", "large"):
        (tmp_path / f"{name}.yaml").write_text(f"backbone: {{model: org/{name}}}\n", "utf-8")
    export_folder(tmp_path / "a")
    export_folder(tmp_path / "b", rows=4)
    for stage in ("sft", "grpo"):
        (tmp_path / f"{stage}-layer.yaml").write_text("optimizer: {learning_rate: 0.1, epochs: 1}\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def a_sweep(**changes: Any) -> SweepConfig:
    settings = {
        "backbones": ["small.yaml", "large.yaml"],
        "data": {"a": "a"},
        "seeds": [0, 1],
        "stages": ["sft"],
        "sft": {"files": ["sft-layer.yaml"]},
        "grpo": {"files": ["grpo-layer.yaml"]},
    }
    return SweepConfig.model_validate(settings | changes)


# Configuration


@pytest.mark.parametrize("file", sorted((ROOT / "configs" / "sweeps").glob("*.yaml")), ids=lambda file: file.stem)
def test_what_a_shipped_sweep_names_exists_and_composes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = compose(SweepConfig, [file])
    for cell in cells(config):
        assert set(stage_configs(config, cell)) == set(config.stages)


def test_the_papers_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = compose(SweepConfig, [ROOT / "configs" / "sweeps" / "backbones.yaml"])
    assert len(cells(config)) == 6 * 5
    sft = stage_configs(config, cells(config)[0])["sft"]
    assert (sft.optimizer.learning_rate, sft.optimizer.epochs, sft.lora.rank) == (1e-4, 4, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": ["grpo"]}, "stages is"),
        ({"seeds": [1, 1]}, "seeds has 1 twice"),
        ({"backbones": ["x/small.yaml", "y/small.yaml"]}, "backbones has small twice"),
        ({"data": {"a/b": "a"}}, "pattern"),
        ({"data": {}}, "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        a_sweep(**changes)


def test_an_unknown_key_names_the_nearest(home: Path) -> None:
    Path("sweep.yaml").write_text(yaml.safe_dump({"backbone": ["small.yaml"]}), "utf-8")
    with pytest.raises(ConfigError, match="did you mean backbones"):
        compose(SweepConfig, ["sweep.yaml"])


def test_a_layer_that_is_missing_is_named(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        sweep(a_sweep(backbones=["none.yaml"]), home / "run", QUIET)


def test_a_sweep_needs_a_folder(home: Path) -> None:
    with pytest.raises(RunError, match="--run"):
        sweep(a_sweep(), None, QUIET)


# Cells


def test_names_are_stable_and_every_seed_comes_whole(home: Path) -> None:
    config = a_sweep(backbones=["small.yaml", "sub/qwen3.5-4b.yaml"], data={"a": "a", "synuc": "b"})
    assert [cell.name for cell in cells(config)] == [
        f"{backbone}--{data}--seed{seed}"
        for seed in (0, 1)
        for data in ("a", "synuc")
        for backbone in ("small", "qwen3.5-4b")
    ]


def test_a_cells_stages_have_its_backbone_data_and_seed(home: Path) -> None:
    stages = stage_configs(
        a_sweep(stages=["sft", "grpo"], sft={"files": ["sft-layer.yaml"], "set": ["lora.rank=3"]}),
        Cell(Path("large.yaml"), "a", 7),
    )
    sft = stages["sft"]
    assert isinstance(sft, SftConfig)
    assert (sft.backbone.model, sft.lora.rank) == ("org/large", 3)
    assert {(made.seed, made.data.path) for made in stages.values()} == {(7, home / "a")}


def test_backbones_data_seeds_and_width_may_be_added(home: Path) -> None:
    small = a_sweep(backbones=["small.yaml"], seeds=[0])
    large = a_sweep(data={"a": "a", "b": "b"}, concurrent=3, sft={"files": ["sft-layer.yaml"], "set": ["seed=9"]})
    assert sweep_snapshot(small) == sweep_snapshot(large)


@pytest.mark.parametrize(
    "changes",
    [
        {"sft": {"files": ["sft-layer.yaml"], "set": ["lora.rank=3"]}},
        {"stages": ["sft", "grpo"]},
        {"test": {"path": "a"}},
        {"answer_tokens": 99},
    ],
)
def test_what_would_mix_methods_is_refused(home: Path, changes: dict[str, Any]) -> None:
    done(a_sweep(), home / "run")
    sweep(a_sweep(), home / "run", QUIET)
    with pytest.raises(RunError, match="another method"):
        sweep(a_sweep(**changes), home / "run", QUIET)


def test_a_layer_that_was_edited_is_refused(home: Path) -> None:
    done(a_sweep(), home / "run")
    sweep(a_sweep(), home / "run", QUIET)
    Path("sft-layer.yaml").write_text("optimizer: {learning_rate: 0.2, epochs: 1}\n", "utf-8")
    with pytest.raises(RunError, match="learning_rate"):
        sweep(a_sweep(), home / "run", QUIET)


def test_other_test_samples_are_refused(home: Path) -> None:
    before = sweep_snapshot(a_sweep(test={"path": "a"}))
    assert sweep_snapshot(a_sweep(test={"path": "b"})) != before
    assert sweep_snapshot(a_sweep(test={"path": "a", "limit": 2})) != before


def test_what_a_cell_has_trained_must_fit(home: Path) -> None:
    config, cell = a_sweep(), cells(a_sweep())[0]
    stages = stage_configs(config, cell)
    folder = CellFolder(home / "run", cell.name)
    check(folder, stages)
    sft = stages["sft"]
    assert isinstance(sft, SftConfig)
    (folder.path / "sft").mkdir(parents=True)
    TrainFolder(folder.path / "sft").begin(sft, sft_snapshot(sft))
    check(folder, stages)
    Path("small.yaml").write_text("backbone: {model: org/other}\n", "utf-8")
    with pytest.raises(RunError, match=r"org/small -> org/other"):
        check(folder, stage_configs(config, cell))


# What is run, skipped and tried again


def done(config: SweepConfig, run: Path, figures: Mapping[str, float] = FIGURES) -> None:
    """Results for all cells."""
    for cell in cells(config):
        finish(CellFolder(run, cell.name), config.stages, figures)


def finish(folder: CellFolder, stages: tuple[str, ...], figures: Mapping[str, float]) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    stage = {"training": {"loss": 1.5}, "test": figures}
    folder.result.write_text(json.dumps({"stages": dict.fromkeys(stages, stage)}), "utf-8")


def test_what_is_done_is_skipped_and_what_failed_is_tried_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    broken = {"large--a--seed0", "small--a--seed1"}

    def run(config: SweepConfig, path: Path, left: Any, folders: dict[str, CellFolder], console: Console) -> None:
        ran.append([*left])
        for name in left:
            if name in broken:
                folders[name].fail("it broke\nand how")
            else:
                folders[name].failure.unlink(missing_ok=True)
                finish(folders[name], config.stages, FIGURES)

    monkeypatch.setattr(sweep_module, "_run", run)
    with pytest.raises(SweepFailed, match=r"2 of 4 cells failed(.|\n)*large--a--seed0: it broke(.|\n)*small--a--seed1"):
        sweep(a_sweep(), home / "run", QUIET)
    assert [row["seeds"] for row in json.loads((home / "run" / "table.json").read_text("utf-8"))] == [1, 1]
    broken.clear()
    sweep(a_sweep(), home / "run", QUIET)
    sweep(a_sweep(), home / "run", QUIET)
    sweep(a_sweep(seeds=[0, 1, 2]), home / "run", QUIET)
    assert [set(names) for names in ran] == [
        {"small--a--seed0", "large--a--seed0", "small--a--seed1", "large--a--seed1"},
        {"large--a--seed0", "small--a--seed1"},
        {"small--a--seed2", "large--a--seed2"},
    ]


def test_a_problem_and_an_unforeseen_error_are_recorded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CellFolder(home / "run", "cell")
    stages = stage_configs(a_sweep(), cells(a_sweep())[0])

    def fail(error: Exception) -> None:
        def train(*_: Any) -> None:
            raise error

        monkeypatch.setattr(cells_module, "train_sft", train)
        run_cell(folder, stages, None, 8)

    fail(Problem("do this"))
    assert folder.why() == "do this"
    fail(KeyError("deep"))
    assert folder.why() == "KeyError: 'deep'"
    assert "Traceback" in json.loads(folder.failure.read_text("utf-8"))["trace"]
    assert not folder.state.exists()
    assert not folder.result.exists()


def test_a_cell_goes_through_its_stages_and_tests_each(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CellFolder(home / "run", "cell")
    stages = stage_configs(a_sweep(stages=["sft", "grpo"]), cells(a_sweep())[0])
    folder.fail("before")
    seen: list[tuple[str, str | None]] = []

    def train(config: Any, run: Path, console: Console) -> None:
        seen.append((run.name, folder.now()))
        run.mkdir(parents=True)
        add_lines(run / "metrics.jsonl", [{"step": 3, "steps": 8, "loss": 0.5}])
        assert run.name != "grpo" or config.start == folder.path / "sft"
        assert folder.now() == f"{run.name} 3/8"

    def test(folder: CellFolder, stage: str, cluster: Any, test: Data, answer_tokens: int) -> None:
        seen.append((f"test {stage}", folder.now()))
        folder.note("answers-sft", 1, 4)
        assert folder.now() == "answers-sft 1/4"
        rows = [{"id": "0", "answer": "\u2028", "label": "IC", "predicted": predicted} for predicted in ("IC", None)]
        add_lines(folder.answers(stage), rows)

    monkeypatch.setattr(cells_module, "train_sft", train)
    monkeypatch.setattr(cells_module, "train_grpo", train)
    monkeypatch.setattr(cells_module, "_test", test)
    run_cell(folder, stages, Data(path=home / "a"), 8)
    assert folder.why() is None
    assert [what for what, _ in seen] == ["sft", "test sft", "grpo", "test grpo"]
    assert folder.now() is None
    result = json.loads(folder.result.read_text("utf-8"))["stages"]
    assert result["grpo"]["training"] == {"loss": 0.5}
    assert result["grpo"]["test"]["recall_ic"] == 0.5
    assert result["sft"]["confusion"]["IC"] == {"ND": 0, "ER": 0, "IC": 1, "unparseable": 1}


# The table


def test_the_table_is_the_mean_over_seeds_with_its_interval(home: Path) -> None:
    config = a_sweep(backbones=["small.yaml"], data={"a": "a", "b": "b"}, test={"path": "a"})
    for n, cell in enumerate(c for c in cells(config) if c.data == "a"):
        finish(CellFolder(home / "run", cell.name), config.stages, FIGURES | {"f1": 0.4 + 0.2 * n})
    rows = table.rows(config, home / "run")
    assert [(row["backbone"], row["data"], row["stage"], row["seeds"]) for row in rows] == [
        ("small", "a", "sft", 2),
        ("small", "b", "sft", 0),
    ]
    # Values 0.4 and 0.6: standard error 0.1, t(0.975, 1) = 12.7062.
    assert rows[0]["f1"] == {"mean": pytest.approx(0.5), "half_width": pytest.approx(1.27062, abs=1e-5)}
    table.write(config, home / "run")
    lines = (home / "run" / "table.md").read_text("utf-8").splitlines()
    assert lines[0] == "| backbone | data | stage | macro P | macro R | macro F1 | R(IC) | unparseable | n seeds |"
    assert lines[2] == "| small | a | SFT | 50.0 ± 0.0 | 25.0 ± 0.0 | 50.0 ± 127.1 | 100.0 ± 0.0 | 0.0 ± 0.0 | 2 |"
    assert lines[3] == "| small | b | SFT | – | – | – | – | – | 0 |"


def test_one_seed_has_no_interval_and_without_a_test_training_is_shown(home: Path) -> None:
    config = a_sweep(backbones=["small.yaml"], seeds=[0])
    done(config, home / "run")
    table.write(config, home / "run")
    text = (home / "run" / "table.md").read_text("utf-8")
    assert "| backbone | data | stage | loss | n seeds |" in text
    assert "| small | a | SFT | 1.5000 | 1 |" in text
    assert "not a test result" in text
