"""Which samples an export keeps so that labels, relations or languages are balanced; what is left out is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipelines.quality.difficulty import Difficulty
from pipelines.quality.rows import lot
from synuc.problem import Problem

KEYS = ("label", "relation", "language", "speaking", "dimension", "distance", "difficulty")
"""`dimension` is that of the anchor, `distance` how many user turns it lies back."""
NONE = "none"
"""Stands for the value of samples without one, as ND has no relation."""


class ChoiceError(Problem):
    """Keys that nothing can be chosen by; the message says what to do."""


@dataclass(frozen=True)
class Selection:
    """How an export chooses. By the keys in `balance` samples are taken evenly: by the first exactly, every value as
    often as the rarest one occurs; by each further one, within those before it, as far as they go. Within that, by the
    keys in `stratify` they are taken in proportion, so that what is left out shifts nothing.
    """

    balance: tuple[str, ...]
    stratify: tuple[str, ...] = ()
    difficulty: Mapping[str, Difficulty] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ChoiceError if the keys make no sense."""
        keys = (*self.balance, *self.stratify)
        for key in keys:
            if key not in KEYS:
                raise ChoiceError(f"can't balance or stratify by {key or 'nothing'}: choose of {', '.join(KEYS)}")
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise ChoiceError(f"{twice} is given twice: balance or stratify by it once")
        if self.stratify and not self.balance:
            raise ChoiceError("--stratify says which samples --balance leaves out: give --balance too, e.g. label")
        if "difficulty" in keys and not self.difficulty:
            raise ChoiceError("no difficulty is known: give two or more runs of synuc eval uc with --difficulty RUN")


@dataclass(frozen=True)
class Candidate:
    """A sample that can be chosen, with its value for every key."""

    id: str
    values: Mapping[str, str]


def choose(candidates: Sequence[Candidate], selection: Selection) -> set[str]:
    """The ids of the samples to keep, drawn by lot of the ids: the same whatever the order of the candidates."""
    if not candidates or not selection.balance:
        return {candidate.id for candidate in candidates}
    sizes = [len(part) for part in _parts(candidates, selection.balance[0]).values()]
    keys = [*((key, True) for key in selection.balance), *((key, False) for key in selection.stratify)]
    return set(_take(candidates, keys, min(sizes) * len(sizes)))


def left_out(
    candidates: Sequence[Candidate], kept: set[str], selection: Selection
) -> dict[str, dict[str, tuple[int, int]]]:
    """Of every key and value, how many were kept and how many left out."""
    counts = {}
    for key in (*selection.balance, *selection.stratify):
        parts = _parts(candidates, key)
        here = {value: sum(candidate.id in kept for candidate in part) for value, part in parts.items()}
        counts[key] = {value: (here[value], len(part) - here[value]) for value, part in parts.items()}
    return counts


def evenly(sizes: Mapping[str, int], n: int) -> dict[str, int]:
    """`n` places (at most as many as there are) over parts, equally as far as the smaller ones go."""
    quotas: dict[str, int] = {}
    for place, (name, size) in enumerate(sorted(sizes.items(), key=lambda part: (part[1], part[0]))):
        quotas[name] = min(size, n // (len(sizes) - place))
        n -= quotas[name]
    return quotas


def in_proportion(sizes: Mapping[str, int], n: int) -> dict[str, int]:
    """`n` places (at most as many as there are) over parts by their sizes; the rest by the largest remainders."""
    total = sum(sizes.values())
    quotas = {name: n * size // total for name, size in sizes.items()}
    by_rest = sorted(sizes, key=lambda name: (-(n * sizes[name] % total), name))
    for name in by_rest[: n - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def _take(candidates: Sequence[Candidate], keys: Sequence[tuple[str, bool]], n: int) -> list[str]:
    if not keys:
        return sorted((candidate.id for candidate in candidates), key=lot)[:n]
    (key, even), *others = keys
    parts = _parts(candidates, key)
    sizes = {value: len(part) for value, part in parts.items()}
    quotas = evenly(sizes, n) if even else in_proportion(sizes, n)
    return [id for value, part in parts.items() for id in _take(part, others, quotas[value])]


def _parts(candidates: Sequence[Candidate], key: str) -> dict[str, list[Candidate]]:
    """The candidates by their values, these in alphabetical order."""
    parts: dict[str, list[Candidate]] = {value: [] for value in sorted({one.values[key] for one in candidates})}
    for candidate in candidates:
        parts[candidate.values[key]].append(candidate)
    return parts
