"""What a project's items are made of: candidates of a benchmark, samples of UC-Data, or two models' answers."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eval.bench import Rationale
from eval.bench_mapping import Fields, item_values
from eval.folder import EvalFolder
from eval.pairwise import paired
from eval.records import Unfit
from review.config import ReviewError
from review.content import Content, Entry
from review.forms import Side, Why
from synuc.folder import Folder
from synuc.reading import visible
from synuc.sample import UC_DATA, of_uc_data
from synuc.types import Dialogue, Label, clean

SHARES: Mapping[Label, int] = {Label.ND: 33, Label.ER: 33, Label.IC: 34}
"""Samples of each label in a spot check."""

EXPORTED = (UC_DATA, f"export/{UC_DATA}")


def candidates(path: Path, subset: str) -> tuple[Entry, ...]:
    """The candidates of a file of JSON lines, as `synuc bench mine` writes it, or of the folder that holds it.

    A line is a record of the shape in `eval/bench.py` without label and rationale. `subset` is that of records which
    name none.

    Raises:
        ReviewError: naming the line that can't be used.
    """
    path = path / "candidates.jsonl" if path.is_dir() else path
    entries = []
    for line, record in _rows(path):
        if not isinstance(record, dict):
            raise ReviewError(f"{path}:{line}: a candidate is a JSON object")
        # To the reader of benchmarks, a candidate is an item whose label isn't known yet.
        asked = {name: value for name, value in record.items() if name != "rationale"}
        try:
            values = item_values({**asked, "label": "ND"}, Fields(), subset)
        except Unfit as unfit:
            raise ReviewError(f"{path}:{line}: {unfit}") from None
        content = Content(
            dialogue=_clean(Dialogue.model_validate(values["history"])),
            follow_up=clean(values["follow_up"]),
            subset=values["subset"],
            task=values["task"],
        )
        entries.append(Entry(key=clean(values["id"])[:200], language=values["language"], content=content))
    return _distinct(entries, path)


def samples(path: Path) -> tuple[Entry, ...]:
    """The accepted samples of `uc-data.jsonl`, given as the file, an export's folder or a synthesis run.

    Raises:
        ReviewError: naming the line that can't be used.
    """
    file = _exported(path)
    if file.is_dir():
        raise ReviewError(f"{path} holds no {UC_DATA}; write it with: synuc export RUN")
    entries = []
    for line, record in _rows(file):
        try:
            sample = of_uc_data(record)
        except ValidationError:
            raise ReviewError(f"{file}:{line}: no sample of UC-Data; name the {UC_DATA} of an export") from None
        if sample.follow_up is None or sample.label is None:
            raise ReviewError(f"{file}:{line}: a sample without follow-up or label; only accepted ones are exported")
        content = Content(
            dialogue=_clean(sample.dialogue),
            follow_up=clean(sample.follow_up),
            subset=sample.source,
            synthetic=sample.label,
        )
        entries.append(Entry(key=sample.id, language=sample.language, content=content))
    return _distinct(entries, file)


def run_of(path: Path) -> Path | None:
    """The synthesis run whose export holds the samples at `path`, if the export still lies in it."""
    folder = _exported(path).resolve().parent
    return folder.parent if folder.name == "export" and Folder(folder.parent).begun() else None


def comparisons(first: Path, second: Path) -> tuple[tuple[Entry, ...], int]:
    """The implicit conflicts of two finished classification runs with both models' reasonings, and how many lack one.

    Raises:
        Problem: a run isn't finished, or they are about different items, or have no conflict.
    """
    runs = (EvalFolder.existing(first, "uc"), EvalFolder.existing(second, "uc"))
    entries = []
    unanswered = 0
    for item in paired(*runs):
        if item["first"] is None or item["second"] is None:
            unanswered += 1
            continue
        rationale = Rationale.model_validate(item["rationale"])
        pair = [
            Side(**constraints[0].model_dump(include={"type", "dimension", "value", "evidence"}))
            if constraints
            else None
            for constraints in (rationale.historical, rationale.new)
        ]
        content = Content(
            dialogue=_clean(Dialogue.model_validate(item["history"])),
            follow_up=clean(item["follow_up"]),
            subset=item["subset"],
            task=item["task"],
            why=Why(text=rationale.text, historical=pair[0], new=pair[1]),
            answers=(clean(visible(item["first"]).strip()), clean(visible(item["second"]).strip())),
        )
        entries.append(Entry(key=item["id"], language=item["language"], content=content))
    if not entries:
        raise ReviewError(f"{first} and {second} have no item that both have answered")
    return tuple(entries), unanswered


def stratified(entries: Sequence[Entry], shares: Mapping[Label, int], seed: int) -> tuple[Entry, ...]:
    """A random sample with that many entries of each label, or all of them where there are fewer.

    The same entries, shares and seed give the same sample, whatever their order.
    """
    strata: dict[Label | None, list[Entry]] = defaultdict(list)
    for entry in shuffled(entries, seed):
        strata[entry.content.synthetic].append(entry)
    return tuple(entry for label, number in shares.items() for entry in strata[label][:number])


def shuffled(entries: Sequence[Entry], seed: int) -> list[Entry]:
    """The entries in an order that depends on their keys and the seed alone."""
    return sorted(entries, key=lambda entry: hashlib.sha256(f"{seed}/{entry.key}".encode()).digest())


def read_shares(text: str) -> dict[Label, int]:
    """`33/33/34` as how many of ND, ER and IC.

    Raises:
        ReviewError: it isn't three numbers.
    """
    parts = text.split("/")
    if len(parts) != len(Label) or not all(part.isdecimal() for part in parts) or not any(map(int, parts)):
        raise ReviewError(f"--sample {text}: write how many of ND, ER and IC, e.g. 33/33/34")
    return dict(zip(Label, map(int, parts), strict=True))


def _exported(path: Path) -> Path:
    return next((path / name for name in EXPORTED if (path / name).is_file()), path)


def _clean(dialogue: Dialogue) -> Dialogue:
    turns = tuple(
        turn.model_copy(update={"user": clean(turn.user), "assistant": clean(turn.assistant)})
        for turn in dialogue.turns
    )
    return Dialogue(turns=turns, system=clean(dialogue.system))


def _distinct(entries: list[Entry], path: Path) -> tuple[Entry, ...]:
    if not entries:
        raise ReviewError(f"{path} holds no record")
    seen: set[str] = set()
    for entry in entries:
        if entry.key in seen:
            raise ReviewError(f"{path}: the id {entry.key} stands there twice; every item needs one of its own")
        seen.add(entry.key)
    return tuple(entries)


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, json.loads(line)
    except (OSError, UnicodeDecodeError) as error:
        raise ReviewError(f"can't read {path} ({error}); name a file of JSON lines") from None
    except ValueError as error:
        raise ReviewError(f"{path}:{number}: no valid JSON ({error})") from None
