"""What an interrupted dialogue is given again, and what it asks anew."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from actors.engine import Call, Completion, ask
from actors.replies import Recorder, ReplyFiles, Work, forget, kept
from synuc.config import Price
from synuc.memory import RepositoryView
from synuc.speaking import Speaking
from synuc.types import CallFailed, LLMRequest


class Word(BaseModel):
    word: str


class Killed(BaseException):
    """The process dies here."""


class Engine:
    """Answers each prompt with the next of its answers; None: the process dies while the call is in flight."""

    name, price = "m", Price(prompt=1.0)

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.dead = False

    async def complete(self, request: LLMRequest, attempt: int) -> Completion:
        self.asked.append(request.messages[0]["content"])
        answer = self.answers.pop(0)
        if answer is None:
            await asyncio.sleep(0.05)
            self.dead = True
            raise Killed
        return Completion(answer, "stop", 100, 0, 5)


class Remote:
    """An actor's method, called here."""

    def __init__(self, method: Any) -> None:
        self.method = method

    async def remote(self, *arguments: Any) -> Any:
        return self.method(*arguments)


class Actor:
    """What a dead process still wanted to hand over never comes."""

    def __init__(self, files: ReplyFiles, engine: Engine | None = None) -> None:
        self.read = Remote(files.read)
        self.add = Remote(lambda lines: None if engine and engine.dead else files.add(lines))


def word(text: str) -> str:
    return json.dumps({"word": text})


def answered(run: Path, engine: Engine, prompts: Sequence[str]) -> tuple[list[str], Work]:
    """Asks the prompts one after the other, in a process of its own as it were; a call that fails is the word "-"."""

    async def go() -> tuple[list[str], Work]:
        recorder = Recorder(Actor(ReplyFiles(str(run)), engine))
        work = Work("s", recorder, await recorder.read("s"))
        words = []
        try:
            for n, prompt in enumerate(prompts):
                request = LLMRequest("match", "generator", f"s-{n}", ({"role": "user", "content": prompt},), Word, 20)
                asking = work.asking(engine, lambda call: None)
                try:
                    words.append((await ask(asking, request, asking.record, 2)).word)  # type: ignore[attr-defined]
                except CallFailed:
                    words.append("-")
        except Killed:
            pass
        await recorder.written()
        return words, work

    return asyncio.run(go())


def test_only_the_call_in_flight_is_asked_again(tmp_path: Path) -> None:
    first, work = answered(tmp_path, Engine(word("a"), word("b"), None), ["A", "B", "C", "D"])
    assert first == ["a", "b"]
    engine = Engine(word("c"), word("d"))
    words, again = answered(tmp_path, engine, ["A", "B", "C", "D"])
    assert words == ["a", "b", "c", "d"]
    assert engine.asked == ["C", "D"]
    assert [(call.key, call.again) for call in again.ledger if not call.error] == [
        ("s-0", False),
        ("s-1", False),
        ("s-2", True),
        ("s-3", False),
    ]
    assert again.ledger[:2] == work.ledger[:2]


class KeepingEngine(Engine):
    """One that has kept the requests whose prompts are named, though the process that asked is gone."""

    def __init__(self, kept: Sequence[str], *answers: str | None) -> None:
        super().__init__(*answers)
        self.kept = kept

    async def has(self, request: LLMRequest, attempt: int) -> bool:
        return request.messages[0]["content"] in self.kept


@pytest.mark.parametrize(("kept", "again"), [(["B"], False), (["A"], True)])
def test_a_call_that_the_engine_has_kept_is_not_counted_as_asked_again(
    tmp_path: Path, kept: list[str], again: bool
) -> None:
    answered(tmp_path, Engine(word("a"), None), ["A", "B"])
    words, work = answered(tmp_path, KeepingEngine(kept, word("b"), word("c")), ["A", "B", "C"])
    assert words == ["a", "b", "c"]
    assert [call.again for call in work.ledger if not call.error] == [False, again, False]
    # It stays so when yet another process reads it.
    _, later = answered(tmp_path, Engine(), ["A", "B", "C"])
    assert [call.again for call in later.ledger] == [call.again for call in work.ledger]


def test_answers_of_no_use_are_given_again_too(tmp_path: Path) -> None:
    answered(tmp_path, Engine("nonsense", word("a"), "nonsense", "nonsense", None), ["A", "B", "C"])
    engine = Engine(word("c"))
    words, work = answered(tmp_path, engine, ["A", "B", "C"])
    assert words == ["a", "-", "c"]
    assert engine.asked == ["C"]
    assert [call.error for call in work.ledger][:4] == ["unparseable", "", "unparseable", "unparseable"]


def test_another_prompt_is_asked_anew(tmp_path: Path) -> None:
    answered(tmp_path, Engine(word("a"), None), ["A", "B"])
    engine = Engine(word("x"), word("b"))
    words, work = answered(tmp_path, engine, ["X", "B"])
    assert (words, engine.asked) == (["x", "b"], ["X", "B"])
    # What the first answer cost stays in the ledger.
    assert sum(call.prompt_tokens for call in work.ledger) == 300


@pytest.mark.parametrize("tail", [b'{"id": "abc", "call": {"ke', b"\x00\xff", b"\n\n"])
def test_what_a_crash_cut_off_spoils_nothing_before_and_after_it(tmp_path: Path, tail: bytes) -> None:
    answered(tmp_path, Engine(word("a"), None), ["A", "B"])
    with (tmp_path / "replies" / "s.jsonl").open("ab") as file:
        file.write(tail)
    answered(tmp_path, Engine(word("b"), None), ["A", "B", "C"])
    words, _ = answered(tmp_path, Engine(word("c")), ["A", "B", "C"])
    assert words == ["a", "b", "c"]


def test_the_memory_shows_an_interrupted_dialogue_what_it_showed_before(tmp_path: Path) -> None:
    async def look(version: int) -> int:
        async def now() -> RepositoryView:
            return RepositoryView(version=version)

        recorder = Recorder(Actor(ReplyFiles(str(tmp_path))))
        work = Work("s", recorder, await recorder.read("s"))
        seen = await work.view(Speaking.KEY, now)
        await recorder.written()
        return seen.version

    assert [asyncio.run(look(version)) for version in (3, 4, 5)] == [3, 3, 3]


def test_a_full_disk_stops_the_dialogue(tmp_path: Path) -> None:
    (tmp_path / "replies").mkdir()
    (tmp_path / "replies" / "s.jsonl").symlink_to("/dev/full")

    async def go() -> None:
        recorder = Recorder(Actor(ReplyFiles(str(tmp_path))))
        recorder.add("s", {"asked": "a"})
        await recorder.written()
        recorder.add("s", {"asked": "b"})

    with pytest.raises(OSError, match="No space left"):
        asyncio.run(go())


def test_files_of_finished_dialogues_go(tmp_path: Path) -> None:
    files = ReplyFiles(str(tmp_path))
    files.add({"a": ["{}"], "b": ["{}"]})
    forget(tmp_path, ["a", "never"])
    assert kept(tmp_path) == ["b"]
    assert files.read("a") == b""


def test_a_call_that_is_recorded_keeps_everything_but_the_token_ids(tmp_path: Path) -> None:
    answered(tmp_path, Engine(word("é 中"), None), ["A", "B"])
    _, work = answered(tmp_path, Engine(word("b")), ["A", "B"])
    assert isinstance(work.ledger[0], Call)
    assert next(iter(work.replies.values())) == Completion(word("é 中"), "stop", 100, 0, 5)
