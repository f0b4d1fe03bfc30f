"""Messages of a request as a dialogue and a follow-up."""

from __future__ import annotations

import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.conversation import SHORT, BadConversation, conversation
from synuc.formatting import detector_messages
from synuc.types import PILED, Dialogue, Turn, clean


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def test_a_dialogue_and_its_follow_up() -> None:
    dialogue, follow_up = conversation(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": "No lists."},
            user("Plan a trip."),
            assistant("Sure."),
            {"role": "system", "content": "The user is in Lyon."},
            user("With kids."),
            assistant("Of course."),
            user("Add a wine tasting."),
        ]
    )
    assert dialogue == Dialogue(
        turns=(Turn(user="Plan a trip.", assistant="Sure."), Turn(user="With kids.", assistant="Of course.")),
        system="Be brief.\n\nNo lists.\n\nThe user is in Lyon.",
    )
    assert follow_up == "Add a wine tasting."


def test_messages_of_one_side_are_joined() -> None:
    dialogue, follow_up = conversation(
        [user("a"), {"role": "system", "content": "s"}, user("b"), assistant("c"), assistant("d"), user("e"), user("f")]
    )
    assert dialogue == Dialogue(turns=(Turn(user="a\n\nb", assistant="c\n\nd"),), system="s")
    assert follow_up == "e\n\nf"


def test_a_greeting_is_a_turn_without_a_users_message() -> None:
    dialogue, follow_up = conversation(
        [assistant("Hello!"), user("Write a poem."), assistant("Roses"), user("Longer.")]
    )
    assert dialogue.turns[0] == Turn(user="", assistant="Hello!")
    content = detector_messages(dialogue, follow_up)[0]["content"]
    assert "Turn 1, user:\n> \nTurn 1, assistant:\n> Hello!\nTurn 2, user:\n> Write a poem.\n" in content


def test_one_message_alone_has_no_history() -> None:
    assert conversation([{"role": "system", "content": "s"}, user("Hi")]) == (Dialogue(turns=(), system="s"), "Hi")


def test_parts() -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "file", "file": {"file_data": "secret"}},
        {"type": "text", "text": "Be quick."},
    ]
    assert conversation([user(parts)])[1] == "What is this?\n[image]\n[audio]\n[attachment]\nBe quick."
    refusal = assistant([{"type": "refusal", "refusal": "No."}])
    assert conversation([user("a"), refusal, user("b")])[0].turns[0].assistant == "No."


def test_tools_are_short_text_in_the_assistants_turn() -> None:
    long = "x" * 1000
    dialogue, _ = conversation(
        [
            user("How warm is it in Lyon?"),
            assistant(
                None, tool_calls=[{"id": "1", "type": "function", "function": {"name": "warm", "arguments": long}}]
            ),
            {"role": "tool", "tool_call_id": "1", "content": '{"celsius":\n 21}'},
            assistant("21 degrees.", function_call={"name": "note", "arguments": '{"city": "Lyon"}'}),
            {"role": "function", "name": "note", "content": long},
            assistant("Noted."),
            user("Thanks"),
        ]
    )
    [turn] = dialogue.turns
    calls = turn.assistant.split("\n\n")
    assert calls == [
        f"[calls warm({'x' * (SHORT - 1)}…)]",
        '[a tool answers: {"celsius": 21}]',
        '21 degrees.\n[calls note({"city": "Lyon"})]',
        f"[note answers: {'x' * (SHORT - 1)}…]",
        "Noted.",
    ]


@pytest.mark.parametrize(
    ("messages", "index", "says"),
    [
        ([], 0, "must be the user's, there is none"),
        ([user("a"), assistant("b")], 1, "must be the user's, this one has the role assistant"),
        ([user("a"), {"role": "tool", "content": "b"}], 1, "this one has the role tool"),
        ([{"role": "system", "content": "b"}], 0, "this one has the role system"),
        ([user("a"), assistant("b"), user(" \n")], 2, "is empty"),
        ([user("a"), "b"], 1, "is no object"),
        ([user("a"), {"role": "critic", "content": "b"}, user("c")], 1, "none of system, developer, user"),
        ([{"role": ["user"], "content": "b"}], 0, "`role` is none of"),
        ([user(3)], 0, "neither text nor a list"),
        ([user("a"), assistant("b"), user(["c"])], 2, "a part of `content` is no object"),
        ([user([{"type": "text"}])], 0, "has no text in `text`"),
        ([user("a"), assistant(None, tool_calls=[{"function": {}}]), user("c")], 1, "has no `name`"),
        ([user("a"), assistant(None, tool_calls="x"), user("c")], 1, "`tool_calls` is no list"),
    ],
)
def test_bad_messages_name_the_place(messages: list[Any], index: int, says: str) -> None:
    with pytest.raises(BadConversation, match=says) as caught:
        conversation(messages)
    assert caught.value.index == index
    assert str(caught.value).startswith(f"messages[{index}]: ")


texts = st.text(max_size=30) | st.sampled_from(["\x00", "a\r\nb", "\ud83d", "e\u0301", " ", ""])
contents = texts | st.lists(st.builds(lambda text: {"type": "text", "text": text}, texts), max_size=3)
spoken = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"]),
    contents,
)


@given(st.lists(spoken, max_size=8))
def test_every_list_is_a_clean_dialogue(before: list[dict[str, Any]]) -> None:
    dialogue, follow_up = conversation([*before, user("the end")])
    assert follow_up.endswith("the end")
    for text in [
        dialogue.system,
        follow_up,
        *(text for turn in dialogue.turns for text in (turn.user, turn.assistant)),
    ]:
        assert clean(text) == text
    # Only the first turn can be without a user's message, unless the user sent a blank one.
    blank = any(message["role"] == "user" and conversation_text(message) == "" for message in before)
    assert blank or all(turn.user for turn in dialogue.turns[1:])


def conversation_text(message: dict[str, Any]) -> str:
    content = message["content"]
    text = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
    return clean(text).strip()


def test_heaps_of_marks_take_no_time() -> None:
    """Sorting the marks of one letter takes time in proportion to the square of their number."""
    heap = "a" + "\u0301\0" * 200_000 + "\u0f73" * 200_000 + "\u0316" * 200_000
    started = time.perf_counter()
    call = {"function": {"name": "f", "arguments": heap}}
    dialogue, follow_up = conversation([user(heap), assistant(heap, tool_calls=[call]), user(f"{heap} b")])
    assert time.perf_counter() - started < 2
    assert follow_up[0] == "á"
    assert follow_up.endswith(" b")
    assert max(len(text) for text in (follow_up, dialogue.turns[0].user)) < 3 * PILED


@pytest.mark.parametrize("text", ["Ệ", "שָׁלוֹם", "ཀྵྨ", "안녕", "a" + "\u0301" * PILED])
def test_marks_that_languages_need_stay(text: str) -> None:
    assert conversation([user(text)])[1] == unicodedata.normalize("NFC", text)
