"""What is read in an answer: its label, why there is none, and the labels' probabilities."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synuc.reading import label_probabilities, read_label, split_thoughts, unreadable, visible
from synuc.types import Label
from tests.unit.test_formatting import CASE_TEXT

BARE = "[Final Judgment]\n{}"


@pytest.mark.parametrize(
    "text",
    [
        CASE_TEXT,
        BARE.format("Implicit Conflict"),
        "Some words.\n\n  [Final Judgment]  \n\n Implicit \u3000Conflict \n\n",
        "Sure!\n" + CASE_TEXT,
        "**[Final Judgment]**\n\n**Implicit Conflict**",
        "### [Final Judgment]\n`Implicit Conflict`",
        "It mentions [Final Judgment] in a line.\n[Final Judgment]\nImplicit Conflict",
        "<think></think>\n" + CASE_TEXT,
        "<think>\n\n</think>\n[Final Judgment]\nImplicit Conflict",
        "<think>[Final Judgment]\nNormal Dialogue</think>\n[Final Judgment]\nImplicit Conflict",
        "[Final Judgment]\nNormal Dialogue\n</think>\n[Final Judgment]\nImplicit Conflict",
        "<think>a</think><think>b</think>[Final Judgment]\nImplicit Conflict",
    ],
)
def test_a_label_is_read(text: str) -> None:
    assert read_label(text) is Label.IC


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Implicit Conflict",
        "[Final Judgment]",
        "[Final Judgment] Implicit Conflict",
        "[final judgment]\nImplicit Conflict",
        "[Final Judgment]\nIC",
        "[Final Judgment]\nimplicit conflict",
        "[Final Judgment]\nImplicit Conflict.",
        "[Final Judgment]\nNot an Implicit Conflict",
        "[Final Judgment]\nImplicit Conflict\nNormal Dialogue",
        "[Final Judgment]\nImplicit Conflict\nI hope this helps.",
        "[Final Judgment]\nNormal Dialogue\n[Final Judgment]\nImplicit Conflict",
        "[Final Judgment]\n[Final Judgment]\nImplicit Conflict",
        "<think>[Final Judgment]\nImplicit Conflict",
        "<think>[Final Judgment]\nImplicit Conflict</think>",
        "<think>[Final Judgment]\nImplicit Conflict</think>\nWell.",
        "<think>[Final Judgment]</think>\nImplicit Conflict",
        "[Final Judgment]\n<think>Implicit Conflict</think>",
        "[Final Judgment]\n<think></think>Implicit Conflict",
        "Sure. <think>so\n[Final Judgment]\nImplicit Conflict",
        "<think></think><think>\n[Final Judgment]\nImplicit Conflict",
    ],
)
def test_no_label_is_read(text: str) -> None:
    assert read_label(text) is None


@pytest.mark.parametrize(
    ("text", "cut", "why"),
    [
        ("[Task Level]\nActive main task: write", True, "cut_off"),
        ("I'm sorry, but I can't help with that.", False, "refusal"),
        ("抱歉，我无法回答这个问题。", False, "refusal"),
        ("<think>I can't see any conflict</think>Implicit Conflict", False, "unparseable"),
        ("", False, "unparseable"),
        ("The user wants more. " * 20 + "I cannot decide.", False, "unparseable"),
    ],
)
def test_why_there_is_no_label(text: str, cut: bool, why: str) -> None:
    assert read_label(text) is None
    assert unreadable(text, cut) == why


@pytest.mark.parametrize(
    ("text", "thoughts", "seen"),
    [
        ("Hello.", "", "Hello."),
        ("<think>a</think>\n\nHello.", "a", "Hello."),
        ("a</think>Hello.", "a", "Hello."),
        ("<think>cut off while", "cut off while", ""),
        ("Well. <think>cut", "cut", "Well."),
        ("<think>a</think>One. <think>b</think>Two.", "a\nb", "One. Two."),
        ("<think>a <think>b</think> c</think>Hello.", "c\na <think>b", "Hello."),
        ("<think></think>", "", ""),
    ],
)
def test_thoughts_and_what_the_user_reads(text: str, thoughts: str, seen: str) -> None:
    assert split_thoughts(text) == (thoughts, seen)


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", " ", "\n", "<th", "ink>", "<"])).map("".join))
def test_no_tag_is_left_to_read(text: str) -> None:
    seen = visible(text)
    assert "<think>" not in seen
    assert "</think>" not in seen
    assert split_thoughts(seen) == ("", seen)


def test_probabilities_by_hand() -> None:
    first = {"Im": math.log(0.5), "Implicit": math.log(0.1), " Normal": math.log(0.2), "Yes": math.log(0.2)}
    assert label_probabilities(first) == pytest.approx({Label.ND: 0.25, Label.ER: 0.0, Label.IC: 0.75})
    assert label_probabilities({"Yes": -0.1, "": -1.0, "\n": -2.0}) is None
    assert label_probabilities({}) is None


@given(st.dictionaries(st.sampled_from(["N", "Normal", "Exp", " Imp", "I", "?", "\n", "No"]), st.floats(-30, 0)))
def test_probabilities_are_a_distribution(first: dict[str, float]) -> None:
    probabilities = label_probabilities(first)
    if probabilities is not None:
        assert sum(probabilities.values()) == pytest.approx(1)
        assert min(probabilities.values()) >= 0
