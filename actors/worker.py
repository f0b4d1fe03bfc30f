"""The synthesis worker: drives many programs of `synuc.synthesis` at once on the engines inside its process.

Retry-safe: a dialogue that Ray hands out again gives the same sample ids, and a trajectory recorded twice is stored
once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import as_completed
from contextlib import nullcontext
from typing import Any, get_args

import pyarrow as pa
import ray

from actors.driving import drive
from actors.engine import Call, Engine, EngineDead, EngineUnavailable, ask, build_engine
from synuc.config import RunConfig
from synuc.effects import CommitUpdate, Fork, Program, ReadRepository, RecordTrajectory, ReleaseLease
from synuc.sample import Sample
from synuc.synthesis import crashed, synthesise
from synuc.types import LLMRequest, Role, Seed

# A dialogue on which engines died this often is not tried again.
CRASHES_PER_DIALOGUE = 3
# As many engines of each worker as may die in a row without finishing a dialogue: more than one dialogue can kill so.
BARREN_ENGINES = CRASHES_PER_DIALOGUE + 2


class SynthesisWorker:
    """A Ray Data UDF: a few rows with seed dialogues in, one row with all samples and calls of each out, as it ends.

    `dialogues` bounds those at work at once in this process. A row's `fatal` is empty, or says why no dialogue can be
    worked on (the endpoint is gone, a key is wrong); the driver then stops the run, and the dialogue was never begun.
    """

    def __init__(self, config: RunConfig, memory: Any, workers: int, dialogues: int) -> None:
        self.config = config
        self.memory = memory
        configs = config.engines()
        built = [
            build_engine(engine, max(1, engine.max_in_flight // workers) if engine.kind == "openai" else None)
            for engine in configs
        ]
        self.engines: dict[str, Engine] = {
            role: built[configs.index(config.engine_of(role))] for role in get_args(Role)
        }
        self.room = asyncio.Semaphore(dialogues)
        self.in_flight: set[str] = set()
        self.suspected = asyncio.Lock()
        self.dying = asyncio.Lock()
        self.finished = False
        self.hopeless_at = BARREN_ENGINES * workers
        self.hopeless = False
        self.crashes: dict[str, int] = ray.get(memory.crash_counts.remote())
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        """Ray calls it from several threads; all their dialogues share this process's event loop."""
        seeds = [Seed.model_validate_json(seed) for seed in batch["seed"].to_pylist()]
        works = [asyncio.run_coroutine_threadsafe(self._work(seed), self.loop) for seed in seeds]
        for work in as_completed(works):
            yield pa.Table.from_pylist([work.result()])

    async def _work(self, seed: Seed) -> dict[str, str]:
        crashes = self.crashes.get(seed.id, 0)
        if crashes >= CRASHES_PER_DIALOGUE:
            return _row(seed, [crashed(seed)], [])
        # All that were in flight are blamed for a crash. The last tries are made one by one, so that only the one that
        # really kills its engine uses them up.
        turn = self.suspected if crashes == CRASHES_PER_DIALOGUE - 1 else nullcontext()
        async with turn, self.room:
            return await self._samples(seed)

    async def _samples(self, seed: Seed) -> dict[str, str]:
        ledger: list[Call] = []
        self.in_flight.add(seed.id)
        try:
            samples: list[Sample] = await self._drive(synthesise(seed, self.config.method), ledger)
            self.finished = True
            return _row(seed, samples, ledger)
        except EngineUnavailable as error:
            return _row(seed, [], ledger, fatal=str(error))
        except OSError as error:
            return _row(seed, [], ledger, fatal=f"the memory can't be written to the run folder: {error}")
        except EngineDead as error:
            await self._die()
            why = f"{self.hopeless_at} engines in a row died without finishing a dialogue, the last one: {error}"
            return _row(seed, [], ledger, fatal=f"{why}. Ray's logs (/tmp/ray/session_latest/logs) say more.")
        finally:
            self.in_flight.discard(seed.id)

    async def _die(self) -> None:
        """End this process: Ray replaces it and hands its dialogues out again. Returns if that is hopeless."""
        # All dialogues in flight come here. The first one reports for all, and the lock keeps the others until the end.
        async with self.dying:
            if not self.hopeless:
                barren = await self.memory.report_crash.remote(sorted(self.in_flight), self.finished)
                self.hopeless = barren >= self.hopeless_at
            if not self.hopeless:
                os._exit(1)

    async def _drive(self, program: Program[Any], ledger: list[Call]) -> Any:
        """Carry out a program's effects until it returns."""
        return await drive(program, lambda effect: self._carry_out(effect, ledger))

    async def _carry_out(self, effect: Any, ledger: list[Call]) -> Any:
        match effect:
            case LLMRequest():
                engine = self.engines[effect.role]
                return await ask(engine, effect, ledger, self.config.method.parse_attempts)
            case Fork():
                return await asyncio.gather(*(self._drive(program, ledger) for program in effect.programs))
            case ReadRepository():
                return await self.memory.view.remote(effect.speaking)
            case RecordTrajectory():
                return await self.memory.record.remote(effect.trajectory)
            case CommitUpdate():
                return await self.memory.commit.remote(effect.lease, effect.successes, effect.failures)
            case ReleaseLease():
                return await self.memory.release.remote(effect.lease)
        raise TypeError(f"no such effect: {effect!r}")


def _row(seed: Seed, samples: list[Sample], ledger: list[Call], fatal: str = "") -> dict[str, str]:
    return {
        "seed_id": seed.id,
        "samples": json.dumps([sample.model_dump(mode="json") for sample in samples], ensure_ascii=False),
        "calls": json.dumps([dataclasses.asdict(call) for call in ledger], ensure_ascii=False),
        "fatal": fatal,
    }
