"""LoRA SFT: learn to write the structured reasoning and the label, given the detector's message.

The loss is the mean of -log p(token) over the tokens of the answer; those of the prompt don't count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import Trainer
from trl.trainer.sft_config import SFTConfig as TrlSftConfig
from trl.trainer.sft_trainer import SFTTrainer

from training.backbone import load_model, load_tokenizer, new_adapter
from training.config import SftConfig
from training.data import Encoder, sft_examples
from training.folder import TrainFolder
from training.worker import arguments, giving_up, run, world_size


def sft_worker(job: dict[str, Any]) -> None:
    """One worker of an SFT run. `job`: `config` (an SftConfig as data) and `run`, the run's folder."""
    config = SftConfig.model_validate(job["config"])
    folder = TrainFolder(Path(job["run"]))
    with giving_up(folder):
        tokenizer = load_tokenizer(config.backbone)
        examples = sft_examples(config.data, Encoder(tokenizer, config.backbone.template))

        def build(scratch: Path) -> Trainer:
            return SFTTrainer(
                model=new_adapter(load_model(config.backbone), config.lora, config.cluster.zero),
                args=TrlSftConfig(
                    **arguments(config, scratch, config.optimizer.batch_size, len(examples.rows), world_size()),
                    # Ours are token ids already, none too long.
                    max_length=None,
                ),
                train_dataset=Dataset.from_list(examples.rows),
                processing_class=tokenizer,
            )

        run(folder, config, "SFT", examples, build)
