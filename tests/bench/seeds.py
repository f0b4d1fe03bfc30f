"""As many different dialogues as a measurement wants, of the length of real ones."""

from __future__ import annotations

import json
from itertools import cycle, islice
from pathlib import Path

from pipelines.seeds import Taken, read_seeds
from synuc.config import Seeds
from synuc.types import Dialogue, Seed

DIFFERENT = 400
"""Real dialogues that are taken; more are copies of them."""


def write_seeds(path: Path, n: int) -> Path:
    """`n` dialogues in OpenAI's shape: real ones of the sample, again and again under new numbers."""
    sample = Seeds(paths=("sharegpt-sample",), limit=min(n, DIFFERENT), max_chars=6000)
    real = [item.seed for item in read_seeds(sample) if isinstance(item, Taken)]
    with path.open("w", encoding="utf-8") as file:
        for number, seed in enumerate(islice(cycle(real), n)):
            # With its language, as chat logs have it: it need not be found out for every copy.
            record = {"language": seed.language, "messages": _messages(number, seed.dialogue)}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return path


def _messages(number: int, dialogue: Dialogue) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": dialogue.system}] if dialogue.system else []
    for turn in dialogue.turns:
        messages += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.assistant}]
    first = messages[-2 * len(dialogue.turns)]
    first["content"] = f"({number}) {first['content']}"
    return messages


def read(path: Path) -> list[Seed]:
    """The seeds as synthesis takes them from such a file."""
    config = Seeds(paths=(str(path),), languages=())
    return [item.seed for item in read_seeds(config) if isinstance(item, Taken)]
