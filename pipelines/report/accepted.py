"""Averages of the accepted samples, and the tokenizer that they are counted with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pipelines.run_folder import RunFolder
from synuc.problem import Problem
from synuc.sample import Outcome, Sample
from synuc.types import Label

ESTIMATE = "characters/4 (estimate)"
SAMPLES_PER_BATCH = 64

Count = Callable[[Sequence[str]], list[int]]


class TokenizerMissing(Problem):
    """The tokenizer asked for can't be loaded; the message says what to do."""


def accepted_averages(folder: RunFolder, tokenizer: str) -> dict[str, Any]:
    """The averages of the paper's Table 3: messages and turns of the history, tokens of history and follow-up."""
    name, count = _tokenizer(folder, tokenizer)
    names = ("samples", "turns", "tokens", "max_turns", "max_tokens")
    rows: dict[str, Counter[str]] = {key: Counter(dict.fromkeys(names, 0)) for key in (*Label, "all")}
    samples = folder.samples(Outcome.ACCEPTED.value)
    while batch := list(islice(samples, SAMPLES_PER_BATCH)):
        texts = [_texts(sample) for sample in batch]
        tokens = iter(count([text for several in texts for text in several]))
        for sample, several in zip(batch, texts, strict=True):
            turns, size = len(sample.dialogue.turns), sum(islice(tokens, len(several)))
            for row in (rows[str(sample.label)], rows["all"]):
                row.update(samples=1, turns=turns, tokens=size)
                row["max_turns"] = max(row["max_turns"], turns)
                row["max_tokens"] = max(row["max_tokens"], size)
    return {
        "tokenizer": name,
        "labels": {
            str(key): {
                "samples": row["samples"],
                "messages": 2 * row["turns"] / row["samples"],
                "turns": row["turns"] / row["samples"],
                "max_turns": row["max_turns"],
                "tokens": row["tokens"] / row["samples"],
                "max_tokens": row["max_tokens"],
            }
            for key, row in rows.items()
            if row["samples"]
        },
    }


def _texts(sample: Sample) -> list[str]:
    """What a detector reads of a sample, without its prompt."""
    dialogue = sample.dialogue
    turns = [text for turn in dialogue.turns for text in (turn.user, turn.assistant)]
    return [text for text in (dialogue.system, *turns, sample.follow_up) if text]


def _tokenizer(folder: RunFolder, asked_for: str) -> tuple[str, Count]:
    """The name of the tokenizer, and how it counts the tokens of texts."""
    model = asked_for or folder.method["engines"]["generator"]["model"]
    if asked_for or Path(model).is_dir():
        return model, _load_tokenizer(model)
    from actors.embedded import EmbeddedModelMissing, embedded_model

    try:
        path = embedded_model()
    except EmbeddedModelMissing:
        return ESTIMATE, lambda texts: [-(-len(text) // 4) for text in texts]
    return "SmolLM2-135M-Instruct (embedded)", _load_tokenizer(str(path))


def _load_tokenizer(path: str) -> Count:
    file = Path(path) / "tokenizer.json"
    if file.is_file():
        from tokenizers import Tokenizer

        fast = Tokenizer.from_file(str(file))
        fast.no_truncation()
        fast.no_padding()
        return lambda texts: [len(found.ids) for found in fast.encode_batch(list(texts), add_special_tokens=False)]
    # Takes many seconds to import.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TokenizerMissing(
            f"{path} has no tokenizer on this machine ({reason}); "
            "give --tokenizer a folder, or a hub name that was downloaded before"
        ) from None
    # Longer than the model's window is no fault here.
    tokenizer.model_max_length = 10**12
    return lambda texts: [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
