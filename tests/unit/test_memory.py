"""The rules of the trajectory memory."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.memory import Memory
from synuc.memory import Lease, MemoryState, Trajectory
from synuc.speaking import Speaking
from tests.scripted import a_trajectory

KEY = Speaking.KEY


def a_memory(trajectories: int = 0, k: int = 3, threshold: int = 4) -> MemoryState:
    """A memory whose `key` schema holds so many trajectories `t0`, `t1`, ...; the odd ones are failures."""
    memory = MemoryState(k=k, threshold=threshold)
    for n in range(trajectories):
        assert memory.record(a_trajectory(f"t{n}", success=n % 2 == 0))
    return memory


def leased(memory: MemoryState, now: float = 0.0, seconds: float = 10.0, speaking: Speaking = KEY) -> Lease:
    lease = memory.lease(speaking, now, seconds)
    assert lease is not None
    return lease


def names(trajectories: list[Trajectory] | tuple[Trajectory, ...]) -> list[str]:
    return [t.id for t in trajectories]


def test_recording_is_idempotent_by_id() -> None:
    memory = a_memory(1)
    assert not memory.record(a_trajectory("t0"))
    assert not memory.record(a_trajectory("t0", message="another wording"))
    assert names(memory.shelves[KEY].buffer) == ["t0"]


def test_an_id_stays_recorded_after_its_trajectory_was_merged_away() -> None:
    memory = a_memory(4)
    memory.commit(leased(memory), (), ())
    assert not memory.record(a_trajectory("t0"))
    assert memory.shelves[KEY].buffer == []


def test_a_lease_is_granted_at_the_threshold_and_not_before() -> None:
    memory = a_memory(3)
    assert memory.lease(KEY, 0.0, 10.0) is None
    memory.record(a_trajectory("t3", success=False))
    lease = leased(memory)
    assert (names(lease.successes), names(lease.failures)) == (["t0", "t2"], ["t1", "t3"])
    assert (lease.speaking, lease.version) == (KEY, 0)


def test_schemas_and_memories_share_nothing() -> None:
    memory = a_memory(4)
    memory.record(a_trajectory("t0", speaking=Speaking.GENRE))
    assert memory.lease(Speaking.GENRE, 0.0, 10.0) is None
    assert memory.commit(leased(memory), ("t0",), ())
    assert [memory.view(s).version for s in Speaking if s is not KEY] == [0] * 7
    assert memory.view(Speaking.GENRE).successes == ()
    assert names(memory.shelves[Speaking.GENRE].buffer) == ["t0"]
    assert not any(shelf.seen or shelf.leases for shelf in MemoryState(k=3, threshold=4).shelves.values())


def test_a_lease_is_granted_once() -> None:
    memory = a_memory(4)
    leased(memory, now=0.0, seconds=10.0)
    memory.record(a_trajectory("t4"))
    assert memory.lease(KEY, 9.99, 10.0) is None


def test_an_expired_lease_passes_on_and_the_stale_one_changes_nothing() -> None:
    memory = a_memory(4)
    stale = leased(memory, now=0.0, seconds=10.0)
    fresh = leased(memory, now=10.0, seconds=10.0)
    assert fresh.number != stale.number
    before = memory.model_dump()
    assert not memory.commit(stale, ("t0",), ())
    memory.release(stale)
    assert memory.model_dump() == before
    assert memory.commit(fresh, ("t2",), ())
    assert names(memory.view(KEY).successes) == ["t2"]


def test_an_expired_lease_that_nobody_took_over_still_commits() -> None:
    memory = a_memory(4)
    assert memory.commit(leased(memory, now=0.0, seconds=10.0), ("t0",), ("t1",))
    assert memory.view(KEY).version == 1


def test_a_lease_commits_once() -> None:
    memory = a_memory(4)
    lease = leased(memory)
    assert memory.commit(lease, ("t0",), ())
    assert not memory.commit(lease, ("t2",), ())
    assert memory.view(KEY).version == 1
    assert names(memory.view(KEY).successes) == ["t0"]


@pytest.mark.parametrize("wrong", [{"version": 1}, {"number": 2}])
def test_a_lease_read_at_another_version_or_with_another_number_does_not_commit(wrong: dict[str, int]) -> None:
    memory = a_memory(4)
    lease = leased(memory).model_copy(update=wrong)
    assert not memory.holds(lease)
    assert not memory.commit(lease, ("t0",), ())
    assert memory.view(KEY).successes == ()


def test_a_commit_replaces_the_repository_and_empties_the_buffer() -> None:
    memory = a_memory(4)
    assert memory.commit(leased(memory), ("t0", "t2"), ("t1",))
    for n in range(4, 8):
        memory.record(a_trajectory(f"t{n}", success=n % 2 == 0))
    second = leased(memory)
    assert (names(second.successes), names(second.failures)) == (["t0", "t2", "t4", "t6"], ["t1", "t5", "t7"])
    assert memory.commit(second, ("t6", "t0"), ("t7",))
    view = memory.view(KEY)
    assert (view.version, names(view.successes), names(view.failures)) == (2, ["t6", "t0"], ["t7"])
    assert memory.shelves[KEY].buffer == []


def test_trajectories_recorded_during_a_lease_survive_its_commit() -> None:
    memory = a_memory(4)
    lease = leased(memory)
    for n in range(4, 8):
        memory.record(a_trajectory(f"t{n}"))
    assert memory.commit(lease, ("t0",), ("t1",))
    assert names(memory.shelves[KEY].buffer) == ["t4", "t5", "t6", "t7"]
    # They make a full buffer by themselves, and the commit has ended the first lease.
    assert names(leased(memory, now=1.0).successes) == ["t0", "t4", "t5", "t6", "t7"]


def test_a_released_lease_comes_back_after_another_threshold_of_trajectories() -> None:
    memory = a_memory(4)
    memory.release(leased(memory, now=0.0))
    for n in range(4, 8):
        assert memory.lease(KEY, 1.0, 10.0) is None
        memory.record(a_trajectory(f"t{n}"))
    again = leased(memory, now=1.0)
    assert len(again.successes) + len(again.failures) == 8
    assert memory.view(KEY).version == 0
    # An update puts the back-off to an end.
    assert memory.commit(again, ("t0",), ())
    for n in range(8, 12):
        memory.record(a_trajectory(f"t{n}"))
    leased(memory, now=2.0)


def test_voided_leases_pass_on_at_once_and_the_stale_ones_change_nothing() -> None:
    memory = a_memory(4)
    stale = leased(memory, now=0.0, seconds=1000.0)
    memory.void()
    assert not memory.commit(stale, ("t0",), ())
    # Without waiting for more trajectories, which a lease that is given back would have to.
    fresh = leased(memory, now=1.0)
    assert names(fresh.successes) == names(stale.successes)
    assert not memory.commit(stale, ("t0",), ())
    assert memory.commit(fresh, ("t2",), ())


def test_a_new_driver_voids_what_an_earlier_ones_workers_held_and_a_restarted_actor_does_not(tmp_path: Path) -> None:
    def actor() -> Memory:
        return Memory(str(tmp_path), 3, 4, 1000.0)

    first = actor()
    for n in range(3):
        assert first.record(a_trajectory(f"t{n}")) is None
    lease = first.record(a_trajectory("t3"))
    assert lease is not None

    restarted = actor()
    assert restarted.record(a_trajectory("t3")) is None
    assert restarted.journal.state.holds(lease)

    fresh = actor()
    fresh.void_leases()
    assert not fresh.commit(lease, ("t0",), ())
    # The dialogue that held it is begun again, and so is its recording.
    again = actor().record(a_trajectory("t3"))
    assert again is not None
    assert (again.number, again.successes) == (lease.number + 1, lease.successes)


def test_a_memory_without_leases_writes_nothing_for_a_new_driver(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path), 3, 4, 1000.0)
    memory.record(a_trajectory("t0"))
    (journal,) = (tmp_path / "memory").glob("journal-*.jsonl")
    before = journal.read_bytes()
    memory.void_leases()
    assert journal.read_bytes() == before != b""


def test_a_released_lease_does_not_commit() -> None:
    memory = a_memory(4)
    lease = leased(memory)
    memory.release(lease)
    assert not memory.commit(lease, ("t0",), ())
    assert len(memory.shelves[KEY].buffer) == 4


def test_a_repository_keeps_at_most_k_of_each_kind_best_first_and_none_twice() -> None:
    memory = a_memory(12, k=2)
    assert memory.commit(leased(memory), ("t4", "t4", "t0", "t2"), ("t5", "t3", "t1"))
    view = memory.view(KEY)
    assert (names(view.successes), names(view.failures)) == (["t4", "t0"], ["t5", "t3"])


@pytest.mark.parametrize("state", ["empty", "leased", "released", "committed", "expired"])
def test_a_memory_goes_through_json(state: str) -> None:
    memory = a_memory(0 if state == "empty" else 5)
    if state != "empty":
        lease = leased(memory)
        memory.record(a_trajectory("t5", message="第二行\n\u2028'\"\\ 🦉"))
        if state == "released":
            memory.release(lease)
        if state == "committed":
            assert memory.commit(lease, ("t0",), ("t1",))
        if state == "expired":
            leased(memory, now=10.0)
    restored = MemoryState.model_validate_json(memory.model_dump_json())
    assert restored == memory
    if state == "leased":
        assert restored.lease(KEY, 9.0, 10.0) is None
        assert restored.commit(Lease.model_validate_json(lease.model_dump_json()), ("t0",), ())
        assert names(restored.shelves[KEY].buffer) == ["t5"]


class MemoryMachine(RuleBasedStateMachine):
    """Workers that record, take leases, commit, release or die, in any order, beside a model of what must remain."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryState(k=2, threshold=3)
        self.now = 0.0
        self.fresh = count()
        self.granted: list[Lease] = []
        # The model: ids not merged yet, ids kept, version, and the lease that counts, per schema.
        self.pending: dict[Speaking, list[str]] = {s: [] for s in Speaking}
        self.kept: dict[Speaking, set[str]] = {s: set() for s in Speaking}
        self.versions = dict.fromkeys(Speaking, 0)
        self.current: dict[Speaking, tuple[Lease, float] | None] = dict.fromkeys(Speaking)

    speakings = st.sampled_from([Speaking.KEY, Speaking.ENDS])

    @rule(speaking=speakings, success=st.booleans(), n=st.integers(1, 4))
    def record(self, speaking: Speaking, success: bool, n: int) -> None:
        for _ in range(n):
            name = f"t{next(self.fresh)}"
            assert self.memory.record(a_trajectory(name, speaking, success))
            self.pending[speaking].append(name)

    @rule(speaking=speakings, data=st.data())
    def record_again(self, speaking: Speaking, data: st.DataObject) -> None:
        if seen := sorted(self.memory.shelves[speaking].seen):
            assert not self.memory.record(a_trajectory(data.draw(st.sampled_from(seen)), speaking))

    @rule(seconds=st.integers(1, 15))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(speaking=speakings)
    def lease(self, speaking: Speaking) -> None:
        current = self.current[speaking]
        lease = self.memory.lease(speaking, self.now, 10.0)
        if lease is None:
            return
        assert len(self.pending[speaking]) >= self.memory.threshold
        assert current is None or self.now >= current[1], "somebody else holds a lease"
        assert {*names(lease.successes), *names(lease.failures)} == {*self.pending[speaking], *self.kept[speaking]}
        assert lease.version == self.versions[speaking]
        self.granted.append(lease)
        self.current[speaking] = (lease, self.now + 10.0)

    def _is_current(self, lease: Lease) -> bool:
        current = self.current[lease.speaking]
        return current is not None and current[0] == lease

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.granted))
        good = data.draw(st.permutations(names(lease.successes)))
        bad = data.draw(st.permutations(names(lease.failures)))
        done = self.memory.commit(lease, good, bad)
        assert done == self._is_current(lease)
        if done:
            s = lease.speaking
            merged = {*names(lease.successes), *names(lease.failures)}
            self.pending[s] = [name for name in self.pending[s] if name not in merged]
            self.kept[s] = {*good[:2], *bad[:2]}
            self.versions[s] += 1
            self.current[s] = None

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.granted))
        self.memory.release(lease)
        if self._is_current(lease):
            self.current[lease.speaking] = None

    @rule()
    def void(self) -> None:
        self.memory.void()
        self.current = dict.fromkeys(Speaking)

    @rule()
    def restart(self) -> None:
        self.memory = MemoryState.model_validate_json(self.memory.model_dump_json())

    @invariant()
    def repositories_are_bounded(self) -> None:
        for shelf in self.memory.shelves.values():
            assert len(shelf.successes) <= self.memory.k
            assert len(shelf.failures) <= self.memory.k
            assert all(t.success for t in shelf.successes)
            assert not any(t.success for t in shelf.failures)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        for speaking, shelf in self.memory.shelves.items():
            assert names(shelf.buffer) == self.pending[speaking]
            assert sorted([*names(shelf.successes), *names(shelf.failures)]) == sorted(self.kept[speaking])
            held = [*names(shelf.buffer), *names(shelf.successes), *names(shelf.failures)]
            assert len(held) == len(set(held))
            assert shelf.version == self.versions[speaking]

    @invariant()
    def at_most_one_lease_counts(self) -> None:
        for speaking in Speaking:
            valid = [x for x in self.granted if x.speaking is speaking and self.memory.holds(x)]
            current = self.current[speaking]
            assert valid == ([] if current is None else [current[0]])


MemoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMemoryMachine = MemoryMachine.TestCase
