"""Texts that share most of their n-grams, found among many without comparing each with each.

Exact: an index over the rarest n-grams of each text, as in prefix filtering (Bayardo, Ma and Srikant 2007, Scaling Up
All Pairs Similarity Search). Whoever shares at least s of n n-grams lacks at most n - s of them, so of any n - s + 1 it
has one. No pair is missed, unlike with MinHash, and rare n-grams bring few candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.quality.text import Grams

Places = NDArray[np.intp]


class Near(NamedTuple):
    """A document of the index by its number, and how much it has in common with the one asked about, 0 to 1."""

    number: int
    share: float


class NearIndex:
    """Finds which of its documents have at least `share` of their n-grams in common with another document.

    Documents without n-grams are never found. Memory grows with the index's documents only.
    """

    def __init__(self, documents: Sequence[Grams], share: float) -> None:
        self._documents = documents
        self._share = share
        everything = np.concatenate([np.empty(0, np.uint64), *documents])
        keys, counts = np.unique(everything, return_counts=True)
        rare = []
        for document in documents:
            order = np.argsort(counts[np.searchsorted(keys, document)], kind="stable")
            rare.append(document[order[: self._enough(len(document))]])
        self._rare = _Postings(rare)

    def similar(self, document: Grams) -> list[Near]:
        """Those with a Jaccard similarity of at least `share`: shared n-grams over all n-grams of both."""
        found = []
        for number, shared in self._shared(document, self._rare.owners(self._rare.places(document))):
            jaccard = shared / (len(document) + len(self._documents[number]) - shared)
            if jaccard >= self._share:
                found.append(Near(number, jaccard))
        return found

    def contained(self, document: Grams) -> list[Near]:
        """Those that hold at least `share` of the n-grams of the shorter of the two."""
        candidates = np.union1d(self._rare.owners(self._rare.places(document)), self._longer(document))
        found = []
        for number, shared in self._shared(document, candidates):
            share = shared / min(len(document), len(self._documents[number]))
            if share >= self._share:
                found.append(Near(number, share))
        return found

    @cached_property
    def _all(self) -> _Postings:
        return _Postings(self._documents)

    def _enough(self, size: int) -> int:
        """How many n-grams of a document of `size`: one of them is in whatever shares enough with it."""
        # Against the error of floats: 0.7 * 10 is a little more than 7.
        return size - ceil(self._share * size - 1e-9) + 1 if size else 0

    def _longer(self, document: Grams) -> Places:
        """Documents that may hold most of this one."""
        places = self._all.places(document)
        spared = self._enough(len(document)) - (len(document) - len(places))
        if spared <= 0:
            return np.empty(0, np.intp)
        return self._all.owners(places[np.argsort(self._all.sizes[places], kind="stable")[:spared]])

    def _shared(self, document: Grams, candidates: Places) -> list[tuple[int, int]]:
        """The numbers of the candidates with how many n-grams each shares."""
        if not len(document):
            return []
        found = []
        for number in candidates.tolist():
            other = self._documents[number]
            few, many = (document, other) if len(document) < len(other) else (other, document)
            at = np.searchsorted(many, few)
            found.append((number, int(np.count_nonzero(many[np.minimum(at, len(many) - 1)] == few))))
        return found


class _Postings:
    """Which documents hold an n-gram."""

    def __init__(self, documents: Sequence[Grams]) -> None:
        hashes = np.concatenate([np.empty(0, np.uint64), *documents])
        sizes = np.array([len(document) for document in documents], np.intp)
        owners = np.repeat(np.arange(len(documents), dtype=np.intp), sizes)
        order = np.argsort(hashes, kind="stable")
        self._owners = owners[order]
        self.keys, self.starts, self.sizes = np.unique(hashes[order], return_index=True, return_counts=True)

    def places(self, document: Grams) -> Places:
        """Where in `keys` the document's n-grams are, of those that are there."""
        if not len(self.keys):
            return np.empty(0, np.intp)
        at = np.minimum(np.searchsorted(self.keys, document), len(self.keys) - 1)
        found: Places = at[self.keys[at] == document]
        return found

    def owners(self, places: Places) -> Places:
        """The documents that hold any of the n-grams at these places, once each."""
        sizes = self.sizes[places]
        before = np.cumsum(sizes) - sizes
        return np.unique(self._owners[np.repeat(self.starts[places] - before, sizes) + np.arange(sizes.sum())])
