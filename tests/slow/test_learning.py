"""It really learns: the embedded model learns 16 annotated samples by heart, and DR-GRPO raises its reward.

About an hour on two cores: `make test-slow`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from actors.vllm_engine import InProcessVllm
from synuc.config import VllmEngine
from synuc.reading import read_label
from synuc.rewards import Reference, reward
from synuc.types import LLMRequest, Spoken
from tests.annotated import write_export
from training.config import Data
from training.data import read_rows
from training.folder import TrainFolder
from training.matching import matcher

pytestmark = [pytest.mark.engine, pytest.mark.timeout(7200)]

ANSWER_TOKENS = 450
"""The longest annotated answer has 421."""
PROMPTS, ANSWERS = 4, 16
"""Of the reward that is compared."""


def train(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "synuc.cli", "train", *arguments], text=True, check=False)
    assert done.returncode == 0


def answers(adapter: Path | None, rows: Sequence[dict[str, Any]], temperature: float) -> list[str]:
    """What the model, with the adapter, answers to each row, by vLLM."""
    asked = [
        LLMRequest("answer", "model", str(n), tuple(row["messages"]), Spoken, ANSWER_TOKENS, temperature)
        for n, row in enumerate(rows)
    ]

    async def ask() -> list[str]:
        engine = InProcessVllm(VllmEngine(kind="vllm", model="embedded", adapter=adapter and str(adapter)))
        try:
            return [one.text for one in await asyncio.gather(*(engine.complete(request, 0) for request in asked))]
        finally:
            await engine.close()

    return asyncio.run(ask())


def accuracy(adapter: Path | None, export: Path) -> float:
    """The share of the 16 whose label a greedy answer gets right."""
    rows = list(read_rows(Data(path=export), "grpo"))
    assert len(rows) == 16
    labels = [read_label(text) for text in answers(adapter, rows, 0.0)]
    return len([row for label, row in zip(labels, rows, strict=True) if label == row["label"]]) / 16


def mean_reward(adapter: Path, export: Path) -> float:
    """The mean of equation 8 over answers sampled as in training."""
    rows = [row for row in read_rows(Data(path=export, limit=PROMPTS), "grpo") for _ in range(ANSWERS)]
    same = matcher("lexical")
    references = [Reference.model_validate(row["reference"]) for row in rows]
    sampled = answers(adapter, rows, 0.8)
    return sum(reward(text, one, same).total for text, one in zip(sampled, references, strict=True)) / len(rows)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `export`, and with `sft`, a run that has learned it."""
    home = tmp_path_factory.mktemp("learning")
    (home / "export").mkdir()
    write_export(home / "export")
    overrides = ["optimizer.epochs=12", "optimizer.learning_rate=2.0e-3", "lora.rank=16", "lora.alpha=32"]
    options = [part for override in overrides for part in ("--set", override)]
    files = ["--config", "configs/train/sft.yaml", "--config", "configs/train/cpu.yaml"]
    files += ["--backbone", "configs/backbones/smollm2-135m.yaml"]
    train("sft", *files, "--data", str(home / "export"), "--run", str(home / "sft"), *options)
    return home


def test_sft_learns_16_samples_by_heart(home: Path) -> None:
    before = accuracy(None, home / "export")
    after = accuracy(home / "sft" / "adapter", home / "export")
    print(f"label accuracy on the 16: {before:.2f} before, {after:.2f} after")
    assert before <= 0.5
    assert after >= 0.9


def test_dr_grpo_raises_the_mean_reward(home: Path) -> None:
    # Every step sees every prompt, four answers each: with fewer, Adam follows the noise.
    overrides = [
        f"data.limit={PROMPTS}",
        f"optimizer.batch_size={PROMPTS}",
        "optimizer.micro_batch_size=2",
        "optimizer.learning_rate=1.0e-4",
        "optimizer.epochs=24",
        "rollout.engine=vllm_lora",
        f"rollout.max_tokens={ANSWER_TOKENS}",
    ]
    options = [part for override in overrides for part in ("--set", override)]
    files = ["--config", "configs/train/grpo.yaml", "--config", "configs/train/cpu.yaml"]
    place = ["--data", str(home / "export"), "--from", str(home / "sft"), "--run", str(home / "grpo")]
    train("grpo", *files, *place, *options)
    before, after = (mean_reward(home / run / "adapter", home / "export") for run in ("sft", "grpo"))
    seen = [round(row["reward"], 2) for row in TrainFolder(home / "grpo").rows()]
    print(f"mean reward on {PROMPTS} prompts: {before:.3f} before, {after:.3f} after; during training {seen}")
    assert after > before
