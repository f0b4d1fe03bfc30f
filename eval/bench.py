"""UC-Bench items (paper, section 5.1): a dialogue, a follow-up, the gold label, and why. Reading and writing them.

The documented shape is JSON lines, one object per line:

    id           text, different for every item; if missing, a hash of the content
    subset       text, e.g. "WildChat-UC"; if missing, the name of the file without its ending
    language     ISO 639-1 code, e.g. "en"; if missing, found from the text
    system       text, the system message of the dialogue; may be missing
    history      list of {"role": "user" or "assistant", "content": text}, alternating, from the user to the assistant
    follow_up    text, the user's next message
    label        "ND", "ER" or "IC", or in words ("Implicit Conflict"), in any case
    rationale    for IC, and if you like for ER:
                 {"historical": [constraint, ...], "new": [constraint, ...], "text": text}, the decisive pair first;
                 the constraints, or the text, may be missing
    speaking     one of the eight SPEAKING dimensions along which the requirement changed; may be missing
    task         text, the task category, e.g. "planning"; may be missing

A constraint is {"type": "explicit" or "implicit", "dimension": text, "value": text, "evidence": text, "turn": number}:
the words of the dialogue that support it, and the user turn they are in, from 1; both may be missing, and `turn` is for
historical ones. Other fields of a record are not read. Records with other names are read through `Fields`.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, model_validator

from eval.bench_mapping import Fields, found, item_values
from eval.records import SUFFIXES, RecordsError, Unfit, first_problem, records
from synuc.folder import json_line, write_whole
from synuc.speaking import Speaking
from synuc.types import ConstraintType, Dialogue, Frozen, Label, Relation

__all__ = [
    "Bench",
    "BenchItem",
    "Fields",
    "GoldConstraint",
    "Rationale",
    "Refused",
    "read_bench",
    "write_bench",
]

SHOWN = 3  # reasons that an error lists


class GoldConstraint(Frozen):
    """A constraint of a gold rationale. `turn` is the user turn of its evidence, from 1, if it is known."""

    type: ConstraintType
    dimension: str
    value: str
    evidence: str = ""
    turn: int | None = None

    def __str__(self) -> str:
        return f"{self.type} {self.dimension}: {self.value}"


class Rationale(Frozen):
    """Why an item has its label: the constraints that clash, the decisive ones first, and the annotators' words."""

    historical: tuple[GoldConstraint, ...] = ()
    new: tuple[GoldConstraint, ...] = ()
    text: str = ""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.text.strip() and not (self.historical and self.new):
            raise ValueError("a rationale names historical and new constraints, or says in `text` what clashes")
        return self


class BenchItem(Frozen):
    """An item of a benchmark. `history` ends with an assistant's turn; `task` is its task category, if it has one."""

    id: str
    subset: str
    language: str
    history: Dialogue
    follow_up: str
    label: Label
    rationale: Rationale | None = None
    speaking: Speaking | None = None
    task: str | None = None

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.label is Label.IC and self.rationale is None:
            raise ValueError("an implicit conflict needs a rationale")
        if self.label is Label.ND and self.rationale is not None:
            raise ValueError("a normal dialogue has no rationale")
        if (relation := self.relation) and relation.label is not self.label:
            raise ValueError(f"its constraints are of types {relation.value}, which is not {self.label.value}")
        return self

    @property
    def relation(self) -> Relation | None:
        """The relation of the decisive pair, where the rationale names it."""
        if self.rationale is None or not self.rationale.historical or not self.rationale.new:
            return None
        return Relation.of(self.rationale.historical[0].type, self.rationale.new[0].type)


@dataclass(frozen=True)
class Refused:
    """A record that gives no item. `line`: of a .jsonl, from 1; in other files the record's number, from 1."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


@dataclass(frozen=True)
class Bench:
    """The items of one or more files, in their order, and what was refused."""

    items: tuple[BenchItem, ...]
    refused: tuple[Refused, ...]


def read_bench(paths: Sequence[Path], fields: Fields = Fields()) -> Bench:
    """The benchmark in files, folders and globs: .jsonl, .jsonl.gz, .json (an array) and .parquet.

    Raises:
        RecordsError: a path stands for no readable file, no record gives an item, or a field that `fields` names is in
            none of the records.
    """
    items: dict[str, BenchItem] = {}
    places: dict[str, str] = {}
    refused: list[Refused] = []
    seen: set[str] = set()
    for file in [file for path in paths for file in _files(path)]:
        stem = file.name.removesuffix(".gz").rpartition(".")[0]
        for line, record in records(file):
            seen |= {name for name, path in fields.paths().items() if found(record, path) is not None}
            try:
                if isinstance(record, Unfit):
                    raise record
                item = _item(record, fields, stem)
                if item.id in items:
                    raise Unfit(
                        f"the id {item.id} is already that of {places[item.id]}; if these are different items, "
                        "have ids made from the content with --set fields.id=''"
                    )
            except Unfit as unfit:
                refused.append(Refused(str(file), line, str(unfit)))
            else:
                items[item.id] = item
                places[item.id] = f"{file}:{line}"
    _check(items, refused, fields, seen)
    return Bench(tuple(items.values()), tuple(refused))


def write_bench(items: Sequence[BenchItem], path: Path) -> None:
    """Write items as JSON lines of the documented shape; what an item doesn't have is left out."""
    write_whole(path, "".join(json_line(_documented(item)) for item in items))


def _documented(item: BenchItem) -> dict[str, Any]:
    row = item.model_dump(mode="json", exclude_none=True)
    turns = item.history.turns
    said = [pair for turn in turns for pair in (("user", turn.user), ("assistant", turn.assistant))]
    history = [{"role": role, "content": text} for role, text in said]
    system = {"system": item.history.system} if item.history.system else {}
    head = {name: row.pop(name) for name in ("id", "subset", "language")}
    return {**head, **system, **row, "history": history}


def _check(items: Mapping[str, BenchItem], refused: Sequence[Refused], fields: Fields, seen: set[str]) -> None:
    if not items:
        reasons = "".join(f"\n  {one}" for one in refused[:SHOWN]) or "\n  there is no record at all"
        raise RecordsError(
            f"no usable item of a benchmark; refused records: {len(refused)}, for example:{reasons}\n"
            "mend the records, or say with --set fields.NAME=PATH where yours hold what (eval/bench.py has the shape)"
        )
    named = {name: path for name, path in fields.paths().items() if path != Fields.model_fields[name].default}
    if unseen := ", ".join(f"fields.{name} ({path})" for name, path in named.items() if name not in seen):
        raise RecordsError(f"{unseen}: none of the records has it; name another field, or leave it out")


def _item(record: object, fields: Fields, stem: str) -> BenchItem:
    try:
        return BenchItem.model_validate(item_values(record, fields, stem))
    except ValidationError as error:
        raise Unfit(first_problem(error)) from None


def _files(path: Path) -> list[Path]:
    if path.is_file():
        if not path.name.lower().endswith(SUFFIXES):
            raise RecordsError(f"{path}: can't tell what this file holds; readable are {', '.join(SUFFIXES)}")
        return [path]
    there = path.rglob("*") if path.is_dir() else map(Path, glob.glob(str(path), recursive=True))
    files = sorted(file for file in there if file.is_file() and file.name.lower().endswith(SUFFIXES))
    if not files:
        raise RecordsError(f"{path}: no file ending in {', '.join(SUFFIXES)} there; check the path")
    return files
