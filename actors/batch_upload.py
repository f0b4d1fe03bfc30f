"""Has an endpoint with `/files` and `/batches` answer the waves of a batch folder.

Every step is on disk before the next, so that a stop at any moment sends nothing twice: the id of the uploaded file
before a batch is made of it, and a batch whose id was lost is found again by its file. The answers of a batch that has
ended, however it did, are put into the folder as one file that has a line for each of the wave's requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import openai
from openai.types import Batch

from actors.batch_files import BatchFolder, Wave, answer_ids, missing_line, wave_ids
from actors.engine import EngineUnavailable
from actors.openai_api import Fault, api_key, refusal, said, shown
from actors.openai_engine import OpenAIEndpoint
from synuc.config import BatchEngine, OpenAIEngine
from synuc.folder import write_whole

ENDED = ("completed", "expired", "cancelled", "failed")
# What a provider says that has too much in its queue already: it takes the same file later.
QUEUE_FULL = "token_limit_exceeded"
SECONDS_FOR_A_QUEUE = 600.0


class Courier:
    """Takes waves to the endpoint at `url` and brings answers back. `trouble`: why it couldn't, the last time.

    Raises:
        EngineUnavailable: no key in the environment, though the endpoint isn't on this machine.
    """

    def __init__(self, config: BatchEngine, url: str, files: BatchFolder) -> None:
        self.trouble = ""
        self._config = config
        self._url = url
        self._files = files
        self._key = api_key(url, config.api_key_env)
        self._client = openai.AsyncOpenAI(api_key=self._key, base_url=url)

    async def check(self) -> None:
        """A trial call, and a look whether there are batches.

        Raises:
            EngineUnavailable: with a message that says what to do.
        """
        shared = ("model", "api_key_env", "structured", "per_request_seed", "extra_body")
        live = OpenAIEngine(kind="openai", base_url=self._url, **{name: getattr(self._config, name) for name in shared})
        endpoint = OpenAIEndpoint(live, token_limit=self._config.token_limit)
        try:
            await endpoint.check()
        finally:
            await endpoint.close()
        if endpoint.token_limit != self._config.token_limit:
            raise EngineUnavailable(f"{self._config.model} wants engine.token_limit={endpoint.token_limit}")
        try:
            await self._client.batches.list(limit=1)
        except openai.OpenAIError as error:
            raise EngineUnavailable(
                f"{self._url} has no batches ({self._shown(error)}): use engine.kind=openai, "
                "or leave engine.base_url out and have somebody else answer the files"
            ) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def look(self) -> None:
        """Send what isn't sent, and fetch what is ready. What fails for now is tried at the next look.

        Raises:
            EngineUnavailable: what waiting doesn't cure.
        """
        self.trouble = ""
        for wave in self._files.unanswered():
            if wave.answers.exists():
                continue
            try:
                await self._move(wave)
            except openai.APIStatusError as error:
                self._judge(error)
            except openai.OpenAIError as error:
                self.trouble = f"{self._url} can't be reached: {self._shown(error)}"

    def _judge(self, error: openai.APIStatusError) -> None:
        words = said(error.body, self._key) or self._shown(error)
        refused = refusal(self._config, error.status_code, words)
        if isinstance(refused, Fault):
            self.trouble = f"{self._url} fails: {refused}"
            return
        if error.status_code in (401, 402, 403, 429):
            raise refused from None
        raise EngineUnavailable(
            f"{self._url} refuses a batch (HTTP {error.status_code}: {words}): see that the key is of the account and "
            f"project that the batches in {self._files.path} were made with, and that files of engine.max_requests and "
            "engine.max_bytes aren't too large for it"
        ) from None

    async def _move(self, wave: Wave) -> None:
        """Do what is next for a wave that has no answers yet."""
        state = self._state(wave)
        if "file" not in state:
            # Without a batch it costs nothing, should it be uploaded twice.
            file = await self._client.files.create(file=wave.path, purpose="batch")
            state |= {"file": file.id}
            self._keep(wave, state)
        if state.get("not_before", 0.0) > time.time():
            return
        if "batch" in state:
            batch = await self._client.batches.retrieve(state["batch"])
        else:
            batch = await self._begun(state) or await self._client.with_options(max_retries=0).batches.create(
                input_file_id=state["file"], endpoint="/v1/chat/completions", completion_window="24h"
            )
            state["batch"] = batch.id
            self._keep(wave, state)
        status = batch.status.lower()
        wave.note = _note(batch)
        if status == "failed" and not (batch.output_file_id or batch.error_file_id):
            self._failed(wave, state, batch)
        elif status in ENDED:
            await self._fetch(wave, batch)

    async def _begun(self, state: dict[str, Any]) -> Batch | None:
        """The batch that was made of an uploaded file by a call whose answer never came; the newest come first."""
        newest = await self._client.batches.list(limit=100)
        known = state.get("failed", ())
        return next((b for b in newest.data if b.input_file_id == state["file"] and b.id not in known), None)

    def _failed(self, wave: Wave, state: dict[str, Any], batch: Batch) -> None:
        """A batch that was never begun.

        Raises:
            EngineUnavailable: it never will be.
        """
        errors = (batch.errors and batch.errors.data) or []
        words = shown("; ".join(f"{error.code}: {error.message}" for error in errors[:3]) or "no reason", self._key)
        if any(error.code == QUEUE_FULL for error in errors):
            del state["batch"]
            failed = [*state.get("failed", ()), batch.id]
            self._keep(wave, state | {"failed": failed, "not_before": time.time() + SECONDS_FOR_A_QUEUE})
            wave.note = "the endpoint's queue is full, it will be sent again"
            return
        self._files.refuse(wave)
        self._path(wave).unlink()
        raise EngineUnavailable(
            f"{self._url} doesn't take {wave.name} (batch {batch.id}): {words}. If it is too large, lower "
            "engine.max_requests or engine.max_bytes; the same command sends these requests again"
        )

    async def _fetch(self, wave: Wave, batch: Batch) -> None:
        """Put down what came of a batch that has ended."""
        part = wave.answers.with_name(f".{wave.answers.name}")
        with part.open("wb") as file:
            for id in filter(None, (batch.output_file_id, batch.error_file_id)):
                async with self._client.files.with_streaming_response.content(id) as content:
                    async for chunk in content.iter_bytes():
                        file.write(chunk)
                # Whether or not the last line ended; a line without anything is none.
                file.write(b"\n")
        await asyncio.to_thread(_complete, wave, part, f"batch {batch.id} ended as {batch.status} without it")

    def _path(self, wave: Wave) -> Path:
        return wave.path.with_suffix(".batch.json")

    def _state(self, wave: Wave) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self._path(wave).read_text("utf-8"))
        except FileNotFoundError:
            return {}
        return state

    def _keep(self, wave: Wave, state: dict[str, Any]) -> None:
        write_whole(self._path(wave), json.dumps(state))

    def _shown(self, error: Exception) -> str:
        return shown(f"{type(error).__name__}: {error}", self._key)


def _note(batch: Batch) -> str:
    counts = batch.request_counts
    done = f", {counts.completed + counts.failed:,} done there" if counts and counts.total else ""
    return f"{batch.id} {batch.status.lower()}{done}"


def _complete(wave: Wave, part: Path, why: str) -> None:
    """Make `part` the wave's answers: whole, and with a line for each request."""
    answered = answer_ids(part)
    with part.open("ab") as file:
        for id in wave_ids(wave.path):
            if id not in answered:
                file.write(missing_line(id, why))
        file.flush()
        os.fsync(file.fileno())
    part.replace(wave.answers)
