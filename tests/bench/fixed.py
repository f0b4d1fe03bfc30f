"""The method's own calls with prompts that don't depend on what the model says.

An engine answers every call, and its answer counts for nothing: the program goes on with a scripted one. So two ways of
asking are asked the same, word for word, at the length of real prompts, however small the model.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from synuc.config import Method
from synuc.effects import Fork, Program
from synuc.sample import Sample
from synuc.synthesis import synthesise
from synuc.types import CallFailed, LLMRequest, Seed
from tests.scripted import Driver, Script

ANSWER_TOKENS = 64
SCRIPT = Script()


def fixed(seed: Seed, method: Method) -> Program[list[Sample]]:
    """`synuc.synthesis.synthesise`, asked for real and answered from the script."""
    return asking(synthesise(seed, method))


def asking(program: Program[Any]) -> Program[Any]:
    """`program` with its calls made, and their answers replaced."""
    try:
        effect = next(program)
        while True:
            if isinstance(effect, LLMRequest):
                # Most are cut off at the bound: the work was done.
                with suppress(CallFailed):
                    yield bounded(effect)
                result: Any = SCRIPT.reply(effect)
            elif isinstance(effect, Fork):
                result = yield Fork(tuple(asking(forked) for forked in effect.programs))
            else:
                result = yield effect
            effect = program.send(result)
    except StopIteration as done:
        return done.value


def bounded(request: LLMRequest) -> LLMRequest:
    """The request as it is asked: greedily, and with a short answer."""
    return replace(request, temperature=0.0, max_tokens=min(request.max_tokens, ANSWER_TOKENS))


def requests_of(seed: Seed, method: Method) -> list[LLMRequest]:
    """All calls that `fixed` makes for a dialogue, with an empty memory."""
    driver = Driver()
    driver.samples(seed, method)
    return [bounded(request) for request in driver.requests]
