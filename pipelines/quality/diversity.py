"""How different the texts of a data set are: repeated texts, variety of words, distance of wordings and meanings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import log2
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from pipelines.quality.near import NearIndex
from pipelines.quality.text import grams, words
from synuc.config import EMBEDDED
from synuc.folding import normal

GRAM = 5
"""Characters of the n-grams that near-duplicates share; short enough for a message of one line."""

NEAR = 0.7
"""The least Jaccard similarity of near-duplicates: about one word in ten is another."""

COMPARED = 2_000
"""Texts that are compared each with each for the self-similarity."""

MEANT = 500
"""Texts whose meanings are compared."""

LENGTHS = (1, 2, 3)

Embed = Callable[[Sequence[str]], Any]
"""Texts to a matrix, dense or sparse, one row per text; rows needn't have length 1."""


def tf_idf(texts: Sequence[str]) -> Any:
    """Character n-grams weighted by TF-IDF: wordings rather than meanings, on every machine and in every language."""
    vectorizer = TfidfVectorizer(preprocessor=normal, analyzer="char", ngram_range=(2, 4), sublinear_tf=True)
    return vectorizer.fit_transform([f" {text} " for text in texts])


@lru_cache(maxsize=1)
def sentences() -> Embed | None:
    """Embeds sentences on the CPU by the packaged MiniLM-L6, which knows English; None if it isn't installed."""
    try:
        from actors.embedding import Embedder, EmbeddingModelMissing
    except ModuleNotFoundError:
        return None
    try:
        vector = Embedder(EMBEDDED, "mean", device="cpu")
    except EmbeddingModelMissing:
        return None
    return lambda texts: np.stack([vector(text).numpy() for text in texts])


def diversity(texts: Sequence[str], embed: Embed = tf_idf, meaning: Embed | None = None) -> dict[str, Any]:
    """Figures of a set of texts; None where a figure needs more texts than there are.

    `texts`, their number; `near_duplicates`, the share of those with another that is nearly the same; `distinct` and
    `entropy` (bits), by the length n of n-grams of words; `mean_distance`, the mean cosine distance of two texts;
    `self_similarity`, the mean cosine similarity of a text and the one nearest to it, among `compared` texts;
    `meaning_distance`, the mean cosine distance of two of at most `MEANT` texts as `meaning` embeds them.

    distinct-n (Li et al. 2016, A Diversity-Promoting Objective Function for Neural Conversation Models) falls with the
    number of texts: compare sets of one size.
    """
    spoken = [words(text) for text in texts]
    counts = {n: Counter(gram for text in spoken for gram in n_grams(text, n)) for n in LENGTHS}
    figures: dict[str, Any] = {
        "texts": len(texts),
        "near_duplicates": near_duplicates(texts),
        "distinct": {str(n): len(count) / count.total() if count else None for n, count in counts.items()},
        "entropy": {str(n): entropy(count) for n, count in counts.items()},
        "mean_distance": None,
        "self_similarity": None,
        "compared": 0,
        "meaning_distance": None,
    }
    if len(texts) > 1:
        vectors = normalize(embed(texts))
        some = vectors[_some(len(texts), COMPARED)]
        figures |= {
            "mean_distance": mean_distance(vectors),
            "self_similarity": _self_similarity(some),
            "compared": some.shape[0],
        }
        if meaning:
            meant = [texts[at] for at in _some(len(texts), MEANT)]
            figures["meaning_distance"] = mean_distance(normalize(meaning(meant)))
    return figures


def _some(n: int, most: int) -> Any:
    """At most so many of n places, evenly spread."""
    return np.linspace(0, n - 1, min(n, most)).astype(int)


def n_grams(text: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    """Every n words that stand beside each other."""
    return (tuple(text[at : at + n]) for at in range(len(text) - n + 1))


def near_duplicates(texts: Sequence[str], size: int = GRAM) -> float | None:
    """The share of texts with another whose n-grams of `size` characters are nearly the same."""
    if len(texts) < 2:
        return None
    documents = [grams(text, size) for text in texts]
    index = NearIndex(documents, NEAR)
    # Each finds itself.
    return sum(len(index.similar(document)) > 1 for document in documents) / len(texts)


def entropy(counts: Counter[Any]) -> float | None:
    """The Shannon entropy in bits of the n-grams' frequencies."""
    total = counts.total()
    return abs(sum(-n / total * log2(n / total) for n in counts.values())) if total else None


def mean_distance(vectors: Any) -> float:
    """The mean of 1 - cosine over all pairs of different rows, which are of length 1 (or 0)."""
    n = vectors.shape[0]
    # The sum over all pairs is the square of the sum, without n squares of single ones.
    total = np.asarray(vectors.sum(axis=0)).ravel()
    lengths = vectors.multiply(vectors).sum() if hasattr(vectors, "multiply") else (vectors * vectors).sum()
    return 1 - float((total @ total - lengths) / (n * (n - 1)))


def _self_similarity(vectors: Any) -> float:
    nearest = NearestNeighbors(n_neighbors=1, metric="cosine", algorithm="brute").fit(vectors)
    # Without arguments a row isn't its own neighbour.
    distances, _ = nearest.kneighbors()
    return 1 - float(distances.mean())
