"""MultiTurnInstruct (Han et al. 2025): tasks of entangled instructions over several turns, by predefined dimensions.

Adapted: that work writes whole conversations for each dimension with people in the loop, to test how models follow
them. Here every dimension is a template of how a next message stands to an earlier instruction; each sample is given
one of them in even shares, and the model fills it in for the seed dialogue and the requested label. One call, and the
annotation.
"""

from __future__ import annotations

from pipelines.baselines.common import ask_for, chosen, targets, written
from synuc.config import Method
from synuc.effects import Program
from synuc.sample import Sample
from synuc.types import Seed

DIMENSIONS = ("memory", "updates", "reasoning", "multitasking", "privacy", "personalisation", "prioritisation")
"""Retrieving information, tracking it over turns, and resolving contradictions; `prompts/multiturninstruct.md` says
what each one is."""


def synthesise(seed: Seed, method: Method) -> Program[list[Sample]]:
    """The samples of one seed dialogue by templates of dimensions, as many as the method would make."""
    return targets(seed, method, _write)


def _write(sample: Sample, method: Method) -> Program[Sample]:
    reply = yield ask_for(sample, method, "multiturninstruct", dimension=chosen(DIMENSIONS, sample, method))
    return written(sample, reply)
