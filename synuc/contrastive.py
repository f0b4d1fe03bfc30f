"""Contrastive synthesis: follow-ups of all labels that differ in their relation to the dialogue, and else look alike.

Beyond the paper. Its ND samples are users' own next messages, and a detector could learn the look of synthetic ones
instead of conflicts. Here one dialogue and one anchor constraint give a triplet on the same things, of the same length
and manner: IC and ER, whose constraints are generated as the method does, and a hard ND that mentions what the conflict
would mention and yet is compatible. One call writes all three, in an order drawn by lot, so that neither a prompt of
its own nor the place marks a label. Each is then verified under its own label, and the global stage is offered it under
the labels of the others, with their pairs: it must refuse them. Each sample stands for itself, whatever the others'
outcome.

Only what was stated can be revised. So that IC doesn't come from explicit anchors alone, every second dialogue is to
have an implicit one, and no ER. The users' own next messages are not used: dialogues that aren't eligible give nothing,
and `alpha` has no say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from synuc import replies, synthesis
from synuc.config import Method
from synuc.effects import Fork, Program, request
from synuc.retrieval import retrieve
from synuc.sample import Contrast, Outcome, Sample
from synuc.speaking import Speaking
from synuc.synthesis import Ended, blank_sample, extract, generate, remember
from synuc.types import CallFailed, Constraint, History, Label, Seed
from synuc.verifier import judge_claim, verify

MAX_DEVIATION = 0.25
"""How far a message's length may be from the median of its triplet, as a share of it."""

SLACK = 8
"""Characters by which short messages may differ anyway."""


def synthesise(seed: Seed, method: Method) -> Program[list[Sample]]:
    """The triplet of one seed dialogue: IC, ER where the anchor is to be explicit, and a hard ND."""
    return (yield from synthesis.synthesise(seed, method, _branches, route))


def route(seed_id: str, eligible: bool, method: Method) -> tuple[Label, ...]:
    """The target labels of a dialogue: all if it is eligible, without ER if an implicit anchor was drawn; else none."""
    if not eligible:
        return ()
    return tuple(label for label in method.labels if label is not Label.ER or not _draws_implicit(seed_id, method))


def _draws_implicit(seed_id: str, method: Method) -> bool:
    return _lot(method, seed_id, "anchor")[0] < 128


def _lot(method: Method, seed_id: str, what: str) -> bytes:
    return hashlib.sha256(f"contrast/{method.seed}/{seed_id}/{what}".encode()).digest()


def _branches(
    seed: Seed, method: Method, eligibility: replies.Eligibility | None, labels: tuple[Label, ...]
) -> tuple[Program[list[Sample]], ...]:
    return (_triplet(seed, method, [blank_sample(seed, label, seed.dialogue, eligibility) for label in labels]),)


# A sample that has ended has a stage; the steps below leave it as it is.


def _triplet(seed: Seed, method: Method, samples: list[Sample]) -> Program[list[Sample]]:
    """One history D(t) for all; then anchor, pairs, messages, verdicts."""
    try:
        history = yield from extract(seed.id, seed.dialogue)
    except CallFailed as failure:
        return [sample.failed("extract", failure) for sample in samples]
    known = {"tasks": history.tasks, "constraints": history.constraints}
    samples = [sample.model_copy(update=known) for sample in samples]
    if not history.constraints:
        return [sample.rejected("match", "the history has no valid constraint to work on") for sample in samples]
    try:
        anchor, speaking = yield from _match(seed.id, history, method)
    except CallFailed as failure:
        return [sample.failed("match", failure) for sample in samples]
    samples = [_about(sample, anchor, speaking) for sample in samples]
    samples = yield Fork(tuple(_paired(sample, history, method) for sample in samples))
    samples = yield from _written(seed.id, samples, anchor, history, method)
    verified: list[Sample] = yield Fork(tuple(_verified(sample, samples, history, method) for sample in samples))
    return verified


def _match(seed_id: str, history: History, method: Method) -> Program[tuple[Constraint, Speaking]]:
    """The anchor, of the type that was drawn if the history has one, and its SPEAKING schema."""
    wanted = "implicit" if _draws_implicit(seed_id, method) else "explicit"
    candidates = [c for c in history.constraints if c.type == wanted] or list(history.constraints)
    if method.retrieval != "llm":
        return (yield from retrieve(seed_id, candidates))
    names = dict(zip(replies.ids("c", history.constraints), history.constraints, strict=True))
    ids = tuple(name for name, constraint in names.items() if constraint in candidates)
    reply: Any = yield request(
        "match",
        "generator",
        seed_id,
        method.generator_temperature,
        replies.match_reply(ids),
        history.dialogue,
        history.tasks,
        history.constraints,
        template="match_triplet",
        ids=ids,
        revised=candidates[0].type == "explicit" and Label.ER in route(seed_id, True, method),
        speaking=tuple(Speaking),
    )
    return names[reply.constraint], reply.dimension


def _about(sample: Sample, anchor: Constraint, speaking: Speaking) -> Sample:
    if sample.label is Label.ND:
        return sample
    if sample.label is Label.ER and anchor.type == "implicit":
        return sample.rejected("match", "the history has no explicit constraint to work on")
    return sample.model_copy(update={"anchor": anchor, "speaking": speaking})


def _paired(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """ER and IC with their new constraints, which are made as the method makes them."""
    if sample.stage or sample.label is Label.ND:
        return sample
    try:
        return (yield from generate(sample, history, method))
    except CallFailed as failure:
        return sample.failed("generate", failure)
    except Ended as ended:
        return sample.rejected(ended.stage, ended.reason)


def _written(
    seed_id: str, samples: Sequence[Sample], anchor: Constraint, history: History, method: Method
) -> Program[list[Sample]]:
    """The samples with their messages, written by one call."""
    pairs = {sample.label: sample.new for sample in samples if sample.new and not sample.stage}
    against = pairs.get(Label.IC) or pairs.get(Label.ER)
    if against is None:
        reason = "its triplet has no new constraint that a compatible message could stand against"
        return [sample if sample.stage else sample.rejected("generate", reason) for sample in samples]
    labels = [sample.label for sample in samples if sample.label is not None and not sample.stage]
    order = tuple(sorted(labels, key=lambda label: _lot(method, seed_id, label)))
    try:
        reply: Any = yield request(
            "realize_triplet",
            "generator",
            seed_id,
            method.generator_temperature,
            replies.triplet_reply(order),
            history.dialogue,
            history.tasks,
            history.constraints,
            anchor=anchor,
            things=against.evidence,
            pairs=pairs,
            order=order,
        )
    except CallFailed as failure:
        return [sample if sample.stage else sample.failed("realize", failure) for sample in samples]
    messages = {label: getattr(reply, replies.message_field(label)) for label in order}
    return _with_messages(samples, messages, Contrast(anchor=anchor, new=against))


def _with_messages(samples: Sequence[Sample], messages: Mapping[Label, str], contrast: Contrast) -> list[Sample]:
    """The samples with their messages; one whose length gives it away ends here."""
    middle = median(map(len, messages.values()))
    written = []
    for sample in samples:
        if sample.label is not None and sample.label in messages:
            message = messages[sample.label]
            stands = {"contrast": contrast} if sample.label is Label.ND else {}
            sample = sample.model_copy(update={"follow_up": message, **stands})
            if abs(len(message) - middle) > max(MAX_DEVIATION * middle, SLACK):
                lengths = f"{len(message)} characters, the median of its triplet {middle:g}"
                sample = sample.rejected("realize", f"its length gives it away: {lengths}")
        written.append(sample)
    return written


def _verified(sample: Sample, triplet: Sequence[Sample], history: History, method: Method) -> Program[Sample]:
    """The sample with its outcome: under its own label, then against the others; IC is remembered."""
    if sample.stage:
        return sample
    sample = yield from verify(sample, history, method)
    if sample.outcome is Outcome.ACCEPTED and sample.label is Label.ND and sample.continues == "new_task":
        sample = sample.rejected("global", "the message starts a new task, and so is no contrast to a conflict")
    if sample.outcome is Outcome.ACCEPTED and method.constraint_verifier:
        sample = yield from _against(sample, triplet, history, method)
    if sample.label is Label.IC and method.trajectory_update and sample.outcome is not Outcome.FAILED:
        yield from remember(sample, method)
    return sample


def _against(sample: Sample, triplet: Sequence[Sample], history: History, method: Method) -> Program[Sample]:
    """The accepted sample, unless the global stage takes its message for what another one of the triplet is."""
    shown = {name: getattr(sample, name) for name in ("follow_up", "continues", "new_constraints")}
    others = [other for other in triplet if other.label is not sample.label and (other.new or other.contrast)]
    claims = [other.model_copy(update={"id": f"{sample.id}-{other.label}", **shown}) for other in others]
    judged: list[Sample] = yield Fork(tuple(judge_claim(claim, history, method) for claim in claims))
    for claim in judged:
        if claim.outcome is Outcome.FAILED:
            return sample.failed("global", CallFailed(claim.kind, claim.reason))
        if claim.outcome is Outcome.ACCEPTED and claim.judgment:
            return sample.rejected("global", f"{claim.label} was accepted as well: {claim.judgment.analysis}")
    return sample
