"""An actor that drives the programs of an evaluation on the engines inside its process, many items at once."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from actors.driving import drive
from actors.engine import Call, Engine, EngineDead, EngineUnavailable, ask, build_engine, reply_schema
from eval.protocol import Evaluation, Item, Result
from synuc.config import OpenAIEngine, VllmEngine
from synuc.effects import Fork, Program
from synuc.types import CallFailed, LLMRequest

Row = tuple[str, dict[str, Any]]
"""The table that a row belongs to (`answers`, `calls`, `results`), or `fatal`, and the row."""


class EvalWorker:
    """A Ray actor with the engines of `engines`, by role; `workers` of them share an endpoint's calls in flight.

    `seed` is the run's: with another one, an engine that takes seeds draws other answers.
    """

    def __init__(
        self, engines: Mapping[str, VllmEngine | OpenAIEngine], workers: int, attempts: int, seed: int
    ) -> None:
        self._configs = dict(engines)
        self._built: list[tuple[VllmEngine | OpenAIEngine, Engine]] = []
        self._engines: dict[str, Engine] = {}
        self._attempts = attempts
        self._workers = workers
        self._seed = seed

    async def work(self, evaluation: Evaluation, item: Item, known: Mapping[str, Any]) -> AsyncIterator[Row]:
        """Rows as they come: answers and calls, at last the result, or `fatal` with a `reason` that stops the run.

        `known` holds the replies of an earlier start by request hash: they are not asked for again.
        """
        rows: asyncio.Queue[Row | None] = asyncio.Queue()
        work = asyncio.create_task(self._finish(evaluation, item, known, rows.put_nowait))
        work.add_done_callback(lambda _: rows.put_nowait(None))
        while (row := await rows.get()) is not None:
            yield row
        yield await work

    async def close(self) -> None:
        """Free the engines."""
        await asyncio.gather(*(engine.close() for _, engine in self._built))

    async def _finish(
        self, evaluation: Evaluation, item: Item, known: Mapping[str, Any], tell: Callable[[Row], None]
    ) -> Row:
        try:
            value = await self._drive(evaluation.program(item), item["id"], known, tell)
        except CallFailed as failed:
            return "results", Result(id=item["id"], kind=failed.kind, reason=failed.reason).model_dump()
        except EngineUnavailable as error:
            return "fatal", {"reason": str(error)}
        except EngineDead:
            os._exit(1)  # Ray starts the actor anew, and the driver hands its items out again
        return "results", Result(id=item["id"], value=value).model_dump()

    async def _drive(
        self, program: Program[Any], item: str, known: Mapping[str, Any], tell: Callable[[Row], None]
    ) -> Any:
        async def carry_out(effect: Any) -> Any:
            if isinstance(effect, Fork):
                return await _all(self._drive(part, item, known, tell) for part in effect.programs)
            return await self._ask(effect, item, known, tell)

        return await drive(program, carry_out)

    async def _ask(
        self, request: LLMRequest, item: str, known: Mapping[str, Any], tell: Callable[[Row], None]
    ) -> BaseModel:
        key = request_hash(request, self._configs[request.role])
        if key in known:
            return request.reply.model_validate(known[key])

        def record(call: Call) -> None:
            tell(("calls", {"item": item, **dataclasses.asdict(call), "key": request.key}))

        # Sampling seeds derive from the key: without the run's seed in it, runs would repeat each other.
        drawn = dataclasses.replace(request, key=f"{self._seed}/{request.key}")
        reply = await ask(self._engine(request.role), drawn, record, self._attempts)
        answer = {"stage": request.stage, "role": request.role, "messages": list(request.messages)}
        if request.begun:
            answer["begun"] = request.begun
        tell(("answers", {"item": item, "request": key, **answer, "reply": reply.model_dump(mode="json")}))
        return reply

    def _engine(self, role: str) -> Engine:
        """The engine of a role; roles with the same configuration share one."""
        if role not in self._engines:
            config = self._configs[role]
            engine = next((built for other, built in self._built if other == config), None)
            if engine is None:
                share = max(1, config.max_in_flight // self._workers) if isinstance(config, OpenAIEngine) else None
                engine = build_engine(config, share)
                self._built.append((config, engine))
            self._engines[role] = engine
        return self._engines[role]


async def _all(parts: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The results of all parts. If any fail, the others end first, so that what they were answered is kept."""
    results = await asyncio.gather(*parts, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        # What stops the worker or the run comes before what costs an item.
        raise next((error for error in errors if not isinstance(error, CallFailed)), errors[0])
    return results


def request_hash(request: LLMRequest, engine: VllmEngine | OpenAIEngine) -> str:
    """Sixteen hex digits that name what is asked, and whom: the same question is asked once."""
    model = (engine.kind, engine.model, getattr(engine, "adapter", None), getattr(engine, "base_url", None))
    sampling = (request.max_tokens, request.temperature, request.begun, request.logprobs)
    asked = [model, request.stage, request.key, list(request.messages), reply_schema(request.reply), sampling]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]
