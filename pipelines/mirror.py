"""The working copy of a run that is at a URL: fetched at the start, and every file is put there once it is whole.

The URL is what counts, and other machines go on from there. `driver.json` says who writes to it, or wrote last. As
long as that is this working copy, its files are the newest, and a start puts what a crash kept from being put. Once
another has gone on, the URL's files replace those here, except for calls in the usage ledger, which were paid for.

What it can't promise: pyarrow has no way to write an object only if it hasn't changed. Two drivers that start at the
same moment, or one that is cut off from the store for more than `STALE_S` seconds and comes back after another took
over, may both write for up to `BEAT_S` seconds. The clocks of the machines must agree within a minute. On one machine
the lock of the working copy excludes a second driver in any case.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from actors.journal import FOLDER as MEMORY
from actors.journal import fetch_memory
from actors.store import Mark, Store, is_hidden, is_url, mark_of, set_mark
from synuc.folder import RunError, write_whole

BEAT_S = 20.0
"""Seconds between two signs of life of a driver."""
STALE_S = 90.0
"""Seconds without one after which it is taken for dead."""
DRIVER = "driver.json"
STATE = ".mirror.json"
TOGETHER = ("seeds/", "rejects/")
"""Tables that are put when they are complete."""
COMPLETE = "seeds/ingest.json"
"""What says that they are."""
CALLS = "calls/"
SESSIONS = "sessions.jsonl"


@dataclass(frozen=True)
class Driver:
    """Who writes to a URL, or wrote last. `at`: its last sign of life, in Unix seconds."""

    session: str
    host: str
    process: int
    at: float
    over: bool


class Mirror:
    """The folder `path` as working copy of `store`. `names`: the files and folders that belong to it; none: all."""

    def __init__(self, store: Store, path: Path, names: Collection[str] = ()) -> None:
        self.store = store
        self.path = path
        self.names = names
        self._session = uuid.uuid4().hex
        self._unpublished: list[str] = []
        self._lost: Driver | None = None

    @contextmanager
    def fetching(self) -> Iterator[None]:
        """The right to fetch into the working copy. Waits for another process of this machine that does."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".fetching").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def look(self) -> None:
        """Make the working copy what is at the URL, to read it. If a driver writes here, it is that already."""
        with self.fetching():
            if not self._written_here():
                driver, (known, behind) = self._driver(), self._state()
                self._check_not_emptied(driver)
                if driver is None or behind or driver.session not in known:
                    self._fetch()

    @contextmanager
    def held(self) -> Iterator[None]:
        """The right to write to the URL, for the length of the block; the working copy is up to date then.

        Raises:
            RunError: another driver has it, or the URL has been emptied.
            OSError: the store doesn't answer or refuses it.
        """
        behind = self._take()
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(over,), daemon=True)
        beating.start()
        try:
            if behind:
                self._fetch()
                self._keep_calls()
            else:
                self._heal()
            self._note([self._session], behind=False)
            yield
        finally:
            over.set()
            beating.join()
            # A store that takes nothing any more hears of the end when STALE_S have passed.
            if not self._unpublished and not self._lost:
                with suppress(OSError):
                    self._sign(over=True)

    def publish(self, *names: str) -> None:
        """Put files, in this order, after those that couldn't be put before.

        Raises:
            OSError: the store doesn't take them, or another driver has taken over.
        """
        if self._lost:
            who = f"process {self._lost.process} on {self._lost.host}"
            raise OSError(errno.EBUSY, f"{who} has taken it over, as this one wasn't heard of for {STALE_S:.0f} s")
        self._unpublished += names
        while self._unpublished:
            path = self.path / self._unpublished[0]
            set_mark(path, self.store.put(self._unpublished[0], path))
            del self._unpublished[0]

    def publish_complete(self) -> None:
        """Put the tables that belong together, in place of what an earlier attempt has left."""
        there = self._there()
        here = [name for name in self.files() if name.startswith(TOGETHER)]
        for name in there:
            if name.startswith(TOGETHER) and name not in here:
                self.store.delete(name)
        late = [name for name in here if there.get(name) != mark_of(self.path / name)]
        self.publish(*(name for name in late if name != COMPLETE), COMPLETE)

    def put_folder(self, folder: str) -> None:
        """Put all files of a folder.

        Raises:
            RunError: the store doesn't answer or refuses it.
        """
        try:
            self.publish(*(name for name in self.files() if name.startswith(f"{folder}/")))
        except OSError as error:
            raise RunError(f"can't write to {self.store.url}: {error.strerror or error}") from None

    def files(self) -> list[str]:
        """The files of the working copy, tables first."""
        files = [path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file()]
        names = [name for name in files if self._ours(name) and not is_hidden(name)]
        return sorted(names, key=lambda name: (not name.endswith(".parquet"), name))

    def _take(self) -> bool:
        """Become the driver. True if the working copy is behind the URL."""
        driver, (known, behind) = self._driver(), self._state()
        self._check_not_emptied(driver)
        ours = driver is not None and driver.session in known
        if driver is not None and not driver.over and not ours:
            left = driver.at + STALE_S - time.time()
            if left > 0:
                raise RunError(
                    f"{self.store.url} is being written by process {driver.process} on {driver.host}; wait for it or "
                    f"choose another --run. If it is dead, the same command works in {left:.0f} s."
                )
        behind = behind or not ours
        # Before this one signs, so that it knows its own hand even if it dies right then.
        self._note([self._session, driver.session] if driver is not None and ours else [self._session], behind)
        self._sign()
        now = self._driver()
        if now is None or now.session != self._session:
            raise RunError(f"another driver has just begun to write to {self.store.url}")
        return behind

    def _check_not_emptied(self, driver: Driver | None) -> None:
        if driver is None and self.files() and not self._there():
            raise RunError(
                f"there is nothing at {self.store.url} any more, but its working copy {self.path} is there: move it "
                "away to begin anew, or copy its files to the URL"
            )

    def _beat(self, over: threading.Event) -> None:
        while not over.wait(BEAT_S):
            # One that fails is made up for by the next.
            with suppress(OSError):
                driver = self._driver()
                if driver is not None and driver.session != self._session:
                    self._lost = driver
                    return
                self._sign()

    def _sign(self, over: bool = False) -> None:
        driver = Driver(self._session, socket.gethostname(), os.getpid(), time.time(), over)
        self.store.put(DRIVER, json.dumps(asdict(driver)).encode())

    def _driver(self) -> Driver | None:
        try:
            return Driver(**json.loads(self.store.get(DRIVER)))
        except FileNotFoundError:
            return None

    def _note(self, known: list[str], behind: bool) -> None:
        """Keep after which sessions nobody else has written, and whether files must be fetched all the same."""
        write_whole(self.path / STATE, json.dumps({"known": known, "behind": behind}))

    def _state(self) -> tuple[list[str], bool]:
        try:
            state = json.loads((self.path / STATE).read_text("utf-8"))
        except FileNotFoundError:
            return [], False
        return state["known"], state["behind"]

    def _written_here(self) -> bool:
        """Whether a driver on this machine writes to the working copy."""
        with (self.path / ".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _ours(self, name: str) -> bool:
        top = name.split("/")[0]
        return top not in (MEMORY, DRIVER) and (not self.names or top in self.names)

    def _there(self) -> dict[str, Mark]:
        return {name: mark for name, mark in self.store.list().items() if self._ours(name)}

    def _heal(self) -> None:
        """Put what a crash kept from being put. Of calls and samples the calls are first, as always."""
        here, there = self.files(), self._there()
        late = [name for name in here if there.get(name) != mark_of(self.path / name)]
        self.publish(*(name for name in late if not name.startswith(TOGETHER)))
        if COMPLETE in here and any(name.startswith(TOGETHER) for name in late):
            self.publish_complete()
        for name in there.keys() - set(here):
            if not name.startswith(TOGETHER):
                self.store.fetch(name, self.path / name)

    def _fetch(self) -> None:
        """Make the working copy what is at the URL. Calls and sessions that are only here stay."""
        there = self._there()
        if COMPLETE not in there:
            there = {name: mark for name, mark in there.items() if not name.startswith(TOGETHER)}
        sessions = self._sessions()
        for name in self.files():
            path = self.path / name
            if name not in there and not name.startswith(CALLS) and name != SESSIONS:
                path.unlink()
            elif name in there and mark_of(path) != there[name] and name.startswith(CALLS):
                self._set_aside(path, there)
        for name, mark in there.items():
            path = self.path / name
            if not path.exists() or mark_of(path) != mark:
                self.store.fetch(name, path)
        if only_here := [line for line in sessions if line not in self._sessions()]:
            with (self.path / SESSIONS).open("a", encoding="utf-8") as file:
                file.writelines(only_here)
        fetch_memory(self.store, self.path / MEMORY)

    def _sessions(self) -> list[str]:
        path = self.path / SESSIONS
        return path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []

    def _set_aside(self, path: Path, there: Collection[str]) -> None:
        """Give calls that weren't put before another driver used their number the next free one."""
        if path.read_bytes() != self.store.get(f"{CALLS}{path.name}"):
            taken = {*(name for name in there if name.startswith(CALLS)), *self.files()}
            last = max(name for name in taken if name.startswith(CALLS))
            number = int(Path(last).stem.split("-")[1]) + 1
            path.rename(path.with_name(f"part-{number:06d}.parquet"))

    def _keep_calls(self) -> None:
        """Put the calls and sessions that are only here."""
        there = self._there()
        late = [name for name in self.files() if there.get(name) != mark_of(self.path / name)]
        self.publish(*(name for name in late if name.startswith(CALLS) or name == SESSIONS))


def fetched(place: str) -> str:
    """A folder that an argument names: itself, or the working copy, fetched, if it is a URL.

    Raises:
        RunError: the URL is of no known kind, doesn't answer, or has nothing.
    """
    if not is_url(place):
        return place
    store = Store(place)
    mirror = Mirror(store, store.working_copy)
    looked(mirror)
    if not mirror.files():
        raise RunError(f"there is nothing at {place}")
    return str(store.working_copy)


def looked(mirror: Mirror) -> Mirror:
    """`mirror` with its working copy made ready to read.

    Raises:
        RunError: the store doesn't answer or refuses it.
    """
    try:
        mirror.look()
    except OSError as error:
        raise RunError(f"can't read {mirror.store.url}: {error.strerror or error}") from None
    return mirror
