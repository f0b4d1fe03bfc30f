"""The `messages` of an OpenAI-style request as a dialogue and the user's follow-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NoReturn

from synuc.problem import Problem
from synuc.types import Dialogue, Turn, clean

SHORT = 200
"""Characters of a tool's arguments or answer that are shown to the detector."""

_SIDES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "assistant",
    "function": "assistant",
}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_NOTES = {"image_url": "[image]", "input_image": "[image]", "input_audio": "[audio]"}
_OTHER_PART = "[attachment]"


class BadConversation(Problem):
    """Messages that can't be read: `index` (from 0) is the one at fault, and the message says what to do."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"messages[{index}]: {reason}")
        self.index = index


def conversation(messages: Sequence[Any]) -> tuple[Dialogue, str]:
    """The dialogue that `messages` are, without the last one, and that one: the user's follow-up.

    System and developer messages make up the dialogue's system message, wherever they stand. Messages of one side that
    follow each other are joined, also with the follow-up. Of a content's parts the texts are joined, others become
    a note such as `[image]`. Calls of tools and their answers are short text in the assistant's turn. What the
    assistant says before the user's first message is a turn whose user message is empty: the detector is shown an empty
    quotation, and the numbers of the turns stay those of the dialogue. One user message alone is a dialogue without
    turns, which the detector isn't asked about. All text is `synuc.types.clean`.

    Raises:
        BadConversation: something isn't a message, or the last one isn't the user's or is empty.
    """
    read = [_read(index, message) for index, message in enumerate(messages)]
    last = len(read) - 1
    if not read or read[last][0] != "user":
        what = f"this one has the role {messages[last]['role']}" if read else "there is none"
        raise BadConversation(
            max(last, 0), f"the last message must be the user's, {what}; end with the follow-up to check"
        )
    system = "\n\n".join(text for side, text in read if side == "system" and text)
    spoken = [
        (side, "\n\n".join(text for _, text in group if text))
        for side, group in groupby((entry for entry in read if entry[0] != "system"), key=lambda entry: entry[0])
    ]
    _, follow_up = spoken.pop()
    if not follow_up:
        raise BadConversation(last, "the user's last message is empty; send the follow-up to check")
    if spoken and spoken[0][0] == "assistant":
        spoken.insert(0, ("user", ""))
    texts = [text for _, text in spoken]
    turns = tuple(Turn(user=user, assistant=reply) for user, reply in zip(texts[::2], texts[1::2], strict=True))
    return Dialogue(turns=turns, system=system), follow_up


def _read(index: int, message: Any) -> tuple[str, str]:
    """The side of a message (`system`, `user`, `assistant`) and its clean text, empty if it is blank."""
    if not isinstance(message, Mapping):
        _refuse(index, 'is no object; send {"role": ..., "content": ...}')
    role = message.get("role")
    side = _SIDES.get(role) if isinstance(role, str) else None
    if side is None:
        _refuse(index, f"`role` is none of {', '.join(_SIDES)}")
    text = clean(_content(index, message.get("content")))
    if role in ("tool", "function"):
        name = message.get("name")
        return side, f"[{_short(name) if isinstance(name, str) else 'a tool'} answers: {_short(text)}]"
    if side == "assistant":
        refusal = message.get("refusal")
        said = [text, refusal if isinstance(refusal, str) else "", *_calls(index, message)]
        text = clean("\n".join(part for part in said if part))
    return side, text if text.strip() else ""


def _content(index: int, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        _refuse(index, "`content` is neither text nor a list of parts")
    return "\n".join(_part(index, part) for part in content)


def _part(index: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        _refuse(index, 'a part of `content` is no object with a `type`; a text is {"type": "text", "text": ...}')
    if kind not in _TEXT_PARTS:
        return _NOTES.get(kind, _OTHER_PART)
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        _refuse(index, f"a part of `content` is of type {kind} and has no text in `{_TEXT_PARTS[kind]}`")
    return text


def _calls(index: int, message: Mapping[str, Any]) -> list[str]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        _refuse(index, "`tool_calls` is no list of objects")
    called = [call.get("function", call.get("custom")) for call in calls] + [message.get("function_call")]
    return [_called(index, function) for function in called if function is not None]


def _called(index: int, function: Any) -> str:
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        _refuse(index, "a call of a tool has no `name`")
    given = function.get("arguments", function.get("input"))
    return f"[calls {_short(name)}({_short(given) if isinstance(given, str) else ''})]"


def _short(text: str) -> str:
    text = " ".join(clean(text).split())
    return text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"


def _refuse(index: int, reason: str) -> NoReturn:
    raise BadConversation(index, reason)
