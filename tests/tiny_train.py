"""A tiny random model and a small export with short messages, on which training takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from actors.embedded import embedded_model
from pipelines.export import GRPO, SFT
from synuc.formatting import answer_of, format_answer, grpo_example
from tests.annotated import annotated_samples


def tiny_model(folder: Path, seed: int = 0, hidden: int = 64) -> Path:
    """A random Llama of two layers with the embedded model's tokenizer, saved to `folder`."""
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(embedded_model())
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)
    return folder


def tiny_export(folder: Path) -> Path:
    """UC-Data-SFT and -GRPO of the annotated samples, with the follow-up alone as the prompt."""
    sft: list[dict[str, Any]] = []
    grpo: list[dict[str, Any]] = []
    for sample in annotated_samples():
        prompt = {"role": "user", "content": str(sample.follow_up)[:200]}
        answer = {"role": "assistant", "content": format_answer(answer_of(sample))[-200:]}
        row = grpo_example(sample)
        grpo.append({**row, "messages": [prompt]})
        sft.append({**{k: v for k, v in row.items() if k != "reference"}, "messages": [prompt, answer]})
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(sft, schema=SFT), folder / "uc-data-sft.parquet")
    pq.write_table(pa.Table.from_pylist(grpo, schema=GRPO), folder / "uc-data-grpo.parquet")
    return folder
