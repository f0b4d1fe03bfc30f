"""The memory of a run at a URL: what it has acknowledged is there, whatever fails. The store is a folder, `file://`."""

from __future__ import annotations

import errno
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import journal as journals
from actors.journal import StoredJournal, fetch_memory, load_memory, open_journal
from actors.store import Store
from synuc.memory import MemoryState
from synuc.speaking import Speaking
from tests.scripted import a_trajectory
from tests.unit.test_store import broken


def record(name: str) -> dict[str, Any]:
    return {"do": "record", "trajectory": a_trajectory(name).model_dump(mode="json")}


def recorded(state: MemoryState) -> list[str]:
    return [trajectory.id for trajectory in state.shelves[Speaking.KEY].buffer]


def test_what_was_acknowledged_is_at_the_url_and_changes_share_puts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, acknowledged, puts = (tmp_path / "at").as_uri(), list[str](), list[str]()
    real = Store.put

    def slow(self: Store, name: str, data: bytes | Path) -> Any:
        time.sleep(0.02)
        puts.append(name)
        return real(self, name, data)

    monkeypatch.setattr(Store, "put", slow)
    monkeypatch.setattr(journals, "OPERATIONS_PER_SNAPSHOT", 30)
    journal = open_journal(tmp_path / "here", url, 3, 10_000)

    def write(worker: int) -> None:
        for n in range(10):
            assert journal.write(record(f"{worker}-{n}")) is True
            acknowledged.append(f"{worker}-{n}")

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(16)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        before = set(acknowledged)
        fetch_memory(Store(url), tmp_path / "elsewhere" / "memory")
        assert before <= set(recorded(load_memory(tmp_path / "elsewhere" / "memory")))
    for thread in threads:
        thread.join()
    assert len(puts) < 60, "each worker waits for its own, so that sixteen fit into a put or two"
    # The machine is gone; another process begins with what is at the URL.
    assert sorted(recorded(open_journal(tmp_path / "new", url, 3, 10_000).state)) == sorted(acknowledged)
    left = {name.split("/")[1] for name in Store(url).list("memory")}
    assert len(left) == 1, "journals of older generations are removed"


STEPS = ("write", "fail", "lose the answer", "restart", "elsewhere")


@given(st.lists(st.sampled_from(STEPS), max_size=14), st.integers(2, 4))
@settings(max_examples=15, deadline=None)
def test_whatever_fails_what_was_acknowledged_comes_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], per_snapshot: int
) -> None:
    folder = tmp_path_factory.mktemp("memory")
    url, expected, known = (folder / "at").as_uri(), list[str](), set[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "OPERATIONS_PER_SNAPSHOT", per_snapshot)
        journal = open_journal(folder / "0", url, 3, 10_000)
        for n, step in enumerate(steps):
            name = f"t{n}"
            if step in ("restart", "elsewhere"):
                journal = open_journal(folder / ("0" if step == "restart" else str(n)), url, 3, 10_000)
                # What wasn't acknowledged may be there all the same: only the answer was lost.
                assert [one for one in recorded(journal.state) if one in expected] == expected
                assert set(recorded(journal.state)) <= known
                expected = recorded(journal.state)
                continue
            known.add(name)
            with pytest.MonkeyPatch.context() as failing:
                if step == "fail":
                    broken(failing, lambda _: True)
                if step == "lose the answer":
                    _lose_the_answer(failing)
                if step == "write":
                    assert journal.write(record(name)) is True
                    expected.append(name)
                else:
                    with pytest.raises(OSError):  # noqa: PT011
                        journal.write(record(name))
            assert recorded(journal.state) == expected
        end = recorded(open_journal(folder / "end", url, 3, 10_000).state)
        assert [one for one in end if one in expected] == expected


def _lose_the_answer(patch: pytest.MonkeyPatch) -> None:
    real = Store.put

    def put(self: Store, name: str, data: bytes | Path) -> Any:
        real(self, name, data)
        raise OSError("no answer")

    patch.setattr(Store, "put", put)


def test_a_lease_is_granted_once_whoever_else_decided_to_take_it(tmp_path: Path) -> None:
    journal = StoredJournal(Store((tmp_path / "at").as_uri()), tmp_path / "memory", 3, 2)
    journal.write_all([record("a"), record("b")])
    lease = {"do": "lease", "speaking": "key", "now": 0.0, "seconds": 10.0}
    granted = journal.write_all([lease, lease, lease])
    assert [lease is not None for lease in granted] == [True, False, False]
    again = load_memory(tmp_path / "memory")
    assert again == journal.state


def test_a_disk_that_fills_while_a_snapshot_is_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "OPERATIONS_PER_SNAPSHOT", 2)
    journal = open_journal(tmp_path, None, 3, 10_000)
    journal.write_all([record("a"), record("b")])
    with monkeypatch.context() as patch:
        patch.setattr(json, "dump", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            journal.write(record("c"))
    assert recorded(load_memory(tmp_path / "memory")) == ["a", "b"] == recorded(journal.state)
    journal.write(record("c"))
    assert recorded(load_memory(tmp_path / "memory")) == ["a", "b", "c"]
