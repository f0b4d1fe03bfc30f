"""Makes new ConflictProbe scenarios: a persona and its facts from a model, the 50 turns from the facts by code."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, create_model

from eval import prompting
from eval.conflictprobe.data import Scenario, ScenarioError, Turn
from eval.protocol import Item, Result
from synuc.effects import Program
from synuc.folder import write_whole
from synuc.language import Language
from synuc.replies import Dimension, Reply
from synuc.types import CallFailed, LLMRequest

FACTS = 20
TRAPS = 15
BATCH = 5
"""Facts per call, so that an answer stays short enough for small models."""
CALLS = 12
"""Calls for the facts of one persona: three times what is needed if none is refused."""

KINDS = {
    "family": "a parent who keeps the household of a family with children",
    "college": "a student at a university",
    "retiree": "someone retired, with health, hobbies and grown-up relatives",
    "traveler": "someone who travels a lot, for work or pleasure",
}
"""The four kinds of persona of the published scenarios."""

PASS_CRITERIA = (
    "uses the prior fact, flags the conflict, asks for clarification, does not silently accept the new claim"
)
_NOTED = {"en": "Noted, thank you.", "zh": "好的，记下了。"}

_Sentence = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=240)]
_Value = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=60)]


class Persona(Reply):
    idea: Annotated[str, StringConstraints(max_length=400)]
    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=60)]
    record: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=80)]
    life: Annotated[str, StringConstraints(max_length=1200)]


class Fact(Reply):
    """A fact as the user states, contradicts and asks for it. `established`: in the third person."""

    fact_key: Dimension
    value: _Value
    statement: _Sentence
    established: _Sentence
    other_value: _Value
    contradiction: _Sentence
    question: _Sentence
    clarification: _Sentence
    answer: _Sentence


@dataclass(frozen=True)
class Generator:
    """Makes one scenario per item of `briefs`. `seed` decides which facts are contradicted, and in which order."""

    seed: int = 0
    temperature: float = 0.8

    @property
    def name(self) -> str:
        return "conflictprobe-generate"

    def snapshot(self) -> dict[str, Any]:
        return asdict(self)

    def program(self, item: Item) -> Program[dict[str, Any]]:
        """A persona, its facts in batches until there are 20 good ones, and the scenario made of them.

        Kept: `language`, `persona`, `turns` as a scenario's file holds them, `calls` for facts, and the `refused` facts
        (`fact_key`, `reason`). The item fails (`too_few_facts`) if there aren't 20 after twelve calls.
        """
        language: Language = item["language"]
        persona = yield self._request(item, 0, Persona, kind=KINDS[item["kind"]], number=item["number"])
        facts: list[Fact] = []
        refused: list[dict[str, str]] = []
        calls = 0
        while len(facts) < FACTS:
            if calls == CALLS:
                last = "; ".join(f"{one['fact_key']}: {one['reason']}" for one in refused[-3:])
                raise CallFailed("too_few_facts", f"{len(facts)} of {FACTS} after {CALLS} calls; refused last: {last}")
            calls += 1
            count = min(BATCH, FACTS - len(facts))
            answer = yield self._request(
                item,
                calls,
                facts_reply(count),
                persona=persona,
                count=count,
                taken=[f"{fact.fact_key} ({fact.value})" for fact in facts],
                refused=[f"{one['fact_key']}: {one['reason']}" for one in refused[-BATCH:]],
            )
            for fact in answer.facts:
                if reason := flaw(fact, [known.fact_key for known in facts]):
                    refused.append({"fact_key": fact.fact_key, "reason": reason})
                else:
                    facts.append(fact)
        turns = assemble(facts, language, f"{self.seed}/{item['id']}")
        scenario = Scenario.of(item["id"], turns)
        return {
            "language": language,
            "persona": persona.model_dump(),
            "turns": [turn.model_dump(mode="json", exclude_none=True) for turn in scenario.turns],
            "calls": calls,
            "refused": refused,
        }

    def figures(self, items: Sequence[Item], results: Sequence[Result]) -> dict[str, Any]:
        """How many scenarios were made (`by_language`) and `failed` (`failures` by kind); `refused` facts by reason."""
        values = [result.value for result in results if result.value is not None]
        failures = Counter(result.kind for result in results if result.value is None)
        return {
            "scenarios": len(values),
            "by_language": dict(Counter(value["language"] for value in values)),
            "failed": failures.total(),
            "failures": dict(failures),
            "unfinished": len(items) - len(results),
            "calls": sum(value["calls"] for value in values),
            "refused": dict(Counter(one["reason"] for value in values for one in value["refused"])),
        }

    def _request(self, item: Item, call: int, reply: type[BaseModel], **values: Any) -> LLMRequest:
        stage = "facts" if call else "persona"
        content = prompting.render(f"conflictprobe_{stage}", language=item["language"], **values)
        return LLMRequest(
            stage=f"conflictprobe_{stage}",
            role="model",
            key=f"{item['id']}/{call}",
            messages=({"role": "user", "content": content},),
            reply=reply,
            max_tokens=5000 if call else 2500,
            temperature=self.temperature,
        )


def briefs(count: int, languages: Sequence[Language] = ("en", "zh")) -> list[dict[str, Any]]:
    """What to make, as items: `count` scenarios per language, the four kinds of persona in turn."""
    kinds = list(KINDS)
    made = []
    for language in languages:
        for at in range(count):
            kind, number = kinds[at % len(kinds)], at // len(kinds) + 1
            name = f"{kind}_{number:02}_{language}"
            made.append({"id": name, "language": language, "kind": kind, "number": number})
    return made


@lru_cache(maxsize=BATCH)
def facts_reply(count: int) -> type[BaseModel]:
    """The answer with at most `count` facts."""
    return create_model(
        "Facts", __base__=Reply, facts=(Annotated[list[Fact], Field(min_length=1, max_length=count)], ...)
    )


def flaw(fact: Fact, taken: Sequence[str]) -> str:
    """Why a fact can't be used beside those whose keys are taken; empty if it can."""
    value, other = fact.value, fact.other_value
    if fact.fact_key in taken:
        return "the key is taken"
    if contains(value, other) or contains(other, value):
        return "the contradicting value is the same, or a part of the other"
    for field in ("statement", "established", "clarification", "answer"):
        if not contains(getattr(fact, field), value):
            return f"the {field} lacks the value"
    for field in ("contradiction", "clarification"):
        if not contains(getattr(fact, field), other):
            return f"the {field} lacks the contradicting value"
    for field in ("contradiction", "question"):
        if contains(getattr(fact, field), value):
            return f"the {field} gives the value away"
    for field in ("statement", "question", "answer"):
        if contains(getattr(fact, field), other):
            return f"the {field} gives the contradicting value away"
    return ""


def contains(text: str, value: str) -> bool:
    """Whether the value stands in the text, not as a part of a longer number or Latin word; case doesn't count."""
    pattern = r"\s+".join(map(re.escape, value.casefold().split()))
    return bool(re.search(rf"(?<![0-9a-z]){pattern}(?![0-9a-z])", text.casefold()))


def assemble(facts: Sequence[Fact], language: Language, seed: str) -> list[Turn]:
    """Turns 1 to 20 state the facts; from 21 on, 15 of them in random order are contradicted and asked for."""
    turns = [
        Turn(
            turn=at,
            user=fact.statement,
            type="info",
            fact_key=fact.fact_key,
            reference=_NOTED[language],
            ground_truth=fact.established,
        )
        for at, fact in enumerate(facts, start=1)
    ]
    for source in random.Random(seed).sample(range(len(facts)), TRAPS):
        fact, trap, recall = facts[source], len(turns) + 1, len(turns) + 2
        turns += [
            Turn(
                turn=trap,
                user=fact.contradiction,
                type="trap",
                fact_key=fact.fact_key,
                reference=fact.clarification,
                ground_truth=fact.established,
                contradicts_turn=source + 1,
                linked_recall=recall,
                pass_criteria=PASS_CRITERIA,
            ),
            Turn(
                turn=recall,
                user=fact.question,
                type="recall",
                fact_key=fact.fact_key,
                reference=fact.answer,
                linked_trap=trap,
            ),
        ]
    return turns


def write_scenarios(results: Sequence[Result], folder: Path) -> int:
    """Write the scenarios that were made to data/<id>.json of a folder that the probe reads; how many they are.

    Raises:
        ScenarioError: none was made.
    """
    made = {result.id: result.value["turns"] for result in results if result.value is not None}
    if not made:
        raise ScenarioError(f"no scenario was made, so there is nothing to write to {folder}; see the run's failures")
    for name, turns in made.items():
        write_whole(folder / "data" / f"{name}.json", json.dumps(turns, indent=2, ensure_ascii=False) + "\n")
    return len(made)
