"""N-grams, and the index that finds whoever shares most of them: against comparing each with each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.quality.near import NearIndex
from pipelines.quality.text import Grams, grams, is_han, words
from synuc.folding import normal

Sets = st.lists(st.sets(st.integers(0, 25), max_size=12), max_size=12)


def as_grams(values: set[int]) -> Grams:
    return np.array(sorted(values), np.uint64)


def test_texts_are_equal_whatever_their_case_width_and_spaces() -> None:
    assert normal("Ｈｅｌｌｏ,\n  World") == "hello, world"
    assert np.array_equal(grams("Ｈｅｌｌｏ,\n  World", 3), grams("hello, world", 3))


def test_n_grams_are_counted_once() -> None:
    assert len(grams("abcabc", 3)) == 3  # abc bca cab
    assert len(grams("abcd", 3)) == 2
    assert len(grams("ab", 3)) == 1
    assert len(grams(" \n", 3)) == 0


@given(st.text("ab 改成，é", max_size=40), st.integers(1, 8))
def test_as_many_hashes_as_different_n_grams(text: str, size: int) -> None:
    text = normal(text)
    windows = {text[at : at + size] for at in range(max(1, len(text) - size + 1))} if text else set()
    assert len(grams(text, size)) == len(windows)


def test_words_of_both_languages() -> None:
    assert words("Don't stop, it's 5 o’clock") == ["don't", "stop", "it's", "5", "o’clock"]
    assert words("改成英文 please") == ["改", "成", "英", "文", "please"]
    assert is_han("改")
    assert not is_han("please")


@given(Sets, st.sets(st.integers(0, 25), max_size=12), st.sampled_from([0.3, 0.5, 0.7, 0.8, 1.0]))
def test_the_index_finds_what_comparing_each_with_each_finds(
    documents: list[set[int]], asked: set[int], share: float
) -> None:
    index = NearIndex([as_grams(document) for document in documents], share)
    similar, contained = {}, {}
    for number, document in enumerate(documents):
        if document and asked:
            shared = len(document & asked)
            if shared / len(document | asked) >= share:
                similar[number] = shared / len(document | asked)
            if shared / min(len(document), len(asked)) >= share:
                contained[number] = shared / min(len(document), len(asked))
    assert dict(index.similar(as_grams(asked))) == pytest.approx(similar)
    assert dict(index.contained(as_grams(asked))) == pytest.approx(contained)


def test_an_index_of_nothing_finds_nothing() -> None:
    assert NearIndex([], 0.7).contained(as_grams({1, 2})) == []
    assert NearIndex([as_grams(set())], 0.7).similar(as_grams({1, 2})) == []
