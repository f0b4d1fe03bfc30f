"""What attempts leave in the memory, and the method with one of its parts switched off."""

from __future__ import annotations

from typing import Any

import pytest

from synuc.config import Method
from synuc.effects import CommitUpdate, ReadRepository, RecordTrajectory, ReleaseLease
from synuc.memory import MemoryState
from synuc.sample import Outcome
from synuc.speaking import Speaking
from synuc.types import Label, LLMRequest, Relation
from tests.scripted import (
    ALL,
    BROKEN,
    ER,
    EXPLICIT,
    FOLLOW_UP,
    IC,
    IMPLICIT,
    ND,
    NO_CONSTRAINTS,
    Answer,
    Driver,
    Script,
    a_seed,
    a_trajectory,
    choices,
    only,
    prompt,
    remembering,
    synthesised,
)

# Memory
from tests.unit.test_synthesis_verdicts import REJECTIONS


def test_an_accepted_attempt_is_remembered_as_a_success() -> None:
    samples, driver = synthesised(only(IC), judge_global={"confidence": 85})
    (effect,) = driver.of_type(RecordTrajectory)
    trajectory, sample = effect.trajectory, samples["IC"]
    assert (trajectory.id, trajectory.success, trajectory.confidence) == ("seed-1-IC", True, 85)
    assert (trajectory.speaking, trajectory.language, trajectory.reason) == (Speaking.KEY, "en", "")
    assert trajectory.context == "write a bedtime story / draft the story"
    assert (trajectory.constraints, trajectory.anchor) == (sample.constraints, sample.anchor)
    assert (trajectory.new, trajectory.message) == (sample.new, FOLLOW_UP)
    assert driver.memory.shelves[Speaking.KEY].buffer == [trajectory]


@pytest.mark.parametrize(
    ("asked", "answer", "stage", "reason"), [r[1:] for r in REJECTIONS if r[0] is IC and r[3] != "match"]
)
def test_a_rejected_attempt_is_remembered_with_its_reason(
    asked: str, answer: dict[str, Any], stage: str, reason: str
) -> None:
    samples, driver = synthesised(only(IC), **{asked: answer})
    (effect,) = driver.of_type(RecordTrajectory)
    assert not effect.trajectory.success
    assert effect.trajectory.reason == samples["IC"].reason
    assert reason in effect.trajectory.reason
    assert (effect.trajectory.confidence is None) == (stage == "anchor")


def test_an_attempt_without_a_message_is_not_remembered() -> None:
    _, driver = synthesised(only(IC), constraints=NO_CONSTRAINTS)
    assert driver.of_type(RecordTrajectory) == []


def test_a_full_buffer_is_merged_into_the_repository_once() -> None:
    def every_other(request: LLMRequest) -> dict[str, Any]:
        return {"pair_holds": int(request.key.split("-")[1]) % 2 == 0}

    curation = {"curate/key/0/True": {"keep": ["t5", "t1", "t5"]}}
    driver = Driver(Script({"verify_anchor": every_other, **curation}), memory=MemoryState(k=3, threshold=10))
    method = only(IC, k=3)
    for n in range(9):
        driver.samples(a_seed(f"seed-{n}"), method)
    assert driver.asked("curate") == []
    assert len(driver.memory.shelves[Speaking.KEY].buffer) == 9
    tenth = driver.samples(a_seed("seed-9"), method)["IC"]
    assert tenth.outcome is Outcome.REJECTED
    good, bad = driver.asked("curate")
    for request, shown in ((good, "were accepted"), (bad, "were rejected")):
        assert shown in prompt(request)
        assert choices(request, "keep") == ["t1", "t2", "t3", "t4", "t5"]
        assert request.reply.model_json_schema()["properties"]["keep"]["maxItems"] == 3
        assert FOLLOW_UP in prompt(request)
    assert "because: pair: they exclude each other" in prompt(bad)
    assert "because:" not in prompt(good)
    (commit,) = driver.of_type(CommitUpdate)
    assert commit.successes == ("seed-8-IC", "seed-0-IC")
    assert commit.failures == ("seed-1-IC", "seed-3-IC", "seed-5-IC")
    view = driver.memory.view(Speaking.KEY)
    assert view.version == 1
    assert [t.id for t in view.successes] == ["seed-8-IC", "seed-0-IC"]
    assert [t.id for t in view.failures] == ["seed-1-IC", "seed-3-IC", "seed-5-IC"]
    assert driver.memory.shelves[Speaking.KEY].buffer == []
    assert driver.of_type(ReleaseLease) == []
    # The next attempt learns from it, and is far from another update.
    assert tenth.repository_version == 0
    assert driver.samples(a_seed("seed-10"), method)["IC"].repository_version == 1
    assert prompt(driver.asked("generate")[-1]).count("\nWorked: ") == 2
    assert prompt(driver.asked("generate")[-1]).count("\nFailed: ") == 3
    assert len(driver.asked("curate")) == 2


def test_the_next_update_chooses_among_repository_and_buffer() -> None:
    driver = Driver(memory=MemoryState(k=1, threshold=2))
    method = only(IC, k=1)
    for n in range(3):
        driver.samples(a_seed(f"seed-{n}"), method)
    driver.script = Script({"curate": {"keep": ["t3"]}})
    driver.samples(a_seed("seed-3"), method)
    # Only successes were made: nothing is asked about failures.
    assert [choices(r, "keep") for r in driver.asked("curate")] == [["t1", "t2"], ["t1", "t2", "t3"]]
    assert [(c.successes, c.failures) for c in driver.of_type(CommitUpdate)] == [
        (("seed-0-IC",), ()),
        (("seed-3-IC",), ()),
    ]
    assert driver.memory.view(Speaking.KEY).version == 2


@pytest.mark.parametrize("half", ["True", "False"])
def test_a_failed_update_gives_the_lease_back_and_leaves_the_sample_alone(half: str) -> None:
    memory = remembering()
    memory.record(a_trajectory("other", success=False))
    before = memory.view(Speaking.KEY)
    driver = Driver(Script({f"curate/key/1/{half}": BROKEN}), memory=memory)
    sample = driver.samples(a_seed(), only(IC))["IC"]
    assert (sample.outcome, sample.reason) == (Outcome.ACCEPTED, "")
    (release,) = driver.of_type(ReleaseLease)
    assert "unparseable" in release.reason
    assert driver.of_type(CommitUpdate) == []
    assert memory.view(Speaking.KEY) == before
    assert [t.id for t in memory.shelves[Speaking.KEY].buffer] == ["other", "seed-1-IC"]
    assert not memory.holds(release.lease)
    # The next attempt doesn't try again at once.
    driver.samples(a_seed("seed-2"), only(IC))
    assert len(driver.of_type(ReleaseLease)) == 1


def test_only_implicit_conflicts_reach_the_memory() -> None:
    _, driver = synthesised(ALL)
    assert [effect.trajectory.id for effect in driver.of_type(RecordTrajectory)] == ["seed-1-IC"]
    assert len(driver.of_type(ReadRepository)) == 1


# Ablations


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_without_the_task_filter_every_dialogue_goes_to_er_and_ic(alpha: float) -> None:
    samples, driver = synthesised(Method(alpha=alpha, task_filter=False), filter={"category": "other"})
    assert set(samples) == ({"ER", "IC"} if alpha == 0 else {"ND", "ER", "IC"})
    assert "filter" not in driver.stages()
    assert all(s.eligibility is None and s.outcome is Outcome.ACCEPTED for s in samples.values())


def test_without_memory_pairs_are_made_directly() -> None:
    driver = Driver(memory=remembering())
    samples = driver.samples(a_seed(), only(ER, IC, memory=False))
    assert {s.outcome for s in samples.values()} == {Outcome.ACCEPTED}
    for label in ("ER", "IC"):
        assert driver.stages(label) == ["pair", "realize", "verify_anchor", "extract_new", "judge_global"]
        assert (samples[label].speaking, samples[label].repository_version) == (None, None)
    assert samples["ER"].relation is Relation.H_E_N_E
    assert samples["IC"].relation is Relation.H_E_N_I
    assert not driver.of_type(ReadRepository)
    assert not driver.of_type(RecordTrajectory)
    er, ic = driver.the("pair", "ER"), driver.the("pair", "IC")
    assert choices(er, "type") == ["explicit"]
    assert choices(ic, "type") == ["explicit", "implicit"]
    assert choices(er, "constraint") == ["c1", "c2"]
    assert choices(ic, "constraint") == ["c1", "c2", "c3", "c4"]
    for request in (er, driver.the("realize", "ER")):
        assert not any(value in prompt(request) for value in IMPLICIT)
    for request in (er, ic):
        assert not any(schema.meaning in prompt(request) for schema in Speaking)
        assert "of good" not in prompt(request)


@pytest.mark.parametrize(
    ("anchor", "new", "outcome"),
    [
        ("c2", "explicit", "rejected"),
        ("c2", "implicit", "accepted"),
        ("c3", "explicit", "accepted"),
        ("c3", "implicit", "accepted"),
    ],
)
def test_without_memory_a_pair_of_explicit_constraints_is_no_implicit_conflict(
    anchor: str, new: str, outcome: str
) -> None:
    samples, driver = synthesised(only(IC, memory=False), pair={"constraint": anchor, "type": new})
    assert samples["IC"].outcome.value == outcome
    if outcome == "rejected":
        assert (samples["IC"].stage, samples["IC"].reason) == ("generate", "both constraints of the pair are explicit")
        assert driver.stages()[-1] == "pair"


@pytest.mark.parametrize("label", [ER, IC])
def test_without_memory_a_failed_pair_is_a_failure_to_generate(label: Label) -> None:
    samples, _ = synthesised(only(label, memory=False), pair=BROKEN)
    assert (samples[label].outcome, samples[label].stage) == (Outcome.FAILED, "generate")


def test_without_trajectory_updates_the_repositories_stay_empty() -> None:
    driver = Driver(memory=MemoryState(k=3, threshold=1))
    for n in range(3):
        sample = driver.samples(a_seed(f"seed-{n}"), only(IC, trajectory_update=False))["IC"]
        assert (sample.outcome, sample.repository_version) == (Outcome.ACCEPTED, 0)
    assert len(driver.of_type(ReadRepository)) == 3
    assert not driver.of_type(RecordTrajectory)
    assert not driver.asked("curate")


@pytest.mark.parametrize("label", list(Label))
def test_without_the_confidence_filter_any_confidence_will_do(label: Label) -> None:
    samples, _ = synthesised(only(label, confidence_filter=False), judge_global={"confidence": 0})
    assert samples[label].outcome is Outcome.ACCEPTED
    samples, _ = synthesised(only(label, confidence_filter=False), judge_global={"claim_holds": False})
    assert samples[label].outcome is Outcome.REJECTED


def test_without_the_constraint_verifier_one_call_checks_the_sample() -> None:
    samples, driver = synthesised(only(ND, ER, IC, constraint_verifier=False))
    assert {s.outcome for s in samples.values()} == {Outcome.ACCEPTED}
    assert driver.stages("ND") == ["tasks", "constraints", "verify_direct"]
    for label in ("ER", "IC"):
        assert driver.stages(label) == ["match", "generate", "realize", "verify_direct"]
        assert samples[label].anchor_verdict is None
        assert samples[label].new_constraints == ()
        assert samples[label].judgment is not None
    for request in driver.asked("verify_direct"):
        text = prompt(request)
        assert request.role == "verifier"
        assert not any(value in text for value in (*EXPLICIT, *IMPLICIT, "ghosts that scare"))
    assert f"> {FOLLOW_UP}" in prompt(driver.the("verify_direct", "IC"))
    assert "> Give the lamp a name." in prompt(driver.the("verify_direct", "ND"))
    # The memory learns from this verdict as well.
    assert [effect.trajectory.success for effect in driver.of_type(RecordTrajectory)] == [True]


@pytest.mark.parametrize("label", list(Label))
@pytest.mark.parametrize(
    ("answer", "outcome", "stage"),
    [
        ({"claim_holds": False}, "rejected", "direct"),
        (lambda r: {"label": "ND" if r.key.endswith("IC") else "IC"}, "rejected", "direct"),
        ({"confidence": 79}, "rejected", "confidence"),
        (BROKEN, "failed", "direct"),
    ],
)
def test_the_direct_check_decides_alone(label: Label, answer: Answer, outcome: str, stage: str) -> None:
    samples, driver = synthesised(only(label, constraint_verifier=False), verify_direct=answer)
    assert (samples[label].outcome.value, samples[label].stage) == (outcome, stage)
    assert bool(driver.of_type(RecordTrajectory)) == (label is IC and outcome == "rejected")
