"""The loss and the advantages that our arguments make TRL compute are Dr. GRPO's, on a batch computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from datasets import Dataset
from trl.trainer.grpo_trainer import GRPOTrainer

from synuc.layers import compose
from tests.tiny import FAMILIES, export_folder, save_family
from training.backbone import load_model, load_tokenizer, new_adapter
from training.config import GrpoConfig, Lora
from training.data import Encoder, grpo_examples
from training.grpo import grpo_arguments

LONGEST = 8
REWARDS = [1.6, 0.2, 0.0, 1.2]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A GRPOTrainer with our arguments; a group's rewards are REWARDS."""
    folder = tmp_path_factory.mktemp("dr-grpo")
    backbone = save_family(FAMILIES["llama-3.1"], folder / "model")
    overrides = [
        f"data.path={export_folder(folder / 'export')}",
        "optimizer.batch_size=1",
        "optimizer.micro_batch_size=4",
        f"rollout.max_tokens={LONGEST}",
        "record.trackers=[]",
    ]
    config = compose(GrpoConfig, ["configs/train/grpo.yaml"], overrides)
    tokenizer = load_tokenizer(backbone)
    rows = grpo_examples(config.data, Encoder(tokenizer, {})).rows

    def rewards(completions: list[Any], **_: Any) -> list[float | None]:
        return [REWARDS[n % 4] for n in range(len(completions))]

    return GRPOTrainer(
        model=new_adapter(load_model(backbone), Lora()),
        reward_funcs=rewards,
        args=grpo_arguments(config, backbone, folder / "scratch", len(rows), world=1),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )


def test_advantages_are_rewards_less_their_mean_and_not_divided(trainer: Any) -> None:
    row = trainer.train_dataset[0]
    batch = trainer._generate_and_score_completions([row] * 4)
    mean = sum(REWARDS) / 4
    assert batch["advantages"].tolist() == pytest.approx([reward - mean for reward in REWARDS])


def test_the_loss_is_the_formula(trainer: Any) -> None:
    torch.manual_seed(1)
    lengths = [8, 5, 2, 7]
    advantages = torch.tensor([0.85, -0.55, -0.75, 0.45])
    prompts = torch.randint(100, 1000, (4, 6))
    completions = torch.randint(100, 1000, (4, LONGEST))
    mask = torch.tensor([[1] * n + [0] * (LONGEST - n) for n in lengths])
    model = trainer.model
    with torch.no_grad():
        ids = torch.cat([prompts, completions], dim=1)
        attention = torch.cat([torch.ones_like(prompts), mask], dim=1)
        logits = model(input_ids=ids, attention_mask=attention).logits[:, 5:-1] / trainer.temperature
        now = logits.log_softmax(-1).gather(-1, completions[..., None])[..., 0]
    # Some ratios within the clip range of 0.2, some beyond it on either side.
    shift = torch.linspace(-0.4, 0.4, 4 * LONGEST).reshape(4, LONGEST)
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": now - shift,
        "num_items_in_batch": mask.sum(),
    }
    total = 0.0
    for i in range(4):
        for t in range(lengths[i]):
            ratio = float(shift[i, t].exp())
            clipped = min(max(ratio, 0.8), 1.2)
            total += min(ratio * float(advantages[i]), clipped * float(advantages[i]))
    by_hand = -total / (4 * LONGEST)

    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer._compute_loss(model, inputs)
    assert loss.item() == pytest.approx(by_hand, rel=1e-4)
    assert trainer.beta == 0.0
