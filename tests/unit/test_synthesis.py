"""Algorithm 1 up to the message, branch by branch, with a scripted LLM and a real memory state."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from pydantic import ValidationError

from synuc.config import Method
from synuc.effects import MAX_TOKENS, ReadRepository, RecordTrajectory
from synuc.memory import MemoryState, RepositoryView
from synuc.replies import CATEGORIES
from synuc.sample import Outcome
from synuc.speaking import Speaking
from synuc.synthesis import crashed, route
from synuc.types import Label, LLMRequest, Relation
from tests.scripted import (
    ALL,
    BROKEN,
    CARRIER,
    ER,
    EXPLICIT,
    FOLLOW_UP,
    IC,
    IMPLICIT,
    ND,
    Driver,
    Script,
    a_seed,
    choices,
    constraint,
    only,
    prompt,
    remembering,
    synthesised,
)

# Routing


def test_an_eligible_dialogue_gives_every_label_and_all_are_accepted_by_default() -> None:
    samples, driver = synthesised(ALL)
    assert set(samples) == {"ND", "ER", "IC"}
    for label, sample in samples.items():
        assert (sample.outcome, sample.stage, sample.kind, sample.reason) == (Outcome.ACCEPTED, "", "", "")
        assert (sample.id, sample.seed_id) == (f"seed-1-{label}", "seed-1")
        assert (sample.language, sample.source, sample.origin) == ("en", "wildchat", "part-0.parquet:17")
        assert sample.eligibility is not None
        assert sample.tasks is not None
        assert sample.tasks.active_main_task == "write a bedtime story"
        assert sample.judgment is not None
        assert sample.judgment.confidence == 90
    assert len(driver.asked("filter")) == 1
    # ER and IC share one history.
    assert [r.key for r in driver.asked("tasks")] == ["seed-1", "seed-1-ND"]
    assert [r.key for r in driver.asked("constraints")] == ["seed-1", "seed-1-ND"]


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_six_categories_are_eligible(category: str) -> None:
    samples, _ = synthesised(Method(alpha=0.0), filter={"category": category})
    assert set(samples) == {"ER", "IC"}


@pytest.mark.parametrize(
    "verdict",
    [
        {"category": "question_answering"},
        {"category": "chitchat"},
        {"category": "other"},
        {"clear_goal": False},
        {"persistent_constraints": False},
    ],
)
def test_an_ineligible_dialogue_gives_nd_only(verdict: dict[str, Any]) -> None:
    samples, driver = synthesised(Method(alpha=0.0), filter=verdict)
    assert set(samples) == {"ND"}
    assert samples["ND"].outcome is Outcome.ACCEPTED
    assert samples["ND"].eligibility is not None
    assert not samples["ND"].eligibility.eligible
    assert "match" not in driver.stages()


def test_alpha_decides_which_eligible_dialogues_give_nd_too() -> None:
    ids = [f"seed-{n}" for n in range(2000)]
    assert {route(i, True, Method(alpha=0.0)) for i in ids} == {(ER, IC)}
    assert {route(i, True, Method(alpha=1.0)) for i in ids} == {(ND, ER, IC)}

    def also_nd(**fields: Any) -> set[str]:
        return {i for i in ids if ND in route(i, True, Method(**fields))}

    first = also_nd()
    assert 160 <= len(first) <= 240
    assert also_nd() == first
    other = also_nd(seed=1)
    assert 160 <= len(other) <= 240
    assert len(first & other) < 60
    # A larger share adds dialogues and drops none.
    assert first < also_nd(alpha=0.2)


def test_alpha_does_not_keep_an_ineligible_dialogue_from_nd() -> None:
    assert {route(f"seed-{n}", False, Method(alpha=0.0)) for n in range(50)} == {(ND,)}


@pytest.mark.parametrize("labels", [c for n in (1, 2, 3) for c in combinations(Label, n)])
def test_labels_restrict_what_is_made(labels: tuple[Label, ...]) -> None:
    samples, driver = synthesised(only(*labels))
    assert set(samples) == {label.value for label in labels}
    assert {r.key for r in driver.requests} <= {"seed-1", *(f"seed-1-{label}" for label in labels)}
    ineligible, _ = synthesised(only(*labels), filter={"category": "other"})
    if ND in labels:
        assert set(ineligible) == {"ND"}
    else:
        assert set(ineligible) == {"unrouted"}
        assert (ineligible["unrouted"].outcome, ineligible["unrouted"].stage) == (Outcome.REJECTED, "filter")


@pytest.mark.parametrize(("label", "found"), [(ER, "implicit"), (IC, "explicit")])
def test_a_message_that_puts_the_pair_otherwise_is_rejected(label: Label, found: str) -> None:
    constraint = {"evidence": "ghosts", "type": found, "dimension": "mood", "value": "scary"}
    answer = {"reason": "a scene", "continues": "current_subtask", "constraints": [constraint]}
    samples, _ = synthesised(only(label), match={"constraint": "c1"}, extract_new=answer)
    sample = samples[label.value]
    assert (sample.outcome, sample.stage) == (Outcome.REJECTED, "global")
    assert f"explicit against {found}" in sample.reason


def test_a_filter_that_fails_leaves_one_unrouted_sample() -> None:
    samples, driver = synthesised(ALL, filter=BROKEN)
    assert set(samples) == {"unrouted"}
    sample = samples["unrouted"]
    assert (sample.id, sample.label, sample.outcome) == ("seed-1-unrouted", None, Outcome.FAILED)
    assert (sample.stage, sample.kind, sample.reason) == ("filter", "unparseable", "no JSON in three attempts")
    assert sample.dialogue == a_seed().dialogue
    assert driver.stages() == ["filter"]


def test_a_dialogue_that_kills_engines_leaves_one_unrouted_sample() -> None:
    sample = crashed(a_seed())
    assert (sample.id, sample.label, sample.outcome) == ("seed-1-unrouted", None, Outcome.FAILED)
    assert sample.kind == "engine_crash"


# History


def test_constraints_are_deduplicated_clamped_and_put_explicit_first_in_the_llms_order() -> None:
    found = [
        constraint("implicit", "for children", turn=2),
        constraint("explicit", "Funny", turn=9),
        constraint("explicit", "short", dimension="Text Length"),
        constraint("explicit", "funny", turn=1),
        constraint("implicit", "funny"),
    ]
    samples, _ = synthesised(only(IC), constraints={"constraints": found})
    assert [(c.type, c.dimension, c.value, c.turn) for c in samples["IC"].constraints] == [
        ("explicit", "tone", "Funny", 3),
        ("explicit", "text_length", "short", 1),
        ("implicit", "tone", "for children", 2),
        ("implicit", "tone", "funny", 1),
    ]


def test_the_constraints_are_extracted_conditioned_on_the_tasks() -> None:
    _, driver = synthesised(only(IC))
    assert "write a bedtime story" not in prompt(driver.the("tasks"))
    for task in ("write a bedtime story", "choose the place", "draft the story"):
        assert task in prompt(driver.the("constraints"))
    assert "# Valid constraints" not in prompt(driver.the("constraints"))


# What each label's pipeline sees


GENERATION = ("match", "generate", "realize")


def test_er_never_sees_implicit_constraints_nor_the_repository() -> None:
    driver = Driver(memory=remembering())
    (sample,) = driver.samples(a_seed(), only(ER)).values()
    assert sample.outcome is Outcome.ACCEPTED
    for stage in (*GENERATION, "verify_anchor"):
        text = prompt(driver.the(stage))
        assert all(value in text for value in EXPLICIT)
        assert not any(value in text for value in IMPLICIT)
    # Only the global stage holds the message against all of C.
    assert all(value in prompt(driver.the("judge_global")) for value in (*EXPLICIT, *IMPLICIT))
    assert not driver.of_type(ReadRepository)
    assert not driver.of_type(RecordTrajectory)
    assert not any("of good" in prompt(r) or "of bad" in prompt(r) for r in driver.requests)
    assert sample.repository_version is None
    assert choices(driver.the("match"), "constraint") == ["c1", "c2"]


def test_ic_sees_both_kinds_of_constraints_and_the_repository() -> None:
    driver = Driver(memory=remembering())
    (sample,) = driver.samples(a_seed(), only(IC)).values()
    assert sample.outcome is Outcome.ACCEPTED
    for stage in GENERATION:
        assert all(value in prompt(driver.the(stage)) for value in (*EXPLICIT, *IMPLICIT))
    assert choices(driver.the("match"), "constraint") == ["c1", "c2", "c3", "c4"]
    assert driver.of_type(ReadRepository) == [ReadRepository(Speaking.KEY)]
    assert sample.repository_version == 1
    text = prompt(driver.the("generate"))
    for shown in ("task of good", "old of good", "new of good", "message of good", "message of bad", "reason of bad"):
        assert shown in text
    # Success and failure are told apart.
    worked, failed = text.index("Worked: "), text.index("Failed: ")
    assert worked < text.index("message of good") < failed < text.index("message of bad") < text.index("reason of bad")


def test_ic_reads_the_repository_of_the_schema_it_matched() -> None:
    driver = Driver(Script({"match/IC": {"dimension": "genre"}}), memory=remembering(Speaking.KEY))
    sample = driver.samples(a_seed(), only(IC))["IC"]
    assert driver.of_type(ReadRepository) == [ReadRepository(Speaking.GENRE)]
    assert (sample.speaking, sample.repository_version) == (Speaking.GENRE, 0)
    assert "of good" not in prompt(driver.the("generate"))
    assert driver.memory.view(Speaking.GENRE) == RepositoryView()


@pytest.mark.parametrize("label", [ER, IC])
def test_the_generator_is_told_anchor_schema_and_new_constraint(label: Label) -> None:
    samples, driver = synthesised(only(label), match={"constraint": "c2", "dimension": "genre"})
    sample = samples[label]
    assert sample.anchor is not None
    assert (sample.anchor.value, sample.speaking) == (EXPLICIT[1], Speaking.GENRE)
    generate = driver.the("generate").messages[-1]["content"].rpartition("# Job")[2]
    assert f"c2. length: {EXPLICIT[1]}" in generate
    assert Speaking.GENRE.meaning in generate
    realize = driver.the("realize").messages[-1]["content"].rpartition("# Job")[2]
    assert all(shown in realize for shown in (EXPLICIT[1], "ghosts that scare", CARRIER))
    # Only a continuation is warned of revision signals.
    assert ("It has no revision signal of any kind" in realize) == (label is IC)
    assert ("It openly makes the change" in realize) == (label is ER)
    assert sample.follow_up == FOLLOW_UP
    assert all(schema.meaning in prompt(driver.the("match")) for schema in Speaking)


def allowed_types(request: LLMRequest) -> set[str]:
    def passes(kind: str) -> bool:
        fields = {"reason": "", "type": kind, "dimension": "tone", "value": "v", "carrier": "c"}
        try:
            request.reply.model_validate(fields)
        except ValidationError:
            return False
        return True

    return {kind for kind in ("explicit", "implicit") if passes(kind)}


@pytest.mark.parametrize(
    ("label", "anchor", "new"),
    [
        (ER, "c1", {"explicit"}),
        (ER, "c2", {"explicit"}),
        (IC, "c1", {"implicit"}),
        (IC, "c2", {"implicit"}),
        (IC, "c3", {"explicit", "implicit"}),
        (IC, "c4", {"explicit", "implicit"}),
    ],
)
def test_at_least_one_side_of_an_implicit_conflict_is_implicit(label: Label, anchor: str, new: set[str]) -> None:
    _, driver = synthesised(only(label), match={"constraint": anchor})
    assert allowed_types(driver.the("generate")) == new
    assert set(choices(driver.the("generate"), "type")) == new


@pytest.mark.parametrize(
    ("label", "anchor", "new", "relation"),
    [
        (ER, "c1", "explicit", Relation.H_E_N_E),
        (IC, "c1", "implicit", Relation.H_E_N_I),
        (IC, "c3", "explicit", Relation.H_I_N_E),
        (IC, "c3", "implicit", Relation.H_I_N_I),
    ],
)
def test_a_sample_knows_its_relation(label: Label, anchor: str, new: str, relation: Relation) -> None:
    samples, _ = synthesised(only(label), match={"constraint": anchor}, generate={"type": new})
    assert samples[label].relation is relation
    assert relation.label is label


def test_nd_takes_the_original_follow_up_and_skips_the_anchor_stage() -> None:
    samples, driver = synthesised(only(ND))
    sample, dialogue = samples["ND"], a_seed().dialogue
    assert sample.dialogue.turns == dialogue.turns[:-1]
    assert sample.follow_up == "Give the lamp a name."
    assert driver.stages() == ["filter", "tasks", "constraints", "extract_new", "judge_global"]
    assert sample.relation is None
    assert (sample.anchor, sample.new, sample.anchor_verdict, sample.speaking) == (None, None, None, None)
    assert (len(sample.constraints), len(sample.new_constraints)) == (4, 1)
    for stage in ("tasks", "constraints"):
        assert "Give the lamp a name." not in prompt(driver.the(stage))
    for request in driver.requests[1:]:
        assert "The lamp was called Lumi." not in prompt(request)
    for stage in ("extract_new", "judge_global"):
        assert "> Give the lamp a name." in prompt(driver.the(stage))
    assert "claimed_new" not in driver.the("judge_global").reply.model_fields
    assert "claimed_new" not in prompt(driver.the("judge_global"))
    assert all(value in prompt(driver.the("judge_global")) for value in (*EXPLICIT, *IMPLICIT))
    assert driver.of_type(RecordTrajectory) == []


def test_er_and_ic_work_on_the_whole_dialogue() -> None:
    samples, driver = synthesised(only(ER, IC))
    assert samples["ER"].dialogue == samples["IC"].dialogue == a_seed().dialogue
    assert all("> The lamp was called Lumi." in prompt(request) for request in driver.requests)


def test_every_call_has_its_role_temperature_and_bound() -> None:
    driver = Driver(memory=MemoryState(k=3, threshold=1))
    driver.samples(a_seed(), only(ND, ER, IC, generator_temperature=0.9, verifier_temperature=0.2))
    seen = {(r.stage, r.role, r.temperature) for r in driver.requests}
    assert seen == {
        ("filter", "generator", 0.0),
        ("tasks", "generator", 0.0),
        ("constraints", "generator", 0.0),
        ("match", "generator", 0.9),
        ("generate", "generator", 0.9),
        ("realize", "generator", 0.9),
        ("verify_anchor", "verifier", 0.2),
        ("extract_new", "verifier", 0.2),
        ("judge_global", "verifier", 0.2),
        ("curate", "curator", 0.0),
    }
    assert all(r.max_tokens == MAX_TOKENS[r.stage] for r in driver.requests)
