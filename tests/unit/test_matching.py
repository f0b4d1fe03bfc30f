"""The lexical matcher: its properties, cases by hand, and what it is worth on labelled pairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synuc.matching import THRESHOLD, lexical
from tests.measure_matching import PAIRS, confused, lexical_at, quality, read

PIECES = (
    "tone",
    ": ",
    "no more than ",
    "five hundred",
    "500",
    "words",
    "不",
    "不超过",
    "五百字",
    "孩子",
    "-free",
    " ",
    "é",
    "1,000",
)
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=8).map("".join)


@given(texts, texts)
def test_similarity_is_symmetric_within_range_and_whole_for_the_same(a: str, b: str) -> None:
    assert 0 <= lexical(a, b) <= 1
    assert lexical(a, b) == lexical(b, a)
    assert lexical(a, a) == 1


@given(texts)
def test_case_width_and_spaces_make_no_difference(text: str) -> None:
    assert lexical(text, f"  {text.upper()} ".replace(" ", "\u3000")) == lexical(text, text.upper())


SAME = [
    ("tone: formal", "style: a formal tone"),
    ("content_scope: avoid crowded tourist attractions", "location: no crowded tourist attractions"),
    ("content_scope: avoid crowded places", "location: places that aren't crowded"),
    ("content_scope: family-friendly activities", "audience: activities that are family-friendly"),
    ("length: no more than 500 words", "word_count: at most five hundred words"),
    ("budget: at most $1,000", "budget: up to 1000 dollars"),
    ("budget: 500 euros", "cost: €500"),
    ("预算: 三千元", "budget: ¥3,000"),
    ("length: twenty-five pages", "length: 25 pages"),
    ("diet: gluten-free", "diet: no gluten"),
    ("tone: Formal", "tone: ｆｏｒｍａｌ"),
    ("format: bullet points", "format: use bulleted points"),
    ("length: 不超过五百字", "字数: 500字以内"),
    ("length: 800字左右", "篇幅: 约八百字"),
    ("audience: 给初中生看", "audience: 初中生"),
    ("content: 避免使用专业术语", "wording: 不要用专业术语"),
    ("tech_stack: 使用Python编写", "language: Python"),
    ("language: 用英文", "language: 英文"),
]
DIFFERENT = [
    ("length: 500 words", "length: 900 words"),
    ("length: at most 500 words", "length: at least 500 words"),
    ("tone: a formal tone", "tone: a casual tone"),
    ("content_scope: avoid crowded places", "content_scope: crowded places"),
    ("budget: 500 euros", "budget: 500 dollars"),
    ("audience: quiet people who like lakes", "audience: loud people who hate mountains"),
    ("compatibility: on Windows", "compatibility: on Linux"),
    ("topic: 人工智能的历史", "topic: 人工智能的未来"),
    ("diet: with gluten", "diet: gluten-free"),
    ("content_scope: family-friendly activities", "audience: adults-only or couples-oriented activities"),
    ("audience: children", "audience: adults"),
    ("tone: formal", "tone: formal, length: 500 words, audience: adults, format: a table"),
    ("tone: formal", "tone: tone"),
    ("length: 不超过五百字", "length: 不少于五百字"),
    ("length: 五百字", "length: 八百字"),
    ("content: 不要血腥内容", "content: 要有血腥内容"),
    ("audience: 小学生", "audience: 大学教授"),
    ("tone: 轻松", "tone: 严肃"),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_the_same_requirement(a: str, b: str) -> None:
    assert lexical(a, b) >= THRESHOLD


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different_requirements(a: str, b: str) -> None:
    assert lexical(a, b) < THRESHOLD


@given(st.lists(st.sampled_from(["quiet", "lake", "museum", "spicy", "short", "cheap", "red", "train"]), unique=True))
def test_the_more_is_added_the_less_similar(words: list[str]) -> None:
    scores = [lexical("style: baroque music", f"style: baroque music {' '.join(words[:n])}") for n in range(len(words))]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == len(scores)


FLOOR = {"en": (0.8, 0.75), "zh": (0.7, 0.15)}
"""Precision and recall on the split `test`, a little below what was measured. The pairs are hard on purpose."""


@pytest.mark.parametrize("language", FLOOR)
def test_precision_and_recall_on_pairs_it_was_not_tuned_on(language: str) -> None:
    measured = quality(read("test", language), lexical_at(THRESHOLD))
    print(f"lexical {language}: {measured}")
    precision, recall = FLOOR[language]
    assert measured.pairs >= 30
    assert measured.precision >= precision
    assert measured.recall >= recall


def test_the_constraints_of_one_dialogue_are_not_confused() -> None:
    wrong, pairs = confused(lexical_at(THRESHOLD))
    print(f"lexical: {wrong} of {pairs} pairs confused")
    assert pairs >= 100
    assert wrong <= 0.01 * pairs


def test_the_splits_share_no_pair() -> None:
    dev, test = ({frozenset((row["a"], row["b"])) for row in read(split)} for split in ("dev", "test"))
    assert dev
    assert test
    assert not dev & test
    assert PAIRS.read_text("utf-8").count("\n") == len(read("dev")) + len(read("test"))
