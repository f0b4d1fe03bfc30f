"""ConflictProbe's folder layout: what is read, and what is refused with which words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eval.conflictprobe.data import Scenario, ScenarioError, Turn, read_scenarios, read_systems

FOLDER = Path(__file__).parents[1] / "data" / "conflictprobe"
ENGLISH = "retiree_01_nolan"


def turns() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((FOLDER / "data" / f"{ENGLISH}.json").read_text("utf-8"))
    return rows


def written(folder: Path, rows: object) -> Path:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "s.json").write_text(json.dumps(rows), "utf-8")
    return folder


def test_reads_scenarios_and_nothing_beside_them() -> None:
    items = read_scenarios(FOLDER)
    assert [(item["id"], item["language"], len(item["turns"])) for item in items] == [
        ("college_01_chen", "zh", 14),
        (ENGLISH, "en", 14),
    ]
    assert json.loads(json.dumps(items)) == items


def test_a_conflict_is_its_three_turns() -> None:
    conflicts = Scenario.of("s", [Turn.model_validate(row) for row in turns()]).conflicts()
    numbers = [(c.source.turn, c.trap.turn, c.recall.turn) for c in conflicts]
    assert numbers == [(3, 7, 8), (1, 9, 10), (4, 11, 12), (2, 13, 14)]
    assert conflicts[1].source.user == "I'm 62 years old."
    assert conflicts[1].trap.ground_truth == "Marta is 62 years old."


def test_fields_that_are_not_documented_are_left_out(tmp_path: Path) -> None:
    rows = turns()
    rows[0]["difficulty"] = "easy"
    assert "difficulty" not in read_scenarios(written(tmp_path, rows))[0]["turns"][0]


def test_system_prompts_of_the_folder_count_before_ours(tmp_path: Path) -> None:
    ours = read_systems(FOLDER)
    assert ours.en == "You are a helpful personal assistant. Answer in English, briefly and directly."
    assert "中文" in ours.zh
    assert ours.judge is None
    shutil.copytree(FOLDER / "data", tmp_path / "data")
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "model_system.txt").write_text("Be brief.\n", "utf-8")
    assert read_systems(tmp_path).model_dump() == {"en": "Be brief.", "zh": "Be brief.", "judge": None}
    (tmp_path / "prompts" / "judge_system.txt").write_text("Answer Q1|Q2|EVIDENCE.\n", "utf-8")
    assert read_systems(tmp_path).judge == "Answer Q1|Q2|EVIDENCE."


def _set(position: int, **fields: Any) -> Callable[[list[dict[str, Any]]], object]:
    return lambda rows: rows[position - 1].update(fields)


def _without(position: int, field: str) -> Callable[[list[dict[str, Any]]], object]:
    return lambda rows: rows[position - 1].pop(field)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_set(3, turn=4), "turn 3: it is numbered 4"),
        (_set(3, turn="3"), "turn 3: turn: Input should be a valid integer"),
        (_set(5, type="trick"), "turn 5: type: "),
        (_set(5, user=""), "turn 5: user: "),
        (_without(2, "fact_key"), "turn 2: fact_key: Field required"),
        (_without(7, "ground_truth"), "turn 7: a trap needs the established fact"),
        (_set(7, contradicts_turn=9), "turn 7: contradicts_turn is 9"),
        (_set(9, contradicts_turn=8), "turn 9: contradicts_turn is 8"),
        (_without(7, "contradicts_turn"), "turn 7: contradicts_turn is None"),
        (_set(7, contradicts_turn=0), "turn 7: contradicts_turn is 0"),
        (_set(7, linked_recall=10), "turn 7: linked_recall is 10"),
        (_set(7, linked_recall=99), "turn 7: linked_recall is 99"),
        (_set(8, linked_trap=9), "turn 7: linked_recall is 8"),
        (_set(13, type="info"), "turn 14: linked_trap is 13"),
        (lambda rows: rows.__setitem__(slice(6, None), []), "no turn of type trap"),
        (lambda rows: rows.__setitem__(1, "hello"), "turn 2: the turn: "),
    ],
)
def test_a_broken_scenario_names_its_file_and_turn(
    spoil: Callable[[list[dict[str, Any]]], object], words: str, tmp_path: Path
) -> None:
    rows = turns()
    spoil(rows)
    with pytest.raises(ScenarioError) as raised:
        read_scenarios(written(tmp_path, rows))
    assert words in str(raised.value)
    assert str(tmp_path / "data" / "s.json") in str(raised.value)


def test_files_that_hold_no_list_of_turns(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="holds no scenarios"):
        read_scenarios(tmp_path)
    with pytest.raises(ScenarioError, match=r"s\.json: a scenario is a list of turns"):
        read_scenarios(written(tmp_path, {"turns": []}))
    (tmp_path / "data" / "s.json").write_text("[{", "utf-8")
    with pytest.raises(ScenarioError, match=r"s\.json: Expecting"):
        read_scenarios(tmp_path)
