"""ConflictProbe's dialogue (what the model sees at each turn), its judgments, and its figures."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from eval.conflictprobe.data import Systems, read_scenarios, read_systems
from eval.conflictprobe.probe import Probe, RecallVerdict, TrapVerdict, read_verdict, rows, write_csv
from eval.conflictprobe.summary import COLUMNS, summarise
from eval.protocol import Result
from synuc.types import CallFailed, LLMRequest, Spoken
from tests.evaluation import Answer, drive

FOLDER = Path(__file__).parents[1] / "data" / "conflictprobe"
CHINESE, ENGLISH = read_scenarios(FOLDER)
SYSTEMS = read_systems(FOLDER)
SEED_JUDGE = Systems(en=SYSTEMS.en, zh=SYSTEMS.zh, judge="Answer in one line, Q1|Q2|EVIDENCE.")

Reasoning = Literal["keep", "drop"]
History = Literal["ori", "indep"]


def number(request: LLMRequest) -> int:
    return int(request.key.rpartition("/")[2])


def script(request: LLMRequest) -> Answer:
    """Turn n is answered `reply n`, after a thought; traps at odd turns from 9 on surface the old value."""
    n = number(request)
    if request.role == "model":
        return f"<think>thought {n}</think>\nreply {n}"
    if request.reply is RecallVerdict:
        return {"evidence": "", "recall": "present"}
    return {"evidence": f"reply {n}", "surfaced": "present" if n > 7 else "absent", "conflict_named": "named"}


def run(probe: Probe, item: dict[str, Any] = ENGLISH) -> tuple[dict[str, Any], list[LLMRequest], list[LLMRequest]]:
    asked: list[LLMRequest] = []
    value = drive(probe.program(item), script, asked)
    return value, [r for r in asked if r.role == "model"], [r for r in asked if r.role == "judge"]


def seen(request: LLMRequest) -> list[int]:
    """The turns whose replies are in the context of a request."""
    return [int(m["content"].rpartition(" ")[2]) for m in request.messages if m["role"] == "assistant"]


def test_one_continuous_dialogue_in_which_a_recall_hides_only_its_trap() -> None:
    _, asked, _ = run(Probe(SYSTEMS))
    assert [number(request) for request in asked] == list(range(1, 15))
    for request in asked:
        n = number(request)
        hidden = {n - 1} if n in (8, 10, 12, 14) else set()
        assert seen(request) == [turn for turn in range(1, n) if turn not in hidden], n
        assert request.messages[0] == {"role": "system", "content": SYSTEMS.en}
        assert request.messages[-1] == {"role": "user", "content": ENGLISH["turns"][n - 1]["user"]}
        assert request.reply is Spoken


def test_indep_retires_a_pair_for_good_once_its_recall_is_answered() -> None:
    _, asked, _ = run(Probe(SYSTEMS, history="indep"))
    facts = [1, 2, 3, 4, 5, 6]
    assert {number(request): seen(request) for request in asked[6:]} == dict.fromkeys(range(7, 15), facts)


def test_the_reference_and_the_ground_truth_never_reach_the_model() -> None:
    for history in ("ori", "indep"):
        _, asked, _ = run(Probe(SYSTEMS, history=history))
        shown = "\n".join(message["content"] for request in asked for message in request.messages)
        for turn in ENGLISH["turns"]:
            assert turn["reference"] not in shown
            assert (turn["ground_truth"] or "Marta is") not in shown


@pytest.mark.parametrize(("reasoning", "kept"), [("keep", "<think>thought 1</think>\nreply 1"), ("drop", "reply 1")])
def test_thoughts_stay_in_the_context_or_are_removed_at_once(reasoning: Reasoning, kept: str) -> None:
    value, asked, judged = run(Probe(SYSTEMS, reasoning=reasoning))
    for request in asked[1:]:
        assert request.messages[2] == {"role": "assistant", "content": kept}
    assert value["replies"][0] == {
        "turn": 1,
        "type": "info",
        "text": "reply 1",
        "thoughts": "thought 1",
        "cut": False,
    }
    assert not any("thought" in message["content"] for request in judged for message in request.messages[1:])


@pytest.mark.parametrize(("reasoning", "kept"), [("keep", "<think>\na plan\n</think>\n\nreply 1"), ("drop", "reply 1")])
def test_thoughts_that_come_apart_from_the_reply_are_treated_alike(reasoning: Reasoning, kept: str) -> None:
    def apart(request: LLMRequest) -> Answer:
        if request.role == "model":
            return Spoken(text=f"reply {number(request)}", thoughts="a plan")
        return script(request)

    asked: list[LLMRequest] = []
    value = drive(Probe(SYSTEMS, reasoning=reasoning).program(ENGLISH), apart, asked)
    second = next(request for request in asked if request.role == "model" and number(request) == 2)
    assert second.messages[2] == {"role": "assistant", "content": kept}
    assert {(reply["text"], reply["thoughts"]) for reply in value["replies"][:1]} == {("reply 1", "a plan")}


def test_chinese_scenarios_get_a_chinese_system_prompt() -> None:
    _, asked, _ = run(Probe(SYSTEMS), CHINESE)
    assert {request.messages[0]["content"] for request in asked} == {SYSTEMS.zh}


def test_the_judge_is_told_fact_words_claim_and_what_the_user_reads() -> None:
    _, _, judged = run(Probe(SYSTEMS))
    assert [number(request) for request in judged] == list(range(7, 15))
    trap, recall = judged[:2]
    assert (trap.reply, recall.reply) == (TrapVerdict, RecallVerdict)
    assert {request.temperature for request in judged} == {0.0}
    assert trap.messages[1]["content"] == (
        "ESTABLISHED FACT: Marta is allergic to walnuts.\n"
        "USER'S EARLIER WORDS (turn 3): I'm allergic to walnuts.\n"
        "THIS TURN'S CLAIM (turn 7): I'm allergic to shellfish, and that is the only allergy I have ever mentioned.\n\n"
        "MODEL REPLY: reply 7"
    )
    assert "THIS TURN'S QUESTION (turn 8): In the Nolan notes" in recall.messages[1]["content"]
    assert "conflict_named" in trap.messages[0]["content"]
    assert "conflict_named" not in recall.messages[0]["content"]


def test_an_empty_reply_is_absent_and_unnamed_without_a_judge() -> None:
    asked: list[LLMRequest] = []
    quiet: dict[int, Answer] = {7: Spoken(text="<think>on and on", cut=True), 8: ""}

    def silent(request: LLMRequest) -> Answer:
        return quiet.get(number(request), script(request))

    value = drive(Probe(SYSTEMS).program(ENGLISH), silent, asked)
    assert [number(request) for request in asked if request.role == "judge"] == list(range(9, 15))
    first = value["conflicts"][0]
    assert first["trap"] == {"evidence": "", "surfaced": "absent", "conflict_named": "unnamed"}
    assert first["recall"] == {"evidence": "", "recall": "absent"}
    figures = Probe(SYSTEMS).figures([ENGLISH], [Result(id=ENGLISH["id"], value=value)])
    assert (figures["empty"], figures["cut"]) == (2, 1)
    thinking = sum(bool(reply["thoughts"]) for reply in value["replies"])
    assert figures["with_thoughts"] == thinking >= 1


def test_a_published_judge_prompt_is_answered_in_a_line() -> None:
    def lines(request: LLMRequest) -> Answer:
        if request.role == "model":
            return script(request)
        assert request.messages[0]["content"] == SEED_JUDGE.judge
        assert request.reply is Spoken
        return {7: "present|unnamed|it says walnuts", 8: "absent|unnamed|-"}.get(number(request), "I think present")

    value = drive(Probe(SEED_JUDGE).program(ENGLISH), lines)
    first, second = value["conflicts"][:2]
    assert first["trap"] == {"evidence": "it says walnuts", "surfaced": "present", "conflict_named": "unnamed"}
    assert first["recall"] == {"evidence": "-", "recall": "absent"}
    assert second["trap"]["failure"].startswith("unparseable: ")
    figures = Probe(SEED_JUDGE).figures([ENGLISH], [Result(id=ENGLISH["id"], value=value)])
    overall = figures["overall"]
    assert (overall["n"], overall["excluded"], overall["recall_n"], overall["recall_excluded"]) == (1, 3, 1, 3)
    assert (overall["present"], overall["named"], overall["present_and_named"], overall["recall"]) == (
        1.0,
        0.0,
        0.0,
        0.0,
    )
    assert figures["judge_failures"] == {"unparseable": 6}


@pytest.mark.parametrize(
    ("answer", "surfaced", "named"),
    [
        ("absent|named|updated", "absent", "named"),
        ("Present | Named | 'was 38 | now 45'\nMore words.", "present", "named"),
        ("<think>present|named|?</think>\n\nabsent|unnamed|", "absent", "unnamed"),
        ("present|unnamed", "present", "unnamed"),
    ],
)
def test_reads_the_first_line(answer: str, surfaced: str, named: str) -> None:
    verdict = read_verdict(answer)
    assert (verdict.surfaced, verdict.conflict_named) == (surfaced, named)


@pytest.mark.parametrize(
    "answer",
    ["", "present", "Q1: present|named|x", "named|present|x", "present|absent|named", "Sure:\npresent|named|x"],
)
def test_any_other_first_line_is_no_verdict(answer: str) -> None:
    with pytest.raises(CallFailed) as raised:
        read_verdict(answer)
    assert raised.value.kind == "unparseable"


def test_a_judge_that_fails_is_counted_and_a_model_that_fails_ends_the_scenario() -> None:
    def judge_fails(request: LLMRequest) -> Answer:
        return (
            CallFailed("content_filter", "no") if request.role == "judge" and number(request) == 9 else script(request)
        )

    value = drive(Probe(SYSTEMS).program(ENGLISH), judge_fails)
    assert value["conflicts"][1]["trap"] == {"failure": "content_filter: no"}
    assert value["conflicts"][1]["recall"]["recall"] == "present"

    def model_fails(request: LLMRequest) -> Answer:
        return CallFailed("endpoint", "down") if number(request) == 9 else script(request)

    with pytest.raises(CallFailed, match="endpoint: down"):
        drive(Probe(SYSTEMS).program(ENGLISH), model_fails)


def results() -> list[Result]:
    value, _, _ = run(Probe(SYSTEMS))
    return [Result(id=ENGLISH["id"], value=value), Result(id=CHINESE["id"], kind="endpoint", reason="down")]


def test_figures_by_hand() -> None:
    """Of four traps three are present; all are named; all recalls present. The other scenario failed."""
    figures = Probe(SYSTEMS).figures([CHINESE, ENGLISH, {**ENGLISH, "id": "not_yet"}], results())
    overall = {
        "n": 4,
        "present": 0.75,
        "named": 1.0,
        "present_and_named": 0.75,
        "recall": 1.0,
        "recall_n": 4,
        "joint": {"present+named": 3, "present+unnamed": 0, "absent+named": 1, "absent+unnamed": 0},
        "excluded": 0,
        "recall_excluded": 0,
    }
    assert figures == {
        "overall": overall,
        "per_scenario": {ENGLISH["id"]: overall},
        "scenarios": 3,
        "failed": 1,
        "failures": {"endpoint": 1},
        "unfinished": 1,
        "judge_failures": {},
        "empty": 0,
        "cut": 0,
        "with_thoughts": 14,
    }


def test_rows_are_those_of_the_published_file_and_give_the_same_figures(tmp_path: Path) -> None:
    judged = rows([CHINESE, ENGLISH], results(), "smol", "drop", "ori")
    assert [tuple(row) for row in judged] == [COLUMNS] * 4
    assert judged[0] == {
        "model": "smol",
        "reasoning": "drop",
        "history": "ori",
        "scenario": ENGLISH["id"],
        "source_turn": 3,
        "trap_turn": 7,
        "surfaced": "absent",
        "conflict_named": "named",
        "recall": "present",
        "label_source": "machine_binary",
        "human_label": "",
        "human_note": "",
    }
    path = tmp_path / "results" / "summary.csv"
    write_csv(path, judged)
    with path.open(encoding="utf-8", newline="") as file:
        assert tuple(next(csv.reader(file))) == COLUMNS
    overall = Probe(SYSTEMS).figures([CHINESE, ENGLISH], results())["overall"]
    assert summarise(path)["by_configuration"] == {"smol drop ori": overall}


def test_the_settings_and_the_prompts_decide_the_results() -> None:
    base = Probe(SYSTEMS).snapshot()
    others: Sequence[Probe] = (Probe(SEED_JUDGE), Probe(SYSTEMS, reasoning="keep"), Probe(SYSTEMS, history="indep"))
    assert all(probe.snapshot() != base for probe in others)
    assert base["systems"]["en"] == SYSTEMS.en
