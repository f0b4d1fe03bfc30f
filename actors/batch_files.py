"""The files of a batch engine: requests go out in waves, answers come in beside them, as OpenAI's Batch API has them.

    wave-000012.jsonl           requests, one a line, named by `custom_id`; it appears whole and is never changed
    wave-000012.batch.json      of an endpoint: what was uploaded, and which batch was made of it
    wave-000012.refused.jsonl   of an endpoint: a wave that it wouldn't take; its requests go into later ones
    ANYTHING.answers.jsonl      answers, one a line; it may grow, and a line counts once it is ended
    waiting.txt                 what is waited for, for people and for the driver

The files are all there is: whoever reads them knows what was asked, what was answered and what is still open.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from synuc.folder import write_whole

_WAVE = re.compile(r"wave-(\d{6,})\.jsonl")
_ANSWERS = ".answers.jsonl"
_ID = re.compile(rb'\{"custom_id": "([0-9a-f]+)"')


class Place(NamedTuple):
    """Where a line is: its file, and its bytes there."""

    path: Path
    at: int
    length: int


class Line(NamedTuple):
    """A line of an answers file; `answer` is None if it isn't an answer."""

    place: Place
    answer: dict[str, Any] | None


@dataclass
class Wave:
    """A file of requests, those that are open, when it was written, and what the endpoint says of it."""

    path: Path
    requests: int
    open: set[str]
    written: float
    note: str = ""

    @property
    def name(self) -> str:
        return self.path.name.removesuffix(".jsonl")

    @property
    def answers(self) -> Path:
        """Where an endpoint's answers go."""
        return self.path.with_name(f"{self.name}{_ANSWERS}")

    def __str__(self) -> str:
        since = time.strftime("%d %b %H:%M", time.localtime(self.written))
        answered = self.requests - len(self.open)
        note = f" ({self.note})" if self.note else ""
        return f"{self.name}: {self.requests:,} requests, {answered:,} answered, waiting since {since}{note}"


@dataclass
class BatchFolder:
    """What was asked, and what was answered: `answered` says where a request's answer is, `lost` how often one came
    back without; `unasked`, `repeated` and `unreadable` count lines of answers that are of no use, and stay.
    """

    path: Path
    max_requests: int
    max_bytes: int
    waves: dict[int, Wave] = field(default_factory=dict)
    answered: dict[str, Place] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)
    unasked: int = 0
    repeated: int = 0
    unreadable: int = 0
    _asked: Counter[str] = field(default_factory=Counter)
    _open: dict[str, int] = field(default_factory=dict)
    _read: dict[Path, int] = field(default_factory=dict)
    _last: int = 0
    _said: str = ""

    def load(self) -> None:
        """Learn from the files what was asked. Answers are read by `lines`."""
        for path in sorted(self.path.iterdir()):
            if match := _WAVE.fullmatch(path.name):
                ids = list(wave_ids(path))
                self._add(int(match[1]), path, ids, path.stat().st_mtime)

    def _add(self, number: int, path: Path, ids: Sequence[str], written: float) -> None:
        self._last = max(self._last, number)
        self._asked.update(ids)
        for id in ids:
            if id in self._open:
                self.waves[self._open[id]].open.discard(id)
            self._open[id] = number
        self.waves[number] = Wave(path, len(ids), set(ids), written)

    def is_open(self, id: str) -> bool:
        """Whether the request was sent and hasn't come back."""
        return id in self._open

    def write(self, requests: Mapping[str, str]) -> list[Wave]:
        """Send requests, by their ids, as files that are not too large. It waits for the disk.

        Raises:
            OSError: the disk takes no more.
        """
        waves = []
        for part in self._parts(requests):
            number = self._last + 1
            path = self.path / f"wave-{number:06d}.jsonl"
            write_whole(path, "".join(requests[id] for id in part))
            self._add(number, path, part, time.time())
            waves.append(self.waves[number])
        return waves

    def _parts(self, requests: Mapping[str, str]) -> Iterator[list[str]]:
        part: list[str] = []
        size = 0
        for id, line in requests.items():
            if part and (len(part) >= self.max_requests or size + len(line) > self.max_bytes):
                yield part
                part, size = [], 0
            part.append(id)
            size += len(line)
        if part:
            yield part

    def lines(self, most: int) -> list[Line]:
        """The next lines of the answers, at most so many; empty if there are no new ones."""
        found: list[Line] = []
        for path in sorted(self.path.glob(f"*{_ANSWERS}")):
            if path.name.startswith("."):
                continue
            with path.open("rb") as file:
                at = file.seek(self._read.get(path, 0))
                for line in file:
                    if len(found) == most or not line.endswith(b"\n"):
                        break
                    if line.strip():
                        found.append(Line(Place(path, at, len(line)), _answer(line)))
                    at += len(line)
            self._read[path] = at
        return found

    def take(self, line: Line, useful: bool) -> str | None:
        """Count a line of the answers. The id of its request if that has come back: with an answer, or `lost`."""
        if line.answer is None:
            self.unreadable += 1
            return None
        id = line.answer["custom_id"]
        if id not in self._asked:
            self.unasked += 1
        elif id in self.answered:
            self.repeated += 1
        elif useful:
            self.answered[id] = line.place
            self._close(id)
            return str(id)
        else:
            self.lost[id] += 1
            if self.lost[id] >= self._asked[id]:
                self._close(id)
                return str(id)
        return None

    def _close(self, id: str) -> None:
        if id in self._open:
            wave = self.waves[self._open.pop(id)]
            wave.open.discard(id)

    def answer(self, id: str) -> dict[str, Any]:
        """The answer to a request that is `answered`."""
        place = self.answered[id]
        with place.path.open("rb") as file:
            file.seek(place.at)
            answer: dict[str, Any] = json.loads(file.read(place.length))
        return answer

    def refuse(self, wave: Wave) -> None:
        """Take a wave back that nobody will answer: its requests are as if they had never been sent."""
        wave.path.rename(wave.path.with_name(f"{wave.name}.refused.jsonl"))
        number = int(wave.name.removeprefix("wave-"))
        for id in wave.open:
            del self._open[id]
        self._asked -= Counter(wave_ids(wave.path.with_name(f"{wave.name}.refused.jsonl")))
        del self.waves[number]

    def unanswered(self) -> list[Wave]:
        """The waves with open requests, in order."""
        return [wave for _, wave in sorted(self.waves.items()) if wave.open]

    def tell(self, trouble: str = "") -> None:
        """Write what is waited for to `waiting.txt`, if that has changed."""
        useless = [
            f"{number:,} {what}"
            for number, what in (
                (self.unasked, "to nothing that was asked"),
                (self.repeated, "repeated"),
                (self.unreadable, "unreadable"),
            )
            if number
        ]
        said = [str(wave) for wave in self.unanswered()]
        said += [f"lines of answers that are of no use: {', '.join(useless)}"] if useless else []
        text = "".join(f"{line}\n" for line in [*said, *([trouble] if trouble else [])])
        if text != self._said:
            write_whole(self.path / "waiting.txt", text)
            self._said = text


def waiting(path: Path) -> list[str]:
    """What a batch engine with this folder says that it waits for."""
    try:
        return (path / "waiting.txt").read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []


def wave_ids(path: Path) -> Iterator[str]:
    """The ids of a wave's requests."""
    with path.open("rb") as file:
        for line in file:
            match = _ID.match(line)
            assert match, f"{path}: a line that this program didn't write"
            yield match[1].decode()


def answer_ids(path: Path) -> set[str]:
    """The ids of the requests that an answers file is about."""
    with path.open("rb") as file:
        return {answer["custom_id"] for line in file if (answer := _answer(line))}


def _answer(line: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = isinstance(answer, dict) and isinstance(answer.get("custom_id"), str)
    return answer if known else None


def request_line(id: str, body: Mapping[str, Any]) -> str:
    """A request as a line of a wave, in ASCII: some readers take other characters for ends of lines."""
    line = {"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line) + "\n"


def missing_line(id: str, why: str) -> bytes:
    """What stands among the answers for a request that an endpoint gave none to."""
    line = {"custom_id": id, "response": None, "error": {"code": "missing", "message": why}}
    return json.dumps(line).encode() + b"\n"
