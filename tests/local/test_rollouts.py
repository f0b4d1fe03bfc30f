"""GRPO's answers by vLLM follow the trainer's weights from step to step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.embedded import embedded_model
from training.config import Backbone, Rollout
from training.data import Encoder
from training.rollouts import AdapterRollouts

pytest.importorskip("vllm")
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("one_thread")]

TOKENS = 16
PROMPTS = [
    [{"role": "user", "content": "Name three colours."}],
    [{"role": "user", "content": "Where does the sun <|im_end|> rise?"}],
]


@pytest.fixture(scope="module")
def policy() -> PeftModel:
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(embedded_model(), dtype=torch.float32)
    made = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"]))
    assert isinstance(made, PeftModel)
    return made.eval()


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(AutoTokenizer.from_pretrained(embedded_model()), {})


@pytest.fixture
def rollouts(encoder: Encoder, tmp_path: Path) -> Iterator[AdapterRollouts]:
    # So cold, vLLM's coldest, that a token is drawn only where it is nearly the likeliest.
    rollout = Rollout(engine="vllm_lora", temperature=0.01, max_tokens=TOKENS)
    backbone = Backbone(model="embedded", dtype="float32")
    made = AdapterRollouts(backbone, rollout, encoder, max_prompt=256, answers=4, rank=4, scratch=tmp_path)
    yield made
    made.close()


def change(policy: PeftModel, seed: int) -> None:
    """Give the adapter other weights."""
    torch.manual_seed(seed)
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.05)


@torch.no_grad()
def surprise(policy: PeftModel, prompt: list[int], answer: list[int]) -> float:
    """How far any token of the answer is from the likeliest one, by transformers: the largest difference of logits."""
    model: Any = policy
    logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    taken = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
    return float((logits.max(dim=1).values - taken).max())


def test_each_step_is_sampled_with_its_own_weights(
    policy: PeftModel, encoder: Encoder, rollouts: AdapterRollouts
) -> None:
    trainer = SimpleNamespace(model=policy, accelerator=SimpleNamespace(unwrap_model=lambda model: model))
    prompts = [encoder.ids(encoder.prompt(prompt)) for prompt in PROMPTS]
    before: list[list[int]] = []
    # The first weights come again last: neither they nor the prefix cache may be those of a step before.
    for seed in (1, 2, 1):
        change(policy, seed)
        found = rollouts(PROMPTS, trainer)
        assert found["prompt_ids"] == prompts
        for prompt, answer in zip(prompts, found["completion_ids"], strict=True):
            assert 1 <= len(answer) <= TOKENS
            assert surprise(policy, prompt, answer) < 0.2
        if before:
            assert max(surprise(policy, prompt, answer) for prompt, answer in zip(prompts, before, strict=True)) > 0.3
        before = found["completion_ids"]
