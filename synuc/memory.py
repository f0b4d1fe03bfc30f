"""The rules of the SPEAKING-guided constraint transformation memory (paper, section 4.1.2), as plain state.

Per schema: a repository of at most K representative successes (R+) and failures (R-), a buffer of new trajectories,
and a version that counts updates. A buffer that reaches the threshold grants one lease; whoever holds it asks the LLM
which trajectories to keep and commits against the version it read. All times are seconds of one clock, passed in.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from synuc.speaking import Speaking
from synuc.types import Constraint, Frozen, NewConstraint


class Trajectory(Frozen):
    """One attempt at an implicit conflict. `context` names the task; `reason` says why a failure failed."""

    id: str
    speaking: Speaking
    language: str
    context: str
    constraints: tuple[Constraint, ...]
    anchor: Constraint
    new: NewConstraint
    message: str
    success: bool
    confidence: int | None
    reason: str


class RepositoryView(Frozen):
    """R+ and R- of one schema as they were at `version`."""

    version: int = 0
    successes: tuple[Trajectory, ...] = ()
    failures: tuple[Trajectory, ...] = ()


class Lease(Frozen):
    """The right, and what is needed, to update one schema once: the candidates are repository and buffer together."""

    speaking: Speaking
    number: int
    version: int
    successes: tuple[Trajectory, ...]
    failures: tuple[Trajectory, ...]


class Shelf(BaseModel):
    """Repository and buffer of one schema."""

    version: int = 0
    successes: list[Trajectory] = []
    failures: list[Trajectory] = []
    buffer: list[Trajectory] = []
    seen: set[str] = set()
    update_at: int = 0
    leases: int = 0
    leased_until: float = 0.0
    leased: list[str] = []


class MemoryState(BaseModel):
    """The whole memory. `record`, `lease`, `commit`, `release` and `void` change it: a journal of them rebuilds it."""

    k: int
    threshold: int
    shelves: dict[Speaking, Shelf] = {speaking: Shelf() for speaking in Speaking}

    def view(self, speaking: Speaking) -> RepositoryView:
        shelf = self.shelves[speaking]
        return RepositoryView(version=shelf.version, successes=tuple(shelf.successes), failures=tuple(shelf.failures))

    def record(self, trajectory: Trajectory) -> bool:
        """Put a trajectory into its schema's buffer. False if it was recorded before: recording is idempotent by id."""
        shelf = self.shelves[trajectory.speaking]
        if trajectory.id in shelf.seen:
            return False
        shelf.seen.add(trajectory.id)
        shelf.buffer.append(trajectory)
        return True

    def leasable(self, speaking: Speaking, now: float) -> bool:
        """Whether the buffer is full and nobody holds a lease that has not expired."""
        shelf = self.shelves[speaking]
        return len(shelf.buffer) >= max(self.threshold, shelf.update_at) and now >= shelf.leased_until

    def lease(self, speaking: Speaking, now: float, seconds: float) -> Lease | None:
        """The right to update the schema once, for `seconds` from `now`; None if it is not `leasable`."""
        shelf = self.shelves[speaking]
        if not self.leasable(speaking, now):
            return None
        shelf.leases += 1
        shelf.leased_until = now + seconds
        shelf.leased = [trajectory.id for trajectory in shelf.buffer]
        return Lease(
            speaking=speaking,
            number=shelf.leases,
            version=shelf.version,
            successes=tuple(shelf.successes + [t for t in shelf.buffer if t.success]),
            failures=tuple(shelf.failures + [t for t in shelf.buffer if not t.success]),
        )

    def commit(self, lease: Lease, successes: Sequence[str], failures: Sequence[str]) -> bool:
        """Make the named candidates the repository and empty the leased part of the buffer.

        False, and nothing happens, if the lease is not the current one or was read at another version.
        """
        shelf = self.shelves[lease.speaking]
        if not self.holds(lease):
            return False
        by_id = {t.id: t for t in (*lease.successes, *lease.failures)}
        shelf.successes = [by_id[name] for name in dict.fromkeys(successes)][: self.k]
        shelf.failures = [by_id[name] for name in dict.fromkeys(failures)][: self.k]
        shelf.buffer = [t for t in shelf.buffer if t.id not in by_id]
        shelf.version += 1
        shelf.update_at = 0
        self._end_lease(shelf)
        return True

    def release(self, lease: Lease) -> None:
        """Give a lease back without an update. The next one is granted after another `threshold` trajectories."""
        shelf = self.shelves[lease.speaking]
        if self.holds(lease):
            shelf.update_at = len(shelf.buffer) + self.threshold
            self._end_lease(shelf)

    def void(self) -> None:
        """End all leases, whose holders are gone. The next trajectory of a full buffer is granted a new one."""
        for shelf in self.shelves.values():
            self._end_lease(shelf)

    def holds(self, lease: Lease) -> bool:
        shelf = self.shelves[lease.speaking]
        return bool(shelf.leased) and shelf.leases == lease.number and shelf.version == lease.version

    @staticmethod
    def _end_lease(shelf: Shelf) -> None:
        shelf.leased_until = 0.0
        shelf.leased = []
