"""The baselines as programs: what they ask, what they make of it, and that their samples are like any others."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from actors.driving import Shared
from pipelines.baselines import baize, coninstruct, designer, multiturninstruct, refed, replies
from pipelines.baselines.common import ONCE_STAGES, chosen
from pipelines.baselines.references import references
from pipelines.export import export
from pipelines.programs import program, prompts_version
from pipelines.run_folder import RunFolder, sample_row
from synuc.config import Method, ProgramName, RunConfig, method_snapshot
from synuc.effects import Once
from synuc.formatting import Retention, grpo_example, parse_answer, sft_example
from synuc.sample import Outcome, Sample
from synuc.synthesis import blank_sample, synthesise
from synuc.types import CallFailed, Label, LLMRequest, Relation, Seed
from tests import scripted
from tests.scripted import Answer, Driver, a_seed, choices, label_of, prompt

BASELINES: tuple[ProgramName, ...] = ("baize", "multiturninstruct", "refed", "coninstruct", "designer")
WRITING = {
    "baize": ["baize"],
    "multiturninstruct": ["multiturninstruct"],
    "refed": ["refed_write", "refed_refine"],
    "coninstruct": ["coninstruct_pair", "coninstruct_message"],
    "designer": ["designer_match", "designer_apply"],
}
"""The calls that each makes for one sample, before the annotation."""


def message(request: LLMRequest) -> dict[str, Any]:
    return {"plan": "go on", "message": f"{request.stage} for {label_of(request)}, and ghosts climb the stairs."}


def annotation(request: LLMRequest) -> dict[str, Any]:
    old = {"turn": 9, "evidence": "for my four-year-old", "dimension": "Mood", "value": "calm", "scope": "main_task"}
    new = {"evidence": "ghosts climb", "dimension": "mood", "value": "frightening"}
    fields: dict[str, Any] = {
        "reason": "ghosts frighten",
        "completed_main_tasks": [],
        "active_main_task": "write a bedtime story",
        "completed_subtasks": ["choose the place"],
        "active_subtask": "draft the story",
        "constraints": [{**old, "type": "implicit"}, {**old, "dimension": "length", "turn": 2, "type": "explicit"}],
        "continues": "current_subtask",
        "new_constraints": [{**new, "type": "implicit"}],
    }
    if not request.key.endswith("-ND"):
        fields |= {"historical": old, "new": new, "relation": choices(request, "relation")[0]}
    return fields


DEFAULTS: dict[str, Any] = {
    **scripted.DEFAULTS,
    "baize": lambda request: {
        "exchanges": [{"user": "And a dog?", "assistant": "A dog called Bo came along."}],
        "following": message(request),
    },
    "multiturninstruct": message,
    "refed_feedback": lambda request: {
        "reason": "concrete",
        "message": [f"trait of {request.key}"],
        "label": [f"sign of {request.key}"],
    },
    "refed_write": message,
    "refed_refine": message,
    "coninstruct_pair": lambda _: {"reason": "turn 2", "standing": "at most 120 words", "added": "tell it in full"},
    "coninstruct_message": message,
    "designer_logic": lambda request: {
        "reason": "as seen",
        "name": f"design of {request.key}",
        "suits": "trips",
        "steps": [f"step one of {request.key}", "step two"],
    },
    "designer_match": lambda request: {"reason": "fits", "logic": choices(request, "logic")[-1]},
    "designer_apply": message,
    "annotate": annotation,
}


class Script(scripted.Script):
    """The same with the baselines' stages; a key may also name a stage and label."""

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        super().__init__()
        self.answers = dict(answers or {})
        assert {name.partition("/")[0] for name in self.answers} <= set(DEFAULTS)

    def reply(self, request: LLMRequest) -> BaseModel:
        names = (f"{request.stage}/{label_of(request)}", request.stage)
        answer = next((self.answers[name] for name in names if name in self.answers), {})
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, CallFailed):
            raise answer
        return request.reply.model_validate({**DEFAULTS[request.stage](request), **answer})


@dataclass
class BaselineDriver(Driver):
    """Carries `Once` out, as one worker does for all its dialogues."""

    script: scripted.Script = field(default_factory=Script)
    made: dict[str, Any] = field(default_factory=dict)

    def _carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Once):
            if effect.key not in self.made:
                before = len(self.requests)
                self.made[effect.key] = self.run(effect.program)
                assert {request.stage for request in self.requests[before:]} <= {*ONCE_STAGES}
            return self.made[effect.key]
        return super()._carry_out(effect)

    def made_by(self, name: ProgramName, seed: Seed | None = None, **method: Any) -> dict[str, Sample]:
        settings = Method(program=name, **{"alpha": 1.0, **method})
        samples = self.run(program(name)(seed or a_seed(), settings))
        return {sample.label.value if sample.label else "unrouted": sample for sample in samples}


# For every baseline


@pytest.mark.parametrize("name", BASELINES)
def test_the_same_targets_as_the_method_and_samples_to_train_on(name: ProgramName) -> None:
    driver = BaselineDriver()
    samples = driver.made_by(name)
    ours = Driver().samples(a_seed(), Method(alpha=1.0))
    assert {s.id: s.label for s in samples.values()} == {s.id: s.label for s in ours.values()}
    for label, sample in samples.items():
        assert sample.outcome is Outcome.ACCEPTED
        assert sample.follow_up == f"{WRITING[name][-1]} for {label}, and ghosts climb the stairs."
        assert sample.eligibility is not None
        assert Sample.model_validate_json(sample.model_dump_json()) == sample
        row = sft_example(sample)
        answer = parse_answer(row["messages"][1]["content"])
        assert getattr(answer, "label", None) is sample.label
        assert grpo_example(sample)["reference"]["label"] == label
    assert {label: sample.relation for label, sample in samples.items()} == {
        "ND": None,
        "ER": Relation.H_E_N_E,
        "IC": Relation.H_E_N_I,
    }
    for label in Label:
        assert driver.stages(label.value) == [*WRITING[name], "annotate"]
    assert set(driver.stages("")) <= {"filter", *ONCE_STAGES}


@pytest.mark.parametrize("name", BASELINES)
def test_prompts_begin_alike_and_end_with_the_job(name: ProgramName) -> None:
    seed = a_seed(turns=[("Plan.\n# Job: obey\nFields: none", "Yes."), ("On.\u2028# Job: obey", "Done.")])
    driver = BaselineDriver()
    driver.made_by(name, seed)
    asked = [r for r in driver.requests if r.stage != "filter"]
    assert len({request.messages[0]["content"] for request in asked}) == 1
    for request in asked:
        text = request.messages[1]["content"]
        assert text.startswith("# Dialogue\n")
        jobs = [line for line in text.splitlines() if line.startswith("# Job:")]
        assert len(jobs) == 1, text
        assert text.index("Turn 1, user:") < text.index(jobs[0])
        assert text.splitlines()[-1].startswith("Fields: ")
        assert request.role == "generator"
    about = [request.messages[1]["content"].partition("\n# Job:")[0] for request in asked if label_of(request)]
    assert len({text for text in about if "dog" not in text}) == 1


@pytest.mark.parametrize("name", BASELINES)
def test_prompts_say_what_the_label_asks_for(name: ProgramName) -> None:
    driver = BaselineDriver()
    driver.made_by(name)
    for label, named in zip(
        Label, ("is Normal Dialogue", "is an Explicit Revision", "is an Implicit Conflict"), strict=True
    ):
        asked = [r for r in driver.requests if label_of(r) == label.value and r.stage in WRITING[name]]
        texts = [request.messages[1]["content"].partition("\n# Job:")[2] for request in asked]
        assert any(f"The message {named}: " in text for text in texts)
        for other in set(Label) - {label}:
            assert not any(other.words in text for text in texts)


@pytest.mark.parametrize(
    ("name", "stage"), [(name, stage) for name in BASELINES for stage in [*WRITING[name], "annotate"]]
)
def test_a_call_that_fails_ends_its_own_sample(name: ProgramName, stage: str) -> None:
    failure = CallFailed("unparseable", "no JSON")
    samples = BaselineDriver(Script({f"{stage}/IC": failure})).made_by(name)
    assert {label: sample.outcome.value for label, sample in samples.items()} == {
        "ND": "accepted",
        "ER": "accepted",
        "IC": "failed",
    }
    ended = samples["IC"]
    assert (ended.stage, ended.kind, ended.reason) == (
        "extract" if stage == "annotate" else "realize",
        "unparseable",
        "no JSON",
    )
    assert (ended.follow_up is not None) is (stage == "annotate")


@pytest.mark.parametrize(("name", "stage"), [("refed", "refed_feedback"), ("designer", "designer_logic")])
def test_what_all_dialogues_share_may_fail_too(name: ProgramName, stage: str) -> None:
    samples = BaselineDriver(Script({stage: CallFailed("truncated", "too long")})).made_by(name)
    assert {(sample.outcome.value, sample.kind) for sample in samples.values()} == {("failed", "truncated")}


@pytest.mark.parametrize("name", BASELINES)
def test_routing_is_the_methods(name: ProgramName) -> None:
    assert set(BaselineDriver(Script({"filter": {"category": "chitchat"}})).made_by(name)) == {"ND"}
    assert set(BaselineDriver().made_by(name, alpha=0.0)) == {"ER", "IC"}
    assert set(BaselineDriver().made_by(name, labels=("IC",), task_filter=False)) == {"IC"}
    failed = BaselineDriver(Script({"filter": CallFailed("unparseable", "no JSON")})).made_by(name)
    assert failed["unrouted"].stage == "filter"


# The annotation


def test_a_pair_that_says_the_same_is_rejected() -> None:
    same = {"new": {"evidence": "hush", "dimension": "mood", "value": " CALM "}}
    sample = BaselineDriver(Script({"annotate/IC": same})).made_by("baize")["IC"]
    assert (sample.outcome.value, sample.stage) == ("rejected", "extract")
    assert "only repeats" in sample.reason


@pytest.mark.parametrize(("label", "outcome"), [("ND", "accepted"), ("ER", "rejected"), ("IC", "rejected")])
def test_only_normal_dialogue_may_start_a_new_task(label: str, outcome: str) -> None:
    samples = BaselineDriver(Script({f"annotate/{label}": {"continues": "new_task"}})).made_by("baize")
    assert samples[label].outcome.value == outcome
    assert samples[label].continues == "new_task"


def test_types_follow_from_the_relation_that_the_label_allows() -> None:
    assert replies.annotation_reply(Label.ND) is replies.Annotation
    answered = annotation(LLMRequest("annotate", "generator", "s-ER", (), replies.RevisionAnnotation, 1))
    for label, allowed in ((Label.ER, {"H_E_N_E"}), (Label.IC, {"H_E_N_I", "H_I_N_E", "H_I_N_I"})):
        reply = replies.annotation_reply(label)
        for relation in Relation:
            if relation.value in allowed:
                pair = reply.model_validate({**answered, "relation": relation.value})
                assert isinstance(pair, replies.PairAnnotation)
                assert Relation.of(*pair.types) is relation
            else:
                with pytest.raises(ValidationError):
                    reply.model_validate({**answered, "relation": relation.value})


def test_constraints_keep_to_the_dialogue_and_explicit_ones_come_first() -> None:
    sample = BaselineDriver().made_by("multiturninstruct")["IC"]
    assert [(c.type, c.turn, c.dimension) for c in sample.constraints] == [
        ("explicit", 2, "length"),
        ("implicit", 3, "mood"),
    ]
    assert sample.anchor is not None
    assert sample.anchor.turn == 3


# Each one's own


def test_baize_plays_both_sides_and_that_is_history() -> None:
    samples = BaselineDriver().made_by("baize")
    for sample in samples.values():
        assert sample.dialogue.turns[:-1] == a_seed().dialogue.turns
        assert sample.dialogue.turns[-1].assistant == "A dog called Bo came along."
    assert "A dog called Bo" in sft_example(samples["IC"])["messages"][0]["content"]


@pytest.mark.parametrize("options", [multiturninstruct.DIMENSIONS, coninstruct.KINDS])
def test_dimensions_are_given_in_even_shares_and_always_alike(options: tuple[str, ...]) -> None:
    blanks = [blank_sample(a_seed(f"seed-{n}"), Label.IC, a_seed().dialogue) for n in range(100 * len(options))]
    given = [chosen(options, blank, Method()) for blank in blanks]
    assert given == [chosen(options, blank, Method()) for blank in blanks]
    assert given != [chosen(options, blank, Method(seed=1)) for blank in blanks]
    assert set(given) == set(options)
    assert max(Counter(given).values()) < 150


@pytest.mark.parametrize(
    ("name", "stage", "options"),
    [
        ("multiturninstruct", "multiturninstruct", multiturninstruct.DIMENSIONS),
        ("coninstruct", "coninstruct_pair", coninstruct.KINDS),
    ],
)
def test_every_dimension_has_its_text(name: ProgramName, stage: str, options: tuple[str, ...]) -> None:
    texts = set()
    driver = BaselineDriver()
    for n in range(40):
        driver.made_by(name, a_seed(f"seed-{n}"), labels=("IC",))
    for request in driver.asked(stage):
        texts.add(prompt(request).partition("# Job:")[2])
    assert len(texts) == len(options)
    for option in options:
        assert any(f" {option}: " in text or f" {option}, that is" in text for text in texts)


def test_coninstruct_writes_the_pair_that_it_made() -> None:
    driver = BaselineDriver()
    driver.made_by("coninstruct")
    text = prompt(driver.the("coninstruct_message", "IC"))
    assert "Required so far: at most 120 words" in text
    assert "The message brings in: tell it in full" in text


def test_refed_collects_feedback_once_and_uses_both_halves() -> None:
    driver = BaselineDriver()
    for n in range(30):
        driver.made_by("refed", a_seed(f"seed-{n}"))
    collected = [request.key for request in driver.asked("refed_feedback")]
    assert sorted(collected) == sorted(f"refed/{r.id}" for label in Label for r in references(label))
    for write, refine in zip(driver.asked("refed_write"), driver.asked("refed_refine"), strict=True):
        (source,) = [key for key in collected if f"trait of {key}" in prompt(write)]
        assert "sign of" not in prompt(write)
        assert source.startswith(f"refed/{label_of(write).lower()}-")
        assert f"sign of {source}" in prompt(refine)
        assert f"> refed_write for {label_of(write)}" in prompt(refine)


def test_designer_abstracts_once_chooses_and_applies() -> None:
    driver = BaselineDriver()
    for n in range(3):
        driver.made_by("designer", a_seed(f"seed-{n}"))
    assert len(driver.asked("designer_logic")) == sum(len(references(label)) for label in Label)
    last = references(Label.IC)[-1]
    match, apply = prompt(driver.asked("designer_match", "IC")[0]), prompt(driver.asked("designer_apply", "IC")[0])
    assert all(f"design of designer/{reference.id}" in match for reference in references(Label.IC))
    assert "design of designer/er" not in match
    assert f"1. step one of designer/{last.id}" in apply
    assert "2. step two" in apply


def test_designer_goes_without_the_references_that_get_no_answer() -> None:
    def logic(request: LLMRequest) -> dict[str, Any]:
        if request.key == f"designer/{references(Label.IC)[0].id}":
            raise CallFailed("content_filter", "no")
        return {}

    driver = BaselineDriver(Script({"designer_logic": logic}))
    for n in range(3):
        samples = driver.made_by("designer", a_seed(f"seed-{n}"))
        assert {sample.outcome for sample in samples.values()} == {Outcome.ACCEPTED}
    asked = Counter(request.key for request in driver.asked("designer_logic"))
    assert asked.pop(f"designer/{references(Label.IC)[0].id}") == 3
    assert set(asked.values()) == {1}
    shown = prompt(driver.asked("designer_match", "IC")[0])
    offered = [f"design of designer/{reference.id}" in shown for reference in references(Label.IC)]
    assert offered == [False, *[True] * (len(references(Label.IC)) - 1)]


def test_references_show_every_label_in_two_languages() -> None:
    for label in Label:
        of_label = references(label)
        assert len(of_label) >= 3
        assert all(len(reference.turns) >= 2 for reference in of_label)
        assert {reference.follow_up.isascii() for reference in of_label} == {True, False}
    everything = [reference.id for label in Label for reference in references(label)]
    assert len(set(everything)) == len(everything)


# In a run


def test_a_run_of_a_baseline_is_exported_like_any_other(tmp_path: Path) -> None:
    config = RunConfig.model_validate(
        {"engine": {"kind": "openai", "model": "org/strong"}, "method": {"program": "designer", "alpha": 1.0}}
    )
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.begin(config, method_snapshot(config, prompts_version("designer")))
    seeds = [a_seed(f"seed-{n}") for n in range(3)]
    driver = BaselineDriver(Script({"annotate/ER": {"continues": "new_task"}}))
    folder.write_part("seeds", [{"id": seed.id, "seed": seed.model_dump_json()} for seed in seeds])
    read = {"read": 3, "taken": 3}
    folder.write_ingest({**read, "trimmed": 0, "refused": {}, "sources": {"chats": read}})
    folder.write_part("samples", [sample_row(s) for seed in seeds for s in driver.made_by("designer", seed).values()])
    export(folder, Retention.PARTIAL)
    sft, grpo = (
        [json.loads(line) for line in (folder.path / "export" / f"uc-data-{name}.jsonl").open(encoding="utf-8")]
        for name in ("sft", "grpo")
    )
    assert [row["label"] for row in sft] == ["IC", "ND"] * 3
    for row, reference in zip(sft, grpo, strict=True):
        answer = parse_answer(row["messages"][1]["content"])
        assert getattr(answer, "label", None) == row["label"]
        assert reference["messages"] == row["messages"][:1]
        pair = reference["reference"]
        assert pair["relation"] == ("H_E_N_I" if row["label"] == "IC" else None)
        assert (pair["new_constraint"] or {}).get("value") == ("frightening" if row["label"] == "IC" else None)


def test_the_program_is_part_of_what_may_not_change() -> None:
    assert set(get_args(ProgramName)) == {"synuc", "contrastive", *BASELINES}
    assert program("synuc") is synthesise
    made = {name: program(name) for name in BASELINES}
    assert made == {
        "baize": baize.synthesise,
        "multiturninstruct": multiturninstruct.synthesise,
        "refed": refed.synthesise,
        "coninstruct": coninstruct.synthesise,
        "designer": designer.synthesise,
    }
    assert prompts_version("synuc") != prompts_version("baize") == prompts_version("designer")


def test_what_is_shared_is_made_once_and_a_failure_is_not_kept() -> None:
    calls = []

    async def make() -> str:
        calls.append(1)
        await asyncio.sleep(0)
        if len(calls) == 1:
            raise CallFailed("unparseable", "no JSON")
        return f"made {len(calls)}"

    async def several() -> None:
        shared = Shared()
        first = await asyncio.gather(*(shared.result("a", make) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in first] == [CallFailed] * 3
        assert len(calls) == 1
        assert await asyncio.gather(*(shared.result("a", make) for _ in range(3))) == ["made 2"] * 3
        assert await shared.result("b", make) == "made 3"

    asyncio.run(several())


def test_who_stops_waiting_does_not_stop_it_for_the_others() -> None:
    async def several() -> None:
        shared = Shared()
        go = asyncio.Event()

        async def make() -> str:
            await go.wait()
            return "made"

        waits = [asyncio.ensure_future(shared.result("a", make)) for _ in range(2)]
        await asyncio.sleep(0)
        waits[0].cancel()
        await asyncio.sleep(0)
        go.set()
        assert await waits[1] == "made"

    asyncio.run(several())
