"""The memory actor on real Ray: what it has acknowledged survives its death."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import ray

from actors.journal import load_memory
from actors.memory import OtherRun, start_memory
from synuc.memory import Trajectory
from tests.scripted import a_trajectory

pytestmark = pytest.mark.usefixtures("ray_running")


def test_killed_while_written_to_it_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    run = tmp_path / "run-killed"
    here = ray.get_runtime_context().get_node_id()
    memory = start_memory(run, 3, 10_000, 600.0, here)
    acknowledged: list[str] = []

    def write(worker: int) -> None:
        for n in range(150):
            trajectory: Trajectory = a_trajectory(f"{worker}-{n}")
            ray.get(memory.record.remote(trajectory))
            acknowledged.append(trajectory.id)

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.3)
        ray.kill(memory, no_restart=False)
    for thread in threads:
        thread.join()
    assert len(acknowledged) == 600
    state = load_memory(run / "memory")
    recorded = [t.id for shelf in state.shelves.values() for t in shelf.buffer]
    assert sorted(recorded) == sorted(acknowledged)
    assert len(set(recorded)) == 600


def test_leases_outlive_a_killed_actor_and_not_the_driver(tmp_path: Path) -> None:
    here = ray.get_runtime_context().get_node_id()
    memory = start_memory(tmp_path / "lives", 3, 2, 600.0, here)
    assert ray.get(memory.record.remote(a_trajectory("a"))) is None
    lease = ray.get(memory.record.remote(a_trajectory("b")))
    ray.kill(memory, no_restart=False)
    assert ray.get(memory.record.remote(a_trajectory("c"))) is None
    ray.kill(memory)
    memory = start_memory(tmp_path / "lives", 3, 2, 600.0, here)
    assert not ray.get(memory.commit.remote(lease, ("a",), ()))
    assert ray.get(memory.record.remote(a_trajectory("d"))).number == lease.number + 1
    ray.kill(memory)


def test_a_name_belongs_to_one_run_folder(tmp_path: Path) -> None:
    here = ray.get_runtime_context().get_node_id()
    memory = start_memory(tmp_path / "a" / "same", 3, 10, 600.0, here)
    with pytest.raises(OtherRun, match="another run called same"):
        start_memory(tmp_path / "b" / "same", 3, 10, 600.0, here)
    ray.kill(memory)


def test_two_workers_never_hold_one_schemas_lease(tmp_path: Path) -> None:
    here = ray.get_runtime_context().get_node_id()
    memory = start_memory(tmp_path / "leases", 3, 5, 600.0, here)
    leases = ray.get([memory.record.remote(a_trajectory(str(n))) for n in range(12)])
    granted = [lease for lease in leases if lease is not None]
    assert len(granted) == 1
    kept = tuple(t.id for t in granted[0].successes[:3])
    assert ray.get(memory.commit.remote(granted[0], kept, ()))
    assert not ray.get(memory.commit.remote(granted[0], kept, ()))
    ray.kill(memory)
