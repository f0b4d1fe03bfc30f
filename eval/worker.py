"""An actor that drives the programs of an evaluation on the engines inside its process, many items at once."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from actors.driving import drive
from actors.engine import Call, Engine, EngineDead, EngineUnavailable, ask, build_engines, reply_schema
from eval.protocol import Evaluation, Item, Result
from synuc.config import OpenAIEngine, VllmEngine
from synuc.effects import Fork, Program
from synuc.types import CallFailed, LLMRequest

Row = tuple[str, dict[str, Any]]
"""The table that a row belongs to (`answers`, `calls`, `results`), or `fatal`, and the row."""


@dataclasses.dataclass
class _Asking:
    """What the calls about an item share. `failed`: one of them had no usable answer."""

    item: str
    known: Mapping[str, Any]
    draw: int
    tell: Callable[[Row], None]
    failed: bool = False


class EvalWorker:
    """A Ray actor with the engines of `engines`, by role; `workers` of them share an endpoint's calls in flight.

    `seed` is the run's: with another one, an engine that takes seeds draws other answers.
    """

    def __init__(
        self, engines: Mapping[str, VllmEngine | OpenAIEngine], workers: int, attempts: int, seed: int
    ) -> None:
        self._configs = dict(engines)
        self._workers = workers
        self._attempts = attempts
        self._seed = seed

    @cached_property
    def _engines(self) -> dict[str, Engine]:
        # At the first call: a key that only this node lacks is then told as any engine that is gone.
        return build_engines(self._configs, self._workers)

    async def work(
        self, evaluation: Evaluation, item: Item, known: Mapping[str, Any], draw: int = 0
    ) -> AsyncIterator[Row]:
        """Rows as they come: answers and calls, at last the result, or `fatal` with a `reason` that stops the run.

        `known` holds the replies of an earlier start by request hash: they are not asked for again. `draw` as in
        `eval.protocol.Result`: other answers are asked for than in the draws before.
        """
        rows: asyncio.Queue[Row | None] = asyncio.Queue()
        work = asyncio.create_task(self._finish(_Asking(item["id"], known, draw, rows.put_nowait), evaluation, item))
        work.add_done_callback(lambda _: rows.put_nowait(None))
        while (row := await rows.get()) is not None:
            yield row
        yield await work

    async def close(self) -> None:
        """Free the engines."""
        await asyncio.gather(*(engine.close() for engine in set(self._engines.values())))

    async def _finish(self, asking: _Asking, evaluation: Evaluation, item: Item) -> Row:
        try:
            value = await self._drive(evaluation.program(item), asking)
        except CallFailed as failed:
            # Of the same answers the program would make the same failure again.
            draw = asking.draw + (not asking.failed)
            return "results", Result(id=item["id"], kind=failed.kind, reason=failed.reason, draw=draw).model_dump()
        except EngineUnavailable as error:
            return "fatal", {"reason": str(error)}
        except EngineDead:
            os._exit(1)  # Ray starts the actor anew, and the driver hands its items out again
        return "results", Result(id=item["id"], value=value, draw=asking.draw).model_dump()

    async def _drive(self, program: Program[Any], asking: _Asking) -> Any:
        async def carry_out(effect: Any) -> Any:
            if isinstance(effect, Fork):
                return await _all(self._drive(part, asking) for part in effect.programs)
            return await self._ask(effect, asking)

        return await drive(program, carry_out)

    async def _ask(self, request: LLMRequest, asking: _Asking) -> BaseModel:
        key = request_hash(request, self._configs[request.role], asking.draw)
        if key in asking.known:
            return request.reply.model_validate(asking.known[key])

        def record(call: Call) -> None:
            # The prompt of an answer that was used is kept with it.
            prompt = {"messages": list(request.messages)} if call.error else {}
            asking.tell(("calls", {"item": asking.item, **dataclasses.asdict(call), "key": request.key, **prompt}))

        # Sampling seeds derive from the key: without the run's seed in it, runs would repeat each other.
        drawn = "/".join([str(self._seed), *([f"draw {asking.draw}"] if asking.draw else []), request.key])
        try:
            reply = await ask(
                self._engines[request.role], dataclasses.replace(request, key=drawn), record, self._attempts
            )
        except CallFailed:
            asking.failed = True
            raise
        answer = {"stage": request.stage, "role": request.role, "messages": list(request.messages)}
        if request.begun:
            answer["begun"] = request.begun
        asking.tell(
            ("answers", {"item": asking.item, "request": key, **answer, "reply": reply.model_dump(mode="json")})
        )
        return reply


async def _all(parts: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The results of all parts. If any fail, the others end first, so that what they were answered is kept."""
    results = await asyncio.gather(*parts, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        # What stops the worker or the run comes before what costs an item.
        raise next((error for error in errors if not isinstance(error, CallFailed)), errors[0])
    return results


def request_hash(request: LLMRequest, engine: VllmEngine | OpenAIEngine, draw: int = 0) -> str:
    """Sixteen hex digits that name what is asked, whom, and in which draw: the same question is asked once."""
    model = (engine.kind, engine.model, getattr(engine, "adapter", None), getattr(engine, "base_url", None))
    sampling = (request.max_tokens, request.temperature, request.begun, request.logprobs)
    asked = [model, request.stage, request.key, list(request.messages), reply_schema(request.reply), sampling, draw]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
