"""Where a sample ends: rejected at each stage, accepted from tau on, failed with its call."""

from __future__ import annotations

from typing import Any

import pytest

from synuc.effects import RecordTrajectory
from synuc.sample import Outcome
from synuc.types import Label
from tests.scripted import (
    ALL,
    BROKEN,
    ER,
    EXPLICIT,
    FOLLOW_UP,
    IC,
    ND,
    NO_CONSTRAINTS,
    Driver,
    Script,
    a_seed,
    choices,
    constraint,
    only,
    prompt,
    synthesised,
)

# Rejections

REJECTIONS = [
    (IC, "constraints", NO_CONSTRAINTS, "match", "no valid constraint"),
    (ER, "constraints", NO_CONSTRAINTS, "match", "no explicit constraint"),
    (
        ER,
        "constraints",
        {"reason": "one", "constraints": [constraint("implicit", "v")]},
        "match",
        "no explicit constraint",
    ),
    (IC, "verify_anchor", {"pair_holds": False}, "anchor", "pair: they exclude each other"),
    (ER, "verify_anchor", {"pair_holds": False}, "anchor", "pair: they exclude each other"),
    (IC, "verify_anchor", {"revision_signal": True}, "anchor", "revision signal: it brings the new one in"),
    (IC, "verify_anchor", {"message_holds": False}, "anchor", "message: it brings the new one in"),
    (ER, "verify_anchor", {"message_holds": False}, "anchor", "message: it brings the new one in"),
    (IC, "judge_global", {"label": "ER"}, "global", "judged ER: as claimed"),
    (IC, "judge_global", {"label": "ND"}, "global", "judged ND: as claimed"),
    (ER, "judge_global", {"label": "IC"}, "global", "judged IC: as claimed"),
    (ND, "judge_global", {"label": "IC"}, "global", "judged IC: as claimed"),
    (IC, "judge_global", {"claim_holds": False}, "global", "as claimed"),
    (ER, "judge_global", {"claim_holds": False}, "global", "as claimed"),
    (ND, "judge_global", {"claim_holds": False}, "global", "as claimed"),
    (IC, "judge_global", {"claimed_new": "none"}, "global", "doesn't carry the claimed constraint: as claimed"),
    (ER, "judge_global", {"claimed_new": "none"}, "global", "doesn't carry the claimed constraint: as claimed"),
    (IC, "extract_new", NO_CONSTRAINTS, "global", "doesn't carry the claimed constraint"),
    (IC, "extract_new", {"continues": "new_task"}, "global", "the message starts a new task: a scene"),
    (ER, "extract_new", {"continues": "new_task"}, "global", "the message starts a new task: a scene"),
    (IC, "judge_global", {"confidence": 79}, "confidence", "q = 79 is below tau = 80"),
    (ER, "judge_global", {"confidence": 79}, "confidence", "q = 79 is below tau = 80"),
    (ND, "judge_global", {"confidence": 79}, "confidence", "q = 79 is below tau = 80"),
]


@pytest.mark.parametrize(("label", "asked", "answer", "stage", "reason"), REJECTIONS)
def test_rejections(label: Label, asked: str, answer: dict[str, Any], stage: str, reason: str) -> None:
    samples, driver = synthesised(only(label), **{asked: answer})
    sample = samples[label]
    assert (sample.outcome, sample.stage, sample.kind) == (Outcome.REJECTED, stage, "")
    assert reason in sample.reason
    if stage == "match":
        assert driver.stages()[-1] == "constraints"
        assert sample.tasks is not None
    elif stage == "anchor":
        assert driver.stages()[-1] == "verify_anchor"
        assert sample.anchor_verdict is not None
        assert sample.judgment is None
    else:
        assert sample.judgment is not None
        assert sample.new_constraints or asked == "extract_new"
    assert (sample.follow_up is None) == (stage == "match")


@pytest.mark.parametrize("label", [ER, IC])
@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("value", [EXPLICIT[0], "  About the\nLIGHTHOUSE of Gorey "])
def test_a_new_constraint_that_repeats_the_anchor_is_no_pair(label: Label, memory: bool, value: str) -> None:
    made = "generate" if memory else "pair"
    samples, driver = synthesised(only(label, memory=memory), **{made: {"dimension": "place", "value": value}})
    sample = samples[label]
    assert (sample.outcome, sample.stage) == (Outcome.REJECTED, "generate")
    assert sample.reason == f"the new constraint only repeats the old one: {value.strip()}"
    assert driver.stages()[-1] == made
    # There is no message that the memory could learn from.
    assert driver.of_type(RecordTrajectory) == []
    # The value of another constraint may be taken up.
    samples, _ = synthesised(only(label, memory=memory), **{made: {"value": EXPLICIT[1]}})
    assert samples[label].outcome is Outcome.ACCEPTED


def test_a_revision_signal_is_no_fault_of_an_explicit_revision() -> None:
    samples, _ = synthesised(only(ER), verify_anchor={"revision_signal": True})
    assert samples["ER"].outcome is Outcome.ACCEPTED
    # Nor is its absence: a direct replacement value is enough.
    samples, _ = synthesised(only(ER), verify_anchor={"revision_signal": False})
    assert samples["ER"].outcome is Outcome.ACCEPTED


def test_a_normal_dialogue_may_start_a_new_task() -> None:
    samples, _ = synthesised(only(ND), extract_new={"continues": "new_task", **NO_CONSTRAINTS})
    assert (samples["ND"].outcome, samples["ND"].continues) == (Outcome.ACCEPTED, "new_task")
    assert samples["ND"].new_constraints == ()


@pytest.mark.parametrize("label", [ER, IC])
@pytest.mark.parametrize("continues", ["current_subtask", "current_main_task"])
def test_conflicts_stand_within_the_active_task(label: Label, continues: str) -> None:
    samples, _ = synthesised(only(label), extract_new={"continues": continues})
    assert (samples[label].outcome, samples[label].continues) == (Outcome.ACCEPTED, continues)


def test_er_may_lack_a_candidate_where_ic_has_one() -> None:
    samples, driver = synthesised(
        only(ER, IC), constraints={"reason": "one", "constraints": [constraint("implicit", "v")]}
    )
    assert (samples["ER"].outcome, samples["ER"].stage) == (Outcome.REJECTED, "match")
    assert samples["IC"].outcome is Outcome.ACCEPTED
    assert choices(driver.the("match"), "constraint") == ["c1"]


@pytest.mark.parametrize("label", list(Label))
@pytest.mark.parametrize(("q", "tau", "accepted"), [(80, 80, True), (79, 80, False), (0, 0, True), (99, 100, False)])
def test_confidence_is_accepted_from_tau_on(label: Label, q: int, tau: int, accepted: bool) -> None:
    samples, _ = synthesised(only(label, tau=tau), judge_global={"confidence": q})
    assert (samples[label].outcome is Outcome.ACCEPTED) == accepted


def test_one_labels_rejection_leaves_the_others_alone() -> None:
    samples, _ = synthesised(ALL, **{"verify_anchor/IC": {"pair_holds": False}})
    assert {label: s.outcome.value for label, s in samples.items()} == {
        "ND": "accepted",
        "ER": "accepted",
        "IC": "rejected",
    }


def test_the_global_stage_is_shown_message_and_its_constraints() -> None:
    found = [
        {"evidence": f"part {n}", "type": kind, "dimension": "tone", "value": f"value {n}"}
        for n, kind in enumerate(("explicit", "implicit", "implicit"), 1)
    ]
    answers = {"continues": "current_main_task", "constraints": found}
    samples, driver = synthesised(only(IC), extract_new=answers, judge_global={"claimed_new": "n2"})
    extract, judge = driver.the("extract_new"), driver.the("judge_global")
    assert f"> {FOLLOW_UP}" in prompt(extract)
    # Extraction isn't told what to find.
    assert "ghosts that scare" not in prompt(extract)
    assert "n2. implicit | tone: value 2 | part 2" in prompt(judge)
    assert "It continues: current_main_task" in prompt(judge)
    assert choices(judge, "claimed_new") == ["n1", "n2", "n3", "none"]
    sample = samples["IC"]
    assert sample.continues == "current_main_task"
    # The claimed constraint stands under the wording and type it was synthesised with, and the words that carry it.
    assert [str(c) for c in sample.new_constraints] == ["tone: value 1", "mood: ghosts that scare", "tone: value 3"]
    assert sample.new == sample.new_constraints[1]
    assert sample.new is not None
    assert (sample.new.type, sample.new.evidence) == ("implicit", "part 2")


# Failed calls

FAILURES = [
    (ER, "match", "match"),
    (IC, "match", "match"),
    (ER, "generate", "generate"),
    (IC, "generate", "generate"),
    (ER, "realize", "realize"),
    (IC, "realize", "realize"),
    (ER, "verify_anchor", "anchor"),
    (IC, "verify_anchor", "anchor"),
    (ND, "extract_new", "global"),
    (ER, "extract_new", "global"),
    (IC, "extract_new", "global"),
    (ND, "judge_global", "global"),
    (ER, "judge_global", "global"),
    (IC, "judge_global", "global"),
    (ND, "tasks", "extract"),
    (ND, "constraints", "extract"),
]


@pytest.mark.parametrize(("label", "asked", "stage"), FAILURES)
def test_a_failed_call_fails_its_sample_only(label: Label, asked: str, stage: str) -> None:
    driver = Driver(Script({f"{asked}/{label}": BROKEN}))
    samples = driver.samples(a_seed(), ALL)
    failed = samples.pop(label)
    assert (failed.id, failed.outcome, failed.stage) == (f"seed-1-{label}", Outcome.FAILED, stage)
    assert (failed.kind, failed.reason) == ("unparseable", "no JSON in three attempts")
    assert driver.stages(label)[-1] == asked
    assert {s.outcome for s in samples.values()} == {Outcome.ACCEPTED}
    # A call that failed is no verdict on the attempt.
    recorded = [effect.trajectory.id for effect in driver.of_type(RecordTrajectory)]
    assert recorded == ([] if label is IC else ["seed-1-IC"])


@pytest.mark.parametrize("asked", ["tasks", "constraints"])
def test_a_failed_extraction_fails_both_samples_that_share_the_history(asked: str) -> None:
    driver = Driver(Script({f"{asked}/seed-1": BROKEN}))
    samples = driver.samples(a_seed(), ALL)
    assert samples["ND"].outcome is Outcome.ACCEPTED
    for label in (ER, IC):
        sample = samples[label]
        assert (sample.outcome, sample.stage, sample.kind) == (Outcome.FAILED, "extract", "unparseable")
        assert (sample.id, sample.eligibility is None) == (f"seed-1-{label}", False)
