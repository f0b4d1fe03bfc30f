"""What runs in the replicas of Ray Serve: detectors, the ledger, and the gateway with its client of the detectors."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import os
import time
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import Field
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from actors.driving import drive
from actors.engine import Call, EngineDead, EngineUnavailable, ask
from actors.vllm_adapters import read_adapter
from actors.vllm_engine import InProcessVllm
from serving.config import DetectorConfig, LedgerConfig, ServeConfig
from serving.detect import detect
from serving.detection import Detection, DetectorBusy, DetectorDown, DetectRequest, TooLong, UnknownAdapter
from serving.gateway import create_app
from serving.ledger import Conversation, Ledger, LedgerDown
from synuc.effects import Fork, Program
from synuc.layers import Section
from synuc.types import LLMRequest

LOG = logging.getLogger(__name__)
ANSWERED_LATELY_S = 10.0
"""A detector that answered so long ago needs no asking whether it does."""

PATIENCE_S = 5.0
"""How long the gateway waits for what should take milliseconds: readiness, the ledger."""


class Reloadable(Section):
    """What a detector takes while it runs, as Serve's `user_config`: its adapters, name and folder."""

    adapters: dict[str, Path] = Field({})


class Detector:
    """One engine and its adapters. Serve calls `reconfigure` before the first request, and whenever they change."""

    def __init__(self, config: DetectorConfig) -> None:
        self._config = config
        self._engine: InProcessVllm | None = None
        self._reloading = asyncio.Lock()
        self._latest: asyncio.Task[None] | None = None

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Start the engine with these adapters (see `Reloadable`); later on, load those that are new into it.

        Later it returns at once, because Serve sends a replica no requests meanwhile. An adapter that can't be loaded
        then is reported in the log, and what has its name goes on.

        Raises:
            EngineUnavailable: at the start: no model, or an adapter that can't be loaded.
        """
        adapters = Reloadable.model_validate(user_config).adapters
        if self._engine is None:
            self._engine = self._built(adapters)
            await self._engine.start()
            await self.reload(adapters)
        else:
            self._latest = asyncio.create_task(self._reload_or_keep(adapters))

    async def reload(self, adapters: dict[str, Path]) -> None:
        """Make `adapters` the ones that are there. Detections that began with others finish with them.

        Raises:
            EngineUnavailable: one can't be loaded, or the one for requests that name none is missing.
        """
        default = self._config.default
        if default and default not in adapters:
            raise EngineUnavailable(f"the adapters lack {default}, which detector.default names: add it")
        engine = self._running
        # One after the other, so that the last one asked for wins.
        async with self._reloading:
            # All are looked at before any is changed; and those that stay are changed before any is taken away.
            versions = await asyncio.to_thread(_versions, adapters)
            there = engine.versions
            for name in adapters.keys() & there.keys():
                if versions[name] != there[name]:
                    await engine.add_adapter(name, adapters[name])
            for name in there.keys() - adapters.keys() - {""}:
                await engine.remove_adapter(name)
            for name in adapters.keys() - there.keys():
                await engine.add_adapter(name, adapters[name])

    async def detect(self, request: DetectRequest) -> Detection:
        """The verdict on a follow-up; `seconds` is the time in this replica.

        Raises:
            UnknownAdapter: the request names one that isn't there.
            TooLong: it has more tokens than the engine takes.
        """
        started = time.perf_counter()
        name = self._config.default if request.adapter is None else request.adapter
        engine = self._running
        try:
            held = engine.held(name)
        except KeyError:
            known = ", ".join(sorted(engine.versions.keys() - {""})) or "none"
            raise UnknownAdapter(f"no adapter {name!r}; there are: {known}") from None
        mode = request.mode or self._config.mode
        calls: list[Call] = []
        with held as adapter:
            try:
                detection: Detection = await self._drive(detect(request, self._config, mode), adapter.key, calls)
            except EngineDead:
                os._exit(1)  # Serve starts another replica, and the gateway asks again.
        return detection.model_copy(
            update={
                "adapter": name,
                "version": adapter.version or self._config.engine.model,
                "seconds": time.perf_counter() - started,
                "prompt_tokens": sum(call.prompt_tokens for call in calls),
                "completion_tokens": sum(call.completion_tokens for call in calls),
            }
        )

    async def ready(self) -> bool:
        """Whether the engine is well."""
        return self._running.alive

    async def check_health(self) -> None:
        """Raises EngineDead if the engine died: Serve then replaces the replica."""
        if not self._running.alive:
            raise EngineDead("the vLLM engine died")

    async def close(self) -> None:
        """Stop the engine, if it was begun."""
        if self._engine is not None:
            await self._engine.close()

    @property
    def _running(self) -> InProcessVllm:
        if self._engine is None:
            raise RuntimeError("a detector needs `reconfigure` before anything else")
        return self._engine

    def _built(self, adapters: dict[str, Path]) -> InProcessVllm:
        """The engine, with room for the adapters that it begins with, if the configuration gives it less."""
        engine = self._config.engine
        ranks = [read_adapter(folder, f"adapter {name}").rank for name, folder in adapters.items()]
        room = {
            "max_adapters": max(engine.max_adapters, len(adapters)),
            "max_adapter_rank": max(engine.max_adapter_rank, *ranks) if ranks else engine.max_adapter_rank,
        }
        return InProcessVllm(engine.model_copy(update=room))

    async def _reload_or_keep(self, adapters: dict[str, Path]) -> None:
        try:
            await self.reload(adapters)
        except EngineUnavailable as error:
            there = ", ".join(sorted(self._running.versions.keys() - {""})) or "none"
            LOG.error("not all adapters are as they should be: %s; there are: %s", error, there)

    async def _drive(self, program: Program[Any], adapter: str, calls: list[Call]) -> Any:
        """Carry out a program's requests, all on one adapter, until it returns."""

        async def carry_out(effect: Any) -> Any:
            if isinstance(effect, Fork):
                return await asyncio.gather(*(self._drive(part, adapter, calls) for part in effect.programs))
            return await self._ask(effect, adapter, calls)

        return await drive(program, carry_out)

    async def _ask(self, request: LLMRequest, adapter: str, calls: list[Call]) -> Any:
        return await ask(self._running, dataclasses.replace(request, adapter=adapter), calls, attempts=1)


class Ledgers:
    """The one ledger of the service. It lives as long as its replica: a conversation can begin anew."""

    def __init__(self, config: LedgerConfig) -> None:
        self._ledger = Ledger(config, time.time)

    async def update(self, owner: str, id: str, message: str, detection: Detection, turns: int) -> Conversation:
        """See `serving.ledger.Ledger`."""
        return self._ledger.update(owner, id, message, detection, turns)

    async def get(self, owner: str, id: str) -> Conversation | None:
        """See `serving.ledger.Ledger`."""
        return self._ledger.get(owner, id)

    async def verdict(self, owner: str, id: str, message: str) -> Detection | None:
        """See `serving.ledger.Ledger`."""
        return self._ledger.verdict(owner, id, message)


class DetectorClient:
    """Asks the detectors through their Serve handle: a `serving.detection.Detect`. Cancelling it cancels it there."""

    def __init__(self, handle: Any, timeout_s: float) -> None:
        self._detect = handle.detect
        self._ready = handle.ready
        self._timeout_s = timeout_s
        self._seconds = 1.0
        self._answered = -math.inf

    async def __call__(self, request: DetectRequest) -> Detection:
        """A detection, `queued` and `seconds` as seen from here. One replica may die on the way.

        Raises:
            DetectorBusy, DetectorDown, TooLong, UnknownAdapter.
        """
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    detection = await self._once(request)
                except RayActorError:
                    detection = await self._once(request)
        except TimeoutError:
            raise DetectorDown(f"no detection within {self._timeout_s:g} s") from None
        except RayActorError:
            raise DetectorDown("its replica died, and another one on the second try") from None
        except RayError as error:  # such as a task that Ray cancelled as it stopped a node
            raise DetectorDown(f"the detection was lost: {type(error).__name__}") from None
        self._seconds = seconds = time.perf_counter() - started
        self._answered = time.monotonic()
        return detection.model_copy(update={"queued": max(0.0, seconds - detection.seconds), "seconds": seconds})

    async def ready(self) -> bool:
        """Whether a detector answers. A full queue is an answer."""
        if time.monotonic() - self._answered < ANSWERED_LATELY_S:
            return True
        try:
            return bool(await _within(PATIENCE_S, self._ready.remote()))
        except BackPressureError:
            return True
        except (RayActorError, RayServeException, TimeoutError):
            return False

    async def _once(self, request: DetectRequest) -> Detection:
        response = self._detect.remote(request)
        try:
            detection: Detection = await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except BackPressureError:
            raise DetectorBusy(float(max(1, math.ceil(self._seconds)))) from None
        except (TooLong, UnknownAdapter) as error:
            # Ray's words for an error of another process are its traceback.
            raise (error.cause if isinstance(error, RayTaskError) else error) from None
        except RayServeException as error:
            raise DetectorDown(f"the detector isn't there: {error}") from None
        except RayTaskError as error:
            LOG.error("a detection failed: %s", error)
            raise DetectorDown(f"the detection failed: {error.cause}") from None
        return detection


class LedgersClient:
    """The ledger through its Serve handle: `serving.guard.LedgerClient`."""

    def __init__(self, handle: Any) -> None:
        self._update = handle.update
        self._get = handle.get
        self._verdict = handle.verdict

    async def update(self, owner: str, id: str, message: str, detection: Detection, turns: int) -> Conversation:
        conversation: Conversation = await _from_ledger(self._update.remote(owner, id, message, detection, turns))
        return conversation

    async def get(self, owner: str, id: str) -> Conversation | None:
        conversation: Conversation | None = await _from_ledger(self._get.remote(owner, id))
        return conversation

    async def verdict(self, owner: str, id: str, message: str) -> Detection | None:
        detection: Detection | None = await _from_ledger(self._verdict.remote(owner, id, message))
        return detection


class Gateway:
    """The HTTP face of the service. Serve asks it for its app in the replica."""

    def __init__(self, config: ServeConfig, detector: DeploymentHandle[Any], ledgers: DeploymentHandle[Any]) -> None:
        detect = DetectorClient(detector, config.detector.timeout_s)
        self._app = create_app(config, detect, LedgersClient(ledgers), detect.ready)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app


def _versions(adapters: dict[str, Path]) -> dict[str, str]:
    return {name: read_adapter(folder, f"adapter {name}").version for name, folder in adapters.items()}


async def _from_ledger(response: Any) -> Any:
    try:
        return await _within(PATIENCE_S, response)
    except TimeoutError:
        raise LedgerDown(f"no answer within {PATIENCE_S:g} s") from None
    except (RayError, RayServeException) as error:
        raise LedgerDown(type(error).__name__) from None


async def _within(seconds: float, response: Any) -> Any:
    """What a handle answers. Raises TimeoutError after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await response
    except (asyncio.CancelledError, TimeoutError):
        response.cancel()
        raise
