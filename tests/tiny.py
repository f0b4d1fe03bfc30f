"""Tiny random models of the backbones' families, as checkpoints of their own classes, and runs that train them.

They have the embedded model's tokenizer with the family's control tokens and chat template. The templates of Qwen3.5
and Llama 3.1 are the real ones, out of TRL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import trl
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from transformers import (
    AddedToken,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PixtralVisionConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5TextConfig,
    Qwen3_5VisionConfig,
    set_seed,
)

from actors.embedded import embedded_model
from pipelines.export import GRPO, SFT
from training.config import Backbone, Data, GrpoConfig, Optimizer, Rollout, SftConfig
from training.driver import grpo_snapshot, sft_snapshot
from training.folder import TrainFolder
from training.grpo import grpo_worker
from training.sft import sft_worker

OURS = Path(__file__).parent / "data" / "templates"
TRLS = Path(trl.__file__).parent / "chat_templates"
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@dataclass(frozen=True)
class Family:
    """A family of backbones: how its checkpoints and its tokenizer look."""

    model: Callable[[dict[str, Any]], PreTrainedModel]
    template: Path
    eos: str
    bos: str
    control: tuple[str, ...]
    """Special tokens besides."""
    plain: tuple[str, ...] = ()
    """Added tokens that aren't marked as special."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of the template, as in configs/backbones/."""


def _qwen_text(ids: dict[str, Any]) -> Qwen3_5TextConfig:
    """Three layers of linear attention, one of full attention."""
    rotary = {"mrope_section": [2, 2, 2], "mrope_interleaved": True, "rope_type": "default", "rope_theta": 10_000.0}
    return Qwen3_5TextConfig(
        **SHAPE | {"head_dim": 32},
        num_hidden_layers=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        rope_parameters={**rotary, "partial_rotary_factor": 0.375},
        **ids,
    )


def _qwen(ids: dict[str, Any]) -> PreTrainedModel:
    return Qwen3_5ForCausalLM(_qwen_text(ids))  # type: ignore[no-untyped-call]


def _qwen_wrapped(ids: dict[str, Any]) -> PreTrainedModel:
    vision = Qwen3_5VisionConfig(
        depth=1, hidden_size=32, intermediate_size=32, num_heads=2, out_hidden_size=64, num_position_embeddings=16
    )
    text = _qwen_text(ids)
    config = Qwen3_5Config(text_config=text.to_dict(), vision_config=vision.to_dict())
    return Qwen3_5ForConditionalGeneration(config)  # type: ignore[no-untyped-call]


def _ministral(ids: dict[str, Any]) -> PreTrainedModel:
    text = Ministral3Config(**SHAPE, num_hidden_layers=2, **ids)
    vision = PixtralVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16
    )
    return Mistral3ForConditionalGeneration(
        Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=False)
    )


def _llama(ids: dict[str, Any]) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=2, **ids))  # type: ignore[no-untyped-call]


CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
THINKING = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
FAMILIES = {
    "qwen3.5": Family(
        _qwen,
        TRLS / "qwen3_5_think.jinja",
        "<|im_end|>",
        "<|endoftext|>",
        CHATML,
        THINKING,
        {"enable_thinking": False},
    ),
    "qwen3.5-multimodal": Family(
        _qwen_wrapped,
        TRLS / "qwen3_5_nothink.jinja",
        "<|im_end|>",
        "<|endoftext|>",
        CHATML,
        THINKING,
        {"enable_thinking": False},
    ),
    "ministral-3": Family(
        _ministral,
        OURS / "ministral-3.jinja",
        "</s>",
        "<s>",
        ("<unk>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[IMG]", "[TOOL_CALLS]", "<SPECIAL_20>"),
    ),
    "llama-3.1": Family(
        _llama,
        TRLS / "llama3_1.jinja",
        "<|eot_id|>",
        "<|begin_of_text|>",
        ("<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>", "<|eom_id|>", "<|python_tag|>"),
    ),
}


def tokenizer_of(family: Family) -> PreTrainedTokenizerBase:
    """The family's tokenizer: the embedded model's, with other control tokens and another template."""
    tokenizer: Any = AutoTokenizer.from_pretrained(embedded_model())
    special = [AddedToken(token, special=True, normalized=False) for token in (family.eos, family.bos, *family.control)]
    tokenizer.add_special_tokens(
        {
            "eos_token": family.eos,
            "bos_token": family.bos,
            "pad_token": family.bos,
            "additional_special_tokens": special,
        }
    )
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in family.plain])
    tokenizer.chat_template = family.template.read_text("utf-8")
    made: PreTrainedTokenizerBase = tokenizer
    return made


def save_family(family: Family, folder: Path) -> Backbone:
    """Save the family's tiny model, with random weights that are always the same, and its tokenizer."""
    tokenizer = tokenizer_of(family)
    ids = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    set_seed(0)
    model = family.model(ids)
    with torch.no_grad():
        for weight in model.parameters():
            # At a model's birth matrices are so small that its answers hardly depend on its input.
            if weight.dim() == 2:
                weight.mul_(4)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Backbone(model=str(folder), dtype="float32", template=family.arguments)


CONFLICT = "[Final Judgment]\nImplicit Conflict"
REFERENCE = {
    "label": "IC",
    "relation": "H_I_N_I",
    "historical_constraint": {
        "type": "implicit",
        "dimension": "content_scope",
        "value": "family-friendly activities",
        "evidence": "kids",
    },
    "new_constraint": {"type": "implicit", "dimension": "audience", "value": "adults only", "evidence": "wine"},
}


def export_folder(folder: Path, rows: int = 8, answer: str = CONFLICT) -> Path:
    """An export of short made-up samples that all have the same answer."""
    folder.mkdir(parents=True)
    sft, grpo = [], []
    for n in range(rows):
        user = {"role": "user", "content": f"Is there a conflict in chat {n}?\n<|im_end|>[INST]<think>"}
        row = {"id": f"{n}", "messages": [user], "label": "IC", "language": "en", "seed_id": f"{n}"}
        sft.append(row | {"messages": [user, {"role": "assistant", "content": answer}]})
        grpo.append(row | {"reference": REFERENCE})
    pq.write_table(pa.Table.from_pylist(sft, schema=SFT), folder / "uc-data-sft.parquet")
    pq.write_table(pa.Table.from_pylist(grpo, schema=GRPO), folder / "uc-data-grpo.parquet")
    return folder


def sft_run(backbone: Backbone, data: Path, run: Path, steps: int, learning_rate: float = 1e-2) -> TrainFolder:
    """A finished SFT run, trained in this process."""
    config = SftConfig(backbone=backbone, data=Data(path=data), optimizer=_optimizer(steps, learning_rate, batch=4))
    folder = _begun(run, config, sft_snapshot(config))
    _fit(sft_worker, {"config": config.model_dump(mode="json"), "run": str(folder.path)})
    return folder


def grpo_run(start: TrainFolder, data: Path, run: Path, steps: int, merge: bool) -> TrainFolder:
    """A finished GRPO run from an SFT run, trained in this process."""
    config = GrpoConfig(
        start=start.path,
        merge=merge,
        data=Data(path=data),
        optimizer=_optimizer(steps, 1e-2, batch=1),
        rollout=Rollout(generations=4, max_tokens=8),
    )
    folder = _begun(run, config, grpo_snapshot(config, start))
    job = {"backbone": start.backbone().model_dump(mode="json"), "adapter": str(start.adapter)}
    _fit(grpo_worker, {**job, "config": config.model_dump(mode="json"), "run": str(folder.path)})
    return folder


def _optimizer(steps: int, learning_rate: float, batch: int) -> Optimizer:
    return Optimizer(
        learning_rate=learning_rate,
        epochs=steps,
        max_steps=steps,
        batch_size=batch,
        micro_batch_size=4,
        schedule="constant_with_warmup",
        warmup=0,
    )


def _begun(run: Path, config: SftConfig | GrpoConfig, snapshot: dict[str, Any]) -> TrainFolder:
    folder = TrainFolder(run)
    folder.path.mkdir(parents=True)
    folder.begin(config, snapshot)
    return folder


def _fit(worker: Callable[[dict[str, Any]], None], job: dict[str, Any]) -> None:
    # With no workers Ray Train calls the function here, and answers as to a single worker. It takes seconds less.
    TorchTrainer(worker, train_loop_config=job, scaling_config=ScalingConfig(num_workers=0)).fit()
