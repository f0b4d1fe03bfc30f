"""Baize (Xu et al. 2023): self-chat. One model writes both sides of a chat that goes on from a given beginning.

Adapted: the beginning is the seed dialogue instead of a question; the model plays user and assistant for one or two
more turns, which become part of the history, and ends with a user message of the requested label. One call, and the
annotation.
"""

from __future__ import annotations

from pipelines.baselines import replies
from pipelines.baselines.common import MESSAGE_TOKENS, ask_for, targets, written
from synuc.config import Method
from synuc.effects import Program
from synuc.sample import Sample
from synuc.types import Dialogue, Seed, Turn


def synthesise(seed: Seed, method: Method) -> Program[list[Sample]]:
    """The samples of one seed dialogue by self-chat, as many as the method would make."""
    return targets(seed, method, _write)


def _write(sample: Sample, method: Method) -> Program[Sample]:
    reply: replies.SelfChat = yield ask_for(sample, method, "baize", replies.SelfChat, max_tokens=2 * MESSAGE_TOKENS)
    turns = tuple(Turn(user=exchange.user, assistant=exchange.assistant) for exchange in reply.exchanges)
    longer = Dialogue(turns=(*sample.dialogue.turns, *turns), system=sample.dialogue.system)
    return written(sample.model_copy(update={"dialogue": longer}), reply.following)
