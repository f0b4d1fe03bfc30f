"""The synthesis worker: drives many programs of `synuc.synthesis` at once on the engines inside its process.

Retry-safe: a dialogue that Ray hands out again gives the same sample ids, a trajectory recorded twice is stored once,
and what engines had answered before isn't asked again (`actors.replies`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import as_completed
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import ray

from actors.driving import Shared, drive
from actors.engine import EngineDead, EngineUnavailable, ask, build_engines
from actors.metrics import WorkerMetrics, keep_publishing
from actors.replies import Recorder, Work
from actors.retrieval import similarity
from synuc.config import RunConfig
from synuc.effects import CommitUpdate, Compare, Fork, Once, Program, ReadRepository, RecordTrajectory, ReleaseLease
from synuc.memory import RepositoryView
from synuc.sample import Sample
from synuc.speaking import Speaking
from synuc.synthesis import SampleProgram, crashed
from synuc.types import LLMRequest, Role, Seed

# A dialogue on which engines died this often is not tried again.
CRASHES_PER_DIALOGUE = 3
# As many engines of each worker as may die in a row without finishing a dialogue: more than one dialogue can kill so.
BARREN_ENGINES = CRASHES_PER_DIALOGUE + 2
# How long a dialogue that may not begin stays here, so that Ray doesn't hurry all others through while some end.
SECONDS_HELD = 2.0


class SynthesisWorker:
    """A Ray Data UDF: a few rows with seed dialogues in, one row with all samples and calls of each out, as it ends.

    `dialogues` bounds those at work at once in this process. A row's `fatal` is empty, or says why no dialogue can be
    worked on (the endpoint is gone, a key is wrong); the driver then stops the run, and the dialogue was never begun.
    One is `held`, without samples, if the budget was spent before its turn came.
    """

    def __init__(
        self, config: RunConfig, memory: Any, replies: Any, workers: int, dialogues: int, program: SampleProgram
    ) -> None:
        self.config = config
        self.program = program
        self.similarity = similarity(config.method)
        self.shared = Shared()
        self.memory = memory
        self.recorder = Recorder(replies)
        self.engines = build_engines({role: config.engine_of(role) for role in get_args(Role)}, workers)
        self.room = asyncio.Semaphore(dialogues)
        self.in_flight: set[str] = set()
        self.suspected = asyncio.Lock()
        self.dying = asyncio.Lock()
        self.finished = False
        self.hopeless_at = BARREN_ENGINES * workers
        self.hopeless = False
        self.crashes: dict[str, int] = ray.get(memory.crash_counts.remote())
        self.name = uuid.uuid4().hex
        self.metrics = WorkerMetrics(Path(ray.get(memory.path.remote())).name)
        keep_publishing(lambda: self.metrics.publish(len(self.in_flight)))
        # What is here stays. Without this the collector would look through all of it every few seconds, for 0.2 s.
        gc.freeze()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        """Ray calls it from several threads; all their dialogues share this process's event loop."""
        seeds = [Seed.model_validate_json(seed) for seed in batch["seed"].to_pylist()]
        works = [asyncio.run_coroutine_threadsafe(self._work(seed), self.loop) for seed in seeds]
        for work in as_completed(works):
            yield pa.Table.from_pylist([work.result()])

    async def _work(self, seed: Seed) -> dict[str, Any]:
        crashes = self.crashes.get(seed.id, 0)
        if crashes >= CRASHES_PER_DIALOGUE:
            return _row(await self._begun(seed), [crashed(seed)])
        # All that were in flight are blamed for a crash. The last tries are made one by one, so that only the one that
        # really kills its engine uses them up.
        turn = self.suspected if crashes == CRASHES_PER_DIALOGUE - 1 else nullcontext()
        with self.metrics.present():
            async with turn, self.room:
                self.in_flight.add(seed.id)
                try:
                    if await self._may_begin():
                        return await self._samples(seed)
                finally:
                    self.in_flight.discard(seed.id)
            await asyncio.sleep(SECONDS_HELD)
        return _row(Work(seed.id, self.recorder), [], held=True)

    async def _may_begin(self) -> bool:
        """Whether the newest dialogue in flight may begin: it may not once the budget is spent."""
        if not self.config.budget.bounded:
            return True
        return bool(await self.memory.begin.remote(self.name, sorted(self.in_flight)))

    async def _begun(self, seed: Seed) -> Work:
        return Work(seed.id, self.recorder, await self.recorder.read(seed.id))

    async def _samples(self, seed: Seed) -> dict[str, Any]:
        work = await self._begun(seed)
        try:
            samples: list[Sample] = await self._drive(self.program(seed, self.config.method), work)
            self.finished = True
            self.metrics.finished(samples)
            return _row(work, samples)
        except EngineUnavailable as error:
            return _row(work, [], fatal=str(error))
        except OSError as error:
            return _row(work, [], fatal=f"the run folder takes no more: {error}")
        except EngineDead as error:
            await self._die()
            why = f"{self.hopeless_at} engines in a row died without finishing a dialogue, the last one: {error}"
            return _row(work, [], fatal=f"{why}. Ray's logs (/tmp/ray/session_latest/logs) say more.")

    async def _die(self) -> None:
        """End this process: Ray replaces it and hands its dialogues out again. Returns if that is hopeless."""
        # All dialogues in flight come here. The first one reports for all, and the lock keeps the others until the end.
        async with self.dying:
            if not self.hopeless:
                barren = await self.memory.report_crash.remote(sorted(self.in_flight), self.finished)
                self.hopeless = barren >= self.hopeless_at
            if not self.hopeless:
                await self.recorder.written()
                os._exit(1)

    async def _drive(self, program: Program[Any], work: Work) -> Any:
        """Carry out a program's effects until it returns."""
        return await drive(program, lambda effect: self._carry_out(effect, work))

    async def _carry_out(self, effect: Any, work: Work) -> Any:
        match effect:
            case LLMRequest():
                return await self._ask(effect, work)
            case Fork():
                branches = (self._drive(program, work) for program in effect.programs)
                results = await asyncio.gather(*branches, return_exceptions=True)
                # Only now, so that the ledger has the calls of all.
                for result in results:
                    if isinstance(result, BaseException):
                        raise result
                return results
            case ReadRepository():
                return await work.view(effect.speaking, lambda: self._view(effect.speaking))
            case RecordTrajectory():
                return await self.memory.record.remote(effect.trajectory)
            case CommitUpdate():
                return await self.memory.commit.remote(effect.lease, effect.successes, effect.failures)
            case ReleaseLease():
                return await self.memory.release.remote(effect.lease)
            case Compare():
                assert self.similarity is not None
                return await asyncio.to_thread(self.similarity, effect.queries, effect.documents)
            case Once():
                # The calls are those of the dialogue that asks first.
                return await self.shared.result(effect.key, lambda: self._drive(effect.program, work))
        raise TypeError(f"no such effect: {effect!r}")

    async def _view(self, speaking: Speaking) -> RepositoryView:
        view: RepositoryView = await self.memory.view.remote(speaking)
        return view

    async def _ask(self, request: LLMRequest, work: Work) -> Any:
        asking = work.asking(self.engines[request.role], self.metrics.called)
        with self.metrics.asking(request.role):
            return await ask(asking, request, asking.record, self.config.method.parse_attempts)


def _row(work: Work, samples: list[Sample], fatal: str = "", held: bool = False) -> dict[str, Any]:
    return {
        "seed_id": work.seed_id,
        "samples": json.dumps([sample.model_dump(mode="json") for sample in samples], ensure_ascii=False),
        "calls": json.dumps([dataclasses.asdict(call) for call in work.ledger], ensure_ascii=False),
        "fatal": fatal,
        "held": held,
    }
