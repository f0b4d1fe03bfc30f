"""Contrastive synthesis, branch by branch, with a scripted LLM and a real memory state; export and figures of it."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from actors.retrieval import bm25
from experiments.config import SCALES
from experiments.config import load as load_experiment
from experiments.plan import cells
from pipelines.export import export
from pipelines.programs import program, prompts_version
from pipelines.quality.giveaways import giveaways
from pipelines.quality.rows import rows
from pipelines.run_folder import RunFolder, sample_row
from pipelines.show import show
from synuc import contrastive, prompts
from synuc.config import Method, RunConfig, load, method_snapshot
from synuc.contrastive import MAX_DEVIATION, SLACK, route
from synuc.effects import MAX_TOKENS, Compare, ReadRepository, RecordTrajectory
from synuc.formatting import Retention, answer_of, grpo_example, parse_answer
from synuc.layers import ConfigError
from synuc.replies import triplet_reply
from synuc.sample import Contrast, Outcome, Sample
from synuc.types import CallFailed, Label, LLMRequest, Relation, Seed
from tests.quality import innocent
from tests.scripted import CARRIER, EXPLICIT, FOLLOW_UP, IMPLICIT, Answer, Driver, Script, a_seed, choices, prompt

ND, ER, IC = Label.ND, Label.ER, Label.IC
ROOT = Path(__file__).parents[2]
METHOD = Method(program="contrastive", alpha=0.0)
BROKEN = CallFailed("unparseable", "no JSON in three attempts")
DRAWN = {
    kind: next(f"{kind}{n}" for n in range(100) if (ER in route(f"{kind}{n}", True, METHOD)) == (kind == "explicit"))
    for kind in ("explicit", "implicit")
}
"""The id of a dialogue for which an anchor of this type is drawn."""
FULL, PAIR = DRAWN["explicit"], DRAWN["implicit"]


def is_cross(request: LLMRequest) -> bool:
    """Whether a message is offered under the label of another one of its triplet."""
    return request.key.split("-")[-2] in Label.__members__


def seen_through(request: LLMRequest) -> dict[str, Any]:
    """A verifier that knows each message's own label, whatever is claimed."""
    own = request.key.removeprefix(f"{request.key.split('-')[0]}-").split("-")[0]
    return {"label": own, "claim_holds": not is_cross(request)}


def made(
    answers: Mapping[str, Answer] | None = None, id: str = FULL, method: Method = METHOD
) -> tuple[dict[str, Sample], Driver]:
    """The samples of a dialogue by label, and the driver that made them."""
    driver = Driver(Script({"judge_global": seen_through, **(answers or {})}))
    return by_label(driver, a_seed(id), method), driver


def by_label(driver: Driver, seed: Seed, method: Method = METHOD) -> dict[str, Sample]:
    samples = driver.run(contrastive.synthesise(seed, method))
    found = {sample.label.value if sample.label else "unrouted": sample for sample in samples}
    assert len(found) == len(samples)
    return found


def outcomes(samples: Mapping[str, Sample]) -> dict[str, str]:
    return {label: f"{sample.outcome.value} {sample.stage}".strip() for label, sample in samples.items()}


def found_constraints(*kinds: str) -> dict[str, Any]:
    shared = {"turn": 1, "evidence": "words", "dimension": "tone", "scope": "main_task"}
    values = [{**shared, "type": kind, "value": f"value {n}"} for n, kind in enumerate(kinds)]
    return {"reason": "by turn", "constraints": values}


# The triplet


def test_one_dialogue_and_one_anchor_give_a_triplet() -> None:
    samples, driver = made()
    assert outcomes(samples) == dict.fromkeys(("ND", "ER", "IC"), "accepted")
    for label, sample in samples.items():
        assert (sample.id, sample.seed_id, sample.reason) == (f"{FULL}-{label}", FULL, "")
        assert sample.dialogue == a_seed().dialogue
        assert sample.follow_up == f"{FOLLOW_UP} {label}"
        assert (len(sample.constraints), sample.tasks is None, sample.eligibility is None) == (4, False, False)
        assert sample.judgment is not None
        assert Sample.model_validate_json(sample.model_dump_json()) == sample
    er, ic, nd = samples["ER"], samples["IC"], samples["ND"]
    assert er.anchor == ic.anchor is not None
    assert (er.relation, ic.relation) == (Relation.H_E_N_E, Relation.H_E_N_I)
    assert er.speaking is ic.speaking is not None
    # One call of each that they share.
    for stage in ("filter", "tasks", "constraints", "match", "realize_triplet"):
        assert [r.key for r in driver.asked(stage)] == [FULL]
    assert {(r.stage, r.role, r.max_tokens) for r in driver.requests} >= {
        ("match", "generator", MAX_TOKENS["match"]),
        ("realize_triplet", "generator", MAX_TOKENS["realize_triplet"]),
    }
    # The ND is one like any other, and says where it came from.
    assert (nd.anchor, nd.new, nd.speaking, nd.relation, nd.anchor_verdict) == (None,) * 5
    assert nd.contrast is not None
    assert (nd.contrast.anchor, nd.contrast.new.value) == (ic.anchor, "ghosts that scare")
    assert er.contrast is ic.contrast is None


def test_no_two_calls_of_a_dialogue_pass_for_one() -> None:
    _, driver = made()
    assert Counter((r.key, r.stage) for r in driver.requests).most_common(1)[0][1] == 1


def test_the_users_own_message_is_no_follow_up() -> None:
    samples, driver = made(method=METHOD.model_copy(update={"alpha": 1.0}))
    assert [sample.follow_up for sample in samples.values()] == [f"{FOLLOW_UP} {label}" for label in Label]
    assert all("> The lamp was called Lumi." in prompt(request) for request in driver.requests)


def test_the_writer_is_told_anchor_pairs_and_things() -> None:
    _, driver = made({"generate/ER": {"value": "900 words", "carrier": "nine hundred words"}})
    job = prompt(driver.the("realize_triplet")).rpartition("# Job")[2]
    assert f"mentions the same things: {CARRIER}" in job
    assert f"earlier: content: {EXPLICIT[0]} (explicit" in job
    assert "mood: ghosts that scare (implicit, by" in job
    assert "mood: 900 words (to be said by: nine hundred words)" in job
    assert all(f"- message_{label.lower()}, {label.words.lower()}" in job for label in Label)
    match = prompt(driver.the("match"))
    assert "one of c1; c2" in match
    assert "one revises it openly" in match


def test_constraints_are_generated_as_the_method_does() -> None:
    _, driver = made()
    er, ic = driver.the("generate", "ER"), driver.the("generate", "IC")
    assert not any(value in prompt(er) for value in IMPLICIT)
    assert all(value in prompt(ic) for value in (*EXPLICIT, *IMPLICIT))
    assert choices(er, "type") == ["explicit"]
    assert choices(ic, "type") == ["implicit"]
    assert len(driver.of_type(ReadRepository)) == 1


def test_messages_stand_in_an_order_drawn_by_lot_and_belong_to_their_labels() -> None:
    places: Counter[tuple[str, ...]] = Counter()
    for n in range(300):
        if ER not in route(f"s{n}", True, METHOD):
            continue
        samples, driver = made(id=f"s{n}")
        fields = tuple(driver.the("realize_triplet").reply.model_fields)
        assert fields[:2] == ("plan", "fits")
        places[fields[2:]] += 1
        assert all((sample.follow_up or "").endswith(label) for label, sample in samples.items())
    assert set(places) == {tuple(f"message_{label.lower()}" for label in order) for order in permutations(Label)}
    assert max(places.values()) < 3 * min(places.values())
    assert list(triplet_reply((IC,)).model_fields) == ["plan", "message_ic"]


# Which dialogues, which labels


def test_every_second_dialogue_is_to_have_an_implicit_anchor_and_no_er() -> None:
    ids = [f"seed-{n}" for n in range(2000)]
    drawn = [route(id, True, METHOD) for id in ids]
    assert set(drawn) == {(ND, ER, IC), (ND, IC)}
    assert 900 < drawn.count((ND, IC)) < 1100
    assert drawn == [route(id, True, METHOD) for id in ids]
    assert drawn != [route(id, True, METHOD.model_copy(update={"seed": 1})) for id in ids]


@pytest.mark.parametrize("new", ["explicit", "implicit"])
def test_an_implicit_anchor_gives_ic_and_nd(new: str) -> None:
    samples, driver = made({"generate": {"type": new}, "extract_new": extracted(new)}, PAIR)
    assert outcomes(samples) == {"ND": "accepted", "IC": "accepted"}
    assert choices(driver.the("match"), "constraint") == ["c3", "c4"]
    assert samples["IC"].relation is (Relation.H_I_N_E if new == "explicit" else Relation.H_I_N_I)
    assert samples["IC"].anchor is not None
    assert samples["IC"].anchor.value == IMPLICIT[0]
    assert "revises it openly" not in prompt(driver.the("match"))
    assert "message_er" not in prompt(driver.the("realize_triplet"))


def extracted(kind: str, **fields: Any) -> dict[str, Any]:
    found = {"evidence": "ghosts climb", "type": kind, "dimension": "mood", "value": "scary"}
    return {"reason": "a scene", "continues": "current_subtask", "constraints": [found], **fields}


def test_what_is_drawn_may_not_be_there() -> None:
    samples, driver = made({"constraints": found_constraints("implicit")}, FULL)
    assert outcomes(samples) == {"ND": "accepted", "ER": "rejected match", "IC": "accepted"}
    assert samples["ER"].reason == "the history has no explicit constraint to work on"
    assert "revises it openly" not in prompt(driver.the("match"))
    # It is not offered what was never made.
    assert not [r for r in driver.asked("judge_global") if r.key.endswith(("IC-ER", "ND-ER"))]
    samples, _ = made({"constraints": found_constraints("explicit")}, PAIR)
    assert outcomes(samples) == {"ND": "accepted", "IC": "accepted"}
    assert samples["IC"].relation is Relation.H_E_N_I


def test_a_history_without_constraints_gives_nothing() -> None:
    samples, driver = made({"constraints": found_constraints()})
    assert outcomes(samples) == dict.fromkeys(("ND", "ER", "IC"), "rejected match")
    assert driver.stages()[-1] == "constraints"


def test_a_dialogue_that_is_not_eligible_gives_nothing() -> None:
    samples, driver = made({"filter": {"category": "chitchat"}})
    assert outcomes(samples) == {"unrouted": "rejected filter"}
    assert driver.stages() == ["filter"]
    assert outcomes(made({"filter": BROKEN})[0]) == {"unrouted": "failed filter"}
    samples, driver = made(method=METHOD.model_copy(update={"task_filter": False}))
    assert (set(samples), driver.asked("filter")) == ({"ND", "ER", "IC"}, [])


@pytest.mark.parametrize("labels", [(IC,), (ND, IC), (ER, IC)])
def test_labels_restrict_what_is_made(labels: tuple[Label, ...]) -> None:
    samples, driver = made(method=METHOD.model_copy(update={"labels": labels}))
    assert outcomes(samples) == dict.fromkeys(labels, "accepted")
    assert len(driver.asked("judge_global")) == len(labels) ** 2


@pytest.mark.parametrize("override", ["method.memory=false", "method.labels=[ND, ER]"])
def test_without_conflict_or_schemas_there_is_no_triplet(override: str) -> None:
    file = ROOT / "configs" / "local.yaml"
    assert load([file], [override]).method.program == "synuc"
    with pytest.raises(ConfigError, match=r"contrastive.*method\.program=synuc"):
        load([file], [override, "method.program=contrastive"])


# Each stands for itself


@pytest.mark.parametrize("asked", ["tasks", "constraints", "match", "realize_triplet"])
def test_a_failed_call_that_all_share_fails_all(asked: str) -> None:
    samples, driver = made({asked: BROKEN})
    stage = {"match": "match", "realize_triplet": "realize"}.get(asked, "extract")
    assert outcomes(samples) == dict.fromkeys(("ND", "ER", "IC"), f"failed {stage}")
    assert {(sample.kind, sample.reason) for sample in samples.values()} == {("unparseable", BROKEN.reason)}
    assert driver.stages()[-1] == asked
    assert driver.of_type(RecordTrajectory) == []


@pytest.mark.parametrize(
    ("asked", "answer", "ended"),
    [
        ("generate/ER", BROKEN, "failed generate"),
        ("generate/IC", BROKEN, "failed generate"),
        ("generate/ER", {"value": EXPLICIT[0]}, "rejected generate"),
        ("generate/IC", {"value": EXPLICIT[0]}, "rejected generate"),
        ("verify_anchor/ER", {"pair_holds": False}, "rejected anchor"),
        ("verify_anchor/IC", {"revision_signal": True}, "rejected anchor"),
        ("verify_anchor/IC", BROKEN, "failed anchor"),
        ("extract_new/ND", BROKEN, "failed global"),
        (f"judge_global/{FULL}-ND", {"label": "IC"}, "rejected global"),
        (f"judge_global/{FULL}-ER", {"label": "IC"}, "rejected global"),
        (f"judge_global/{FULL}-IC", {"label": "IC", "confidence": 79}, "rejected confidence"),
        (f"judge_global/{FULL}-ND", {"label": "ND", "confidence": 79}, "rejected confidence"),
        ("extract_new/ND", extracted("implicit", continues="new_task"), "rejected global"),
    ],
)
def test_one_that_ends_leaves_the_others(asked: str, answer: Answer, ended: str) -> None:
    samples, driver = made({asked: answer})
    label = asked[-2:]
    assert outcomes(samples) == {**dict.fromkeys(("ND", "ER", "IC"), "accepted"), label: ended}
    assert samples[label].reason
    if asked.startswith("generate"):
        other = {"ER": "IC", "IC": "ER"}[label]
        assert samples["ND"].contrast == Contrast(anchor=samples[other].anchor, new=pair_of(samples[other]))
        assert f"message_{label.lower()}" not in driver.the("realize_triplet").reply.model_fields
        assert f"message_{label.lower()}," not in prompt(driver.the("realize_triplet"))


def pair_of(sample: Sample) -> Any:
    """The new constraint as it was generated, before the verifier found its evidence in the message."""
    assert sample.new is not None
    return sample.new.model_copy(update={"evidence": CARRIER})


def test_without_any_new_constraint_nd_has_nothing_to_stand_against() -> None:
    samples, driver = made({"generate": BROKEN})
    assert outcomes(samples) == {"ND": "rejected generate", "ER": "failed generate", "IC": "failed generate"}
    assert samples["ND"].contrast is None
    assert driver.stages()[-1] == "generate"


# Lengths


def written(**lengths: int) -> dict[str, str]:
    """What becomes of messages of these lengths."""
    messages = {f"message_{label}": "x" * length for label, length in lengths.items()}
    return outcomes(made({"realize_triplet": messages})[0])


def test_a_message_whose_length_gives_it_away_is_rejected() -> None:
    assert written(ic=100, er=75, nd=125) == dict.fromkeys(("ND", "ER", "IC"), "accepted")
    assert written(ic=100, er=74, nd=126) == {"ND": "rejected realize", "ER": "rejected realize", "IC": "accepted"}
    assert written(ic=200, er=100, nd=105) == {"ND": "accepted", "ER": "accepted", "IC": "rejected realize"}
    # Of short messages a word is more than a quarter.
    assert written(ic=10, er=18, nd=10) == dict.fromkeys(("ND", "ER", "IC"), "accepted")
    samples, driver = made({"realize_triplet": {"message_nd": "x" * 300}})
    assert samples["ND"].reason.startswith("its length gives it away: 300 characters, the median of its triplet")
    assert samples["ND"].follow_up == "x" * 300
    assert driver.asked("extract_new", "ND") == []
    # The others are still held against what it was to be.
    assert {r.key for r in driver.asked("judge_global") if is_cross(r)} == {
        f"{FULL}-{own}-{other}" for own, other in permutations(("ND", "ER", "IC"), 2) if own != "ND"
    }


@given(st.lists(st.integers(1, 700), min_size=3, max_size=3))
def test_what_is_left_is_of_like_length(lengths: list[int]) -> None:
    ended = written(**dict(zip(("nd", "er", "ic"), lengths, strict=True)))
    kept = [length for length, outcome in zip(lengths, ended.values(), strict=True) if outcome == "accepted"]
    middle = sorted(lengths)[1]
    assert middle in kept
    assert all(abs(length - middle) <= max(MAX_DEVIATION * middle, SLACK) for length in kept)
    assert len(kept) == 3 or max(lengths) - min(lengths) > SLACK


# Against the others


@pytest.mark.parametrize(("own", "other"), list(permutations(("ND", "ER", "IC"), 2)))
def test_a_message_that_passes_for_another_of_its_triplet_is_rejected(own: str, other: str) -> None:
    claim = f"judge_global/{FULL}-{own}-{other}"
    taken: dict[str, Any] = {"label": other, "claim_holds": True, "analysis": "fits as well", **claimed(own, other)}
    samples, driver = made({claim: taken, "extract_new": both})
    assert outcomes(samples) == {**dict.fromkeys(("ND", "ER", "IC"), "accepted"), own: "rejected global"}
    assert samples[own].reason == f"{other} was accepted as well: fits as well"
    # Its own verdict is kept; the memory learns from the outcome.
    judgment = samples[own].judgment
    assert judgment is not None
    assert judgment.label.value == own
    (effect,) = driver.of_type(RecordTrajectory)
    assert effect.trajectory.success is (own != "IC")
    assert effect.trajectory.reason == samples["IC"].reason
    # Doubts about another label, or a call of its own that fails.
    samples, _ = made({claim: {**taken, "confidence": 79}, "extract_new": both})
    assert outcomes(samples)[own] == "accepted"
    samples, driver = made({claim: BROKEN})
    assert (outcomes(samples)[own], samples[own].kind) == ("failed global", "unparseable")
    assert len(driver.of_type(RecordTrajectory)) == (own != "IC")


def both(request: LLMRequest) -> dict[str, Any]:
    """A message in which a constraint of each type can be found, its own first."""
    kinds = ("explicit", "implicit") if "-ER" in request.key else ("implicit", "explicit")
    found = [{"evidence": kind, "type": kind, "dimension": "mood", "value": kind} for kind in kinds]
    return {"constraints": found}


def claimed(own: str, other: str) -> dict[str, str]:
    return {} if other == "ND" else {"claimed_new": "n1" if (own == "ER") == (other == "ER") else "n2"}


def test_a_message_is_offered_with_the_others_pairs() -> None:
    _, driver = made({"generate/ER": {"value": "900 words"}})
    offered = {r.key.removeprefix(f"{FULL}-"): prompt(r) for r in driver.asked("judge_global")}
    assert set(offered) == {"ND", "ER", "IC"} | {f"{a}-{b}" for a, b in permutations(("ND", "ER", "IC"), 2)}
    for key, text in offered.items():
        own, claim = key.split("-")[0], key.split("-")[-1]
        assert f"> {FOLLOW_UP} {own}" in text
        assert f"Claim: the message is {claim}, " in text
        assert ("against new explicit mood: 900 words" in text) is (claim == "ER")
        assert ("against new implicit mood: ghosts that scare" in text) is (claim == "IC")
    assert len(driver.asked("extract_new")) == 3


def test_without_the_constraint_verifier_there_is_no_global_stage() -> None:
    samples, driver = made(method=METHOD.model_copy(update={"constraint_verifier": False}))
    assert outcomes(samples) == dict.fromkeys(("ND", "ER", "IC"), "accepted")
    assert len(driver.asked("verify_direct")) == 3
    assert driver.asked("judge_global") == []


# Memory and retrieval


def test_implicit_conflicts_are_remembered_as_ever() -> None:
    samples, driver = made()
    (effect,) = driver.of_type(RecordTrajectory)
    assert (effect.trajectory.id, effect.trajectory.success) == (f"{FULL}-IC", True)
    assert effect.trajectory.message == samples["IC"].follow_up
    _, driver = made(method=METHOD.model_copy(update={"trajectory_update": False}))
    assert driver.of_type(RecordTrajectory) == []


class Comparing(Driver):
    """Carries `Compare` out by BM25."""

    def _carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Compare):
            self.effects.append(effect)
            return bm25(effect.queries, effect.documents)
        return super()._carry_out(effect)


@pytest.mark.parametrize(("id", "values"), [(FULL, EXPLICIT), (PAIR, IMPLICIT)])
def test_the_anchor_may_be_matched_by_similarity(id: str, values: tuple[str, ...]) -> None:
    driver = Comparing(Script({"judge_global": seen_through}))
    samples = by_label(driver, a_seed(id), METHOD.model_copy(update={"retrieval": "bm25"}))
    assert set(outcomes(samples).values()) == {"accepted"}
    assert driver.asked("match") == []
    (compared,) = driver.of_type(Compare)
    assert all(value in query for value, query in zip(values, compared.queries, strict=True))
    assert samples["IC"].anchor is not None
    assert samples["IC"].anchor.value in values


# In a run


def a_run(path: Path, dialogues: int) -> RunFolder:
    """A run over dialogues whose messages have nothing to do with their labels."""
    config = RunConfig.model_validate(
        {"engine": {"kind": "openai", "model": "org/strong"}, "method": {"program": "contrastive"}}
    )
    folder = RunFolder(path)
    path.mkdir()
    folder.begin(config, method_snapshot(config, prompts_version("contrastive")))

    def messages(request: LLMRequest) -> dict[str, Any]:
        number = int(request.key.removeprefix("seed"))
        # The same words, turned by a place: alike in length, and telling nothing.
        texts = {label: f"{innocent(number)} Part {(number * 7 + n) % 10}." for n, label in enumerate(Label)}
        return {f"message_{label.lower()}": text for label, text in texts.items()}

    def asked_for(request: LLMRequest) -> dict[str, Any]:
        return {name: text for name, text in messages(request).items() if name in request.reply.model_fields}

    driver = Driver(Script({"judge_global": seen_through, "realize_triplet": asked_for}))
    seeds = [a_seed(f"seed{n}") for n in range(dialogues)]
    folder.write_part("seeds", [{"id": seed.id, "seed": seed.model_dump_json()} for seed in seeds])
    read = {"read": dialogues, "taken": dialogues}
    folder.write_ingest({**read, "trimmed": 0, "refused": {}, "sources": {"chats": read}})
    made = [sample for seed in seeds for sample in driver.run(contrastive.synthesise(seed, config.method))]
    folder.write_part("samples", [sample_row(sample) for sample in made])
    return folder


def test_a_run_is_exported_like_any_other(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 12)
    lines = export(folder, Retention.PARTIAL)
    counts = Counter(sample.label for sample in folder.samples(Outcome.ACCEPTED.value))
    assert counts[ND] == counts[IC] == 12
    assert 0 < counts[ER] < 12
    assert lines[0].startswith(f"{sum(counts.values())} accepted samples")
    exported = folder.path / "export"
    sft = [json.loads(line) for line in (exported / "uc-data-sft.jsonl").open(encoding="utf-8")]
    assert Counter(row["label"] for row in sft) == {label.value: counts[label] for label in Label}
    for row in sft:
        answer = parse_answer(row["messages"][1]["content"])
        assert getattr(answer, "label", None) == row["label"]
    everything = [json.loads(line) for line in (exported / "uc-data.jsonl").open(encoding="utf-8")]
    assert all((row["contrast"] is not None) is (row["label"] == "ND") for row in everything)
    assert "All follow-ups are synthetic" in (exported / "README.md").read_text("utf-8")
    nd = next(sample for sample in folder.samples() if sample.label is ND)
    assert (answer_of(nd).label, answer_of(nd).relation) == (ND, None)
    assert grpo_example(nd)["reference"]["new_constraint"] is None
    console = Console(file=io.StringIO(), width=120)
    show(folder, nd.id, False, console)
    assert nd.contrast is not None
    assert f"{nd.contrast.new}, which {nd.contrast.anchor} excludes" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_figures_of_quality_are_computed_over_triplets(tmp_path: Path) -> None:
    figures = giveaways(list(rows(a_run(tmp_path / "run", 90))))["en"]
    assert figures["computed"]
    assert set(figures["labels"]) == {"ND", "ER", "IC"}
    # The three of a dialogue look alike: nothing is to be learnt from them.
    for model in ("words", "style"):
        assert figures[model]["f1"] < 0.45


def test_the_program_is_chosen_by_its_name_and_is_part_of_the_method() -> None:
    assert program("contrastive") is contrastive.synthesise
    assert prompts_version("contrastive") == prompts.version()
    run: dict[str, Any] = {"engine": {"kind": "openai", "model": "m"}}
    plain, triplets = (
        method_snapshot(RunConfig.model_validate({**run, "method": {"program": name}}), "p")
        for name in ("synuc", "contrastive")
    )
    assert plain != triplets


def test_the_experiment_compares_nothing_but_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for scale in SCALES:
        planned = cells(load_experiment(Path("configs/experiments/contrastive.yaml"), scale))
        settings = {cell.variant: cell.steps["synthesize"].settings for cell in planned}
        plain, triplets = settings.values()
        assert triplets.method == plain.method.model_copy(update={"program": "contrastive"})
        assert triplets.model_copy(update={"method": plain.method}) == plain
