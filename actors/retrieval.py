"""How similar texts are, for schema retrieval: by BM25 (library bm25s), or by the cosine of their embeddings.

The libraries are imported when they are needed: a run whose schemas an LLM matches needs neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from synuc.config import Method, Pooling
from synuc.language import UNSPACED
from synuc.problem import Problem

Similarity = Callable[[Sequence[str], Sequence[str]], list[list[float]]]
"""Queries and documents in; for each query the similarity to every document out, more is closer."""

INSTRUCTION = "Given a requirement that a user puts on a text, retrieve the dimension of communication that it concerns"
"""What an instructed embedding model is told about a query. Documents stand alone."""

_WORD = re.compile(rf"[{UNSPACED}]+|[^\W_{UNSPACED}]+")


class RetrievalUnavailable(Problem):
    """A retrieval strategy whose library or model is missing; the message says what to do."""


def similarity(method: Method) -> Similarity | None:
    """What carries out the method's retrieval; None if an LLM does.

    Raises:
        RetrievalUnavailable: the library isn't installed.
        EmbeddingModelMissing: the embedding model can't be loaded.
    """
    if method.retrieval == "llm":
        return None
    if method.retrieval == "bm25":
        _bm25s()
        return bm25
    return dense(method.embedding_model, method.embedding_pooling)


def check(method: Method) -> None:
    """Make sure, before anything is begun, that the method's retrieval can be carried out.

    Raises:
        RetrievalUnavailable: the library isn't installed.
        EmbeddingModelMissing: the embedding model isn't there.
    """
    if method.retrieval == "bm25":
        _bm25s()
    elif method.retrieval == "dense":
        from actors import embedding

        embedding.check(method.embedding_model)


def words(text: str) -> list[str]:
    """The terms of a text for BM25: words without the commonest English ones; of Chinese, neighbouring characters."""
    from bm25s.stopwords import STOPWORDS_EN

    terms: list[str] = []
    for word in _WORD.findall(text.casefold()):
        if re.match(f"[{UNSPACED}]", word):
            terms += [word[at : at + 2] for at in range(max(len(word) - 1, 1))]
        elif word not in STOPWORDS_EN:
            terms.append(word)
    return terms


def bm25(queries: Sequence[str], documents: Sequence[str]) -> list[list[float]]:
    """Okapi BM25 as Lucene computes it (k1 = 1.5, b = 0.75); 0 where a query shares no term with a document."""
    index = _index(tuple(documents))
    # The library refuses a query of which no term is left.
    found = [index.get_scores(terms).tolist() if (terms := words(text)) else [0.0] * len(documents) for text in queries]
    return [[float(score) for score in scores] for scores in found]


@lru_cache(maxsize=4)
def _index(documents: tuple[str, ...]) -> Any:
    index = _bm25s().BM25(k1=1.5, b=0.75, method="lucene")
    index.index([words(document) for document in documents], show_progress=False)
    return index


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError:
        raise RetrievalUnavailable("retrieval by bm25 needs the package bm25s: pip install 'synuc[dense]'") from None
    return bm25s


def dense(model: str, pooling: Pooling) -> Similarity:
    """Cosine of embeddings, -1 to 1. Models that pool their last token read an instruction before a query, as
    Qwen3-Embedding does.

    Raises:
        EmbeddingModelMissing: the model can't be loaded.
    """
    from actors.embedding import Embedder

    embed = Embedder(model, pooling)
    before = f"Instruct: {INSTRUCTION}\nQuery:" if pooling == "last" else ""

    def compare(queries: Sequence[str], documents: Sequence[str]) -> list[list[float]]:
        vectors = [embed(document) for document in documents]
        return [[float(embed(f"{before}{text}") @ vector) for vector in vectors] for text in queries]

    return compare
