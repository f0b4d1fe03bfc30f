"""New ConflictProbe scenarios: which facts are good, how they become turns, and that the probe can read them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from eval.conflictprobe.data import Scenario, ScenarioError, read_scenarios
from eval.conflictprobe.generate import (
    CALLS,
    Fact,
    Generator,
    Persona,
    assemble,
    briefs,
    contains,
    flaw,
    write_scenarios,
)
from eval.protocol import Result
from synuc.language import Language
from synuc.types import CallFailed, LLMRequest
from tests.evaluation import Answer, drive

AGE = Fact(
    fact_key="age",
    value="38",
    statement="I'm 38 years old.",
    established="Sarah is 38 years old.",
    other_value="45",
    contradiction="I'm 45 and have never given you another age.",
    question="In the Carter family record, how old did I previously say I am?",
    clarification="Earlier you said you're 38, now 45. Which is right?",
    answer="You said you are 38.",
)
CAT = Fact(
    fact_key="cat_name",
    value="豆包",
    statement="我的猫叫豆包。",
    established="陈宇的猫叫豆包。",
    other_value="年糕",
    contradiction="我的猫叫年糕，从来没叫过别的名字。",
    question="在小陈的档案里，我之前说我的猫叫什么？",
    clarification="您之前说猫叫豆包，现在说叫年糕，以哪个为准？",
    answer="您之前说叫豆包。",
)
PERSONA = {"idea": "i", "name": "Sarah Carter", "record": "the Carter family record", "life": "A life."}


def fact(n: int, **changes: str) -> dict[str, str]:
    """A good fact about shelf n."""
    return {
        "fact_key": f"shelf_{n}",
        "value": f"{n} books",
        "statement": f"Shelf {n} holds {n} books.",
        "established": f"Sarah's shelf {n} holds {n} books.",
        "other_value": f"{n} cups",
        "contradiction": f"Shelf {n} holds {n} cups.",
        "question": f"What did I say is on shelf {n}?",
        "clarification": f"Is it {n} books or {n} cups?",
        "answer": f"You said {n} books.",
        **changes,
    }


def model(request: LLMRequest, facts: Iterator[dict[str, str]]) -> Answer:
    if request.reply is Persona:
        return PERSONA
    most = request.reply.model_json_schema()["properties"]["facts"]["maxItems"]
    return {"facts": [next(facts) for _ in range(most)]}


def made(item: Mapping[str, Any], facts: Iterator[dict[str, str]], seed: int = 0) -> dict[str, Any]:
    value: dict[str, Any] = drive(Generator(seed).program(item), lambda request: model(request, facts))
    return value


@pytest.mark.parametrize("good", [AGE, CAT, Fact.model_validate(fact(1))])
def test_good_facts(good: Fact) -> None:
    assert flaw(good, ["other"]) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fact_key": "Home City"}, "the key is taken"),
        ({"other_value": "38"}, "the contradicting value is the same"),
        ({"other_value": "38 and a half"}, "the contradicting value is the same, or a part"),
        ({"statement": "I'm thirty-eight."}, "the statement lacks the value"),
        ({"established": "Sarah is 380 months old."}, "the established lacks the value"),
        ({"answer": "You told me."}, "the answer lacks the value"),
        ({"clarification": "You said 38. Sure?"}, "the clarification lacks the contradicting value"),
        ({"contradiction": "I'm older."}, "the contradiction lacks the contradicting value"),
        ({"contradiction": "I'm 45, not 38."}, "the contradiction gives the value away"),
        ({"question": "Did I say I'm 38?"}, "the question gives the value away"),
        ({"question": "Did I say I'm 45?"}, "the question gives the contradicting value away"),
        ({"answer": "38, later 45."}, "the answer gives the contradicting value away"),
    ],
)
def test_flaws(changes: dict[str, str], reason: str) -> None:
    assert flaw(Fact.model_validate(AGE.model_dump() | changes), ["home_city"]).startswith(reason)


@pytest.mark.parametrize(
    ("text", "value", "is_in"),
    [
        ("I'm 38.", "38", True),
        ("我今年38岁", "38", True),
        ("I'm 138.", "38", False),
        ("A caterpillar", "cat", False),
        ("My CAT sleeps", "cat", True),
        ("a green\nSkoda", "Green Skoda", True),
        ("C++ (mostly)", "C++", True),
        ("我的猫叫豆包。", "豆包", True),
    ],
)
def test_a_value_is_no_part_of_a_longer_word(text: str, value: str, is_in: bool) -> None:
    assert contains(text, value) is is_in


def test_fifty_turns_of_twenty_facts_fifteen_of_them_contradicted() -> None:
    facts = [Fact.model_validate(fact(n)) for n in range(1, 21)]
    turns = assemble(facts, "en", "0/a")
    assert Counter(turn.type for turn in turns) == {"info": 20, "trap": 15, "recall": 15}
    assert [turn.type for turn in turns[20:]] == ["trap", "recall"] * 15
    conflicts = Scenario.of("a", turns).conflicts()
    assert len({conflict.source.turn for conflict in conflicts}) == 15
    for conflict in conflicts:
        about = facts[conflict.source.turn - 1]
        assert conflict.source.user == about.statement
        assert conflict.trap.user == about.contradiction
        assert conflict.trap.ground_truth == conflict.source.ground_truth == about.established
        assert conflict.recall.user == about.question
        assert conflict.recall.turn == conflict.trap.turn + 1
        assert {conflict.source.fact_key, conflict.trap.fact_key, conflict.recall.fact_key} == {about.fact_key}
    assert assemble(facts, "en", "0/a") == turns
    assert assemble(facts, "en", "1/a") != turns


def test_refused_facts_are_counted_and_asked_for_again() -> None:
    asked: list[LLMRequest] = []
    # The second repeats a key, the third gives its value away.
    facts = chain_of(fact(1), fact(1), fact(2, question="Did I say 2 books?"))
    value = drive(Generator().program(briefs(1)[0]), lambda request: model(request, facts), asked)
    assert value["calls"] == 5
    assert value["refused"] == [
        {"fact_key": "shelf_1", "reason": "the key is taken"},
        {"fact_key": "shelf_2", "reason": "the question gives the value away"},
    ]
    last = asked[-1].messages[0]["content"]
    assert "Write exactly 2 new facts" in last
    assert "shelf_1 (1 books); shelf_3 (3 books)" in last
    assert "- shelf_2: the question gives the value away" in last
    assert len(asked) == 6


def chain_of(*first: dict[str, str]) -> Iterator[dict[str, str]]:
    yield from first
    yield from map(fact, count(3))


def test_asking_again_ends() -> None:
    asked: list[LLMRequest] = []
    same = (fact(1) for _ in count())
    with pytest.raises(CallFailed, match=f"too_few_facts: 1 of 20 after {CALLS} calls"):
        drive(Generator().program(briefs(1)[0]), lambda request: model(request, same), asked)
    assert len(asked) == 1 + CALLS


def test_briefs_take_the_kinds_in_turn_in_both_languages() -> None:
    items = briefs(5)
    assert [item["id"] for item in items[:5]] == [
        "family_01_en",
        "college_01_en",
        "retiree_01_en",
        "traveler_01_en",
        "family_02_en",
    ]
    assert [item["id"] for item in briefs(1, ["zh"])] == ["family_01_zh"]
    assert len({item["id"] for item in items}) == 10


@pytest.mark.parametrize(
    ("language", "example", "other"), [("en", "I'm 45 and have", "我今年"), ("zh", "我今年45岁", "I'm 45")]
)
def test_prompts_are_in_the_language_of_the_scenario(language: Language, example: str, other: str) -> None:
    asked: list[LLMRequest] = []
    facts = map(fact, count(1))
    drive(Generator().program(briefs(1, [language])[0]), lambda request: model(request, facts), asked)
    assert example in asked[1].messages[0]["content"]
    assert other not in asked[1].messages[0]["content"]


def test_what_is_written_is_what_the_probe_reads(tmp_path: Path) -> None:
    items = briefs(1)
    chinese = ({**CAT.model_dump(), "fact_key": f"cat_{n}"} for n in count())
    results = [
        Result(id=items[0]["id"], value=made(items[0], map(fact, count(1)))),
        Result(id=items[1]["id"], value=made(items[1], chinese)),
        Result(id="family_02_en", kind="too_few_facts", reason="few"),
    ]
    assert write_scenarios(results, tmp_path) == 2
    read = read_scenarios(tmp_path)
    assert [(item["id"], item["language"], len(item["turns"])) for item in read] == [
        ("family_01_en", "en", 50),
        ("family_01_zh", "zh", 50),
    ]
    first = json.loads((tmp_path / "data" / "family_01_en.json").read_text("utf-8"))
    assert set(first[0]) == {"turn", "user", "type", "fact_key", "reference", "ground_truth"}
    assert set(first[20]) == {*first[0], "contradicts_turn", "linked_recall", "pass_criteria"}
    assert set(first[21]) == {"turn", "user", "type", "fact_key", "reference", "linked_trap"}
    assert Generator().figures([*items, {"id": "family_02_en"}], results) == {
        "scenarios": 2,
        "by_language": {"en": 1, "zh": 1},
        "failed": 1,
        "failures": {"too_few_facts": 1},
        "unfinished": 0,
        "calls": 8,
        "refused": {},
    }


def test_nothing_to_write(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no scenario was made"):
        write_scenarios([Result(id="a", kind="too_few_facts")], tmp_path)
