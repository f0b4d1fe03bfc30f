"""ConInstruct's cases and items: the shipped cases, what is appended where, what is drawn, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from eval.coninstruct import builder, detect, priority, resolve
from eval.coninstruct.data import (
    CONFLICT_KINDS,
    CONSTRAINT_KINDS,
    INTER,
    INTRA,
    Case,
    Conflict,
    StatedConstraint,
    cases_without,
    detection_items,
    free_items,
    joined,
    multi_items,
    read_cases,
    read_seeds,
    with_conflicts,
)
from eval.records import RecordsError

DATA = Path(__file__).parents[1] / "data"
CASES = read_cases(DATA / "coninstruct_cases.jsonl")
SEEDS = read_seeds(DATA / "coninstruct_seeds.jsonl")


def a_case(id: str = "c", kinds: tuple[Any, ...] = ("CC", "KK")) -> Case:
    return Case(
        id=id,
        task="story",
        domain="d",
        seed="Write.",
        instruction="Write it.",
        constraints=tuple(StatedConstraint(kind=kind, text=f"Be {kind}.") for kind in CONSTRAINT_KINDS),
        conflicts=tuple(Conflict(kind=kind, original=f"Old {kind}.", new=f"New {kind}.") for kind in kinds),
    )


def test_kinds() -> None:
    assert INTRA == ("CC", "KK", "PP", "LL", "FF", "SS")
    assert INTER == ("KP", "PC", "PS")


def test_the_shipped_seeds() -> None:
    assert len(SEEDS) == 12
    tasks = {seed.task for seed in SEEDS}
    assert len(tasks) == 6
    for language in ("en", "zh"):
        assert {seed.task for seed in SEEDS if seed.id.startswith(language)} == tasks


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_shipped_cases(case: Case) -> None:
    assert 7 <= len(case.conflicts) <= 9
    assert "\n" not in case.instruction
    assert {seed.id: seed.seed for seed in SEEDS}[case.id] == case.seed
    for constraint in case.constraints:
        assert constraint.text in case.instruction
    letters = dict(zip(CONSTRAINT_KINDS, "CKPLFS", strict=True))
    kinds = {constraint.text: letters[constraint.kind] for constraint in case.constraints}
    for conflict in case.conflicts:
        assert kinds[conflict.original] in conflict.kind
        assert conflict.new not in case.instruction


def test_the_shipped_cases_are_in_two_languages_and_a_question_stays_in_front() -> None:
    assert [case.id[:2] for case in CASES] == ["en"] * 3 + ["zh"] * 3
    question = next(case for case in CASES if case.task == "question answering")
    assert question.instruction.startswith(question.seed)


@pytest.mark.parametrize(
    ("first", "second", "both"), [("Do it.", "Be brief.", "Do it. Be brief."), ("写吧。", "短一点。", "写吧。短一点。")]
)
def test_joined(first: str, second: str, both: str) -> None:
    assert joined(first, second) == both


def test_new_constraints_are_appended_in_the_order_given() -> None:
    case = a_case()
    assert with_conflicts(case, ()) == "Write it."
    assert with_conflicts(case, reversed(case.conflicts)) == "Write it. New KK. New CC."


def test_detection_items_make_the_nine_subsets() -> None:
    items = detection_items([a_case("a", CONFLICT_KINDS), a_case("b", ("CC", "PS"))])
    assert [(item["id"], item["kinds"], item["part"]) for item in items[:3]] == [
        ("a/free", [], "free"),
        ("b/free", [], "free"),
        ("a/CC", ["CC"], "single"),
    ]
    assert items[2]["instruction"] == "Write it. New CC."
    assert items[2]["case"] == "a"
    sizes = {kind: sum(item["kinds"] == [kind] for item in items) for kind in CONFLICT_KINDS}
    assert sizes == {**dict.fromkeys(CONFLICT_KINDS, 1), "CC": 2, "PS": 2}
    assert len(items) == 2 + 9 + 2


@given(seed=st.integers(0, 1000), id=st.text(min_size=1, max_size=8).filter(str.strip))
def test_drawn_conflicts(seed: int, id: str) -> None:
    case = a_case(id, CONFLICT_KINDS)
    items = multi_items([case], seed=seed)
    assert [len(item["kinds"]) for item in items] == [1, 2, 3, 4, 5, 6]
    for item in items:
        assert len(set(item["kinds"])) == len(item["kinds"])
        assert item["instruction"] == " ".join(["Write it.", *(f"New {kind}." for kind in item["kinds"])])
    # Nothing but seed, case and count decides: other cases and counts make no difference.
    assert multi_items([a_case("other"), case], counts=[4], seed=seed) == [items[3]]


def test_another_seed_draws_others_and_in_every_order() -> None:
    case = a_case(kinds=CONFLICT_KINDS)
    drawn = [multi_items([case], counts=[2], seed=seed)[0]["kinds"] for seed in range(60)]
    assert {kind for kinds in drawn for kind in kinds} == set(CONFLICT_KINDS)
    sorted_ones = sum(kinds == sorted(kinds, key=CONFLICT_KINDS.index) for kinds in drawn)
    assert 15 < sorted_ones < 45


def test_a_case_with_few_conflicts_is_counted() -> None:
    cases = [a_case("a", CONFLICT_KINDS), a_case("b", ("CC", "KK"))]
    items = free_items(cases) + multi_items(cases)
    assert [cases_without(items, count) for count in (1, 2, 3, 6)] == [0, 0, 1, 1]


@pytest.mark.parametrize("items", [detect.items(CASES), resolve.items(CASES), priority.items(CASES)])
def test_items_are_plain_json_with_ids_of_their_own(items: list[dict[str, Any]]) -> None:
    assert json.loads(json.dumps(items)) == items
    assert len({item["id"] for item in items}) == len(items)


# The reader


def test_cases_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(f"{a_case('a').model_dump_json()}\n\n{a_case('b', ()).model_dump_json()}\n", "utf-8")
    assert read_cases(path) == [a_case("a"), a_case("b", ())]


def test_all_refused_rows_are_named_in_one_message(tmp_path: Path) -> None:
    good = a_case().model_dump(mode="json")
    rows = [
        good,
        {**good, "id": "d", "constraints": good["constraints"][:5]},
        {**good, "id": "e", "conflicts": good["conflicts"] * 2},
        {**good, "id": "f", "instruction": " "},
        {**good, "id": "g", "conflicts": [{"kind": "CK", "original": "o", "new": "n"}]},
        good,
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join([*map(json.dumps, rows), "{"]), "utf-8")
    with pytest.raises(RecordsError) as caught:
        read_cases(path)
    first, *refused = str(caught.value).splitlines()
    assert first == f"{path}: 6 rows can't be used; mend or remove them:"
    for line, number, why in zip(
        refused,
        range(2, 8),
        ["no constraint of kind style", "more than one conflict of kind CC, KK", "instruction", "kind", "'c'", "JSON"],
        strict=True,
    ):
        assert line.startswith(f"line {number}: ")
        assert why in line


def test_no_file_and_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "seeds.jsonl"
    with pytest.raises(RecordsError, match="can't be read"):
        read_seeds(path)
    path.write_text("\n", "utf-8")
    with pytest.raises(RecordsError, match="has no rows"):
        read_seeds(path)


# The shape of the answers

REPLIES: dict[type[BaseModel], list[str]] = {
    builder.expansion_reply("Why?"): ["plan", *CONSTRAINT_KINDS, "instruction"],
    builder.ConflictPairs: ["plan", *CONFLICT_KINDS],
    builder.ConflictPair: ["original", "new"],
    builder.PairCheck: ["reason", *builder.CONDITIONS],
    detect.Detection: ["analysis", "verdict"],
    resolve.Behaviour: ["reason", "behaviour"],
    priority.Satisfaction: ["extract", "assessment", "verdict"],
    priority.Preference: ["first", "second", "verdict"],
}


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema of a string or a list inside a JSON schema."""
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from nodes(value)
    if isinstance(schema, dict) and schema.get("type") in ("string", "array"):
        yield schema


@pytest.mark.parametrize("model", REPLIES, ids=lambda model: model.__name__)
def test_answers_are_bounded_and_reasons_come_first(model: type[BaseModel]) -> None:
    assert list(model.model_fields) == REPLIES[model]
    found = list(nodes(model.model_json_schema()))
    assert found
    for node in found:
        assert {"maxLength", "maxItems", "enum", "const"} & node.keys(), node
