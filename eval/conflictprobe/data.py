"""ConflictProbe's scenarios: scripted user turns in the published folder layout ("Dataset layout").

data/<scenario>.json        a list of turns; `_scenarios.json` and `turns.jsonl` beside them repeat these
prompts/model_system.txt    the system prompt of the model under test; ours for the scenario's language if missing
prompts/judge_system.txt    the judge's system prompt, answered as `Q1|Q2|EVIDENCE`; ours if missing
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from eval import prompting
from eval.records import first_problem
from synuc.language import Language, spoken_to
from synuc.problem import Problem
from synuc.types import Frozen

Text = Annotated[str, StringConstraints(min_length=1)]


class ScenarioError(Problem):
    """A folder or file of scenarios that can't be used; the message names the file and the turn."""


class Turn(BaseModel):
    """A scripted user turn, `turn` counted from 1. `reference` is for readers: no model ever sees it."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    turn: int
    user: Text
    type: Literal["info", "trap", "recall"]
    fact_key: Text
    reference: str = ""
    ground_truth: str | None = None
    contradicts_turn: int | None = None
    linked_recall: int | None = None
    linked_trap: int | None = None
    pass_criteria: Any = None


@dataclass(frozen=True)
class Conflict:
    """A fact's three turns: stated, contradicted, asked for."""

    source: Turn
    trap: Turn
    recall: Turn


class Scenario(Frozen):
    """The user's side of one dialogue. As plain JSON it is the item of a run."""

    id: str
    language: Language
    turns: tuple[Turn, ...]

    @classmethod
    def of(cls, name: str, turns: Sequence[Turn]) -> Self:
        """A scenario that holds together; its language is that of most of its turns.

        Raises:
            ValueError: it doesn't; the message names the turn.
        """
        check(turns)
        chinese = sum(spoken_to(turn.user) == "zh" for turn in turns)
        return cls(id=name, language="zh" if 2 * chinese > len(turns) else "en", turns=tuple(turns))

    def conflicts(self) -> list[Conflict]:
        """The facts that are contradicted, in the order of their traps."""
        by_number = {turn.turn: turn for turn in self.turns}
        return [
            Conflict(by_number[trap.contradicts_turn], trap, by_number[trap.linked_recall])
            for trap in self.turns
            if trap.type == "trap" and trap.contradicts_turn and trap.linked_recall
        ]


class Systems(Frozen):
    """System prompts: of the model under test by language, and of the judge (None: ours, with a bounded reply)."""

    en: str
    zh: str
    judge: str | None = None


def read_scenarios(folder: Path) -> list[dict[str, Any]]:
    """The scenarios of a folder as items: `id` (the file's name), `language` and `turns`, sorted by id.

    Raises:
        ScenarioError: there are none, or one is broken.
    """
    files = sorted(file for file in folder.glob("data/*.json") if not file.name.startswith("_"))
    if not files:
        raise ScenarioError(f"{folder} holds no scenarios; they are expected as {folder / 'data'}/<scenario>.json")
    return [_read(file).model_dump(mode="json") for file in files]


def read_systems(folder: Path | None = None) -> Systems:
    """The system prompts of a folder, ours where it has none."""
    model, judge = (_text(folder, f"{who}_system.txt") for who in ("model", "judge"))
    return Systems(
        en=model or prompting.render("conflictprobe_model_en"),
        zh=model or prompting.render("conflictprobe_model_zh"),
        judge=judge,
    )


def check(turns: Sequence[Turn]) -> None:
    """Whether turns are numbered from 1, and every trap names the info turn and the recall turn that belong to it.

    Raises:
        ValueError: they don't; the message names the turn.
    """
    if not any(turn.type == "trap" for turn in turns):
        raise ValueError("there is no turn of type trap, so nothing is contradicted")
    for position, turn in enumerate(turns, start=1):
        if problem := _problem(position, turn, turns):
            raise ValueError(f"turn {position}: {problem}")


def _problem(position: int, turn: Turn, turns: Sequence[Turn]) -> str:
    if turn.turn != position:
        return f"it is numbered {turn.turn}; turns are numbered from 1 in order"
    if turn.type == "trap":
        if not turn.ground_truth:
            return "a trap needs the established fact as ground_truth"
        source, recall = _at(turns, turn.contradicts_turn), _at(turns, turn.linked_recall)
        if source is None or source.type != "info" or source.turn > position:
            return f"contradicts_turn is {turn.contradicts_turn}, which is no earlier turn of type info"
        if recall is None or recall.type != "recall" or recall.turn < position or recall.linked_trap != position:
            return f"linked_recall is {turn.linked_recall}, which is no later recall turn with linked_trap {position}"
    if turn.type == "recall":
        trap = _at(turns, turn.linked_trap)
        if trap is None or trap.type != "trap" or trap.linked_recall != position:
            return f"linked_trap is {turn.linked_trap}, which is no trap turn with linked_recall {position}"
    return ""


def _at(turns: Sequence[Turn], number: int | None) -> Turn | None:
    return turns[number - 1] if number and 1 <= number <= len(turns) else None


def _read(file: Path) -> Scenario:
    try:
        rows = json.loads(file.read_text("utf-8"))
        if not isinstance(rows, list):
            raise ValueError("a scenario is a list of turns")
        return Scenario.of(file.stem, [_turn(position, row) for position, row in enumerate(rows, start=1)])
    except ValueError as error:  # also broken UTF-8 and JSON
        raise ScenarioError(f"{file}: {error}") from None


def _turn(position: int, row: object) -> Turn:
    try:
        return Turn.model_validate(row)
    except ValidationError as error:
        raise ValueError(f"turn {position}: {first_problem(error, 'the turn')}") from None


def _text(folder: Path | None, name: str) -> str | None:
    file = folder / "prompts" / name if folder else None
    return file.read_text("utf-8").strip() if file and file.exists() else None
