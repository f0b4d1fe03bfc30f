"""DeepSpeed ZeRO on two gloo workers: it learns what plain data parallelism learns, and goes on from its shards."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from tests.local.test_train import checkpoints, command, losses, sft, tiny, wait_for
from training.driver import train_sft

__all__ = ["tiny"]

pytest.importorskip("deepspeed")

TWO = ("lora.dropout=0.0", "cluster.workers=2")


@pytest.fixture(scope="module")
def plain(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two workers without ZeRO."""
    run = tmp_path_factory.mktemp("plain") / "run"
    train_sft(sft(tiny, *TWO), run, Console(quiet=True))
    return run


@pytest.mark.parametrize("stage", [2])
def test_zero_learns_the_same_and_continues_from_the_shards_of_both_workers(
    tiny: Path, plain: Path, tmp_path: Path, stage: int
) -> None:
    run = tmp_path / "run"
    start = command(tiny, run, *TWO, f"cluster.zero={stage}")
    with subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: bool(checkpoints(run)), process)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=120)
    assert not (run / "adapter").exists()
    (first, *_) = checkpoints(run)
    shards = {path.name for path in first.parent.rglob("*optim_states.pt")}
    assert {name.partition("zero_pp_rank_")[2][0] for name in shards} == {"0", "1"}, shards
    again = subprocess.run(start, capture_output=True, text=True, timeout=400)
    assert again.returncode == 0, again.stderr
    assert losses(run) == pytest.approx(losses(plain), rel=2e-3)
    assert (run / "adapter" / "adapter_model.safetensors").is_file()
