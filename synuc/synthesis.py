"""Algorithm 1 of the paper (Appendix C.2) as programs that do no I/O.

A program is a generator: it yields an effect, receives the effect's result, and returns what it made. Whoever drives it
carries the effects out: an actor on a real engine and memory, a test from a script. `LLMRequest` gives the parsed reply
or raises `CallFailed` inside the program; `Fork` gives the results of programs that may run side by side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from synuc import prompts, replies
from synuc.config import Method
from synuc.memory import Lease, RepositoryView, Trajectory
from synuc.sample import Outcome, Sample, Stage
from synuc.speaking import Speaking
from synuc.types import (
    CallFailed,
    Constraint,
    Dialogue,
    Label,
    LLMRequest,
    NewConstraint,
    Relation,
    Role,
    Seed,
    TaskHierarchy,
)

T = TypeVar("T")
Program = Generator[Any, Any, T]


@dataclass(frozen=True)
class Fork:
    """Run the programs side by side; the result is the list of theirs, in order."""

    programs: tuple[Program[Any], ...]


@dataclass(frozen=True)
class ReadRepository:
    """The result is the schema's `RepositoryView`."""

    speaking: Speaking


@dataclass(frozen=True)
class RecordTrajectory:
    """Put a trajectory into its schema's buffer. The result is a `Lease` if the buffer is now to be merged, or None."""

    trajectory: Trajectory


@dataclass(frozen=True)
class CommitUpdate:
    """Make the named candidates of a lease the repository."""

    lease: Lease
    successes: tuple[str, ...]
    failures: tuple[str, ...]


@dataclass(frozen=True)
class ReleaseLease:
    """Give a lease back without an update."""

    lease: Lease
    reason: str


# Bounds on an answer's tokens. The JSON schemas bound the characters; Chinese takes up to three tokens a character.
MAX_TOKENS = {
    "filter": 400,
    "tasks": 900,
    "constraints": 2400,
    "match": 400,
    "generate": 700,
    "pair": 700,
    "realize": 1200,
    "verify_anchor": 900,
    "extract_new": 1500,
    "judge_global": 1000,
    "verify_direct": 1000,
    "curate": 600,
}


class _Ended(Exception):
    """Raised inside a pipeline where its sample is rejected."""

    def __init__(self, stage: Stage, reason: str) -> None:
        super().__init__(reason)
        self.stage: Stage = stage
        self.reason = reason


@dataclass(frozen=True)
class History:
    """<T, C> of a dialogue, explicit constraints first, so that E is a prefix of C."""

    dialogue: Dialogue
    tasks: TaskHierarchy
    constraints: tuple[Constraint, ...]

    @property
    def explicit(self) -> tuple[Constraint, ...]:
        return tuple(c for c in self.constraints if c.type == "explicit")


def synthesise(seed: Seed, method: Method) -> Program[list[Sample]]:
    """All samples of one seed dialogue: routing (line 5), then the ND, ER and IC pipelines side by side."""
    eligibility = None
    if method.task_filter:
        try:
            eligibility = yield _request("filter", "generator", seed.id, 0.0, replies.Eligibility, seed.dialogue)
        except CallFailed as failure:
            return [_failed(_blank(seed, None, seed.dialogue), "filter", failure)]
    labels = route(seed.id, eligibility is None or eligibility.eligible, method)
    if not labels:
        blank = _blank(seed, None, seed.dialogue, eligibility)
        return [_rejected(blank, "filter", "not eligible for ER and IC, and ND is not asked for")]
    branches: list[Program[list[Sample]]] = []
    conflicting = tuple(label for label in labels if label is not Label.ND)
    if conflicting:
        branches.append(_conflicts(seed, method, eligibility, conflicting))
    if Label.ND in labels:
        branches.append(_normal(seed, method, eligibility))
    results = yield Fork(tuple(branches))
    return [sample for samples in results for sample in samples]


def crashed(seed: Seed) -> Sample:
    """The one sample of a dialogue on which engines died again and again."""
    failure = CallFailed("engine_crash", "the engine died each time it worked on this dialogue")
    return _failed(_blank(seed, None, seed.dialogue), "", failure)


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
    reply: replies.Tasks = yield _request("tasks", "generator", key, 0.0, replies.Tasks, dialogue)
    tasks = TaskHierarchy(**reply.model_dump(exclude={"reason"}))
    found: replies.HistoricalConstraints = yield _request(
        "constraints", "generator", key, 0.0, replies.HistoricalConstraints, dialogue, tasks
    )
    unique: dict[tuple[str, ...], replies.Historical] = {}
    for c in found.constraints:
        unique.setdefault((c.type, c.dimension, c.value.casefold()), c)
    constraints = [
        Constraint(**c.model_dump(exclude={"turn"}), turn=min(c.turn, len(dialogue.turns))) for c in unique.values()
    ]
    return History(dialogue, tasks, tuple(sorted(constraints, key=lambda c: c.type)))


def _conflicts(
    seed: Seed, method: Method, eligibility: replies.Eligibility | None, labels: tuple[Label, ...]
) -> Program[list[Sample]]:
    """ER and IC of one dialogue: one history D(t) for both, then side by side."""
    blanks = [_blank(seed, label, seed.dialogue, eligibility) for label in labels]
    try:
        history = yield from extract(seed.id, seed.dialogue)
    except CallFailed as failure:
        return [_failed(blank, "extract", failure) for blank in blanks]
    samples: list[Sample] = yield Fork(tuple(_conflict(blank, history, method) for blank in blanks))
    return samples


def _normal(seed: Seed, method: Method, eligibility: replies.Eligibility | None) -> Program[list[Sample]]:
    """ND: history D(t-1), and the user's own last message as the follow-up. No anchor stage."""
    dialogue = seed.dialogue.before_last()
    sample = _blank(seed, Label.ND, dialogue, eligibility)
    sample = sample.model_copy(update={"follow_up": seed.dialogue.turns[-1].user})
    try:
        history = yield from extract(sample.id, dialogue)
    except CallFailed as failure:
        return [_failed(sample, "extract", failure)]
    sample = sample.model_copy(update={"tasks": history.tasks, "constraints": history.constraints})
    sample = yield from _verify_global(sample, history, method)
    return [sample]


def _conflict(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """ER or IC (lines 13-45): match, generate, realise, verify, and for IC remember."""
    sample = sample.model_copy(update={"tasks": history.tasks, "constraints": history.constraints})
    stage: Stage = "match" if method.memory else "generate"
    try:
        if method.memory:
            sample = yield from _match(sample, history, method)
            stage = "generate"
            sample = yield from _generate(sample, history, method)
        else:
            sample = yield from _generate_pair(sample, history, method)
        stage = "realize"
        sample = yield from _realize(sample, history, method)
    except CallFailed as failure:
        return _failed(sample, stage, failure)
    except _Ended as ended:
        return _rejected(sample, ended.stage, ended.reason)
    sample = yield from _verify(sample, history, method)
    decided = sample.outcome is not Outcome.FAILED
    if sample.label is Label.IC and method.memory and method.trajectory_update and decided:
        yield from _remember(sample, history, method)
    return sample


def _candidates(label: Label | None, history: History) -> tuple[Constraint, ...]:
    """C_y: all constraints for IC; ER may only revise explicit ones."""
    candidates = history.constraints if label is Label.IC else history.explicit
    if not candidates:
        kind = "valid" if label is Label.IC else "explicit"
        raise _Ended("match", f"the history has no {kind} constraint to work on")
    return candidates


def _match(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """MatchSchema by the LLM: anchor constraint and SPEAKING schema."""
    candidates = _candidates(sample.label, history)
    ids = tuple(f"c{n}" for n in range(1, len(candidates) + 1))
    reply: Any = yield _request(
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


def _generate(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """GenerateConstraint: Equation 4 for IC (schema, repository, C), Equation 5 for ER (schema, E)."""
    anchor, speaking = sample.anchor, sample.speaking
    assert anchor is not None
    assert speaking is not None
    candidates = _candidates(sample.label, history)
    values: dict[str, Any] = {
        "anchor": anchor,
        "anchor_id": f"c{candidates.index(anchor) + 1}",
        "speaking": speaking,
    }
    reply_type: type[BaseModel] = replies.GeneratedExplicit
    if sample.label is Label.IC:
        view: RepositoryView = yield ReadRepository(speaking)
        values |= {"successes": view.successes, "failures": view.failures}
        sample = sample.model_copy(update={"repository_version": view.version})
        # At least one side of the pair is implicit.
        reply_type = replies.GeneratedImplicit if anchor.type == "explicit" else replies.Generated
    reply: replies.Generated = yield _request(
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
    return sample.model_copy(update={"new": reply.constraint()})


def _generate_pair(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """Ablation of the memory: the LLM makes the pair directly, without schemas and repository."""
    candidates = _candidates(sample.label, history)
    ids = tuple(f"c{n}" for n in range(1, len(candidates) + 1))
    reply: Any = yield _request(
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
    if sample.label is Label.IC and anchor.type == reply.type == "explicit":
        raise _Ended("generate", "both constraints of the pair are explicit")
    new = NewConstraint(type=reply.type, dimension=reply.dimension, value=reply.value, evidence=reply.carrier)
    return sample.model_copy(update={"anchor": anchor, "new": new})


def _realize(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """RealizeAsContinuation (IC) or RealizeAsRevision (ER)."""
    reply: replies.Message = yield _request(
        "realize",
        "generator",
        sample.id,
        method.generator_temperature,
        replies.Message,
        history.dialogue,
        history.tasks,
        _candidates(sample.label, history),
        template="realize_ic" if sample.label is Label.IC else "realize_er",
        anchor=sample.anchor,
        new=sample.new,
    )
    return sample.model_copy(update={"follow_up": reply.message})


def _verify(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """The constraint consistency verifier (paper, section 4.1.6): the anchor stage, then the global stage."""
    if not method.constraint_verifier:
        return (yield from _verify_direct(sample, history, method))
    try:
        verdict: replies.AnchorVerdict = yield _request(
            "verify_anchor",
            "verifier",
            sample.id,
            method.verifier_temperature,
            replies.AnchorVerdict,
            history.dialogue,
            history.tasks,
            _candidates(sample.label, history),
            label=sample.label,
            anchor=sample.anchor,
            new=sample.new,
            message=sample.follow_up,
        )
    except CallFailed as failure:
        return _failed(sample, "anchor", failure)
    sample = sample.model_copy(update={"anchor_verdict": verdict})
    if not verdict.pair_holds:
        return _rejected(sample, "anchor", f"pair: {verdict.pair_analysis}")
    if sample.label is Label.IC and verdict.revision_signal:
        return _rejected(sample, "anchor", f"revision signal: {verdict.message_analysis}")
    if not verdict.message_holds:
        return _rejected(sample, "anchor", f"message: {verdict.message_analysis}")
    return (yield from _verify_global(sample, history, method))


def _verify_global(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """The global stage for every label: extract the message's constraints, judge them against all of C."""
    if not method.constraint_verifier:
        return (yield from _verify_direct(sample, history, method))
    shared = (history.dialogue, history.tasks, history.constraints)
    try:
        found: replies.NewConstraints = yield _request(
            "extract_new",
            "verifier",
            sample.id,
            method.verifier_temperature,
            replies.NewConstraints,
            *shared,
            message=sample.follow_up,
        )
        extracted = tuple(NewConstraint(**c.model_dump()) for c in found.constraints)
        sample = sample.model_copy(update={"continues": found.continues, "new_constraints": extracted})
        ids = tuple(f"n{n}" for n in range(1, len(extracted) + 1))
        reply: Any = yield _request(
            "judge_global",
            "verifier",
            sample.id,
            method.verifier_temperature,
            replies.Judgment if sample.label is Label.ND else replies.judgment_reply(ids),
            *shared,
            label=sample.label,
            anchor=sample.anchor,
            new=sample.new,
            message=sample.follow_up,
            continues=found.continues,
            new_constraints=extracted,
        )
    except CallFailed as failure:
        return _failed(sample, "global", failure)
    judgment = replies.Judgment(**reply.model_dump(exclude={"claimed_new"}))
    anchor, new = sample.anchor, sample.new
    if anchor is not None and new is not None and reply.claimed_new != "none":
        # The claimed constraint stands in the list under the wording and type it was synthesised with.
        at = ids.index(reply.claimed_new)
        if Relation.of(anchor.type, extracted[at].type).label is not sample.label:
            sample = sample.model_copy(update={"judgment": judgment})
            types = f"{anchor.type} against {extracted[at].type}"
            return _rejected(sample, "global", f"as the message puts it, the pair is {types}: {judgment.analysis}")
        stated = new.model_copy(update={"evidence": extracted[at].evidence})
        sample = sample.model_copy(
            update={"new": stated, "new_constraints": (*extracted[:at], stated, *extracted[at + 1 :])}
        )
    elif new is not None:
        sample = sample.model_copy(update={"judgment": judgment})
        return _rejected(sample, "global", f"the message doesn't carry the claimed constraint: {judgment.analysis}")
    if sample.label is not Label.ND and sample.continues == "new_task":
        # ER and IC are relations within one task.
        sample = sample.model_copy(update={"judgment": judgment})
        return _rejected(sample, "global", f"the message starts a new task: {found.reason}")
    return _decide(sample, judgment, "global", method)


def _verify_direct(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """Ablation of the constraint verifier: one check of the final sample, without constraints."""
    try:
        judgment: replies.Judgment = yield _request(
            "verify_direct",
            "verifier",
            sample.id,
            method.verifier_temperature,
            replies.Judgment,
            history.dialogue,
            label=sample.label,
            message=sample.follow_up,
        )
    except CallFailed as failure:
        return _failed(sample, "direct", failure)
    return _decide(sample, judgment, "direct", method)


def _decide(sample: Sample, judgment: replies.Judgment, stage: Stage, method: Method) -> Sample:
    """v = v_a and v_g and [q >= tau] (line 33)."""
    sample = sample.model_copy(update={"judgment": judgment})
    if judgment.label is not sample.label:
        return _rejected(sample, stage, f"judged {judgment.label.value}: {judgment.analysis}")
    if not judgment.claim_holds:
        return _rejected(sample, stage, f"the claim doesn't hold: {judgment.analysis}")
    if method.confidence_filter and judgment.confidence < method.tau:
        return _rejected(sample, "confidence", f"q = {judgment.confidence} is below tau = {method.tau}")
    return sample.model_copy(update={"outcome": Outcome.ACCEPTED, "stage": "", "reason": ""})


def _remember(sample: Sample, history: History, method: Method) -> Program[None]:
    """WriteBuffer and, where the buffer is full, UpdateRepository (lines 39-45). It never changes the sample."""
    assert sample.speaking is not None
    assert sample.anchor is not None
    assert sample.new is not None
    assert sample.follow_up is not None
    trajectory = Trajectory(
        id=sample.id,
        speaking=sample.speaking,
        language=sample.language,
        context=f"{history.tasks.active_main_task} / {history.tasks.active_subtask}",
        constraints=history.constraints,
        anchor=sample.anchor,
        new=sample.new,
        message=sample.follow_up,
        success=sample.outcome is Outcome.ACCEPTED,
        confidence=sample.judgment.confidence if sample.judgment else None,
        reason=sample.reason,
    )
    lease: Lease | None = yield RecordTrajectory(trajectory)
    if lease is not None:
        yield from curate(lease, method)


def curate(lease: Lease, method: Method) -> Program[bool]:
    """Equation 3: the LLM keeps at most K of R+ and B+, and at most K of R- and B-. False if an answer was unusable."""
    kept: list[tuple[str, ...]] = []
    for success, trajectories in ((True, lease.successes), (False, lease.failures)):
        if not trajectories:
            kept.append(())
            continue
        ids = tuple(f"t{n}" for n in range(1, len(trajectories) + 1))
        try:
            reply: Any = yield _request(
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


def _request(
    stage: str,
    role: Role,
    key: str,
    temperature: float,
    reply: type[BaseModel],
    dialogue: Dialogue | None,
    tasks: TaskHierarchy | None = None,
    constraints: tuple[Constraint, ...] | None = None,
    template: str | None = None,
    **values: Any,
) -> LLMRequest:
    return LLMRequest(
        stage=stage,
        role=role,
        key=key,
        messages=prompts.messages(template or stage, dialogue, tasks, constraints, **values),
        reply=reply,
        max_tokens=MAX_TOKENS[stage],
        temperature=temperature,
    )


def _blank(
    seed: Seed, label: Label | None, dialogue: Dialogue, eligibility: replies.Eligibility | None = None
) -> Sample:
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


def _failed(sample: Sample, stage: Stage, failure: CallFailed) -> Sample:
    return sample.model_copy(
        update={"outcome": Outcome.FAILED, "stage": stage, "kind": failure.kind, "reason": failure.reason}
    )


def _rejected(sample: Sample, stage: Stage, reason: str) -> Sample:
    return sample.model_copy(update={"outcome": Outcome.REJECTED, "stage": stage, "reason": reason})
