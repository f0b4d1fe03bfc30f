"""The constraint consistency verifier (paper, section 4.1.6): the anchor stage, then the global stage."""

from __future__ import annotations

from typing import Any

from synuc import replies
from synuc.config import Method
from synuc.effects import Program, request
from synuc.sample import Outcome, Sample, Stage
from synuc.types import CallFailed, History, Label, NewConstraint, Relation


def verify(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """The sample with its outcome. ND has no pair, so no anchor stage."""
    if not method.constraint_verifier:
        return (yield from _direct_check(sample, history, method))
    if sample.label is Label.ND:
        return (yield from global_stage(sample, history, method))
    return (yield from _anchor_stage(sample, history, method))


def _anchor_stage(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """Does the pair satisfy the label's definition, and does the message realise it? Then the global stage decides."""
    try:
        verdict: replies.AnchorVerdict = yield request(
            "verify_anchor",
            "verifier",
            sample.id,
            method.verifier_temperature,
            replies.AnchorVerdict,
            history.dialogue,
            history.tasks,
            history.candidates(sample.label),
            label=sample.label,
            anchor=sample.anchor,
            new=sample.new,
            message=sample.follow_up,
        )
    except CallFailed as failure:
        return sample.failed("anchor", failure)
    sample = sample.model_copy(update={"anchor_verdict": verdict})
    if not verdict.pair_holds:
        return sample.rejected("anchor", f"pair: {verdict.pair_analysis}")
    if sample.label is Label.IC and verdict.revision_signal:
        return sample.rejected("anchor", f"revision signal: {verdict.message_analysis}")
    if not verdict.message_holds:
        return sample.rejected("anchor", f"message: {verdict.message_analysis}")
    return (yield from global_stage(sample, history, method))


def global_stage(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """For every label: extract the message's constraints, judge them against all of C."""
    try:
        found: replies.NewConstraints = yield request(
            "extract_new",
            "verifier",
            sample.id,
            method.verifier_temperature,
            replies.NewConstraints,
            history.dialogue,
            history.tasks,
            history.constraints,
            message=sample.follow_up,
        )
    except CallFailed as failure:
        return sample.failed("global", failure)
    extracted = tuple(NewConstraint(**c.model_dump()) for c in found.constraints)
    sample = sample.model_copy(update={"continues": found.continues, "new_constraints": extracted})
    return (yield from judge_claim(sample, history, method, found.reason))


def judge_claim(sample: Sample, history: History, method: Method, said: str = "") -> Program[Sample]:
    """The second half of the global stage: the message's constraints, which `sample` has, against all of C.

    `said`: what the message asks for, for the reason of a rejection.
    """
    extracted = sample.new_constraints
    ids = replies.ids("n", extracted)
    try:
        reply: Any = yield request(
            "judge_global",
            "verifier",
            sample.id,
            method.verifier_temperature,
            replies.Judgment if sample.label is Label.ND else replies.judgment_reply(ids),
            history.dialogue,
            history.tasks,
            history.constraints,
            label=sample.label,
            anchor=sample.anchor,
            new=sample.new,
            message=sample.follow_up,
            continues=sample.continues,
            new_constraints=extracted,
        )
    except CallFailed as failure:
        return sample.failed("global", failure)
    judgment = replies.Judgment(**reply.model_dump(exclude={"claimed_new"}))
    sample = sample.model_copy(update={"judgment": judgment})
    anchor, new = sample.anchor, sample.new
    if anchor is not None and new is not None and reply.claimed_new != "none":
        # The claimed constraint stands in the list under the wording and type it was synthesised with.
        at = ids.index(reply.claimed_new)
        if Relation.of(anchor.type, extracted[at].type).label is not sample.label:
            types = f"{anchor.type} against {extracted[at].type}"
            return sample.rejected("global", f"as the message puts it, the pair is {types}: {judgment.analysis}")
        stated = new.model_copy(update={"evidence": extracted[at].evidence})
        sample = sample.model_copy(
            update={"new": stated, "new_constraints": (*extracted[:at], stated, *extracted[at + 1 :])}
        )
    elif new is not None:
        return sample.rejected("global", f"the message doesn't carry the claimed constraint: {judgment.analysis}")
    if sample.label is not Label.ND and sample.continues == "new_task":
        # ER and IC are relations within one task.
        return sample.rejected("global", f"the message starts a new task: {said}")
    return _decide(sample, judgment, "global", method)


def _direct_check(sample: Sample, history: History, method: Method) -> Program[Sample]:
    """Ablation of the constraint verifier: one check of the final sample, without constraints."""
    try:
        judgment: replies.Judgment = yield request(
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
        return sample.failed("direct", failure)
    sample = sample.model_copy(update={"judgment": judgment})
    return _decide(sample, judgment, "direct", method)


def _decide(sample: Sample, judgment: replies.Judgment, stage: Stage, method: Method) -> Sample:
    """v = v_a and v_g and [q >= tau] (line 33)."""
    if judgment.label is not sample.label:
        return sample.rejected(stage, f"judged {judgment.label.value}: {judgment.analysis}")
    if not judgment.claim_holds:
        return sample.rejected(stage, f"the claim doesn't hold: {judgment.analysis}")
    if method.confidence_filter and judgment.confidence < method.tau:
        return sample.rejected("confidence", f"q = {judgment.confidence} is below tau = {method.tau}")
    return sample.model_copy(update={"outcome": Outcome.ACCEPTED, "stage": "", "reason": ""})
