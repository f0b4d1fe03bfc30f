"""`python -m tests.bench.memory_actor`: what the memory actor takes, and how many workers that is.

Clients are Ray actors that do what workers do for implicit conflicts, as fast as they can: look at a schema's
repository, record a trajectory of usual size, and commit the update where they are given the lease. Every sample is
taken for an implicit conflict, which is the worst case. Measured with a new memory, and with one that has recorded a
million trajectories before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import ray

from actors.memory import start_memory
from cluster.connect import connected
from synuc.memory import Lease, MemoryState, Trajectory
from synuc.speaking import Speaking
from synuc.types import Constraint, NewConstraint
from tests.bench.verdicts import CONSOLE, Row, conclude

CLIENTS = (1, 4, 16)
SEEN = (0, 1_000_000)
K, THRESHOLD = 3, 10
WORKERS, SAMPLES_PER_MINUTE = 500, 20
WORDS = "the story for the museum in Lyon stays calm and short because small children hear it before they sleep "


def trajectory(id: str, n: int) -> Trajectory:
    """One of the size that real ones have: six constraints, each with its words, and a message of three sentences."""
    constraints = tuple(
        Constraint(
            type="explicit" if number % 2 else "implicit",
            dimension="content_scope",
            value=WORDS[number : number + 60],
            scope="main_task",
            turn=1,
            evidence=WORDS[number : number + 80],
        )
        for number in range(6)
    )
    new = NewConstraint(type="implicit", dimension="mood", value=WORDS[:60], evidence=WORDS[:40])
    return Trajectory(
        id=id,
        speaking=list(Speaking)[n % len(Speaking)],
        language="en",
        context=WORDS,
        constraints=constraints,
        anchor=constraints[0],
        new=new,
        message=WORDS * 3,
        success=n % 3 > 0,
        confidence=90,
        reason="" if n % 3 else WORDS,
    )


class Client:
    """Stands for many workers: `in_flight` samples at a time, each of which waits for the memory only."""

    def __init__(self, memory: Any, number: int) -> None:
        self.memory = memory
        self.number = number
        self.ids = count()
        self.operations = 0
        self.samples = 0

    async def work(self, seconds: float, in_flight: int) -> tuple[int, int]:
        """Operations and samples done in so many seconds."""
        end = time.monotonic() + seconds

        async def one_after_the_other() -> None:
            while time.monotonic() < end:
                await self._sample()

        await asyncio.gather(*(one_after_the_other() for _ in range(in_flight)))
        return self.operations, self.samples

    async def _sample(self) -> None:
        n = next(self.ids)
        made = trajectory(f"{self.number:04x}{n:012x}-IC", n)
        await self.memory.view.remote(made.speaking)
        lease: Lease | None = await self.memory.record.remote(made)
        self.operations += 2
        if lease is not None:
            kept = [tuple(one.id for one in of[-K:]) for of in (lease.successes, lease.failures)]
            await self.memory.commit.remote(lease, *kept)
            self.operations += 1
        self.samples += 1


def has_seen(folder: Path, trajectories: int) -> None:
    """Make the memory in `folder` one that recorded so many, all of which updates have emptied from the buffers."""
    state = MemoryState(k=K, threshold=THRESHOLD)
    for n in range(trajectories):
        state.shelves[list(Speaking)[n % len(Speaking)]].seen.add(f"ffff{n:012x}-IC")
    folder.mkdir(parents=True)
    saved = {"generation": 0, "state": state.model_dump(mode="json")}
    (folder / "snapshot.json").write_text(json.dumps(saved), encoding="utf-8")


def measure(run: Path, clients: int, seconds: float, in_flight: int) -> tuple[float, float]:
    """Operations and samples a second of all clients together."""
    memory = start_memory(run, K, THRESHOLD, 600.0, ray.get_runtime_context().get_node_id())
    remote: Any = ray.remote(Client)
    made = [remote.options(num_cpus=0).remote(memory, number) for number in range(clients)]
    # Their processes have started when each has done a sample.
    ray.get([client.work.remote(0.01, 1) for client in made])
    before = ray.get([client.work.remote(0.0, 0) for client in made])
    started = time.monotonic()
    after = ray.get([client.work.remote(seconds, in_flight) for client in made])
    passed = time.monotonic() - started
    for actor in (*made, memory):
        ray.kill(actor)
    operations, samples = (
        sum(there[n] for there in after) - sum(there[n] for there in before) for n in range(len(before[0]))
    )
    return operations / passed, samples / passed


def workers_until_saturation(samples_per_second: float) -> float:
    """How many workers of `SAMPLES_PER_MINUTE` samples make so many a second."""
    return samples_per_second * 60 / SAMPLES_PER_MINUTE


def rows(seconds: float, in_flight: int, seen: Sequence[int]) -> list[Row]:
    """A row for each number of clients, with each memory; what all of them can do is judged."""
    found = []
    for trajectories in seen:
        for clients in CLIENTS:
            with tempfile.TemporaryDirectory() as folder:
                run = Path(folder) / f"bench-{trajectories}-{clients}"
                has_seen(run / "memory", trajectories)
                operations, samples = measure(run, clients, seconds, in_flight)
            workers = workers_until_saturation(samples)
            judged = clients == CLIENTS[-1]
            what = f"{clients} client{'s' * (clients > 1)}, {trajectories:,} trajectories before"
            figures = f"{operations:,.0f} operations/s, {samples:,.0f} samples/s: {workers:,.0f} workers"
            target = f"at least {WORKERS} workers" if judged else ""
            found.append(Row(what, figures, target, workers >= WORKERS if judged else None))
    return found


def main() -> int:
    """All sizes; the exit status is 1 if the memory would be the bottleneck too soon."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--in-flight", type=int, default=16, help="samples of each client at a time")
    parser.add_argument("--seen", type=int, nargs="*", default=SEEN, help="trajectories recorded before")
    options = parser.parse_args()
    size = len(trajectory("0" * 16 + "-IC", 0).model_dump_json())
    CONSOLE.print(f"A trajectory has {size:,} bytes; {SAMPLES_PER_MINUTE} samples a minute and worker.")
    with connected(None):
        found = rows(options.seconds, options.in_flight, options.seen)
    return conclude("The memory actor", found)


if __name__ == "__main__":
    sys.exit(main())
