"""What engines have answered to dialogues that aren't finished, so that no process that dies has it asked again.

One file for each dialogue in the run's `replies/`, with a line of JSON for each thing that happened to it:

    {"asked": ID}                                   a call was made
    {"id": ID, "call": {...}, "reply": {...}}       it came back; `reply` is missing if the engine gave none
    {"view": SPEAKING, "reply": {...}}              the memory showed a repository

A dialogue that is begun again is given the same replies and views again, and so asks for the same things, up to where
it was. A call's ID is a digest of all that was asked: whatever differs is asked anew. The driver removes the file
when the dialogue's samples are written.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import ray

from actors.beside_driver import beside_driver
from actors.engine import Answering, Call, Completion
from synuc.config import Price
from synuc.memory import RepositoryView
from synuc.speaking import Speaking
from synuc.types import LLMRequest

FOLDER = "replies"
SECONDS_BETWEEN_WRITES = 0.02


class ReplyFiles:
    """The actor's class: the only writer of `replies/`, on the node that holds the run folder."""

    def __init__(self, run: str) -> None:
        self.run = Path(run)
        (self.run / FOLDER).mkdir(exist_ok=True)

    def read(self, seed_id: str) -> bytes:
        """A dialogue's file as it is; empty if there is none."""
        try:
            return _path(self.run, seed_id).read_bytes()
        except FileNotFoundError:
            return b""

    def add(self, lines: Mapping[str, Sequence[str]]) -> None:
        """Append lines to the files of these dialogues.

        Raises:
            OSError: the disk takes no more.
        """
        for seed_id, new in lines.items():
            with _path(self.run, seed_id).open("ab") as file:
                # The first newline ends a line that a crash may have cut off.
                file.write(("\n" + "\n".join(new) + "\n").encode())


def _path(run: Path, seed_id: str) -> Path:
    return run / FOLDER / f"{seed_id}.jsonl"


def start_replies(run: Path, node_id: str) -> Any:
    """The actor of this driver's run, on the node that holds its folder; it ends with the driver."""
    actor: Any = ray.remote(ReplyFiles)
    return actor.options(**beside_driver(node_id)).remote(str(run))


def kept(run: Path) -> list[str]:
    """The dialogues of which `replies/` has a file."""
    return [path.stem for path in (run / FOLDER).glob("*.jsonl")]


def forget(run: Path, seed_ids: Iterable[str]) -> None:
    """Remove the files of dialogues that are finished."""
    for seed_id in seed_ids:
        _path(run, seed_id).unlink(missing_ok=True)


class Recorder:
    """Hands lines over to the actor: at once, or all together those of a moment in which another batch is under way."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._waiting: dict[str, list[str]] = defaultdict(list)
        self._sending: asyncio.Task[None] | None = None
        self._failure: OSError | None = None

    async def read(self, seed_id: str) -> bytes:
        """A dialogue's file."""
        text: bytes = await self._actor.read.remote(seed_id)
        return text

    def add(self, seed_id: str, line: Mapping[str, Any]) -> None:
        """Append a line to a dialogue's file, soon.

        Raises:
            OSError: an earlier one couldn't be written.
        """
        if self._failure:
            raise self._failure
        self._waiting[seed_id].append(json.dumps(line, ensure_ascii=False))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())

    async def written(self) -> None:
        """Wait until nothing is left to hand over."""
        while self._sending:
            await self._sending

    async def _send(self) -> None:
        try:
            while self._waiting:
                lines, self._waiting = self._waiting, defaultdict(list)
                ends = time.monotonic() + SECONDS_BETWEEN_WRITES
                await self._actor.add.remote(dict(lines))
                await asyncio.sleep(ends - time.monotonic())
        except OSError as error:
            self._failure = error
        finally:
            self._sending = None


@runtime_checkable
class Keeping(Protocol):
    """An engine whose requests outlive the process that asked: the same request is not sent again, it is picked up."""

    async def has(self, request: LLMRequest, attempt: int) -> bool:
        """Whether the request was sent before, and its answer is there or may still come."""


class Work:
    """A dialogue at work: its calls so far, and the replies and views that it was given before a process died.

    `again` are the calls that were made before and of which nothing came back, except those that the engine kept.
    """

    def __init__(self, seed_id: str, recorder: Recorder, before: bytes = b"") -> None:
        self.seed_id = seed_id
        self.recorder = recorder
        self.ledger: list[Call] = []
        self.replies: dict[str, Completion] = {}
        self.views: dict[str, list[RepositoryView]] = defaultdict(list)
        self.again: set[str] = set()
        for line in before.split(b"\n"):
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return  # Empty, or cut off by a crash.
        if "asked" in event:
            self.again.add(event["asked"])
        elif "view" in event:
            self.views[event["view"]].append(RepositoryView.model_validate(event["reply"]))
        else:
            self.again.discard(event["id"])
            self.ledger.append(Call(**event["call"]))
            if "reply" in event:
                self.replies[event["id"]] = Completion(**event["reply"])

    async def view(self, speaking: Speaking, read: Callable[[], Awaitable[RepositoryView]]) -> RepositoryView:
        """The repository as the dialogue was shown it before, else as `read` shows it now."""
        if before := self.views[speaking.value]:
            return before.pop(0)
        view = await read()
        self.recorder.add(self.seed_id, {"view": speaking.value, "reply": view.model_dump(mode="json")})
        return view

    def asking(self, engine: Answering, called: Callable[[Call], None]) -> Asking:
        """What to `ask` one request of; `called` is told of each call that is really made."""
        return Asking(self, engine, called)


class Asking:
    """The engine of one request of a dialogue: it answers what was answered before, and records what is asked now."""

    def __init__(self, work: Work, engine: Answering, called: Callable[[Call], None]) -> None:
        self._work = work
        self._engine = engine
        self._called = called
        self._id = ""
        self._reply: Completion | None = None
        self._known = False

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def price(self) -> Price:
        return self._engine.price

    async def complete(self, request: LLMRequest, attempt: int) -> Completion:
        """As `Answering.complete`."""
        self._id, self._reply = _digest(request, attempt), None
        known = self._work.replies.get(self._id)
        self._known = known is not None
        if known is not None:
            return known
        asked = self._id in self._work.again
        if asked and isinstance(self._engine, Keeping) and await self._engine.has(request, attempt):
            self._work.again.discard(self._id)
        self._work.recorder.add(self._work.seed_id, {"asked": self._id})
        self._reply = await self._engine.complete(request, attempt)
        return self._reply

    def record(self, call: Call) -> None:
        """Put the call of the last attempt into the ledger, unless it is there from before."""
        if self._known:
            return
        again = self._id in self._work.again
        self._work.again.discard(self._id)
        call = dataclasses.replace(call, again=again)
        event: dict[str, Any] = {"id": self._id, "call": vars(call)}
        if self._reply is not None:
            event["reply"] = {name: value for name, value in vars(self._reply).items() if name != "tokens"}
        self._work.ledger.append(call)
        self._called(call)
        self._work.recorder.add(self._work.seed_id, event)


def _digest(request: LLMRequest, attempt: int) -> str:
    asked = [request.key, request.stage, attempt, request.messages, request.begun, request.temperature]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:24]
