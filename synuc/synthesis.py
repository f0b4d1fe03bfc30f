"""Algorithm 1 of the paper (Appendix C.2) as programs that do no I/O; `synuc.effects` says what they may ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from synuc import replies
from synuc.config import Method
from synuc.effects import CommitUpdate, Fork, Program, ReadRepository, RecordTrajectory, ReleaseLease, request
from synuc.folding import folded
from synuc.memory import Lease, RepositoryView, Trajectory
from synuc.retrieval import retrieve
from synuc.sample import Outcome, Sample, Stage
from synuc.speaking import Speaking
from synuc.types import CallFailed, Constraint, Dialogue, History, Label, NewConstraint, Seed, TaskHierarchy
from synuc.verifier import verify


class Ended(Exception):
    """Raised inside a pipeline where its sample is rejected."""

    def __init__(self, stage: Stage, reason: str) -> None:
        super().__init__(reason)
        self.stage: Stage = stage
        self.reason = reason


SampleProgram = Callable[[Seed, Method], Program[list[Sample]]]
"""What makes the samples of one dialogue: `synthesise`, or a baseline that it is compared with."""

Branches = Callable[[Seed, Method, replies.Eligibility | None, tuple[Label, ...]], tuple[Program[list[Sample]], ...]]
"""What makes the samples of a dialogue's labels: programs that run side by side."""

Routing = Callable[[str, bool, Method], tuple[Label, ...]]
"""The target labels of a dialogue, from its id and whether it is eligible."""


def synthesise(
    seed: Seed, method: Method, branches: Branches | None = None, routing: Routing | None = None
) -> Program[list[Sample]]:
    """All samples of one seed dialogue: routing (line 5), then the ND, ER and IC pipelines side by side.

    `branches` stands in for these pipelines where another method synthesises, and `routing` for `route` where it does
    so for other targets.
    """
    eligibility = None
    if method.task_filter:
        try:
            eligibility = yield request("filter", "generator", seed.id, 0.0, replies.Eligibility, seed.dialogue)
        except CallFailed as failure:
            return [blank_sample(seed, None, seed.dialogue).failed("filter", failure)]
    labels = (routing or route)(seed.id, eligibility is None or eligibility.eligible, method)
    if not labels:
        blank = blank_sample(seed, None, seed.dialogue, eligibility)
        return [blank.rejected("filter", "not eligible for ER and IC, and its own next message is not asked for as ND")]
    results = yield Fork((branches or _pipelines)(seed, method, eligibility, labels))
    return [sample for samples in results for sample in samples]


def crashed(seed: Seed) -> Sample:
    """The one sample of a dialogue on which engines died again and again."""
    failure = CallFailed("engine_crash", "the engine died each time it worked on this dialogue")
    return blank_sample(seed, None, seed.dialogue).failed("", failure)


def route(seed_id: str, eligible: bool, method: Method) -> tuple[Label, ...]:
    """The target labels of a dialogue: ER and IC if eligible, and then ND too with probability alpha; else ND."""
    if not eligible:
        wanted = [Label.ND]
    else:
        digest = hashlib.sha256(f"route/{method.seed}/{seed_id}".encode()).digest()
        also_normal = int.from_bytes(digest[:8], "big") / 2**64 < method.alpha
        wanted = [*([Label.ND] if also_normal else []), Label.ER, Label.IC]
    return tuple(label for label in wanted if label in method.labels)


def extract(key: str, dialogue: Dialogue) -> Program[History]:
    """ExtractConstraints (paper, section 4.1.1): the task hierarchy, then the constraints conditioned on it."""
    reply: replies.Tasks = yield request("tasks", "generator", key, 0.0, replies.Tasks, dialogue)
    tasks = TaskHierarchy(**reply.model_dump(exclude={"reason"}))
    found: replies.HistoricalConstraints = yield request(
        "constraints", "generator", key, 0.0, replies.HistoricalConstraints, dialogue, tasks
    )
    unique: dict[tuple[str, ...], replies.Historical] = {}
    for c in found.constraints:
        unique.setdefault((c.type, c.dimension, c.value.casefold()), c)
    constraints = [
        Constraint(**c.model_dump(exclude={"turn"}), turn=min(c.turn, len(dialogue.turns))) for c in unique.values()
    ]
    constraints.sort(key=lambda c: c.type)
    return History(dialogue=dialogue, tasks=tasks, constraints=tuple(constraints))


def _pipelines(
    seed: Seed, method: Method, eligibility: replies.Eligibility | None, labels: tuple[Label, ...]
) -> tuple[Program[list[Sample]], ...]:
    """ER and IC share a history, so they are one program; ND is another."""
    programs: list[Program[list[Sample]]] = []
    conflicting = tuple(label for label in labels if label is not Label.ND)
    if conflicting:
        programs.append(_conflicts(seed, method, eligibility, conflicting))
    if Label.ND in labels:
        programs.append(_normal(seed, method, eligibility))
    return tuple(programs)


def _conflicts(
    seed: Seed, method: Method, eligibility: replies.Eligibility | None, labels: tuple[Label, ...]
) -> Program[list[Sample]]:
    """ER and IC of one dialogue: one history D(t) for both, then side by side."""
    blanks = [blank_sample(seed, label, seed.dialogue, eligibility) for label in labels]
    try:
        history = yield from extract(seed.id, seed.dialogue)
    except CallFailed as failure:
        return [blank.failed("extract", failure) for blank in blanks]
    samples: list[Sample] = yield Fork(tuple(_conflict(blank, history, method) for blank in blanks))
    return samples


def _normal(seed: Seed, method: Method, eligibility: replies.Eligibility | None) -> Program[list[Sample]]:
    """ND: history D(t-1), and the user's own last message as the follow-up. No anchor stage."""
    dialogue = seed.dialogue.before_last()
    sample = blank_sample(seed, Label.ND, dialogue, eligibility)
    sample = sample.model_copy(update={"follow_up": seed.dialogue.turns[-1].user})
    try:
        history = yield from extract(sample.id, dialogue)
    except CallFailed as failure:
        return [sample.failed("extract", failure)]
    sample = sample.model_copy(update={"tasks": history.tasks, "constraints": history.constraints})
    return [(yield from verify(sample, history, method))]


def _conflict(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """ER or IC (lines 13-45): match, generate, realise, verify, and for IC remember."""
    sample = sample.model_copy(update={"tasks": history.tasks, "constraints": history.constraints})
    stage: Stage = "match" if method.memory else "generate"
    try:
        if method.memory:
            sample = yield from _match(sample, history, method)
            stage = "generate"
            sample = yield from generate(sample, history, method)
        else:
            sample = yield from _generate_pair(sample, history, method)
        stage = "realize"
        sample = yield from _realize(sample, history, method)
    except CallFailed as failure:
        return sample.failed(stage, failure)
    except Ended as ended:
        return sample.rejected(ended.stage, ended.reason)
    sample = yield from verify(sample, history, method)
    decided = sample.outcome is not Outcome.FAILED
    if sample.label is Label.IC and method.memory and method.trajectory_update and decided:
        yield from remember(sample, method)
    return sample


def _candidates(sample: Sample, history: History) -> tuple[tuple[Constraint, ...], tuple[str, ...]]:
    """The constraints among which the anchor is chosen, and their ids."""
    candidates = history.candidates(sample.label)
    if not candidates:
        kind = "valid" if sample.label is Label.IC else "explicit"
        raise Ended("match", f"the history has no {kind} constraint to work on")
    return candidates, replies.ids("c", candidates)


def _match(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """MatchSchema, by the LLM or by similarity: anchor constraint and SPEAKING schema."""
    candidates, ids = _candidates(sample, history)
    if method.retrieval != "llm":
        anchor, speaking = yield from retrieve(sample.id, candidates)
        return sample.model_copy(update={"anchor": anchor, "speaking": speaking})
    reply: Any = yield request(
        "match",
        "generator",
        sample.id,
        method.generator_temperature,
        replies.match_reply(ids),
        history.dialogue,
        history.tasks,
        candidates,
        label=sample.label,
        speaking=tuple(Speaking),
    )
    return sample.model_copy(update={"anchor": candidates[ids.index(reply.constraint)], "speaking": reply.dimension})


def generate(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """GenerateConstraint: Equation 4 for IC (schema, repository, C), Equation 5 for ER (schema, E)."""
    anchor, speaking = sample.anchor, sample.speaking
    assert anchor is not None
    assert speaking is not None
    candidates, ids = _candidates(sample, history)
    values: dict[str, Any] = {"anchor": anchor, "anchor_id": ids[candidates.index(anchor)], "speaking": speaking}
    reply_type: type[BaseModel] = replies.GeneratedExplicit
    if sample.label is Label.IC:
        view: RepositoryView = yield ReadRepository(speaking)
        values |= {"successes": view.successes, "failures": view.failures}
        sample = sample.model_copy(update={"repository_version": view.version})
        # At least one side of the pair is implicit.
        reply_type = replies.GeneratedImplicit if anchor.type == "explicit" else replies.Generated
    reply: replies.Generated = yield request(
        "generate",
        "generator",
        sample.id,
        method.generator_temperature,
        reply_type,
        history.dialogue,
        history.tasks,
        candidates,
        template="generate_ic" if sample.label is Label.IC else "generate_er",
        **values,
    )
    return _paired(sample, anchor, reply.constraint())


def _generate_pair(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """Ablation of the memory: the LLM makes the pair directly, without schemas and repository."""
    candidates, ids = _candidates(sample, history)
    reply: Any = yield request(
        "pair",
        "generator",
        sample.id,
        method.generator_temperature,
        replies.pair_reply(ids, sample.label is Label.ER),
        history.dialogue,
        history.tasks,
        candidates,
        label=sample.label,
    )
    anchor = candidates[ids.index(reply.constraint)]
    new = NewConstraint(type=reply.type, dimension=reply.dimension, value=reply.value, evidence=reply.carrier)
    return _paired(sample, anchor, new)


def _paired(sample: Sample, anchor: Constraint, new: NewConstraint) -> Sample:
    """The sample with its pair, ended where no message could make the pair what the label says."""
    if sample.label is Label.IC and anchor.type == new.type == "explicit":
        raise Ended("generate", "both constraints of the pair are explicit")
    if folded(anchor.value) == folded(new.value):
        raise Ended("generate", f"the new constraint only repeats the old one: {new.value}")
    return sample.model_copy(update={"anchor": anchor, "new": new})


def _realize(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """RealizeAsContinuation (IC) or RealizeAsRevision (ER)."""
    reply: replies.Message = yield request(
        "realize",
        "generator",
        sample.id,
        method.generator_temperature,
        replies.Message,
        history.dialogue,
        history.tasks,
        history.candidates(sample.label),
        template="realize_ic" if sample.label is Label.IC else "realize_er",
        anchor=sample.anchor,
        new=sample.new,
    )
    return sample.model_copy(update={"follow_up": reply.message})


def trajectory(sample: Sample, success: bool, reason: str) -> Trajectory:
    """What the memory keeps of a sample that was made along a schema, as a success or with the reason of a failure."""
    assert sample.speaking is not None
    assert sample.tasks is not None
    assert sample.anchor is not None
    assert sample.new is not None
    assert sample.follow_up is not None
    return Trajectory(
        id=sample.id,
        speaking=sample.speaking,
        language=sample.language,
        context=f"{sample.tasks.active_main_task} / {sample.tasks.active_subtask}",
        constraints=sample.constraints,
        anchor=sample.anchor,
        new=sample.new,
        message=sample.follow_up,
        success=success,
        confidence=sample.judgment.confidence if sample.judgment else None,
        reason=reason,
    )


def remember(sample: Sample, method: Method) -> Program[None]:
    """WriteBuffer and, where the buffer is full, UpdateRepository (lines 39-45). It never changes the sample."""
    accepted = sample.outcome is Outcome.ACCEPTED
    lease: Lease | None = yield RecordTrajectory(trajectory(sample, accepted, sample.reason))
    if lease is not None:
        yield from curate(lease, method)


def curate(lease: Lease, method: Method) -> Program[bool]:
    """Equation 3: the LLM keeps at most K of R+ and B+, and at most K of R- and B-. False if an answer was unusable."""
    kept: list[tuple[str, ...]] = []
    for success, trajectories in ((True, lease.successes), (False, lease.failures)):
        if not trajectories:
            kept.append(())
            continue
        ids = replies.ids("t", trajectories)
        try:
            reply: Any = yield request(
                "curate",
                "curator",
                f"{lease.speaking.value}/{lease.version}/{success}",
                0.0,
                replies.curation_reply(ids, method.k),
                None,
                speaking=lease.speaking,
                success=success,
                candidates=tuple(zip(ids, trajectories, strict=True)),
                k=method.k,
            )
        except CallFailed as failure:
            yield ReleaseLease(lease, str(failure))
            return False
        kept.append(tuple(trajectories[ids.index(name)].id for name in dict.fromkeys(reply.keep)))
    yield CommitUpdate(lease, *kept)
    return True


def blank_sample(
    seed: Seed, label: Label | None, dialogue: Dialogue, eligibility: replies.Eligibility | None = None
) -> Sample:
    """The sample that a label's pipeline begins with. Until it ends it counts as failed."""
    return Sample(
        id=f"{seed.id}-{label.value if label else 'unrouted'}",
        seed_id=seed.id,
        label=label,
        outcome=Outcome.FAILED,
        language=seed.language,
        source=seed.source,
        origin=seed.origin,
        dialogue=dialogue,
        eligibility=eligibility,
    )
