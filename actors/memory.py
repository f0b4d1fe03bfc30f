"""The one memory actor of a run: per-schema repositories and buffers, durable and never waiting for an LLM.

What a call has acknowledged is on disk in the run folder: an append-only journal on top of a snapshot. A restarted
actor, or the actor of the next process, reads both and goes on. The rules themselves are in `synuc.memory`.
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import ray

from actors.metrics import MemoryMetrics, keep_publishing
from synuc.memory import Lease, MemoryState, RepositoryView, Trajectory
from synuc.problem import Problem
from synuc.speaking import Speaking

OPERATIONS_PER_SNAPSHOT = 1000


def load_memory(folder: Path) -> MemoryState:
    """The memory that `folder` keeps; reading changes nothing, and an actor may be at work on it.

    Raises:
        FileNotFoundError: no memory was begun there.
    """
    return _load(folder)[1]


def _load(folder: Path) -> tuple[int, MemoryState]:
    """The generation of the newest snapshot, and the state that it and its journal make."""
    seen = None
    while True:
        saved = json.loads((folder / "snapshot.json").read_text("utf-8"))
        generation = saved["generation"]
        operations = _read_journal(_journal_path(folder, generation))
        # No journal: a newer snapshot has just taken its place; if there is none, the journal was lost.
        if operations is not None or generation == seen:
            break
        seen = generation
    state = MemoryState.model_validate(saved["state"])
    for operation in operations or ():
        _apply(state, operation)
    return generation, state


def _journal_path(folder: Path, generation: int) -> Path:
    return folder / f"journal-{generation:06d}.jsonl"


def _read_journal(path: Path) -> list[dict[str, Any]] | None:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    # Only a line with its newline was acknowledged; what follows the last one is a write that a crash cut off.
    return [json.loads(line) for line in lines[:-1]]


def _apply(state: MemoryState, operation: dict[str, Any]) -> Any:
    match operation["do"]:
        case "record":
            return state.record(Trajectory.model_validate(operation["trajectory"]))
        case "lease":
            return state.lease(Speaking(operation["speaking"]), operation["now"], operation["seconds"])
        case "commit":
            lease = Lease.model_validate(operation["lease"])
            return state.commit(lease, operation["successes"], operation["failures"])
        case "release":
            return state.release(Lease.model_validate(operation["lease"]))


class MemoryJournal:
    """A `MemoryState` that survives: every change is on disk before the call that made it returns."""

    def __init__(self, folder: Path, k: int, threshold: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.generation = 0
        self.state = MemoryState(k=k, threshold=threshold)
        if (folder / "snapshot.json").exists():
            self.generation, self.state = _load(folder)
        self._rotate()

    def _path(self) -> Path:
        return _journal_path(self.folder, self.generation)

    def write(self, operation: dict[str, Any]) -> Any:
        """Put an operation on disk, then apply it and return its result.

        Raises:
            OSError: the disk takes no more; nothing was applied, and the journal is as before.
        """
        line = json.dumps(operation, ensure_ascii=False).encode() + b"\n"
        end = self._journal.tell()
        try:
            if self._journal.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path()))
            os.fsync(self._journal.fileno())
        except OSError:
            self._journal.truncate(end)
            self._journal.seek(end)
            raise
        self._written += 1
        result = _apply(self.state, operation)
        if self._written >= OPERATIONS_PER_SNAPSHOT:
            self._journal.close()
            self._rotate()
        return result

    def _rotate(self) -> None:
        """Put the state into the snapshot, which names its journal, and begin that journal empty."""
        old = self._path()
        self.generation += 1
        snapshot = self.folder / "snapshot.json"
        temporary = self.folder / ".snapshot.json"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"generation": self.generation, "state": self.state.model_dump(mode="json")}, file)
            file.flush()
            os.fsync(file.fileno())
        self._journal = self._path().open("wb", buffering=0)
        temporary.replace(snapshot)
        old.unlink(missing_ok=True)
        self._written = 0


class Memory:
    """The actor's class. `lease_s`: seconds after which an update that was not committed may be given to another."""

    def __init__(self, run: str, k: int, threshold: int, lease_s: float) -> None:
        self.run = run
        self.lease_s = lease_s
        self.journal = MemoryJournal(Path(run) / "memory", k, threshold)
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


class OtherRun(Problem):
    """The cluster has a memory of this name that belongs to another run folder."""


def start_memory(run: Path, k: int, threshold: int, lease_s: float, node_id: str) -> Any:
    """The memory actor of `run` on the node that holds its folder; it ends with this driver.

    Raises:
        OtherRun: a run of the same name with another folder is at work on the cluster.
    """
    name = f"synuc-memory-{run.name}"
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    actor: Any = ray.remote(Memory)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": strategy}
    handle = actor.options(name=name, get_if_exists=True, **options).remote(str(run), k, threshold, lease_s)
    path = ray.get(handle.path.remote())
    if path != str(run):
        raise OtherRun(f"the cluster runs another run called {run.name} (in {path}); rename this one or wait for it")
    return handle
