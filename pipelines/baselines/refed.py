"""REFED (Mehri et al. 2025): feedback on good reference samples, not on each new one, guides the synthesis.

There, feedback on a reference's instruction guides new instructions, and feedback on its response refines the new
responses. Adapted: a reference is a labelled dialogue (`references.yaml`). What is good about its message guides the
writing of the new message, and what makes its label certain guides one refinement of it. The feedback on a reference
is collected once, and each sample is given one reference of its label, in even shares. Two calls, and the annotation.
"""

from __future__ import annotations

from pipelines.baselines import replies
from pipelines.baselines.common import ask_for, chosen, targets, written
from pipelines.baselines.references import learned, references
from synuc.config import Method
from synuc.effects import Program
from synuc.replies import Message
from synuc.sample import Sample
from synuc.types import Seed


def synthesise(seed: Seed, method: Method) -> Program[list[Sample]]:
    """The samples of one seed dialogue under reference-level feedback, as many as the method would make."""
    return targets(seed, method, _write)


def _write(sample: Sample, method: Method) -> Program[Sample]:
    reference = chosen(references(sample.label), sample, method)
    feedback: replies.Feedback = yield from learned("refed", reference, "refed_feedback", replies.Feedback, 2400)
    draft: Message = yield ask_for(sample, method, "refed_write", feedback=feedback.message)
    refined = yield ask_for(sample, method, "refed_refine", message=draft.message, feedback=feedback.label)
    return written(sample, refined)
