"""Drives a program (`synuc.effects`) until it returns."""

from __future__ import annotations

import asyncio
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


class Shared:
    """What is made once for many programs (`synuc.effects.Once`): one result for each key."""

    def __init__(self) -> None:
        self._made: dict[str, asyncio.Future[Any]] = {}

    async def result(self, key: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """The result under `key`, made now if nobody asked before. A failure goes to all who wait, and is not kept."""
        if key not in self._made:
            self._made[key] = asyncio.ensure_future(make())
        making = self._made[key]
        try:
            # Whoever stops waiting must not stop it for the others.
            return await asyncio.shield(making)
        except Exception:
            if self._made.get(key) is making:
                del self._made[key]
            raise
