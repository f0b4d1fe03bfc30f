"""Whether dialogues of a benchmark stand in training data (paper, section 5.2, checks UC-Data against UC-Bench).

`exact`: the same messages of both sides, whatever their case and whitespace. `near`: of what the user wrote in the
shorter of the two histories, at least `NEAR` of the character n-grams stand in the other; so a dialogue is found that
goes on longer, or whose answers are another model's. Training data is streamed, only the benchmark is held in memory.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from pipelines.quality.dialogues import NoDialogue, Talk, talks
from pipelines.quality.near import NearIndex
from pipelines.readers import Refused
from synuc.folder import json_line
from synuc.problem import Problem
from synuc.progress import Status

NEAR = 0.7
LEAST = 40
"""N-grams that a history must have to be compared with others than its like: everybody begins with "hello"."""

BETWEEN_LINES = 500


class PairsUnwritten(Problem):
    """The file of pairs can't be written; the message says where."""


class Benchmark:
    """The dialogues of a benchmark, to compare others with."""

    def __init__(self, dialogues: Sequence[Talk]) -> None:
        self._names = [(talk.id, talk.place) for talk in dialogues]
        self._exact: dict[bytes, list[int]] = {}
        for number, talk in enumerate(dialogues):
            self._exact.setdefault(talk.digest, []).append(number)
        self.too_short = sum(map(too_short, dialogues))
        self._near = NearIndex([talk.users[:0] if too_short(talk) else talk.users for talk in dialogues], NEAR)

    def __len__(self) -> int:
        return len(self._names)

    def pairs(self, talk: Talk) -> Iterator[dict[str, Any]]:
        """The benchmark's dialogues that are the same as this one, or nearly: `kind`, ids, places, `share`."""
        same = self._exact.get(talk.digest, [])
        near = [] if too_short(talk) else self._near.contained(talk.users)
        for number in same:
            yield self._pair("exact", talk, number, 1.0)
        for number, share in near:
            if number not in same:
                yield self._pair("near", talk, number, round(share, 4))

    def _pair(self, kind: str, talk: Talk, number: int, share: float) -> dict[str, Any]:
        id, place = self._names[number]
        return {
            "kind": kind,
            "share": share,
            "train": talk.id,
            "bench": id,
            "train_place": talk.place,
            "bench_place": place,
        }


def too_short(talk: Talk) -> bool:
    """Whether a dialogue is only compared for equality."""
    return len(talk.users) < LEAST


def contamination(train: str, bench: Sequence[str], out: Path, console: Console) -> dict[str, Any]:
    """Compare training data with a benchmark; the pairs go to `out` as JSON lines, a whole file or none.

    Gives `train` and `bench`, each with the number of `dialogues`, of those `too_short` for all but exact equality, of
    those that are in a pair (`found`), and why others were `refused`; and `exact` and `near`, the numbers of pairs.

    Raises:
        NoDialogue: one of the two has none.
        PairsUnwritten: `out` can't be written.
    """
    refused: Counter[str] = Counter()
    items: list[Talk] = []
    with Status(console, "Reading the benchmark") as status:
        for path in bench:
            for talk in talks(path):
                if isinstance(talk, Refused):
                    refused[talk.reason] += 1
                else:
                    items.append(talk)
        _check(items, refused, ", ".join(bench))
        known = Benchmark(items)
        facts = _compare(train, known, out, status)
    return {
        **facts,
        "bench": {
            "dialogues": len(known),
            "too_short": known.too_short,
            "found": facts["bench"],
            "refused": dict(refused.most_common()),
        },
    }


def _compare(train: str, known: Benchmark, out: Path, status: Status) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    benches = set()
    temporary = out.with_name(f".{out.name}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for talk in talks(train):
                if isinstance(talk, Refused):
                    refused[talk.reason] += 1
                    continue
                counts["dialogues"] += 1
                found = list(known.pairs(talk))
                counts["found"] += bool(found)
                counts["too_short"] += too_short(talk)
                for pair in found:
                    counts[pair["kind"]] += 1
                    benches.add((pair["bench"], pair["bench_place"]))
                    file.write(json_line(pair))
                if counts["dialogues"] % BETWEEN_LINES == 0:
                    status.say(f"{counts['dialogues']:,} dialogues compared, {counts['found']:,} found")
            file.flush()
            os.fsync(file.fileno())
        _check(counts["dialogues"], refused, train)
        temporary.replace(out)
    except OSError as error:
        raise PairsUnwritten(f"can't write {out}: {error.strerror or error}; choose another --out") from None
    finally:
        temporary.unlink(missing_ok=True)
    return {
        "train": {name: counts[name] for name in ("dialogues", "too_short", "found")}
        | {"refused": dict(refused.most_common())},
        "bench": len(benches),
        "exact": counts["exact"],
        "near": counts["near"],
    }


def _check(dialogues: object, refused: Counter[str], where: str) -> None:
    if not dialogues:
        why = ", ".join(f"{n} {reason}" for reason, n in refused.most_common()) or "it is empty"
        raise NoDialogue(f"{where}: no dialogue to compare ({why}); give a run, an export, a benchmark or chat logs")


def lines(facts: dict[str, Any], out: Path) -> list[str]:
    """What was compared and found, for a person."""
    said = []
    for name, words in (("train", "training data"), ("bench", "benchmark")):
        part = facts[name]
        said.append(f"{words}: {part['dialogues']:,} dialogues, {part['found']:,} of them in a pair")
        if part["too_short"]:
            said.append(f"  {part['too_short']:,} too short to be compared but for equality")
        said += [f"  {n:,} refused: {reason}" for reason, n in part["refused"].items()]
    said.append(f"pairs: {facts['exact']:,} exact, {facts['near']:,} near; see {out}")
    return said
