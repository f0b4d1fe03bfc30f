"""Chat logs to seed dialogues: one record in, one seed or one reason out.

`read_seeds` streams; no file is read before its turn, and none after the limit.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.readers import SHAPES, Record, Refused, SeedError, Source, find_sources, shape_of, text_of
from synuc.config import Seeds
from synuc.folding import content_key
from synuc.language import language_of
from synuc.types import Dialogue, Seed, Turn, clean

ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
}

EXAMPLES_PER_REASON = 3


@dataclass(frozen=True)
class Taken:
    """A record that became a seed. `trimmed`: its last user message had no answer and was cut off."""

    seed: Seed
    trimmed: bool


class _Refusal(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


def read_seeds(config: Seeds) -> Iterator[Taken | Refused]:
    """Every record of `config.paths`, in order, as a seed or as a refusal, up to the `config.limit`th seed.

    Raises:
        SeedError: at once, if a path or the format is of no use; while reading, if a file can't be opened
            or the hub fails.
    """
    if config.format not in ("auto", *SHAPES):
        raise SeedError(f"seeds.format: {config.format} is unknown; it is one of auto, {', '.join(SHAPES)}")
    return _read(find_sources(config.paths), config)


def _read(sources: list[Source], config: Seeds) -> Iterator[Taken | Refused]:
    seen: set[str] = set()
    taken = 0
    for source in sources:
        for row in source.rows():
            item = row if isinstance(row, Refused) else _judge(row, config, seen)
            yield item
            taken += isinstance(item, Taken)
            if taken == config.limit:
                return


def _judge(record: Record, config: Seeds, seen: set[str]) -> Taken | Refused:
    source_id = ""
    try:
        if not isinstance(record.data, dict):
            raise _Refusal("missing_fields", f"the record is no object but {type(record.data).__name__}")
        shape = shape_of(record.data, config.format)
        if shape is None:
            wanted = ", ".join(sorted({shape.turns for shape in SHAPES.values()}))
            raise _Refusal("missing_fields", f"none of the keys {wanted}")
        source_id = _short(record.data.get(shape.id) or "")
        messages = _messages(record.data.get(shape.turns), shape.turns, shape.role, shape.text)
        dialogue, trimmed = _dialogue(messages)
        _check_size(dialogue, config)
        language = language_of(
            record.data.get("language"),
            (turn.user for turn in dialogue.turns),
            (turn.assistant for turn in dialogue.turns),
        )
        if config.languages and language not in config.languages:
            raise _Refusal("language", language)
        id = content_id(dialogue)
        if id in seen:
            raise _Refusal("duplicate", f"the seed {id} again")
    except _Refusal as refusal:
        return Refused(record.source, record.position, refusal.reason, refusal.detail, source_id)
    seen.add(id)
    origin = f"{record.position} {source_id}".strip()
    return Taken(Seed(id=id, language=language, dialogue=dialogue, source=record.source, origin=origin), trimmed)


def _short(value: object) -> str:
    """Foreign data for a message or an origin: one short line."""
    return " ".join(clean(str(value)[:100]).split())


def _messages(items: object, turns_key: str, role_key: str, text_key: str) -> list[tuple[str, str]]:
    """The (role, text) pairs, roles normalised, the system messages at the start joined into one."""
    if not isinstance(items, list):
        raise _Refusal("missing_fields", f"`{turns_key}` is no list")
    raw: list[tuple[object, str]] = []
    for number, item in enumerate(items):
        role = item.get(role_key) if isinstance(item, dict) else None
        text = text_of(item.get(text_key)) if isinstance(item, dict) else None
        if role is None or text is None:
            raise _Refusal("missing_fields", f"message {number}: no text in `{role_key}` or `{text_key}`")
        raw.append((role, clean(text)))
    messages: list[tuple[str, str]] = []
    for number, (given, text) in enumerate(raw):
        role = ROLES.get(given.strip().casefold()) if isinstance(given, str) else None
        if role is None:
            raise _Refusal("invalid_role", f"message {number}: {_short(given)}")
        if role == "system" and messages and messages[-1][0] != "system":
            raise _Refusal("invalid_role", f"message {number}: a system message inside the dialogue")
        if role == "system" and messages:
            text = "\n\n".join(part for part in (messages.pop()[1], text) if part.strip())
        messages.append((role, text))
    return messages


def _dialogue(messages: list[tuple[str, str]]) -> tuple[Dialogue, bool]:
    """The dialogue of complete turns, and whether an unanswered last message was cut off."""
    system = ""
    if messages and messages[0][0] == "system":
        system, messages = messages[0][1], messages[1:]
    if messages and messages[0][0] == "assistant":
        raise _Refusal("swapped_roles", "the assistant speaks first")
    for number, (role, _) in enumerate(messages):
        if role != ("user", "assistant")[number % 2]:
            raise _Refusal("broken_alternation", f"two {role} messages in a row, the second being number {number}")
    trimmed = len(messages) % 2 == 1
    if trimmed:
        messages = messages[:-1]
    for number, (role, text) in enumerate(messages):
        if not text.strip():
            raise _Refusal("empty_turn", f"message {number} ({role})")
    texts = [text for _, text in messages]
    turns = tuple(Turn(user=user, assistant=answer) for user, answer in zip(texts[::2], texts[1::2], strict=True))
    return Dialogue(turns=turns, system=system if system.strip() else ""), trimmed


def chars_of(dialogue: Dialogue) -> int:
    """Characters (code points) of all turns and the system message."""
    return len(dialogue.system) + sum(len(turn.user) + len(turn.assistant) for turn in dialogue.turns)


def _check_size(dialogue: Dialogue, config: Seeds) -> None:
    turns, chars = len(dialogue.turns), chars_of(dialogue)
    if turns < config.min_user_turns:
        raise _Refusal("too_few_turns", f"{turns} of at least {config.min_user_turns}")
    if turns > config.max_user_turns:
        raise _Refusal("too_many_turns", f"{turns} of at most {config.max_user_turns}")
    if chars < config.min_chars:
        raise _Refusal("too_short", f"{chars} characters of at least {config.min_chars}")
    if chars > config.max_chars:
        raise _Refusal("too_long", f"{chars} characters of at most {config.max_chars}")


def content_id(dialogue: Dialogue) -> str:
    """Sixteen hex digits over system message and turns, blind to case, whitespace and compatibility forms."""
    texts = [dialogue.system, *(text for turn in dialogue.turns for text in (turn.user, turn.assistant))]
    return content_key(texts)


class SeedStats:
    """Counts over the items of `read_seeds`, and the sizes of the seeds among them."""

    def __init__(self) -> None:
        self.taken = 0
        self.trimmed = 0
        self.refused: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.languages: Counter[str] = Counter()
        self.read_by_source: Counter[str] = Counter()
        self.taken_by_source: Counter[str] = Counter()
        self.turns: list[int] = []
        self.chars: list[int] = []

    @property
    def read(self) -> int:
        """Records seen; a broken-off file's end counts as one."""
        return self.taken + self.refused.total()

    def add(self, item: Taken | Refused) -> None:
        if isinstance(item, Refused):
            self.read_by_source[item.source] += 1
            self.refused[item.reason] += 1
            examples = self.examples.setdefault(item.reason, [])
            if len(examples) < EXAMPLES_PER_REASON:
                examples.append(f"{item.position} {item.source_id}".strip() + f": {item.detail}")
            return
        seed = item.seed
        self.read_by_source[seed.source] += 1
        self.taken_by_source[seed.source] += 1
        self.taken += 1
        self.trimmed += item.trimmed
        self.languages[seed.language] += 1
        self.turns.append(len(seed.dialogue.turns))
        self.chars.append(chars_of(seed.dialogue))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, most frequent first. `turns` and `chars` are of the seeds taken."""
        return {
            "read": self.read,
            "taken": self.taken,
            "trimmed": self.trimmed,
            "refused": dict(self.refused.most_common()),
            "examples": {reason: list(lines) for reason, lines in self.examples.items()},
            "languages": dict(self.languages.most_common()),
            "sources": {
                name: {"read": read, "taken": self.taken_by_source[name]} for name, read in self.read_by_source.items()
            },
            "turns": distribution(self.turns),
            "chars": distribution(self.chars),
        }


def distribution(values: list[int]) -> dict[str, float]:
    """Minimum, median, mean, 95th percentile (nearest rank) and maximum; empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "min": ordered[0],
        "median": statistics.median(ordered),
        "mean": round(statistics.fmean(ordered), 1),
        "p95": ordered[math.ceil(0.95 * len(ordered)) - 1],
        "max": ordered[-1],
    }


def print_stats(stats: SeedStats, console: Console) -> None:
    """Tables of sources, refusals with examples, languages and sizes."""
    console.print(f"{stats.read} read, {stats.taken} taken ({stats.trimmed} without their unanswered last message)")
    if len(stats.read_by_source) > 1:
        table = _table("source", "read", "taken")
        for name, read in stats.read_by_source.items():
            table.add_row(Text(name), str(read), str(stats.taken_by_source[name]))
        console.print(table)
    if stats.refused:
        table = _table("refused", "records", "for example")
        table.columns[2].justify = "left"
        for reason, count in stats.refused.most_common():
            table.add_row(reason, str(count), Text("\n".join(stats.examples[reason])))
        console.print(table)
    if stats.taken:
        table = _table("language", "seeds")
        for language, count in stats.languages.most_common():
            table.add_row(language, str(count))
        console.print(table)
        table = _table("of the seeds", "min", "median", "mean", "p95", "max")
        for name, values in (("user turns", stats.turns), ("characters", stats.chars)):
            table.add_row(
                name,
                *(f"{value:g}" if value < 1e5 else f"{value:.0f}" for value in distribution(values).values()),
            )
        console.print(table)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table
