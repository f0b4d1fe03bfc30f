"""ConInstruct (He et al. 2025): conflicts between constraints of six kinds inside one instruction.

Adapted: that work adds constraints of each kind to an instruction, and then constraints that contradict them. Here
the first one already stands in the dialogue and the second one comes with the next message. Each sample is given one
kind, in even shares; the model first makes the pair of requirements of this kind for the requested label (for normal
dialogue, one that agrees with what stands), then the message. Two calls, and the annotation.
"""

from __future__ import annotations

from pipelines.baselines import replies
from pipelines.baselines.common import ask_for, chosen, targets, written
from synuc.config import Method
from synuc.effects import Program
from synuc.sample import Sample
from synuc.types import Seed

KINDS = ("content", "keyword", "phrase", "length", "format", "style")


def synthesise(seed: Seed, method: Method) -> Program[list[Sample]]:
    """The samples of one seed dialogue by kinds of constraints, as many as the method would make."""
    return targets(seed, method, _write)


def _write(sample: Sample, method: Method) -> Program[Sample]:
    kind = chosen(KINDS, sample, method)
    pair: replies.Requirements = yield ask_for(
        sample, method, "coninstruct_pair", replies.Requirements, max_tokens=700, kind=kind
    )
    reply = yield ask_for(sample, method, "coninstruct_message", standing=pair.standing, added=pair.added)
    return written(sample, reply)
