"""Drives a program (`synuc.effects`) until it returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from synuc.effects import Program
from synuc.types import CallFailed


async def drive(program: Program[Any], carry_out: Callable[[Any], Awaitable[Any]]) -> Any:
    """What the program returns. `carry_out` gives the result of each effect; a `CallFailed` of it is thrown inside."""
    try:
        effect = next(program)
        while True:
            try:
                result = await carry_out(effect)
            except CallFailed as failure:
                effect = program.throw(failure)
            else:
                effect = program.send(result)
    except StopIteration as done:
        return done.value
