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
PROMPTS, ANSWERS = 2, 32
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
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learning") / "export"
    folder.mkdir()
    write_export(folder)
    return folder


def taught(export: Path, epochs: int) -> Path:
    """The run of an SFT of so many epochs on the 16."""
    run = export.parent / f"sft-{epochs}"
    overrides = [f"optimizer.epochs={epochs}", "optimizer.learning_rate=2.0e-3", "lora.rank=16", "lora.alpha=32"]
    options = [part for override in overrides for part in ("--set", override)]
    files = ["--config", "configs/train/sft.yaml", "--config", "configs/train/cpu.yaml"]
    files += ["--backbone", "configs/backbones/smollm2-135m.yaml"]
    train("sft", *files, "--data", str(export), "--run", str(run), *options)
    return run


def test_sft_learns_16_samples_by_heart(export: Path) -> None:
    before = accuracy(None, export)
    after = accuracy(taught(export, 12) / "adapter", export)
    print(f"label accuracy on the 16: {before:.2f} before, {after:.2f} after")
    assert before <= 0.5
    assert after >= 0.9


def test_dr_grpo_raises_the_mean_reward(export: Path) -> None:
    # Half taught, so that it is right now and then. Of 200 tokens with the same advantage one is the label: with few
    # answers to each prompt Adam follows the noise, and most of all in its first steps.
    start, run = taught(export, 6), export.parent / "grpo"
    overrides = [
        f"data.limit={PROMPTS}",
        f"optimizer.batch_size={PROMPTS}",
        "optimizer.micro_batch_size=2",
        "optimizer.learning_rate=4.0e-4",
        "optimizer.warmup=0.3",
        "optimizer.epochs=16",
        "rollout.generations=8",
        "rollout.engine=vllm_lora",
        f"rollout.max_tokens={ANSWER_TOKENS}",
    ]
    options = [part for override in overrides for part in ("--set", override)]
    files = ["--config", "configs/train/grpo.yaml", "--config", "configs/train/cpu.yaml"]
    train("grpo", *files, "--data", str(export), "--from", str(start), "--run", str(run), *options)
    before, after = (mean_reward(one / "adapter", export) for one in (start, run))
    seen = [round(row["reward"], 2) for row in TrainFolder(run).rows()]
    print(f"mean reward on {PROMPTS} prompts: {before:.3f} before, {after:.3f} after; during training {seen}")
    assert after > before + 0.1
