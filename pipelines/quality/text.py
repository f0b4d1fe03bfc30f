"""Texts as words and as character n-grams, by the same rules for English and Chinese."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
from numpy.typing import NDArray

from synuc.folding import normal
from synuc.language import UNSPACED

Grams = NDArray[np.uint64]
"""The distinct character n-grams of a text as 64-bit hashes, ascending."""

_WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+(?:['’][^\W_{UNSPACED}]+)*")
_HAN = re.compile(f"[{UNSPACED}]")
_BASE = np.uint64(0x9E3779B97F4A7C15)


def words(text: str) -> list[str]:
    """The words of a text in lower case; of Chinese and Japanese, which set no spaces, the characters."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def is_han(word: str) -> bool:
    """Whether a word is a Chinese or Japanese character."""
    return bool(_HAN.match(word))


def grams(text: str, size: int) -> Grams:
    """The n-grams of `size` characters of a normalised text; of a shorter one, the text itself."""
    text = normal(text)
    if not text:
        return np.empty(0, np.uint64)
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32).astype(np.uint64)
    size = min(size, len(codes))
    # Horner's rule over all windows at once; the product wraps at 2**64.
    hashes = np.zeros(len(codes) - size + 1, np.uint64)
    for at in range(size):
        hashes = hashes * _BASE + codes[at : at + len(hashes)]
    return np.unique(hashes)
