"""The cases of ConInstruct, the items that its three evaluations ask about, and the calls that they share.

A case is a line of a JSONL file:

    {"id": "en-story", "task": "story", "domain": "children's literature",
     "seed": "the short instruction that it was made from",
     "instruction": "the expanded instruction, with constraints of all six kinds and no conflict",
     "constraints": [{"kind": "content", "text": "as in the instruction"}, ...],
     "conflicts": [{"kind": "CC", "original": "a constraint as in the instruction", "new": "what excludes it"}, ...]}

A case has at most one conflict of each kind (ConInstruct, section 2.1; 8.6 on average in the original data).
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, StringConstraints, ValidationError, model_validator

from eval import prompting
from eval.protocol import Item
from eval.records import RecordsError, Unfit, first_problem, records
from synuc.types import EvaluationRole, Frozen, LLMRequest, Spoken

ConstraintKind = Literal["content", "keyword", "phrase", "length", "format", "style"]
ConflictKind = Literal["CC", "KK", "PP", "LL", "FF", "SS", "KP", "PC", "PS"]
CONSTRAINT_KINDS: tuple[ConstraintKind, ...] = get_args(ConstraintKind)
CONFLICT_KINDS: tuple[ConflictKind, ...] = get_args(ConflictKind)
INTRA, INTER = CONFLICT_KINDS[:6], CONFLICT_KINDS[6:]
COUNTS = range(1, 7)
"""Conflicts in the instructions with several (ConInstruct, section 3.1)."""

MAX_TOKENS = 2048
"""Of an answer of the evaluated model, at temperature 0 (ConInstruct, section 3.2)."""

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Row = TypeVar("Row", bound="SeedInstruction")


class SeedInstruction(Frozen):
    """A short instruction to be expanded, one of a task and a domain (ConInstruct, section 2.1)."""

    id: Text
    task: Text
    domain: Text
    seed: Text


class StatedConstraint(Frozen):
    kind: ConstraintKind
    text: Text


class Conflict(Frozen):
    """`original` stands in the expanded instruction, `new` excludes it."""

    kind: ConflictKind
    original: Text
    new: Text


class Case(SeedInstruction):
    instruction: Text
    constraints: tuple[StatedConstraint, ...]
    conflicts: tuple[Conflict, ...]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if missing := set(CONSTRAINT_KINDS) - {constraint.kind for constraint in self.constraints}:
            raise ValueError(f"it has no constraint of kind {', '.join(sorted(missing))}")
        kinds = [conflict.kind for conflict in self.conflicts]
        if twice := {kind for kind in kinds if kinds.count(kind) > 1}:
            raise ValueError(f"it has more than one conflict of kind {', '.join(sorted(twice))}")
        return self


def read_cases(path: Path) -> list[Case]:
    """The cases of a JSONL file, in its order. Raises RecordsError, as `read_seeds` does."""
    return _read(path, Case)


def read_seeds(path: Path) -> list[SeedInstruction]:
    """The seed instructions of a JSONL file with `id`, `task`, `domain` and `seed`, in its order.

    Raises:
        RecordsError: the file can't be read or is empty, or rows are refused: the message says which and why.
    """
    return _read(path, SeedInstruction)


def _read(path: Path, model: type[Row]) -> list[Row]:
    rows: dict[str, Row] = {}
    refused = []
    for number, record in records(path):
        try:
            if isinstance(record, Unfit):
                raise record
            row = model.model_validate(record)
            if row.id in rows:
                raise Unfit(f"another row has the id {row.id!r}")
        except ValidationError as error:
            refused.append(f"line {number}: {first_problem(error)}")
        except Unfit as unfit:
            refused.append(f"line {number}: {unfit}")
        else:
            rows[row.id] = row
    if refused:
        raise RecordsError(f"{path}: {len(refused)} rows can't be used; mend or remove them:\n" + "\n".join(refused))
    if not rows:
        raise RecordsError(f"{path} has no rows; it needs one JSON object per line")
    return list(rows.values())


def joined(first: str, second: str) -> str:
    """Two parts of an instruction in one line, with a space between them unless the first is in a script without."""
    return first + second if unicodedata.east_asian_width(first[-1]) in "WF" else f"{first} {second}"


def item_of(case: Case, name: str, instruction: str, conflicts: Iterable[Conflict], **more: Any) -> dict[str, Any]:
    """A row of items.jsonl: `id`, `case`, `kinds` (of the conflicts in it, in order), `instruction`, and `more`."""
    kinds = [conflict.kind for conflict in conflicts]
    return {"id": f"{case.id}/{name}", "case": case.id, "kinds": kinds, "instruction": instruction, **more}


def with_conflicts(case: Case, conflicts: Iterable[Conflict]) -> str:
    """The instruction with the new constraints of `conflicts` appended in their order (ConInstruct, section 3.1)."""
    text = case.instruction
    for conflict in conflicts:
        text = joined(text, conflict.new)
    return text


def free_items(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The conflict-free instruction of each case, with `part` = `free`."""
    return [item_of(case, "free", case.instruction, (), part="free") for case in cases]


def detection_items(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The conflict-free instructions, and one with each conflict of each case (`part` = `single`).

    The nine subsets of ConInstruct, section 3.1, are read off them: all conflict-free instructions and those whose
    `kinds` is that kind alone.
    """
    return free_items(cases) + [
        item_of(case, conflict.kind, with_conflicts(case, [conflict]), [conflict], part="single")
        for case in cases
        for conflict in case.conflicts
    ]


def multi_items(cases: Sequence[Case], counts: Iterable[int] = COUNTS, seed: int = 0) -> list[dict[str, Any]]:
    """For each case and count one instruction with that many of its conflicts, drawn and shuffled (`part` = `multi`).

    What is drawn depends on `seed`, the case's id and the count alone. A case with fewer conflicts has no such item.
    """
    return [
        item_of(case, f"x{count}", with_conflicts(case, drawn), drawn, part="multi")
        for case in cases
        for count in counts
        if count <= len(case.conflicts)
        for drawn in [random.Random(f"{seed}/{case.id}/{count}").sample(case.conflicts, count)]
    ]


def cases_without(items: Sequence[Item], count: int) -> int:
    """Cases among `items` that have no instruction with `count` conflicts drawn, for lack of conflicts."""
    all_cases = {item["case"] for item in items}
    return len(all_cases - {item["case"] for item in items if item["part"] == "multi" and len(item["kinds"]) == count})


def prompted(
    stage: str, role: EvaluationRole, key: str, reply: type[BaseModel], max_tokens: int, **values: Any
) -> LLMRequest:
    """The call of a stage with its template `coninstruct_<stage>`, filled in with `values`, at temperature 0."""
    return LLMRequest(
        stage=f"coninstruct_{stage}",
        role=role,
        key=key,
        messages=({"role": "user", "content": prompting.render(f"coninstruct_{stage}", **values)},),
        reply=reply,
        max_tokens=max_tokens,
    )


def answered(item: Item, system: str = "") -> LLMRequest:
    """The call that answers an item's instruction, as a user would send it, after a system text if there is one."""
    before = ({"role": "system", "content": system},) if system else ()
    return LLMRequest(
        stage="coninstruct_answer",
        role="model",
        key=item["id"],
        messages=(*before, {"role": "user", "content": item["instruction"]}),
        reply=Spoken,
        max_tokens=MAX_TOKENS,
    )
