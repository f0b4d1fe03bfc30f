"""It really learns: the embedded model learns 16 annotated samples by heart, and DR-GRPO raises its reward.

About an hour on two cores: `make test-slow`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.vllm_engine import InProcessVllm
from synuc.config import VllmEngine
from synuc.reading import read_label
from synuc.types import LLMRequest, Spoken
from tests.annotated import write_export
from training.config import Data
from training.data import read_rows
from training.folder import TrainFolder

pytestmark = [pytest.mark.engine, pytest.mark.timeout(5400)]

ANSWER_TOKENS = 450
"""The longest annotated answer has 421."""


def train(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "synuc.cli", "train", *arguments], text=True, check=False)
    assert done.returncode == 0


def accuracy(adapter: Path | None, export: Path) -> float:
    """The share of the 16 whose label a greedy answer of the model, with the adapter, gets right."""
    rows = list(read_rows(Data(path=export), "grpo"))
    assert len(rows) == 16

    async def answers() -> list[str]:
        engine = InProcessVllm(VllmEngine(kind="vllm", model="embedded", adapter=adapter and str(adapter)))
        try:
            return [one.text for one in await asyncio.gather(*(engine.complete(asked(row), 0) for row in rows))]
        finally:
            await engine.close()

    labels = [read_label(text) for text in asyncio.run(answers())]
    return len([row for label, row in zip(labels, rows, strict=True) if label == row["label"]]) / 16


def asked(row: dict[str, Any]) -> LLMRequest:
    return LLMRequest("answer", "model", row["id"], tuple(row["messages"]), Spoken, ANSWER_TOKENS)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `export`, and with `half` and `whole`, SFT runs that have learned some of it and all of it."""
    home = tmp_path_factory.mktemp("learning")
    (home / "export").mkdir()
    write_export(home / "export")
    for run, epochs in (("half", 4), ("whole", 12)):
        sets = [f"optimizer.epochs={epochs}", "optimizer.learning_rate=2.0e-3", "lora.rank=16", "lora.alpha=32"]
        options = [part for override in sets for part in ("--set", override)]
        files = ["--config", "configs/train/sft.yaml", "--config", "configs/train/cpu.yaml"]
        files += ["--backbone", "configs/backbones/smollm2-135m.yaml"]
        train("sft", *files, "--data", str(home / "export"), "--run", str(home / run), *options)
    return home


def test_sft_learns_16_samples_by_heart(home: Path) -> None:
    before = accuracy(None, home / "export")
    after = accuracy(home / "whole" / "adapter", home / "export")
    print(f"label accuracy on the 16: {before:.2f} before, {after:.2f} after")
    assert before <= 0.5
    assert after >= 0.9


def test_dr_grpo_raises_the_mean_reward(home: Path) -> None:
    sets = [
        "data.limit=8",
        "optimizer.learning_rate=5.0e-4",
        "optimizer.schedule=constant_with_warmup",
        "optimizer.max_steps=24",
        "optimizer.epochs=3",
        "optimizer.batch_size=1",
        "optimizer.micro_batch_size=2",
        f"rollout.max_tokens={ANSWER_TOKENS}",
    ]
    options = [part for override in sets for part in ("--set", override)]
    files = ["--config", "configs/train/grpo.yaml", "--config", "configs/train/cpu.yaml"]
    place = ["--data", str(home / "export"), "--from", str(home / "half"), "--run", str(home / "grpo")]
    train("grpo", *files, *place, *options)
    rewards = [row["reward"] for row in TrainFolder(home / "grpo").rows()]
    first, last = sum(rewards[:8]) / 8, sum(rewards[-8:]) / 8
    print(json.dumps({"rewards": rewards, "first 8": first, "last 8": last}))
    assert last > first
