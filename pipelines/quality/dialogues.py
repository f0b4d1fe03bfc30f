"""Dialogues of any file for comparing: UC-Data (a run or an export), a benchmark, or chat logs.

More lenient than reading seeds: roles needn't alternate and nothing is too long, since what is refused isn't compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipelines.quality.rows import exported
from pipelines.quality.text import Grams, grams
from pipelines.readers import Record, Refused, find_sources, shape_of, text_of
from pipelines.run_folder import RunFolder
from pipelines.seeds import ROLES
from synuc.folding import normal
from synuc.problem import Problem
from synuc.sample import Outcome
from synuc.types import Dialogue, clean

GRAM = 8
"""Characters of an n-gram: long enough that a short text isn't found in a long one by accident."""


class NoDialogue(Problem):
    """A place without a dialogue to compare; the message says why."""


@dataclass(frozen=True)
class Talk:
    """A dialogue for comparing. `digest`: of all its messages, normalised, the system's left out; `users`: what the
    user wrote, as n-grams of `GRAM` characters.
    """

    id: str
    place: str
    digest: bytes
    users: Grams


def talks(path: str) -> Iterator[Talk | Refused]:
    """The dialogues of a run (its accepted samples), an export, or whatever `find_sources` takes, one by one.

    Of a sample or a benchmark item it is the history, without the follow-up: another one on a known history leaks too.

    Raises:
        SeedError: there is nothing at `path` that can be read.
    """
    folder = Path(path)
    if (folder / "method.json").exists() and (folder / "samples").is_dir():
        for sample in RunFolder(folder).samples(Outcome.ACCEPTED.value):
            yield _talk(sample.id, folder.name, _messages(sample.dialogue))
        return
    for source in find_sources([str(exported(path) or path)]):
        for row in source.rows():
            yield row if isinstance(row, Refused) else _read(row)


def _read(record: Record) -> Talk | Refused:
    data = record.data
    if not isinstance(data, dict):
        return Refused(record.source, record.position, "missing_fields", f"no object but {type(data).__name__}")
    id = str(data.get("id") or record.position)
    try:
        messages = _found(data)
    except ValueError as error:
        return Refused(record.source, record.position, str(error), "", id)
    return _talk(id, record.position, messages)


def _found(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The (role, text) pairs of a record of any shape; a ValueError's words are the reason why there are none."""
    if isinstance(data.get("dialogue"), dict):
        try:
            return _messages(Dialogue.model_validate(data["dialogue"]))
        except ValidationError:
            raise ValueError("missing_fields") from None
    if "history" in data:
        items, role_key, text_key = data["history"], "role", "content"
    elif shape := shape_of(dict(data), "auto"):
        items, role_key, text_key = data[shape.turns], shape.role, shape.text
    else:
        raise ValueError("missing_fields")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError("missing_fields")
    messages = []
    for item in items:
        role, text = ROLES.get(str(item.get(role_key)).strip().casefold()), text_of(item.get(text_key))
        if role is None or text is None:
            raise ValueError("invalid_role" if role is None else "missing_fields")
        messages.append((role, clean(text)))
    if not any(role == "user" and text.strip() for role, text in messages):
        raise ValueError("no_user")
    return messages


def _messages(dialogue: Dialogue) -> list[tuple[str, str]]:
    return [pair for turn in dialogue.turns for pair in (("user", turn.user), ("assistant", turn.assistant))]


def _talk(id: str, place: str, messages: list[tuple[str, str]]) -> Talk:
    said = "\x00".join(normal(text) for role, text in messages if role != "system")
    return Talk(
        id=id,
        place=place,
        digest=hashlib.sha256(said.encode("utf-8", "replace")).digest(),
        users=grams("\n".join(text for role, text in messages if role == "user"), GRAM),
    )
