"""How hard samples are for detectors, from repeated runs of `synuc eval uc` on an export's `uc-bench.jsonl`.

The ids of its items are those of the samples, so that a difficulty finds its sample. Of a run's folder two files are
read, both JSON lines: `items.jsonl` (`id` and gold `label`) and `results.jsonl` (`id` and `value`, null after a
failure, else with `predicted`, a label or null). A later line of the same item counts, and a line without its end
doesn't.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import log2
from pathlib import Path
from statistics import fmean
from typing import Any

from pipelines.quality.rows import Row
from synuc.folder import Folder
from synuc.problem import Problem
from synuc.types import Label

UNREADABLE = ""
"""Stands for the label of an answer without one, and of a failed call."""


class DifficultyError(Problem):
    """Runs that give no difficulty; the message says what to do."""


class Level(StrEnum):
    """EASY: every run is right; HARD: none is; CONTESTED: some are; UNKNOWN: fewer than two runs have a result."""

    EASY = "easy"
    CONTESTED = "contested"
    HARD = "hard"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Difficulty:
    """How `runs` detector runs did on a sample. Shares and `entropy` are 0 to 1.

    `wrong` counts the `unreadable` as well. `entropy` is that of the labels given, over the most that so many runs
    could have. `score` is the mean of `wrong` and `entropy`: 0 if all are right, 0.5 if all give the same wrong label
    (look whether the gold label is right), more where they also disagree.
    """

    runs: int
    wrong: float
    unreadable: float
    entropy: float
    score: float
    level: Level


def difficulty(gold: Label, given: Sequence[str]) -> Difficulty:
    """The difficulty of a sample with this label, from the labels that runs gave, `UNREADABLE` where there was none."""
    counts = Counter(given)
    n = len(given)
    wrong = (n - counts[gold.value]) / n
    bits = abs(sum(-c / n * log2(c / n) for c in counts.values()))
    entropy = bits / log2(min(n, len(Label) + 1)) if n > 1 else 0.0
    level = Level.EASY if not wrong else Level.HARD if not counts[gold.value] else Level.CONTESTED
    if n < 2:
        level = Level.UNKNOWN
    return Difficulty(n, wrong, counts[UNREADABLE] / n, entropy, (wrong + entropy) / 2, level)


def difficulties(runs: Sequence[Path]) -> dict[str, Difficulty]:
    """The difficulty of every item that a run has a result for, by its id.

    Raises:
        DifficultyError: fewer than two runs, one that is none of `synuc eval uc`, isn't finished, or has other labels.
    """
    folders = list(dict.fromkeys(path.resolve() for path in runs))
    if len(folders) < 2:
        raise DifficultyError("a difficulty needs two or more runs of synuc eval uc, e.g. with --set seed=1, 2 and 3")
    gold: dict[str, Label] = {}
    given: dict[str, list[str]] = {}
    for path in folders:
        for id, label in _gold(path).items():
            if gold.setdefault(id, label) is not label:
                other = gold[id].value
                raise DifficultyError(
                    f"{path} holds {id} as {label.value}, another run as {other}: give runs of one set"
                )
        for id, predicted in _given(path).items():
            given.setdefault(id, []).append(predicted)
    return {id: difficulty(gold[id], labels) for id, labels in given.items()}


def attached(rows: Iterable[Row], found: Mapping[str, Difficulty]) -> dict[str, Any]:
    """The figures of a data set's difficulty, per label and of `all`.

    `samples`; `levels`, how many are of each; `score`, `wrong`, `unreadable` and `entropy`, means over the samples with
    a level other than unknown, None if there are none. `items` of the runs are no sample here: `elsewhere`.

    Raises:
        DifficultyError: none of the items is a sample here.
    """
    per: dict[str, list[Difficulty | None]] = {name: [] for name in (*Label, "all")}
    matched = set()
    for row in rows:
        if one := found.get(row.id):
            matched.add(row.id)
        for name in (row.label.value, "all"):
            per[name].append(one)
    if not matched:
        raise DifficultyError(
            "none of the items of these runs is a sample here; evaluate the uc-bench.jsonl of this run's export"
        )
    return {
        "elsewhere": len(found) - len(matched),
        "labels": {str(name): _means(several) for name, several in per.items() if several},
    }


def as_json(one: Difficulty) -> dict[str, Any]:
    """A difficulty as a row of a data set holds it."""
    return asdict(one)


def level(found: Mapping[str, Difficulty], id: str) -> Level:
    """How hard a sample is, as far as that is known."""
    return found[id].level if id in found else Level.UNKNOWN


def _means(several: Sequence[Difficulty | None]) -> dict[str, Any]:
    known = [one for one in several if one and one.level is not Level.UNKNOWN]
    levels = Counter(one.level for one in known)
    levels[Level.UNKNOWN] = len(several) - len(known)
    means = {
        name: fmean(getattr(one, name) for one in known) if known else None
        for name in ("score", "wrong", "unreadable", "entropy")
    }
    return {"samples": len(several), "levels": {name.value: levels[name] for name in Level}, **means}


def _gold(path: Path) -> dict[str, Label]:
    folder = Folder(path)
    if not folder.begun() or folder.method.get("protocol") != "uc":
        raise DifficultyError(f"{path} is no run of synuc eval uc; make one with: synuc eval uc ... --run {path}")
    if not (path / "metrics.json").exists():
        raise DifficultyError(f"{path} is not finished; give its command again")
    return {item["id"]: Label(item["label"]) for item in _rows(path / "items.jsonl")}


def _given(path: Path) -> dict[str, str]:
    return {
        result["id"]: (result["value"] or {}).get("predicted") or UNREADABLE for result in _rows(path / "results.jsonl")
    }


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.endswith("\n"))
