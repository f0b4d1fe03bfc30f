"""Where the words of a constraint stand."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.locate import locate
from synuc.types import Dialogue, Turn, clean


def said(*users: str) -> Dialogue:
    return Dialogue(turns=tuple(Turn(user=user, assistant="formal tone, 语气正式") for user in users))


def found(text: str, *users: str, follow_up: str = "", turn: int | None = None) -> tuple[int, str] | None:
    """The turn and the words that are found."""
    span = locate(text, said(*users), follow_up, turn)
    return (span.turn, [*users, follow_up][span.turn - 1][span.start : span.end]) if span else None


TRIP = "Please avoid crowded tourist attractions. We prefer quiet places where the kids can also enjoy themselves."
ESSAY = "Write an essay for my history class, in no more than 500 words, and keep the tone formal. Cite three sources."
RECIPE = "List five recipes with chicken, rice, and vegetables. Do not give any cooking instructions, only the names."
MAIL = "Draft a follow-up email to the customer. My manager wants it polite; it must go out before Friday's deadline."
WENZHANG = "请帮我写一篇关于人工智能的文章，用正式的语气，面向中学生，字数不要超过500字，最后列出参考文献。"
XINGCHENG = "我们带两个孩子去杭州玩三天，预算控制在三千元以内，不想去人多的景点，酒店要离西湖近一点。"

PAIRS = [
    (TRIP, "avoid crowded tourist attractions", "avoid crowded tourist attractions"),
    (TRIP, "AVOID  crowded\ntourist attractions.", "avoid crowded tourist attractions"),
    (TRIP, "quiet places where kids can enjoy", "quiet places where the kids can also enjoy"),
    (TRIP, "kids can also enjoy themselves", "kids can also enjoy themselves"),
    (TRIP, "“quiet places”", "quiet places"),
    (TRIP, "avoiding crowded attractions", "avoid crowded tourist attractions"),
    (ESSAY, "formal tone", "tone formal"),
    (ESSAY, "at most 500 words", "500 words"),
    (ESSAY, "three cited sources", "Cite three sources"),
    (ESSAY, "an essay for history class", "an essay for my history class"),
    (RECIPE, "chicken, rice and vegetables", "chicken, rice, and vegetables"),
    (RECIPE, "five recipe", "five recipes"),
    (RECIPE, "no cooking instructions", "cooking instructions"),
    (MAIL, "a polite follow-up email to the customer", "a follow-up email to the customer"),
    (MAIL, "send it before Friday's deadline", "before Friday's deadline"),
    (MAIL, "casual tone", None),
    (MAIL, "draft", "Draft"),
    (MAIL, "raft", None),
    (ESSAY, "informal tone", None),
    (TRIP, "a strict vegetarian menu", None),
    (WENZHANG, "正式的语气", "正式的语气"),
    (WENZHANG, "语气正式", "正式的语气"),
    (WENZHANG, "不超过500字", "不要超过500字"),
    (WENZHANG, "面向中学生读者", "面向中学生"),
    (WENZHANG, "列出参考文献", "列出参考文献"),
    (WENZHANG, "关于人工智能的短文", "关于人工智能的文"),
    (WENZHANG, "轻松幽默的风格", None),
    (WENZHANG, "write formally", None),
    (XINGCHENG, "预算三千元以内", "预算控制在三千元以内"),
    (XINGCHENG, "不去人多的景点", "不想去人多的景点"),
    (XINGCHENG, "酒店离西湖近", "酒店要离西湖近"),
    (XINGCHENG, "带两个孩子", "带两个孩子"),
    (XINGCHENG, "乘坐高铁往返", None),
]


@pytest.mark.parametrize(("message", "text", "words"), PAIRS)
def test_words_are_found(message: str, text: str, words: str | None) -> None:
    others = ("What can you do for me?", "谢谢，请继续。")
    place = found(text, others[0], message, others[1])
    assert place == (None if words is None else (2, words))


def test_the_latest_of_equal_turns_wins_and_a_better_one_wins_over_it() -> None:
    assert found("formal tone", "a formal tone", "the Formal Tone", "thanks") == (2, "Formal Tone")
    assert found("formal tone", "a formal tone", "a tone, formal please") == (1, "formal tone")
    assert found("a formal and serious tone", "the tone: serious, formal", "a tone that is formal") is not None
    assert found("a formal and serious tone", "the tone: serious, formal", "a tone that is formal") == (
        1,
        "tone: serious, formal",
    )


def test_the_follow_up_is_looked_at_only_if_asked_for() -> None:
    assert found("formal tone", "a poem", follow_up="in a formal tone") is None
    assert found("formal tone", "a poem", follow_up="in a formal tone", turn=2) == (2, "formal tone")
    assert found("formal tone", "a formal tone", follow_up="a poem", turn=2) is None


def test_the_assistants_words_are_not_the_users() -> None:
    assert locate("formal tone", said("hello"), "x") is None


def test_nothing_is_nowhere() -> None:
    assert found("", "a") is None
    assert found(" … ", "a … b") is None
    assert found("\x1f\t\n", "a \x1f\t\n b") is None


def test_broken_control_tokens_are_found_whole() -> None:
    assert found("never print <\u200b|im_end|> again", "Please never print <|im_end|> again.") == (
        1,
        "never print <|im_end|> again",
    )


words = st.sampled_from(
    ["keep", "the", "tone", "formal", "kids", "500", *"预算三千元", "Straße", "İ", "ﬁ", "\U00020000"]
)
messages = st.lists(words | st.text(max_size=5), max_size=30).map(" ".join).map(clean)


@given(st.lists(messages, min_size=1, max_size=3), messages, st.booleans())
def test_a_span_lies_in_its_message_and_resembles_what_was_looked_for(
    users: list[str], text: str, within: bool
) -> None:
    looked_for = clean(users[0][3:20]) if within else text
    span = locate(looked_for, said(*users), "x")
    if span is None:
        return
    assert 1 <= span.turn <= len(users)
    assert 0 <= span.start < span.end <= len(users[span.turn - 1])
    there = users[span.turn - 1][span.start : span.end]
    letters, own = (set(value.casefold()) - set(" ") for value in (there, looked_for))
    assert letters & own
    # A passage is its own nearest.
    again = locate(there, said(*users), "x", span.turn)
    assert again is None or users[span.turn - 1][again.start : again.end].casefold().split() == there.casefold().split()


@given(st.lists(words, min_size=2, max_size=6).map(" ".join), st.text(max_size=20), st.text(max_size=20))
def test_what_is_there_is_found(text: str, before: str, after: str) -> None:
    message = clean(f"{before} {text} {after}")
    span = locate(text, said(message), "x")
    assert span is not None
    assert message[span.start : span.end].casefold().split() == clean(text).casefold().split()


def test_long_messages_take_no_time() -> None:
    users = ["keep the tone formal " * 4_000, "预算三千元" * 4_000]
    started = time.perf_counter()
    assert locate("a formal report for the boss, with numbers, in a tone he likes", said(*users), "x") is None
    assert locate("三千五百元的预算", said(*users), "x") is not None
    assert time.perf_counter() - started < 3
