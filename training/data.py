"""Examples as token ids: the same prompt in training, evaluation and serving, and the loss on the answer only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from synuc.neutralise import neutralise
from synuc.problem import Problem
from training.config import Data

IGNORED = -100
"""The label of a token that doesn't count in the loss."""

Messages = list[dict[str, str]]


class DataError(Problem):
    """Data that can't be trained on; the message says what to do."""


class Encoder:
    """Turns chat messages into token ids by a backbone's chat template.

    Special tokens of the tokenizer inside a message are text: they are broken (`synuc.neutralise`).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.template = dict(template)
        self.special = frozenset(tokenizer.all_special_tokens) | frozenset(tokenizer.get_added_vocab())

    def messages(self, messages: Messages) -> list[dict[str, str]]:
        """The messages with every special token in their contents broken."""
        return [{"role": m["role"], "content": neutralise(m["content"], self.special)} for m in messages]

    def prompt(self, messages: Messages) -> str:
        """The text that a backbone goes on from, with thinking as the backbone's configuration says."""
        return self._rendered(self.messages(messages), add_generation_prompt=True)

    def ids(self, text: str) -> list[int]:
        """Token ids of a text that the template has already given its special tokens."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def example(self, messages: Messages) -> dict[str, list[int]]:
        """`input_ids` and `labels` of a conversation that ends with the answer to learn.

        The answer's ids, with the template's end of turn, follow the prompt's, as in generation.

        Raises:
            DataError: the template doesn't put the answer right after the prompt.
        """
        prompt = self.prompt(messages[:-1])
        broken = self.messages(messages)
        whole = self._rendered(broken)
        answer = whole[len(prompt) :].rstrip()
        if not whole.startswith(prompt) or not answer.lstrip().startswith(broken[-1]["content"].strip()):
            raise DataError(
                "the chat template doesn't write an answer right after the prompt that asks for it, so that training "
                "wouldn't match generation; turn thinking off: backbone.template={enable_thinking: false}"
            )
        end = str(self.tokenizer.eos_token)
        prompt_ids, answer_ids = self.ids(prompt), self.ids(answer if answer.endswith(end) else answer + end)
        return {
            "input_ids": prompt_ids + answer_ids,
            "labels": [IGNORED] * len(prompt_ids) + answer_ids,
        }

    def _rendered(self, messages: Messages, add_generation_prompt: bool = False) -> str:
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, **self.template
        )
        return str(text)


@dataclass
class Examples:
    """Encoded rows, and the ids of those left out with their number of tokens."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    too_long: dict[str, int] = field(default_factory=dict)


def sft_examples(data: Data, encoder: Encoder) -> Examples:
    """`input_ids` and `labels` of UC-Data-SFT. Raises DataError."""
    examples = Examples()
    for row in read_rows(data, "sft"):
        encoded = encoder.example(row["messages"])
        if len(encoded["input_ids"]) > data.max_tokens:
            examples.too_long[row["id"]] = len(encoded["input_ids"])
        else:
            examples.rows.append(encoded)
    return _some(examples, data)


def grpo_examples(data: Data, encoder: Encoder) -> Examples:
    """Rows of `prompt` (messages), `reference` and `id` of UC-Data-GRPO. Raises DataError."""
    examples = Examples()
    for row in read_rows(data, "grpo"):
        tokens = len(encoder.ids(encoder.prompt(row["messages"])))
        if tokens > data.max_tokens:
            examples.too_long[row["id"]] = tokens
        else:
            prompt = encoder.messages(row["messages"])
            examples.rows.append({"prompt": prompt, "reference": row["reference"], "id": row["id"]})
    return _some(examples, data)


def _some(examples: Examples, data: Data) -> Examples:
    if not examples.rows:
        raise DataError(
            f"{data.path}: no example is left of {len(examples.too_long)}: all are longer than "
            f"data.max_tokens={data.max_tokens}"
        )
    return examples


def read_rows(data: Data, kind: str) -> Iterator[dict[str, Any]]:
    """The rows of an export's Parquet file (`sft` or `grpo`) that the configuration asks for.

    Raises:
        DataError: there is no such file, or no such row in it.
    """
    path = file_of(data, kind)
    taken = 0
    for batch in pq.ParquetFile(path).iter_batches(batch_size=256):
        for row in batch.to_pylist():
            if data.languages and row["language"] not in data.languages:
                continue
            if data.limit is not None and taken >= data.limit:
                return
            taken += 1
            yield row
    if not taken:
        raise DataError(f"{path} has no row in {', '.join(data.languages) or 'any language'}; see data.languages")


def file_of(data: Data, kind: str) -> Path:
    """The Parquet file of an export. Raises DataError where there is none."""
    if data.path is None:
        raise DataError("no data: give --data RUN/export")
    path = Path(data.path) / f"uc-data-{kind}.parquet"
    if not path.is_file():
        raise DataError(f"{path}: no such file; make it with: synuc export RUN")
    return path


def data_fingerprint(data: Data, kind: str) -> str:
    """Sixteen hex digits over the bytes of the file."""
    with file_of(data, kind).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
