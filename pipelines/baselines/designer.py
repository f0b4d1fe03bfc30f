"""DESIGNER (2025): design logics, abstracted from good questions, are matched with new material and applied to it.

There, logics are taken from a large bank of questions and matched with documents by embeddings and a model. Adapted:
the bank are labelled dialogues (`references.yaml`), a logic is how such a sample was designed, and the material is
the seed dialogue. Logics are abstracted once; with few of them, the model alone chooses, among those that could be
abstracted. Two calls (match, apply), and the annotation.
"""

from __future__ import annotations

from typing import Any

from pipelines.baselines import replies
from pipelines.baselines.common import ask_for, targets, written
from pipelines.baselines.references import Reference, learned, references
from synuc.config import Method
from synuc.effects import Fork, Program
from synuc.replies import ids
from synuc.sample import Sample
from synuc.types import CallFailed, Label, Seed


def synthesise(seed: Seed, method: Method) -> Program[list[Sample]]:
    """The samples of one seed dialogue by design logics, as many as the method would make."""
    return targets(seed, method, _write)


def _write(sample: Sample, method: Method) -> Program[Sample]:
    assert sample.label is not None
    logics = yield from _logics(sample.label)
    names = ids("l", logics)
    choice: Any = yield ask_for(
        sample,
        method,
        "designer_match",
        replies.choice_reply(names),
        max_tokens=400,
        logics=tuple(zip(names, logics, strict=True)),
    )
    reply = yield ask_for(sample, method, "designer_apply", logic=logics[names.index(choice.logic)])
    return written(sample, reply)


def _logics(label: Label) -> Program[list[replies.Logic]]:
    """The logics of a label's references, without those whose call fails; if all do, that is the sample's failure."""
    tried: list[replies.Logic | CallFailed] = yield Fork(tuple(_tried(reference) for reference in references(label)))
    logics = [logic for logic in tried if isinstance(logic, replies.Logic)]
    if not logics:
        raise next(failure for failure in tried if isinstance(failure, CallFailed))
    return logics


def _tried(reference: Reference) -> Program[replies.Logic | CallFailed]:
    try:
        logic: replies.Logic = yield from learned("designer", reference, "designer_logic", replies.Logic, 1800)
    except CallFailed as failure:
        return failure
    return logic
