"""Diversity by hand, near-duplicates in both languages, and what has to hold of any texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from pipelines.quality import diversity as module
from pipelines.quality.diversity import diversity, mean_distance, near_duplicates, sentences, tf_idf
from tests.quality import innocent

ENGLISH = "Could you also add a wine-pairing dinner and a late-night jazz show to the itinerary for us?"
CHINESE = "好的，能不能再帮我在行程里加上一顿配酒的晚餐和一场深夜的爵士演出，最好离酒店近一点？"


def square(texts: Sequence[str]) -> Any:
    """Every text a corner of a square; lengths differ, and must not matter."""
    return np.array([[(1, 0), (0, 2), (-3, 0), (0, -1)][int(text[-1])] for text in texts], np.float64)


def test_distinct_and_entropy_by_hand() -> None:
    figures = diversity(["a b a", "a b"])
    # Words: a b a a b. Pairs: a-b, b-a, a-b. Threes: a-b-a. None goes across texts.
    assert figures["distinct"] == {"1": pytest.approx(2 / 5), "2": pytest.approx(2 / 3), "3": 1}
    assert figures["entropy"]["1"] == pytest.approx(-(0.6 * np.log2(0.6) + 0.4 * np.log2(0.4)))
    assert figures["entropy"]["2"] == pytest.approx(-(2 / 3 * np.log2(2 / 3) + 1 / 3 * np.log2(1 / 3)))
    assert figures["entropy"]["3"] == 0


def test_distances_by_hand() -> None:
    figures = diversity(["t0", "t1", "t2", "t3"], square)
    # Of six pairs two are opposite (2), four at a right angle (1).
    assert figures["mean_distance"] == pytest.approx(8 / 6)
    assert figures["self_similarity"] == pytest.approx(0)
    assert figures["compared"] == 4
    figures = diversity(["t0", "t0", "t1"], square)
    assert figures["mean_distance"] == pytest.approx(2 / 3)
    assert figures["self_similarity"] == pytest.approx(2 / 3)


def test_meanings_are_another_distance_than_wordings(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = diversity(["t0", "t1", "t2", "t3"], meaning=square)
    assert figures["meaning_distance"] == pytest.approx(8 / 6)
    assert figures["mean_distance"] == pytest.approx(1)
    assert diversity(["t0", "t1"])["meaning_distance"] is None
    monkeypatch.setattr(module, "MEANT", 2)
    # The first and the last one, at a right angle.
    assert diversity(["t0", "t2", "t3"], meaning=square)["meaning_distance"] == pytest.approx(1)


def test_real_sentences_of_one_meaning_are_nearer_than_their_words() -> None:
    meaning = sentences()
    assert meaning is not None
    same = ["Please make it shorter.", "Could you cut the length of this text down?"]
    other = ["Please make it shorter.", "Please make it in the oven."]
    near, far = (diversity(texts, meaning=meaning) for texts in (same, other))
    assert near["mean_distance"] > far["mean_distance"]
    assert near["meaning_distance"] < far["meaning_distance"]


def test_a_text_longer_than_the_model_reads_has_a_meaning() -> None:
    meaning = sentences()
    assert meaning is not None
    assert meaning(["word " * 3000]).shape == (1, 384)


def test_sparse_and_dense_vectors_are_the_same() -> None:
    dense = np.array([[1.0, 0], [0.6, 0.8], [0, 1.0]])
    assert mean_distance(csr_matrix(dense)) == pytest.approx(mean_distance(dense))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([innocent(n) for n in range(30)] + [CHINESE]), min_size=2, max_size=12))
def test_the_mean_over_all_pairs_is_what_comparing_them_gives(texts: list[str]) -> None:
    figures = diversity(texts)
    dense = tf_idf(texts).toarray()
    cosines = dense @ dense.T
    pairs = cosines[~np.eye(len(texts), dtype=bool)]
    assert figures["mean_distance"] == pytest.approx(1 - pairs.mean(), abs=1e-9)
    np.fill_diagonal(cosines, -1)
    assert figures["self_similarity"] == pytest.approx(cosines.max(axis=1).mean(), abs=1e-9)


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        (ENGLISH, ENGLISH.replace("wine-pairing", "beer-pairing")),
        (ENGLISH, ENGLISH.upper() + "  "),
        (CHINESE, CHINESE.replace("酒店", "车站")),
        (CHINESE, CHINESE.replace("，", ",").replace("？", "?")),
    ],
)
def test_planted_near_duplicates_are_found(text: str, edited: str) -> None:
    others = [innocent(n) for n in range(8)]
    assert near_duplicates([*others[::3], text, edited]) == pytest.approx(2 / 5)
    assert near_duplicates([*others[::3], text]) == 0


def test_another_message_on_the_same_topic_is_no_near_duplicate() -> None:
    assert near_duplicates([ENGLISH, "Please add a dinner with wine to the itinerary."]) == 0
    assert near_duplicates([CHINESE, "请在行程里再加一顿晚餐，谢谢。"]) == 0


def test_one_text_says_nothing_of_pairs() -> None:
    figures = diversity(["alone"])
    assert figures["near_duplicates"] is figures["mean_distance"] is figures["self_similarity"] is None
    assert figures["distinct"] == {"1": 1, "2": None, "3": None}
    assert diversity(["?!", "..."])["distinct"]["1"] is None


def test_only_so_many_are_compared_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPARED", 3)
    assert diversity(["t0", "t1", "t2", "t3", "t0"], square)["compared"] == 3
