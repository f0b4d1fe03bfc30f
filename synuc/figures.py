"""Figures as people read them."""

from __future__ import annotations


def percent(share: float | None, digits: int = 1, sign: str = "") -> str:
    """A share (0 to 1) in percent, a dash where there is none."""
    return "–" if share is None else f"{100 * share:.{digits}f}{sign}"
