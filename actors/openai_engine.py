"""Any OpenAI-compatible chat endpoint as an engine: calls in flight bounded, patience with its faults."""

from __future__ import annotations

import asyncio
import random
import time
from email.utils import parsedate_to_datetime
from typing import NoReturn

import aiohttp
import openai
from pydantic import BaseModel, ConfigDict

from actors.engine import Completion, EngineUnavailable
from actors.openai_api import Fault, api_key, body, completion, other_limit, refusal, said, shown
from synuc.config import OpenAIEngine, Price
from synuc.types import CallFailed, LLMRequest

# Seconds. A preflight shouldn't take as long as a run's patience.
CHECK_GIVES_UP_AFTER = 10.0
FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 30.0


class _Ready(BaseModel):
    """The answer of the preflight's trial call."""

    model_config = ConfigDict(extra="forbid")

    ready: bool


class OpenAIEndpoint:
    """An engine behind HTTP. `share` bounds its calls in flight in place of the config's `max_in_flight`.

    `token_limit` is what the bound on an answer's tokens is called; where the endpoint wants the other name, that is
    found out.

    Raises:
        EngineUnavailable: no key in the environment, though the endpoint isn't on this machine.
    """

    def __init__(self, config: OpenAIEngine, share: int | None = None, token_limit: str = "max_tokens") -> None:
        self.name = config.model
        self.price: Price = config.price
        self._config = config
        self._key = api_key(config.base_url, config.api_key_env)
        in_flight = share or config.max_in_flight
        self._slots = asyncio.Semaphore(in_flight)
        # httpx's own connection pool takes six times the CPU at 64 calls in flight. No time limit here, because
        # aiohttp's are per read, not per call.
        self._client = openai.AsyncOpenAI(
            api_key=self._key,
            base_url=config.base_url,
            max_retries=0,
            timeout=None,
            http_client=openai.DefaultAioHttpClient(base_url=config.base_url, timeout=None),
        )
        self._answered = -1.0
        self.token_limit = self._given_limit = token_limit

    async def complete(self, request: LLMRequest, attempt: int) -> Completion:
        """See `Engine`. A call that goes on failing while others are answered is a CallFailed `endpoint`."""
        return await self._patiently(request, attempt, self._config.give_up_after_s)

    async def check(self) -> None:
        """One small real call, so that a wrong key, model or structured mode shows before the run."""
        request = LLMRequest(
            stage="check",
            role="generator",
            key="check",
            messages=({"role": "user", "content": 'Answer with the JSON object {"ready": true}.'},),
            reply=_Ready,
            max_tokens=64,
            temperature=1.0,
        )
        try:
            await self._patiently(request, 0, min(self._config.give_up_after_s, CHECK_GIVES_UP_AFTER))
        except CallFailed as failed:
            raise EngineUnavailable(f"{self.name} at {self._config.base_url} refuses a trial call: {failed}") from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _patiently(self, request: LLMRequest, attempt: int, patience: float) -> Completion:
        fields = body(self._config, request, attempt)
        first_failure, tries = None, 0
        while True:
            limit = self.token_limit
            try:
                async with self._slots, asyncio.timeout(self._config.timeout_s):
                    # Nearly all goes as extra_body: the client would look at every part of the schema, which takes
                    # a third of all its time.
                    answer = await self._client.chat.completions.create(
                        model=self.name, messages=[], extra_body={limit: request.max_tokens, **fields}
                    )
                completed = completion(answer)
                self._answered = time.monotonic()
                return completed
            except (openai.OpenAIError, aiohttp.ClientError, OSError, ValueError, Fault) as error:
                # TimeoutError is an OSError; a body that isn't JSON a ValueError.
                fault = self._fault(error, limit)
            if fault is None:
                continue
            now = time.monotonic()
            if first_failure is None or (fault.throttled and self._answered > first_failure):
                # Throttled while others get through: it is only a matter of waiting.
                first_failure = now
            left = first_failure + patience - now
            if left <= 0 or (fault.wait or 0.0) > left:
                self._give_up(fault, first_failure, patience)
            tries += 1
            delay = random.uniform(0, min(LONGEST_BACKOFF, FIRST_BACKOFF * 2**tries))
            if fault.wait is not None:
                delay = fault.wait + random.uniform(0, 0.1 * fault.wait)
            await asyncio.sleep(min(delay, left))

    def _give_up(self, fault: Fault, first_failure: float, patience: float) -> NoReturn:
        if self._answered > first_failure:
            # The endpoint is well, so it is this call that it can't do; that needn't stop the run.
            raise CallFailed("endpoint", f"failed for {patience:g} s while others were answered: {fault}")
        asked = f"; it asks to wait {fault.wait:g} s" if fault.wait else ""
        raise EngineUnavailable(
            f"the endpoint {self._config.base_url} is unreachable or failing, tried for {patience:g} s: "
            f"{fault}{asked}. Check engine.base_url and that it is up, or raise engine.give_up_after_s; "
            "the same command continues the run"
        ) from None

    def _fault(self, error: Exception, limit: str) -> Fault | None:
        """`error` of a call, whose token limit was named `limit`, as a fault to wait for; None: try again at once.

        Raises:
            EngineUnavailable, CallFailed: what waiting doesn't cure.
        """
        if isinstance(error, Fault):
            return error
        if isinstance(error, TimeoutError):
            return Fault(f"no answer within engine.timeout_s={self._config.timeout_s:g} s")
        if not isinstance(error, openai.APIStatusError):
            return Fault(shown(f"{type(error).__name__}: {error}", self._key))
        status, words = error.status_code, said(error.body, self._key) or shown(error.message, self._key)
        other = other_limit(limit, status, words)
        if other and limit == self._given_limit:
            self.token_limit = other
            return None
        refused = refusal(self._config, status, words, _retry_after(error))
        if isinstance(refused, Fault):
            return refused
        raise refused from None


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Seconds that the endpoint asks to wait, from Retry-After in either of its forms."""
    value = error.response.headers.get("retry-after")
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
