"""How the memory survives: a snapshot and, on top of it, a journal of the operations since.

On disk these are `snapshot.json` and `journal-000003.jsonl`, whose number is in the snapshot. Of a run at a URL the
journal there is many objects, `journal-000003/000000.jsonl` and so on, since an object can't be appended to; the files
of the working copy follow them.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from actors.store import Store
from synuc.folder import write_whole
from synuc.memory import Lease, MemoryState, Trajectory
from synuc.speaking import Speaking

# A snapshot holds the ids of all trajectories ever recorded. One after each 2% more costs little however many they are.
OPERATIONS_PER_SNAPSHOT = 1000
SNAPSHOT_GROWTH = 0.02
FOLDER = "memory"
Waiting = tuple[Sequence[dict[str, Any]], Future[list[Any]]]


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
        case "void":
            return state.void()


def _lines(operations: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(operation, ensure_ascii=False).encode() + b"\n" for operation in operations)


class MemoryJournal:
    """A `MemoryState` that survives: every change is on disk before the call that made it returns.

    One thread at a time may write; others may read `state` while they hold `lock`.
    """

    def __init__(self, folder: Path, k: int, threshold: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = threading.Lock()
        self.generation = 0
        self.state = MemoryState(k=k, threshold=threshold)
        if (folder / "snapshot.json").exists():
            self.generation, self.state = _load(folder)
        self._rotate()

    def write(self, operation: dict[str, Any]) -> Any:
        """Put an operation on disk, then apply it and return its result.

        Raises:
            OSError: the disk takes no more; nothing was applied, and the journal is as before.
        """
        return self.write_all([operation])[0]

    def write_all(self, operations: Sequence[dict[str, Any]]) -> list[Any]:
        """As `write`, for several operations in one go, all or none."""
        self._rotate_if_due()
        lines = _lines(operations)
        end = self._journal.tell()
        try:
            if self._journal.write(lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._journal.name)
            os.fsync(self._journal.fileno())
        except OSError:
            self._journal.truncate(end)
            self._journal.seek(end)
            raise
        self._written += len(operations)
        with self.lock:
            return [_apply(self.state, operation) for operation in operations]

    def _rotate_if_due(self) -> None:
        recorded = sum(len(shelf.seen) for shelf in self.state.shelves.values())
        if self._written >= max(OPERATIONS_PER_SNAPSHOT, SNAPSHOT_GROWTH * recorded):
            full = self._journal
            self._rotate()
            full.close()

    def _rotate(self) -> None:
        """Put the state into the snapshot, which names its journal, and begin that journal empty."""
        generation = self.generation + 1
        snapshot = self.folder / "snapshot.json"
        temporary = self.folder / ".snapshot.json"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"generation": generation, "state": self.state.model_dump(mode="json")}, file)
            file.flush()
            os.fsync(file.fileno())
        self._journal = _journal_path(self.folder, generation).open("wb", buffering=0)
        temporary.replace(snapshot)
        _journal_path(self.folder, self.generation).unlink(missing_ok=True)
        self.generation = generation
        self._written = 0


class StoredJournal(MemoryJournal):
    """The same for a run at a URL: every change is there before the call that made it returns.

    Many threads may write. What they write while a request to the store is under way goes there together with the
    next one. The state is what the URL has: an operation is applied only when it is there.
    """

    def __init__(self, store: Store, folder: Path, k: int, threshold: int) -> None:
        fetch_memory(store, folder)
        super().__init__(folder, k, threshold)
        self._store = store
        self._at_url = 0
        self._objects = 0
        self._waiting: SimpleQueue[Waiting] = SimpleQueue()
        self._put_snapshot()
        threading.Thread(target=self._write_waiting, daemon=True).start()

    def write_all(self, operations: Sequence[dict[str, Any]]) -> list[Any]:
        """Put operations to the URL, then apply them and return their results.

        Raises:
            OSError: the store doesn't take them; nothing was applied.
        """
        results: Future[list[Any]] = Future()
        self._waiting.put((operations, results))
        return results.result()

    def _write_waiting(self) -> None:
        while True:
            waiting = [self._waiting.get()]
            while not self._waiting.empty():
                waiting.append(self._waiting.get())
            self._write_together(waiting)

    def _write_together(self, waiting: Sequence[Waiting]) -> None:
        batch = [operation for operations, _ in waiting for operation in operations]
        try:
            self._rotate_if_due()
            if self._at_url != self.generation:
                self._put_snapshot()
            # Not counted before all is done: what failed is overwritten by the next one.
            self._store.put(f"{self._journal_name()}/{self._objects:06d}.jsonl", _lines(batch))
            applied = iter(super().write_all(batch))
        except Exception as error:  # whatever it is, those who wait must hear of it
            for _, future in waiting:
                future.set_exception(error)
            return
        self._objects += 1
        for operations, future in waiting:
            future.set_result([next(applied) for _ in operations])

    def _journal_name(self) -> str:
        return f"{FOLDER}/{_journal_path(self.folder, self.generation).stem}"

    def _put_snapshot(self) -> None:
        """Begin a generation at the URL. Its journal may hold nothing yet, and older ones count no more."""
        self._store.delete_all(self._journal_name())
        self._store.put(f"{FOLDER}/snapshot.json", self.folder / "snapshot.json")
        self._at_url, self._objects = self.generation, 0
        for name in self._store.list(FOLDER):
            if name.endswith(".jsonl") and not name.startswith(f"{self._journal_name()}/"):
                self._store.delete(name)


def fetch_memory(store: Store, folder: Path) -> None:
    """Make `folder` hold the memory that is at the URL, which a driver may be changing; or none if there is none."""
    while True:
        snapshot = _snapshot(store)
        if snapshot is None:
            if folder.exists():
                shutil.rmtree(folder)
            return
        generation = json.loads(snapshot)["generation"]
        journal = _stored_journal(store, generation)
        # Objects of a journal are removed only when a newer snapshot is there.
        if journal is not None and _snapshot(store) == snapshot:
            break
    path = _journal_path(folder, generation)
    write_whole(path, journal.decode())
    write_whole(folder / "snapshot.json", snapshot.decode())
    for other in set(folder.glob("journal-*.jsonl")) - {path}:
        other.unlink()


def _snapshot(store: Store) -> bytes | None:
    try:
        return store.get(f"{FOLDER}/snapshot.json")
    except FileNotFoundError:
        return None


def _stored_journal(store: Store, generation: int) -> bytes | None:
    """The objects of a journal, one after the other, or the file if the folder of a run was copied to the URL.

    None if one was removed meanwhile.
    """
    start = f"{FOLDER}/journal-{generation:06d}"
    try:
        return b"".join(store.get(name) for name in sorted(store.list(FOLDER)) if name.startswith(start))
    except FileNotFoundError:
        return None


def open_journal(run: Path, url: str | None, k: int, threshold: int) -> MemoryJournal:
    """The journal of the run in the folder `run`, which is the working copy of what is at `url`, if given."""
    if url is None:
        return MemoryJournal(run / FOLDER, k, threshold)
    return StoredJournal(Store(url), run / FOLDER, k, threshold)
