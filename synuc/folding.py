"""When two texts say the same words, whatever their case, whitespace or forms of characters."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable


def folded(text: str) -> str:
    """`text` blind to case and whitespace."""
    return " ".join(text.casefold().split())


def normal(text: str) -> str:
    """`text` blind to case, whitespace and compatibility forms, such as full-width letters."""
    return folded(unicodedata.normalize("NFKC", text))


def content_key(texts: Iterable[str]) -> str:
    """Sixteen hex digits over texts as `normal` has them. None may hold a NUL, which `synuc.types.clean` removes."""
    return hashlib.sha256("\x00".join(map(normal, texts)).encode()).hexdigest()[:16]
