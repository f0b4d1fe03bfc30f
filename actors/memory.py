"""The one memory actor of a run: per-schema repositories and buffers, durable and never waiting for an LLM.

What a call has acknowledged is on disk in the run folder, or at the run's URL (`actors.journal`). A restarted actor, or
the actor of the next process, reads it and goes on. The rules themselves are in `synuc.memory`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import ray

from actors.beside_driver import beside_driver
from actors.journal import open_journal
from actors.metrics import MemoryMetrics, keep_publishing
from synuc.memory import Lease, RepositoryView, Trajectory
from synuc.problem import Problem
from synuc.speaking import Speaking

CHANGES_AT_A_TIME = 256
Method = TypeVar("Method", bound=Callable[..., Any])


def _in_a_thread(method: Method) -> Method:
    change: Any = ray.method(concurrency_group="changes")
    changed: Method = change(method)
    return changed


class Memory:
    """The actor's class. `lease_s`: seconds after which an update that was not committed may be given to another."""

    def __init__(self, run: str, k: int, threshold: int, lease_s: float, url: str | None = None) -> None:
        self.run = run
        self.lease_s = lease_s
        self.journal = open_journal(Path(run), url, k, threshold)
        self.crashes: dict[str, int] = {}
        self.barren = 0
        self.in_flight: dict[str, list[str]] = {}
        self.closed = False
        versions = {speaking.value: shelf.version for speaking, shelf in self.journal.state.shelves.items()}
        self.metrics = MemoryMetrics(Path(run).name, versions)
        keep_publishing(self.metrics.publish)

    def path(self) -> str:
        """The run folder that this memory belongs to."""
        return self.run

    def view(self, speaking: Speaking) -> RepositoryView:
        with self.journal.lock:
            return self.journal.state.view(speaking)

    def record(self, trajectory: Trajectory) -> Lease | None:
        """Store a trajectory, once per id. The caller gets the lease if the buffer is full and nobody updates it."""
        if trajectory.id not in self.journal.state.shelves[trajectory.speaking].seen:
            self.journal.write({"do": "record", "trajectory": trajectory.model_dump(mode="json")})
        now = time.time()
        if not self.journal.state.leasable(trajectory.speaking, now):
            return None
        operation = {"do": "lease", "speaking": trajectory.speaking.value, "now": now, "seconds": self.lease_s}
        lease: Lease | None = self.journal.write(operation)
        return lease

    def commit(self, lease: Lease, successes: tuple[str, ...], failures: tuple[str, ...]) -> bool:
        """Replace a repository. False if the lease has passed to another worker meanwhile."""
        if not self.journal.state.holds(lease):
            return False
        operation = {"do": "commit", "lease": lease.model_dump(mode="json")}
        done = bool(self.journal.write(operation | {"successes": list(successes), "failures": list(failures)}))
        if done:
            self.metrics.updated(lease.speaking.value, self.journal.state.shelves[lease.speaking].version)
        return done

    def release(self, lease: Lease) -> None:
        """Give a lease back without an update."""
        if self.journal.state.holds(lease):
            self.journal.write({"do": "release", "lease": lease.model_dump(mode="json")})

    def void_leases(self) -> None:
        """End the leases of an earlier driver's workers: they died with it, and nobody would commit them."""
        if any(shelf.leased for shelf in self.journal.state.shelves.values()):
            self.journal.write({"do": "void"})

    def report_crash(self, seed_ids: list[str], finished: bool) -> int:
        """An engine died while it worked on these dialogues; `finished` says whether it had finished another one.

        Returns how many in a row have died that finished none.
        """
        for seed_id in seed_ids:
            self.crashes[seed_id] = self.crashes.get(seed_id, 0) + 1
        self.barren = 0 if finished else self.barren + 1
        return self.barren

    def crash_counts(self) -> dict[str, int]:
        """How often an engine died on each dialogue, in this process."""
        return self.crashes

    def begin(self, worker: str, dialogues: list[str]) -> bool:
        """Whether `worker` may begin one more dialogue; `dialogues` are those it has in flight, with that one."""
        self.in_flight[worker] = dialogues
        return not self.closed

    def close(self) -> list[str]:
        """Let no dialogue begin any more. Returns those that workers said they have in flight."""
        self.closed = True
        return [seed_id for dialogues in self.in_flight.values() for seed_id in dialogues]

    def statistics(self) -> dict[str, dict[str, int]]:
        """Version and sizes of every schema's repository and buffer."""
        return {
            speaking.value: {
                "version": shelf.version,
                "successes": len(shelf.successes),
                "failures": len(shelf.failures),
                "buffer": len(shelf.buffer),
            }
            for speaking, shelf in self.journal.state.shelves.items()
        }


class StoredMemory(Memory):
    """The same for a run at a URL: a change takes as long as a request to the store there, and many share one.

    So each has a thread. One that was decided upon by a state which another has changed meanwhile does no harm:
    `MemoryState` looks again.
    """

    @_in_a_thread
    def record(self, trajectory: Trajectory) -> Lease | None:
        return super().record(trajectory)

    @_in_a_thread
    def commit(self, lease: Lease, successes: tuple[str, ...], failures: tuple[str, ...]) -> bool:
        return super().commit(lease, successes, failures)

    @_in_a_thread
    def release(self, lease: Lease) -> None:
        super().release(lease)


class OtherRun(Problem):
    """The cluster has a memory of this name that belongs to another run folder."""


def start_memory(run: Path, k: int, threshold: int, lease_s: float, node_id: str, url: str | None = None) -> Any:
    """The memory actor of `run` on the node that holds its folder; it ends with this driver.

    With a `url`, the folder is the working copy of a run there. The driver holds the run and has no worker yet, so that
    no lease of an earlier one counts any more. An actor that Ray starts again later keeps those of its workers.

    Raises:
        OtherRun: a run of the same name with another folder is at work on the cluster.
    """
    name = f"synuc-memory-{run.name}"
    remote: Any = ray.remote
    actor = remote(Memory) if url is None else remote(concurrency_groups={"changes": CHANGES_AT_A_TIME})(StoredMemory)
    handle = actor.options(name=name, get_if_exists=True, **beside_driver(node_id)).remote(
        str(run), k, threshold, lease_s, url
    )
    path = ray.get(handle.path.remote())
    if path != str(run):
        raise OtherRun(f"the cluster runs another run called {run.name} (in {path}); rename this one or wait for it")
    ray.get(handle.void_leases.remote())
    return handle
