"""From a user's own record to the values of a benchmark item: which field is which, and what a record lacks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from pydantic import ConfigDict, Field, model_validator

from eval.records import Unfit
from synuc.folding import content_key
from synuc.language import language_of
from synuc.layers import Section
from synuc.types import Label, clean

NEAR = 0.5  # the least similarity of a name that is worth suggesting


class Fields(Section):
    """Where a benchmark's records hold what: dotted paths into the record, by default those of the documented shape.

    `role` and `content` are paths into each message of `history`. An empty path means that the records don't have it.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str = Field("id", description="empty or missing: a hash of the content")
    subset: str = Field("subset", description="empty or missing: the file's name without its ending")
    language: str = Field("language", description="empty or missing: found from the text")
    system: str = Field("system", description="the system message; `history` may also begin with it")
    history: str = Field("history", description="the list of messages before the follow-up")
    role: str = "role"
    content: str = "content"
    user_role: tuple[str, ...] = ("user",)
    assistant_role: tuple[str, ...] = ("assistant",)
    follow_up: str = Field("follow_up", description="empty: the last user message of `history`")
    label: str = "label"
    labels: dict[Label, tuple[str, ...]] = Field({}, description="own values of each label, e.g. ND: [normal, 0]")
    rationale_historical: str = "rationale.historical"
    rationale_new: str = "rationale.new"
    rationale_text: str = "rationale.text"
    speaking: str = "speaking"
    task: str = "task"

    @model_validator(mode="after")
    def _decided(self) -> Self:
        if not self.history or not self.label:
            raise ValueError("`history` and `label` name fields of the records")
        values = [_normal(value) for own in self.labels.values() for value in own]
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise ValueError(f"labels: the value {twice} is given twice")
        return self

    def paths(self) -> dict[str, str]:
        """The paths into a record, by the names of their fields."""
        other = {"role", "content", "user_role", "assistant_role", "labels"}
        return {name: path for name, path in self.model_dump(exclude=other).items() if path}


def found(record: Any, path: str) -> Any:
    """What the record holds at a dotted path; None if there is nothing, or null."""
    if not path:
        return None
    for part in path.split("."):
        if not isinstance(record, Mapping):
            return None
        record = record.get(part)
    return record


def item_values(record: object, fields: Fields, subset: str) -> dict[str, Any]:
    """The values of a `BenchItem`, not yet validated. `subset` is that of a record which names none.

    Raises:
        Unfit: a field is missing or holds something else than it should.
    """
    if not isinstance(record, Mapping):
        raise Unfit(f"a record is a JSON object, this is {_kind(record)}")
    if lacking := [name for name in ("history", "follow_up", "label") if _lacks(record, fields, name)]:
        raise Unfit(_missing(record, fields, lacking))
    system, texts = _messages(found(record, fields.history), fields)
    system = "\n\n".join(part for part in (_text(record, fields.system), system) if part.strip())
    follow_up = _text(record, fields.follow_up) if fields.follow_up else _last_user(texts)
    turns = _turns(texts)
    if not follow_up.strip():
        raise Unfit(f"the follow-up (`{fields.follow_up or fields.history}`) is empty")
    label, rationale = _label(found(record, fields.label), fields), _rationale(record, fields)
    if label is Label.IC and rationale is None:
        raise Unfit(f"an implicit conflict needs a rationale; {_missing(record, fields, ['rationale_text'])}")
    said = [text for turn in turns for text in turn.values()]
    return {
        "id": _text(record, fields.id).strip() or content_key([system, *said, follow_up]),
        "subset": _text(record, fields.subset).strip() or subset,
        "language": language_of(_text(record, fields.language), [*(turn["user"] for turn in turns), follow_up]),
        "history": {"turns": turns, "system": system},
        "follow_up": follow_up,
        "label": label,
        "rationale": rationale,
        "speaking": re.sub(r"\W+", "_", _text(record, fields.speaking).strip().casefold()) or None,
        "task": _text(record, fields.task).strip() or None,
    }


def _lacks(record: Mapping[str, Any], fields: Fields, name: str) -> bool:
    path: str = getattr(fields, name)
    return bool(path) and found(record, path) is None


def _missing(record: Mapping[str, Any], fields: Fields, lacking: Sequence[str]) -> str:
    """What isn't there, what is, and which of that may be meant."""
    taken = set(fields.paths().values())
    there = list(_fields_of(record))
    parts = [f"no field {', '.join(f'`{getattr(fields, name)}`' for name in lacking)}"]
    parts.append(f"the record has {', '.join(there) or 'none at all'}")
    for name in lacking:
        wanted = getattr(fields, name)
        lists = name == "history"
        free = [path for path in there if path not in taken and isinstance(found(record, path), list) is lists]
        close = difflib.get_close_matches(wanted, free, n=1, cutoff=NEAR)
        near = close or free if len(free) == 1 and lists else close
        if near:
            parts.append(f"nearest to `{wanted}` is {near[0]}: --set fields.{name}={near[0]}")
        else:
            parts.append(f"say where `{wanted}` is with --set fields.{name}=...")
    return "; ".join(parts)


def _fields_of(record: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted paths of a record; lists and plain values end them."""
    for key, value in record.items():
        if isinstance(value, Mapping) and value:
            yield from _fields_of(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}"


def _messages(history: Any, fields: Fields) -> tuple[str, list[tuple[str, str]]]:
    """The system message that the history begins with (empty if none), and its (role, text) pairs."""
    where = f"`{fields.history}`"
    if not isinstance(history, list):
        raise Unfit(f"{where} is no list of messages but {_kind(history)}")
    if not history:
        raise Unfit(f"{where} is empty")
    names = {
        **dict.fromkeys((role.casefold() for role in fields.user_role), "user"),
        **dict.fromkeys((role.casefold() for role in fields.assistant_role), "assistant"),
    }
    system, messages = "", []
    for number, message in enumerate(history, 1):
        if not isinstance(message, Mapping):
            raise Unfit(f"message {number} of {where} is no object but {_kind(message)}")
        for name, path in (("role", fields.role), ("content", fields.content)):
            if not isinstance(found(message, path), str):
                there = ", ".join(_fields_of(message)) or "none at all"
                hint = f"say where it is with --set fields.{name}=..."
                raise Unfit(f"message {number} of {where} has no text in `{path}`; it has {there}; {hint}")
        given, text = found(message, fields.role).strip().casefold(), clean(found(message, fields.content))
        if number == 1 and given == "system" and given not in names:
            system = text
            continue
        if given not in names:
            raise Unfit(f"message {number} of {where} is of `{given}`; name it in fields.user_role or assistant_role")
        if not text.strip():
            raise Unfit(f"message {number} of {where} is empty")
        messages.append((names[given], text))
    return system, messages


def _last_user(messages: list[tuple[str, str]]) -> str:
    """Take the last message off, which is the follow-up."""
    if not messages or messages[-1][0] != "user":
        raise Unfit("the history doesn't end with the user, whose last message would be the follow-up; name its field")
    return messages.pop()[1]


def _turns(messages: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    if not messages:
        raise Unfit("there is no message before the follow-up")
    for number, (role, _) in enumerate(messages):
        if role != ("user", "assistant")[number % 2]:
            what = "it begins with the assistant" if number == 0 else f"two messages of the {role} follow each other"
            raise Unfit(f"the history doesn't alternate between user and assistant: {what}")
    if messages[-1][0] == "user":
        hint = "if that message is the follow-up, say so with --set fields.follow_up=''"
        raise Unfit(f"the history ends with the user, not with an answer; {hint}")
    texts = [text for _, text in messages]
    return [{"user": user, "assistant": answer} for user, answer in zip(texts[::2], texts[1::2], strict=True)]


def _text(record: Mapping[str, Any], path: str) -> str:
    """The text at `path`, empty if there is none."""
    value = found(record, path)
    if value is None:
        return ""
    if not isinstance(value, (str, int)):
        raise Unfit(f"`{path}` is no text but {_kind(value)}")
    return clean(str(value))


def _normal(value: object) -> str:
    return " ".join(re.split(r"[\s_-]+", clean(str(value)).strip().casefold()))


def _label(value: object, fields: Fields) -> Label:
    """The label that a value means: one of the user's own, the label itself, or its words."""
    known = {_normal(name): label for label in Label for name in (label.value, label.words)}
    known |= {_normal(name): label for label, own in fields.labels.items() for name in own}
    label = known.get(_normal(value))
    if label is None:
        hint = "give own values with fields.labels, e.g. ND: [normal]"
        raise Unfit(f"`{fields.label}` is {value!r:.60}, which is no label; labels are {', '.join(known)}; {hint}")
    return label


def _rationale(record: Mapping[str, Any], fields: Fields) -> dict[str, Any] | None:
    """The values of a `Rationale`, or None if nothing of it is there."""
    values: dict[str, Any] = {"text": _text(record, fields.rationale_text)}
    for name, path in (("historical", fields.rationale_historical), ("new", fields.rationale_new)):
        constraints = found(record, path) or []
        if not isinstance(constraints, list) or not all(isinstance(one, Mapping) for one in constraints):
            raise Unfit(f"`{path}` is no list of objects with type, dimension, value, evidence, turn")
        values[name] = [{key: _cleaned(part) for key, part in one.items() if part is not None} for one in constraints]
    return values if any(values.values()) else None


def _cleaned(value: object) -> object:
    return clean(value) if isinstance(value, str) else value


def _kind(value: object) -> str:
    return {list: "a list", dict: "an object", str: "a text", type(None): "null"}.get(type(value), "a plain value")
