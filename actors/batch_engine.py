"""An engine that asks by files, in waves: its answers come in hours, at half the price with many providers.

All that is asked until nothing new comes becomes one wave. With an endpoint the waves are uploaded and fetched by
`batch_upload.py`; without, somebody else answers them. Requests are named by their content, so that whoever asks the
same again, also after a stop, gets the answer that is there or waits for the one that is on its way.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from contextlib import ExitStack
from typing import Any

from openai.types.chat import ChatCompletion

from actors.batch_files import BatchFolder, Line, request_line
from actors.batch_upload import Courier
from actors.engine import Completion, EngineUnavailable
from actors.openai_api import Fault, body, completion, other_limit, refusal, said
from synuc.config import BatchEngine, Price
from synuc.folder import Folder, RunError
from synuc.types import CallFailed, LLMRequest

Answer = Completion | CallFailed | EngineUnavailable | Fault

LONGEST_NAP = 0.5
LINES_AT_A_TIME = 1000


class BatchFiles:
    """An engine of batch files in `config.folder`. One process at a time may be at work there.

    Raises:
        EngineUnavailable: the folder isn't named, or there is no key for the endpoint.
    """

    def __init__(self, config: BatchEngine) -> None:
        if config.folder is None:
            raise EngineUnavailable("batch files need a folder: set engine.folder")
        self.name = config.model
        self.price: Price = config.price
        self._config = config
        self._path = config.folder
        self._files = BatchFolder(self._path, config.max_requests, config.max_bytes)
        self._courier = Courier(config, config.base_url, self._files) if config.base_url else None
        self._lock = ExitStack()
        self._work: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._new: dict[str, str] = {}
        self._new_bytes = 0
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._moved = time.monotonic()
        self._failure: EngineUnavailable | None = None

    async def complete(self, request: LLMRequest, attempt: int) -> Completion:
        """See `Engine`. A request that keeps coming back without an answer is a CallFailed `endpoint`."""
        await self._loaded()
        id, line = self._line(request, attempt)
        while True:
            answer = await self._answer(id, line)
            if isinstance(answer, Completion):
                return answer
            if not isinstance(answer, Fault):
                raise answer
            if self._files.lost[id] >= self._config.tries:
                raise CallFailed("endpoint", f"came back {self._files.lost[id]} times without an answer: {answer}")

    async def has(self, request: LLMRequest, attempt: int) -> bool:
        """Whether the request is in a file, and its answer is there or still to come."""
        await self._loaded()
        id, _ = self._line(request, attempt)
        return id in self._files.answered or self._files.is_open(id)

    async def check(self) -> None:
        """Whether the folder can be written to, and the endpoint has batches and takes these requests."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None
        if self._courier:
            await self._courier.check()

    async def close(self) -> None:
        """Stop looking for answers. Everything stays as it is: batches that were sent go on."""
        if self._work:
            self._work.cancel()
            await asyncio.wait([self._work])
        if self._courier:
            await self._courier.close()
        self._lock.close()

    async def _loaded(self) -> None:
        """Wait until what the files say is known; at the first call, begin to look at them."""
        if self._work is None:
            self._work = asyncio.create_task(self._forever())
        await self._ready.wait()

    def _line(self, request: LLMRequest, attempt: int) -> tuple[str, str]:
        """The id of a request, which names all that decides its answer, and its line in a wave."""
        config = self._config
        fields = {"model": config.model, config.token_limit: request.max_tokens, **body(config, request, attempt)}
        asked = json.dumps([request.key, request.stage, attempt, fields], sort_keys=True)
        id = hashlib.sha256(asked.encode()).hexdigest()[:32]
        return id, request_line(id, fields)

    async def _answer(self, id: str, line: str) -> Answer:
        if self._failure:
            return self._failure
        if id in self._files.answered:
            return self._read(self._files.answer(id))
        if id not in self._waiting:
            self._waiting[id] = asyncio.get_running_loop().create_future()
            if not self._files.is_open(id):
                self._new[id] = line
                self._new_bytes += len(line)
                self._moved = time.monotonic()
        # Whoever stops waiting must not stop it for others who ask the same.
        return await asyncio.shield(self._waiting[id])

    def _read(self, line: dict[str, Any]) -> Answer:
        """What a line of the answers says."""
        response, error = line.get("response"), line.get("error")
        if not isinstance(response, dict):
            return Fault(said(error, "") or "neither an answer nor an error")
        status = response.get("status_code", 200)
        if status == 200:
            try:
                return completion(ChatCompletion.construct(**(response.get("body") or {})))
            except (CallFailed, Fault) as failed:
                return failed
        words = said(response.get("body") or error, "")
        if other := other_limit(self._config.token_limit, status, words):
            return EngineUnavailable(f"{self.name} wants another name ({words}): set engine.token_limit={other}")
        return refusal(self._config, status, words)

    async def _forever(self) -> None:
        """Write what is asked and look for answers, until it is cancelled or can't go on."""
        nap = min(LONGEST_NAP, self._config.settle_s, self._config.poll_s)
        try:
            await asyncio.to_thread(self._begin)
            await self._take_answers()
            self._ready.set()
            looked = time.monotonic()
            while True:
                if self._new and self._settled():
                    await self._write()
                if time.monotonic() - looked >= self._config.poll_s:
                    await self._look()
                    looked = time.monotonic()
                await asyncio.sleep(nap)
        except (EngineUnavailable, RunError) as problem:
            self._fail(EngineUnavailable(str(problem)))
        except OSError as error:
            self._fail(self._unwritable(error))
        except Exception as error:
            # Nobody awaits this task: those who wait for answers would wait for ever.
            self._fail(EngineUnavailable(f"the batch files can't go on: {type(error).__name__}: {error}"))

    def _begin(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.enter_context(Folder(self._path).locked())
        except RunError as taken:
            raise EngineUnavailable(f"{taken}, or another engine.folder") from None
        self._files.load()

    def _settled(self) -> bool:
        full = len(self._new) >= self._config.max_requests or self._new_bytes >= self._config.max_bytes
        return full or time.monotonic() - self._moved >= self._config.settle_s

    async def _write(self) -> None:
        requests, self._new, self._new_bytes = self._new, {}, 0
        await asyncio.to_thread(self._files.write, requests)
        if self._courier:
            await self._courier.look()
        await self._tell()

    async def _look(self) -> None:
        if self._courier:
            await self._courier.look()
        await self._take_answers()
        await self._tell()

    async def _tell(self) -> None:
        await asyncio.to_thread(self._files.tell, self._courier.trouble if self._courier else "")

    async def _take_answers(self) -> None:
        while lines := await asyncio.to_thread(self._files.lines, LINES_AT_A_TIME):
            for line in lines:
                self._take(line)

    def _take(self, line: Line) -> None:
        answer = self._read(line.answer) if line.answer else None
        # What refuses every request isn't the answer to this one: it is asked again once that has been put right.
        id = self._files.take(line, isinstance(answer, Completion | CallFailed))
        if id and answer and (waiting := self._waiting.pop(id, None)):
            self._moved = time.monotonic()
            waiting.set_result(answer)

    def _fail(self, failure: EngineUnavailable) -> None:
        self._failure = failure
        self._ready.set()
        for waiting in self._waiting.values():
            waiting.set_result(failure)
        self._waiting.clear()

    def _unwritable(self, error: OSError) -> EngineUnavailable:
        return EngineUnavailable(
            f"can't write batch files to {self._path}: {error.strerror or error}. What is there is kept; "
            "make room and give the same command again"
        )
