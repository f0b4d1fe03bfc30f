"""Training on real Ray with a tiny model: results, continuing, faults."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from synuc.folder import RunError
from synuc.layers import compose
from tests.annotated import write_export
from tests.tiny import FAMILIES, save_family
from training.config import GrpoConfig, SftConfig
from training.driver import TrainingFailed, train_grpo, train_sft
from training.folder import TrainFolder

STEPS = 8


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model` and `export`."""
    folder = tmp_path_factory.mktemp("tiny")
    save_family(FAMILIES["llama-3.1"], folder / "model")
    write_export(folder / "export", longest=200)
    return folder


def settings(tiny: Path, **optimizer: Any) -> list[str]:
    """Overrides over configs/train/sft.yaml; the dropout makes the random state of a checkpoint matter."""
    values = {"max_steps": STEPS, "batch_size": 4, "micro_batch_size": 2, "learning_rate": 1e-2, **optimizer}
    return [
        f"backbone.model={tiny / 'model'}",
        f"data.path={tiny / 'export'}",
        "lora.dropout=0.2",
        "record.save_every=2",
        *(f"optimizer.{name}={value}" for name, value in values.items()),
    ]


def sft(tiny: Path, *more: str, **optimizer: Any) -> SftConfig:
    return compose(SftConfig, ["configs/train/sft.yaml"], [*settings(tiny, **optimizer), *more])


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in TrainFolder(run).rows()]


@pytest.fixture(scope="module")
def undisturbed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SFT run from beginning to end."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    train_sft(sft(tiny), run, Console(quiet=True))
    return run


def test_a_run_leaves_an_adapter_a_card_and_readable_figures(tiny: Path, undisturbed: Path) -> None:
    rows = TrainFolder(undisturbed).rows()
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert {"learning_rate", "grad_norm", "tokens_per_second", "steps", "epoch"} <= set(rows[-1])
    adapter = undisturbed / "adapter"
    assert (adapter / "adapter_model.safetensors").is_file()
    assert json.loads((adapter / "adapter_config.json").read_text())["r"] == 8
    assert "fingerprint" in (adapter / "README.md").read_text()
    assert list((undisturbed / "tensorboard").iterdir())


def test_a_finished_run_is_left_as_it_is_and_another_method_is_refused(tiny: Path, undisturbed: Path) -> None:
    before = (undisturbed / "metrics.jsonl").read_bytes()
    train_sft(sft(tiny), undisturbed, Console(quiet=True))
    assert (undisturbed / "metrics.jsonl").read_bytes() == before
    with pytest.raises(RunError, match=r"optimizer\.learning_rate: 0\.01 -> 0\.02"):
        train_sft(sft(tiny, learning_rate=2e-2), undisturbed, Console(quiet=True))


def command(tiny: Path, run: Path, *more: str) -> list[str]:
    """The command that makes the undisturbed run, in `run`."""
    sets = [part for override in [*settings(tiny), *more] for part in ("--set", override)]
    start = [sys.executable, "-m", "synuc.cli", "train", "sft", "--config", "configs/train/sft.yaml"]
    return [*start, "--data", str(tiny / "export"), "--run", str(run), *sets]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until `condition` holds; the process must live till then."""
    deadline = time.monotonic() + 240
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def checkpoints(run: Path) -> list[Path]:
    return list((run / "checkpoints").glob("checkpoint_*/trainer_state.json"))


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The training workers among the process's descendants (Ray names its processes by what they run)."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "RayTrainWorker" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def test_a_killed_worker_is_replaced_and_the_loss_is_the_same(tiny: Path, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with subprocess.Popen(command(tiny, run), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: bool(checkpoints(run)), process)
        # A checkpoint counts once the controller has registered it.
        time.sleep(3)
        alive = workers(process)
        for worker in alive:
            worker.kill()
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    if not alive:
        pytest.skip("the run was over before its worker could be killed")
    assert losses(run) == pytest.approx(losses(undisturbed), rel=1e-5)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_is_continued_by_the_same_command(
    tiny: Path, undisturbed: Path, tmp_path: Path, how: signal.Signals
) -> None:
    run = tmp_path / "run"
    with subprocess.Popen(command(tiny, run), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: bool(checkpoints(run)), process)
        process.send_signal(how)
        _, errors = process.communicate(timeout=120)
    if how is signal.SIGINT:
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
    assert not (run / "adapter").exists()
    again = subprocess.run(command(tiny, run), capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert losses(run) == pytest.approx(losses(undisturbed), rel=1e-5)


def test_a_loss_that_is_no_number_ends_the_run_at_once_and_keeps_the_checkpoint(tiny: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(TrainingFailed, match=r"at step \d+ is (nan|inf)"):
        train_sft(
            sft(tiny, learning_rate=1e30, max_grad_norm=1e30, schedule="constant_with_warmup"), run, Console(quiet=True)
        )
    assert not (run / "adapter").exists()


def test_two_workers_learn_what_one_learns(tiny: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    train_sft(sft(tiny, "lora.dropout=0.0", max_steps=3), one, Console(quiet=True))
    train_sft(sft(tiny, "lora.dropout=0.0", "cluster.workers=2", max_steps=3), two, Console(quiet=True))
    assert losses(two) == pytest.approx(losses(one), rel=1e-3)


def test_grpo_goes_on_from_the_sft_adapter(tiny: Path, undisturbed: Path, tmp_path: Path) -> None:
    overrides = [
        f"data.path={tiny / 'export'}",
        f"start={undisturbed}",
        "optimizer.max_steps=2",
        "optimizer.batch_size=2",
        "optimizer.micro_batch_size=8",
        "rollout.max_tokens=16",
    ]
    run = tmp_path / "run"
    train_grpo(compose(GrpoConfig, ["configs/train/grpo.yaml"], overrides), run, Console(quiet=True))
    rows = TrainFolder(run).rows()
    assert {"reward", "frac_reward_zero_std", "completions/mean_length", "unparseable"} <= set(rows[-1])
    assert {"reward/label", "reward/fmt", "completions/clipped_ratio"} <= set(rows[-1])
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text("utf-8").splitlines()]
    assert [sample["step"] for sample in samples] == [1, 2]
    assert len(samples[0]["answers"]) == 4
    assert json.loads((run / "method.json").read_text())["method"]["backbone"]["model"] == str(tiny / "model")
