"""Drives an evaluation's program with scripted answers: no engine, no actor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from synuc.effects import Fork, Program
from synuc.types import CallFailed, LLMRequest, Spoken

Answer = str | Mapping[str, Any] | Spoken | CallFailed
Script = Callable[[LLMRequest], Answer]


def drive(program: Program[Any], script: Script, asked: list[LLMRequest] | None = None) -> Any:
    """What the program returns. A text is the answer of a request for free text, fields make any other reply.

    `asked` collects the requests. Raises CallFailed if the program lets one through.
    """
    try:
        effect = next(program)
        while True:
            if isinstance(effect, Fork):
                try:
                    results = [drive(part, script, asked) for part in effect.programs]
                except CallFailed as failed:
                    effect = program.throw(failed)
                else:
                    effect = program.send(results)
                continue
            assert isinstance(effect, LLMRequest)
            if asked is not None:
                asked.append(effect)
            answer = script(effect)
            if isinstance(answer, CallFailed):
                effect = program.throw(answer)
            elif isinstance(answer, Spoken):
                effect = program.send(answer)
            elif isinstance(answer, str):
                effect = program.send(Spoken(text=answer))
            else:
                effect = program.send(effect.reply.model_validate(dict(answer)))
    except StopIteration as done:
        return done.value
