"""REFED (Mehri et al. 2025): feedback on good reference samples, not on each new one, guides the synthesis.

There, feedback on a reference's instruction guides new instructions, and feedback on its response refines the new
responses. Adapted: a reference is a labelled dialogue (`references.yaml`). What is good about its message guides the
writing of the new message, and what makes its label certain guides one refinement of it. The feedback on a reference
is collected once, and each sample is given one reference of its label, in even shares. Two calls, and the annotation.
"""

from __future__ import annotations

from pipelines.baselines import replies
from pipelines.baselines.common import MESSAGE_TOKENS, ask, chosen, targets, written
from pipelines.baselines.references import Reference, references
from synuc.config import Method
from synuc.effects import Once, Program
from synuc.replies import Message
from synuc.sample import Sample
from synuc.types import Seed


def synthesise(seed: Seed, method: Method) -> Program[list[Sample]]:
    """The samples of one seed dialogue under reference-level feedback, as many as the method would make."""
    return targets(seed, method, _write)


def _write(sample: Sample, method: Method) -> Program[Sample]:
    reference = chosen(references(sample.label), sample, method)
    feedback: replies.Feedback = yield Once(f"refed/{reference.id}", _feedback(reference))
    draft: Message = yield ask(
        "refed_write",
        sample.id,
        Message,
        sample.dialogue,
        max_tokens=MESSAGE_TOKENS,
        temperature=method.generator_temperature,
        label=sample.label,
        feedback=feedback.message,
    )
    refined = yield ask(
        "refed_refine",
        sample.id,
        Message,
        sample.dialogue,
        max_tokens=MESSAGE_TOKENS,
        temperature=method.generator_temperature,
        label=sample.label,
        message=draft.message,
        feedback=feedback.label,
    )
    return written(sample, refined)


def _feedback(reference: Reference) -> Program[replies.Feedback]:
    reply: replies.Feedback = yield ask(
        "refed_feedback",
        f"refed/{reference.id}",
        replies.Feedback,
        reference.dialogue,
        max_tokens=2400,
        label=reference.label,
        message=reference.follow_up,
        why=reference.why,
    )
    return reply
