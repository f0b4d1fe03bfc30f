"""Makes cases from seed instructions: expansion, one conflict of each kind, and a check of every pair.

ConInstruct, section 2.1 and Appendix E. In place of the annotators of section 2.2 a judge checks each pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints, create_model

from eval.coninstruct.data import (
    CONFLICT_KINDS,
    CONSTRAINT_KINDS,
    MAX_TOKENS,
    Case,
    Conflict,
    ConflictKind,
    SeedInstruction,
    StatedConstraint,
    prompted,
)
from eval.judging import judged, kinds
from eval.protocol import Item, Result
from synuc.effects import Fork, Program
from synuc.folder import json_line, write_whole
from synuc.replies import Analysis, Reason, Reply

CHECK_TOKENS = 1000
WORDS = dict(zip("CKPLFS", CONSTRAINT_KINDS, strict=True))
"""What the letters of a kind of conflict stand for."""


def _one_line(text: str) -> str:
    if not (line := " ".join(text.split())):
        raise ValueError("it is not empty")
    return line


Sentence = Annotated[str, StringConstraints(min_length=1, max_length=300), AfterValidator(_one_line)]
Sentences = Annotated[list[Sentence], Field(min_length=1, max_length=2)]
Instruction = Annotated[str, StringConstraints(min_length=1, max_length=3000), AfterValidator(_one_line)]


class Expansion(Reply):
    """At least one constraint of each kind, and the instruction that carries them."""

    plan: Reason
    content: Sentences
    keyword: Sentences
    phrase: Sentences
    length: Sentences
    format: Sentences
    style: Sentences
    instruction: Instruction

    def constraints(self) -> tuple[StatedConstraint, ...]:
        return tuple(
            StatedConstraint(kind=kind, text=text) for kind in CONSTRAINT_KINDS for text in getattr(self, kind)
        )


@lru_cache(maxsize=256)
def expansion_reply(question: str) -> type[Expansion]:
    """An `Expansion` whose instruction begins with `question`, letter by letter (ConInstruct, Appendix E)."""

    def begun(text: str) -> str:
        if not text.startswith(question):
            raise ValueError("it begins with the question, unchanged")
        return text

    instruction: Any = Annotated[Instruction, AfterValidator(begun)]
    return create_model("ExpandedQuestion", __base__=Expansion, instruction=(instruction, ...))


class ConflictPair(Reply):
    original: Sentence
    new: Sentence


class ConflictPairs(Reply):
    """One pair of each kind."""

    plan: Analysis
    CC: ConflictPair
    KK: ConflictPair
    PP: ConflictPair
    LL: ConflictPair
    FF: ConflictPair
    SS: ConflictPair
    KP: ConflictPair
    PC: ConflictPair
    PS: ConflictPair

    def conflicts(self) -> tuple[Conflict, ...]:
        pairs: dict[ConflictKind, ConflictPair] = {kind: getattr(self, kind) for kind in CONFLICT_KINDS}
        return tuple(Conflict(kind=kind, original=pair.original, new=pair.new) for kind, pair in pairs.items())


class PairCheck(Reply):
    reason: Reason
    original_present: bool
    exclusive: bool
    right_kind: bool

    def failed(self) -> list[str]:
        """The conditions that don't hold."""
        return [name for name in CONDITIONS if not getattr(self, name)]


CONDITIONS = ("original_present", "exclusive", "right_kind")


def build(seed: SeedInstruction) -> Program[dict[str, Any]]:
    """Makes one case.

    Returns `case` (a `Case` as JSON, with the pairs that passed the check) and `dropped`: a list of `kind`, `original`,
    `new`, `failed` (which of CONDITIONS) and the judge's `reason`.

    Raises:
        CallFailed: no usable answer.
    """
    question = _one_line(seed.seed) if seed.seed.endswith(("?", "？")) else ""
    expansion: Expansion = yield prompted(
        "expand", "model", seed.id, expansion_reply(question), MAX_TOKENS, seed=seed.seed, question=question
    )
    constraints = expansion.constraints()
    pairs: ConflictPairs = yield prompted(
        "conflicts",
        "model",
        seed.id,
        ConflictPairs,
        MAX_TOKENS,
        instruction=expansion.instruction,
        constraints=constraints,
    )
    conflicts = pairs.conflicts()
    checks: list[PairCheck] = yield Fork(tuple(_check(seed, expansion.instruction, conflict) for conflict in conflicts))
    case = Case(
        **seed.model_dump(),
        instruction=expansion.instruction,
        constraints=constraints,
        conflicts=tuple(conflict for conflict, check in zip(conflicts, checks, strict=True) if not check.failed()),
    )
    dropped = [
        {**conflict.model_dump(), "failed": check.failed(), "reason": check.reason}
        for conflict, check in zip(conflicts, checks, strict=True)
        if check.failed()
    ]
    return {"case": case.model_dump(mode="json"), "dropped": dropped}


def _check(seed: SeedInstruction, instruction: str, conflict: Conflict) -> Program[PairCheck]:
    first, second = (WORDS[letter] for letter in conflict.kind)
    request = prompted(
        "check",
        "judge",
        f"{seed.id}/{conflict.kind}",
        PairCheck,
        CHECK_TOKENS,
        instruction=instruction,
        original=conflict.original,
        new=conflict.new,
        first=first,
        second=second,
    )
    check: PairCheck = yield from judged(request)
    return check


@dataclass(frozen=True)
class Builder:
    """Makes cases with the driver of evaluations. Its items are `SeedInstruction`s as JSON."""

    @property
    def name(self) -> str:
        return "coninstruct-build"

    def snapshot(self) -> dict[str, Any]:
        return {"max_tokens": MAX_TOKENS}

    def program(self, item: Item) -> Program[dict[str, Any]]:
        return build(SeedInstruction.model_validate(dict(item)))

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """Seeds made into cases or not, and pairs by kind of conflict.

        `seeds`, `cases`, `failed` (by kind of failure), `conflicts_per_case` (mean, None without cases); `kinds`: for
        each kind `made`, `kept`, `dropped` and, under `reasons`, how many pairs failed each of CONDITIONS.
        """
        made = [result.value for result in results if result.value is not None]
        kept = Counter(conflict["kind"] for value in made for conflict in value["case"]["conflicts"])
        return {
            "seeds": len(items),
            "cases": len(made),
            "failed": kinds(results),
            "conflicts_per_case": kept.total() / len(made) if made else None,
            "kinds": {kind: _kind(kind, made, kept[kind]) for kind in CONFLICT_KINDS},
        }


def _kind(kind: ConflictKind, made: Sequence[Mapping[str, Any]], kept: int) -> dict[str, Any]:
    dropped = [pair for value in made for pair in value["dropped"] if pair["kind"] == kind]
    reasons = Counter(condition for pair in dropped for condition in pair["failed"])
    return {
        "made": kept + len(dropped),
        "kept": kept,
        "dropped": len(dropped),
        "reasons": {condition: reasons[condition] for condition in CONDITIONS},
    }


def write_cases(results: Iterable[Result], path: Path) -> int:
    """Writes the cases that were made as JSON lines, to be read by `data.read_cases`; returns how many."""
    cases = [result.value["case"] for result in results if result.value is not None]
    write_whole(path, "".join(map(json_line, cases)))
    return len(cases)
