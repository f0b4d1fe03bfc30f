"""Greedy answers of a trained detector, with the prompt it was trained with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from synuc.reading import read_label
from training.backbone import load_model, load_tokenizer, with_adapter
from training.config import Backbone, Data
from training.data import Encoder, read_rows

TOKENS_AT_ONCE = {"cuda": 65_536, "cpu": 16_384}
"""Tokens of prompts, answers and padding in one batch: what keeps the cache of an 8B model below 10 GB."""

Told = Callable[[int, int], None]
"""Is told how many of how many rows are answered."""


def answer(
    backbone: Backbone, adapter: Path, data: Data, max_tokens: int, told: Told = lambda done, total: None
) -> list[dict[str, Any]]:
    """The answer to every row of UC-Data-GRPO that `data` asks for, however long its prompt, in the rows' order.

    Each is `id`, `answer`, `label` (the gold one) and `predicted` (None: no label can be read). An answer ends at
    `max_tokens`.

    Raises:
        Problem: the data, the backbone or the adapter can't be used.
    """
    rows = list(read_rows(data, "grpo"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, encoder = detector(backbone, adapter)
    tokenizer = encoder.tokenizer
    model = model.to(device).eval()
    prompts = [encoder.ids(encoder.prompt(row["messages"])) for row in rows]
    # The checkpoint's own settings would sample, or punish repetition, which the format of an answer needs.
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        max_new_tokens=max_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=_ends(tokenizer, model.generation_config),
    )
    texts: dict[int, str] = {}
    told(0, len(rows))
    for batch in batches([len(prompt) for prompt in prompts], max_tokens, TOKENS_AT_ONCE[device]):
        texts |= zip(batch, _generated(model, tokenizer, [prompts[n] for n in batch]), strict=True)
        told(len(texts), len(rows))
    return [_row(row, texts[n]) for n, row in enumerate(rows)]


def detector(backbone: Backbone, adapter: Path | None) -> tuple[Any, Encoder]:
    """The backbone with the adapter in a folder on top, if there is one, and what encodes its prompts.

    Raises:
        BackboneError: the backbone or the adapter can't be used.
    """
    tokenizer, model = load_tokenizer(backbone), load_model(backbone)
    return with_adapter(model, adapter) if adapter else model, Encoder(tokenizer, backbone.template)


def batches(lengths: Sequence[int], max_tokens: int, budget: int) -> Iterator[list[int]]:
    """Places of prompts of these lengths, the longest first, in batches that with their answers fit into `budget`.

    A prompt that is too long for it by itself makes a batch of its own.
    """
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batch and (len(batch) + 1) * (lengths[batch[0]] + max_tokens) > budget:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _ends(tokenizer: PreTrainedTokenizerBase, own: GenerationConfig) -> list[int]:
    """The tokens that end an answer: the one learned in training, and the checkpoint's own."""
    ends = own.eos_token_id if isinstance(own.eos_token_id, list) else [own.eos_token_id]
    return sorted({token for token in (tokenizer.eos_token_id, *ends) if token is not None})


def _generated(model: Any, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Sequence[int]]) -> list[str]:
    width = max(map(len, prompts))
    padding = [width - len(prompt) for prompt in prompts]
    ids = [[tokenizer.pad_token_id] * n + list(prompt) for n, prompt in zip(padding, prompts, strict=True)]
    mask = [[0] * n + [1] * (width - n) for n in padding]
    with torch.inference_mode():
        out = model.generate(
            input_ids=torch.tensor(ids, device=model.device), attention_mask=torch.tensor(mask, device=model.device)
        )
    texts: list[str] = tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
    return texts


def _row(row: dict[str, Any], text: str) -> dict[str, Any]:
    predicted = read_label(text)
    return {"id": row["id"], "answer": text, "label": row["label"], "predicted": predicted and predicted.value}
