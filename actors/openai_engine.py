"""Any OpenAI-compatible chat endpoint as an engine: calls in flight bounded, patience with its faults."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import random
import re
import time
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn
from urllib.parse import urlsplit

import aiohttp
import openai
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ConfigDict

from actors.engine import (
    FIRST_TOKENS,
    Completion,
    EngineUnavailable,
    reply_schema,
    sampling_seed,
    sampling_temperature,
)
from synuc.config import OpenAIEngine, Price
from synuc.neutralise import neutralise
from synuc.types import CallFailed, LLMRequest, Spoken

# Seconds. A preflight shouldn't take as long as a run's patience.
CHECK_GIVES_UP_AFTER = 10.0
FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 30.0

_TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum.{0,20}(context|input|prompt)|max_model_len|too (long|many tokens)",
    re.I,
)
_FILTERED = re.compile(r"content.?(filter|management|policy)|ResponsibleAI|data_inspection|moderation", re.I)
_STRUCTURED = re.compile(r"response_format|json_?schema|structured|guided|grammar", re.I)
# What can't be put right by waiting, although its status is 429.
_NO_QUOTA = re.compile(r"insufficient_quota|billing|balance", re.I)


class _Ready(BaseModel):
    """The answer of the preflight's trial call."""

    model_config = ConfigDict(extra="forbid")

    ready: bool


class _Fault(Exception):
    """The endpoint failed this time. `wait` is how many seconds it asks for, if it does."""

    def __init__(self, reason: str, wait: float | None = None, throttled: bool = False) -> None:
        super().__init__(reason)
        self.wait = wait
        self.throttled = throttled


class OpenAIEndpoint:
    """An engine behind HTTP. `share` bounds its calls in flight in place of the config's `max_in_flight`.

    Raises:
        EngineUnavailable: no key in the environment, though the endpoint isn't on this machine.
    """

    def __init__(self, config: OpenAIEngine, share: int | None = None) -> None:
        self.name = config.model
        self.price: Price = config.price
        self._config = config
        self._key = os.environ.get(config.api_key_env, "")
        if not self._key:
            if not _loopback(config.base_url):
                raise EngineUnavailable(
                    f"no key for {config.base_url}: set the environment variable {config.api_key_env}, "
                    "or name another one in engine.api_key_env (any value if the endpoint wants no key)"
                )
            self._key = "EMPTY"
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
        # OpenAI's reasoning models take the second name only, many other endpoints know the first only.
        self._max_tokens = "max_tokens"

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
        body = self._body(request, attempt)
        first_failure, tries = None, 0
        while True:
            limit = self._max_tokens
            try:
                async with self._slots, asyncio.timeout(self._config.timeout_s):
                    # Nearly all goes as extra_body: the client would look at every part of the schema, which takes
                    # a third of all its time.
                    answer = await self._client.chat.completions.create(
                        model=self.name, messages=[], extra_body={limit: request.max_tokens, **body}
                    )
                completion = _completion(answer)
                self._answered = time.monotonic()
                return completion
            except (openai.OpenAIError, aiohttp.ClientError, OSError, ValueError, _Fault) as error:
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

    def _give_up(self, fault: _Fault, first_failure: float, patience: float) -> NoReturn:
        if self._answered > first_failure:
            # The endpoint is well, so it is this call that it can't do; that needn't stop the run.
            raise CallFailed("endpoint", f"failed for {patience:g} s while others were answered: {fault}")
        asked = f"; it asks to wait {fault.wait:g} s" if fault.wait else ""
        raise EngineUnavailable(
            f"the endpoint {self._config.base_url} is unreachable or failing, tried for {patience:g} s: "
            f"{fault}{asked}. Check engine.base_url and that it is up, or raise engine.give_up_after_s; "
            "the same command continues the run"
        ) from None

    def _body(self, request: LLMRequest, attempt: int) -> dict[str, Any]:
        config = self._config
        messages = [{**message, "content": neutralise(message["content"])} for message in request.messages]
        body: dict[str, Any] = {"messages": messages, "temperature": sampling_temperature(request, attempt)}
        if request.reply is not Spoken:
            self._constrain(body, request)
        if request.begun:
            # vLLM's and SGLang's servers take it; others say that they don't.
            messages.append({"role": "assistant", "content": request.begun})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if request.logprobs:
            body |= {"logprobs": True, "top_logprobs": FIRST_TOKENS}
        if config.per_request_seed:
            body["seed"] = sampling_seed(request, attempt)
        return body | config.extra_body

    def _constrain(self, body: dict[str, Any], request: LLMRequest) -> None:
        """Ask for one JSON object, in the way that this endpoint takes."""
        schema, mode = reply_schema(request.reply), self._config.structured
        if mode == "json_schema":
            name = re.sub(r"\W", "_", request.stage, flags=re.ASCII)[:64]
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": name, "schema": schema, "strict": True},
            }
            return
        body["messages"][-1]["content"] += (
            "\n\nAnswer with one JSON object that satisfies this JSON schema, and nothing else:\n"
            + json.dumps(schema, ensure_ascii=False)
        )
        if mode == "json_object":
            body["response_format"] = {"type": "json_object"}

    def _fault(self, error: Exception, limit: str) -> _Fault | None:
        """`error` of a call, whose token limit was named `limit`, as a fault to wait for; None: try again at once.

        Raises:
            EngineUnavailable, CallFailed: what waiting doesn't cure.
        """
        if isinstance(error, _Fault):
            return error
        if isinstance(error, TimeoutError):
            return _Fault(f"no answer within engine.timeout_s={self._config.timeout_s:g} s")
        if not isinstance(error, openai.APIStatusError):
            return _Fault(self._shown(f"{type(error).__name__}: {error}"))
        status, said = error.status_code, self._shown(_said(error))
        if status in (401, 403):
            # What the endpoint says isn't repeated: it may hold a part of the key.
            raise EngineUnavailable(
                f"{self._config.base_url} refuses the key (HTTP {status}): check the environment variable "
                f"{self._config.api_key_env} and that this key may use {self.name}"
            ) from None
        if status == 404:
            raise EngineUnavailable(
                f"{self._config.base_url} has no model {self.name} (HTTP 404: {said}): check engine.model, "
                "and that engine.base_url ends as the endpoint wants it, mostly in /v1"
            ) from None
        if status == 402 or (status == 429 and _NO_QUOTA.search(said)):
            raise EngineUnavailable(f"{self._config.base_url} wants money (HTTP {status}): {said}") from None
        if status in (408, 409, 429) or status >= 500:
            return _Fault(f"HTTP {status}: {said}", _retry_after(error), throttled=status == 429)
        if "max_completion_tokens" in said and limit == "max_tokens":
            self._max_tokens = "max_completion_tokens"
            return None
        raise self._refused(status, said) from None

    def _refused(self, status: int, said: str) -> Exception:
        if _FILTERED.search(said):
            return CallFailed("content_filter", said)
        if status == 413 or _TOO_LONG.search(said):
            return CallFailed("context_length", said)
        if self._config.structured != "none" and _STRUCTURED.search(said):
            other = "json_object" if self._config.structured == "json_schema" else "none"
            return EngineUnavailable(
                f"{self._config.base_url} doesn't take structured output as {self._config.structured} "
                f"(HTTP {status}: {said}): set engine.structured={other}"
            )
        return CallFailed("bad_request", f"HTTP {status}: {said}")

    def _shown(self, text: str) -> str:
        # A made-up key of a few letters would be found everywhere.
        return (text.replace(self._key, "***") if len(self._key) > 7 else text)[:300]


def _completion(answer: Any) -> Completion:
    # A body that isn't JSON comes as a string, a gateway's error as an answer without choices.
    if not isinstance(answer, ChatCompletion) or not answer.choices or not answer.choices[0].message:
        raise _Fault("an answer that is no chat completion")
    # Any: nothing has validated what the endpoint sent.
    choice: Any = answer.choices[0]
    if choice.message.refusal:
        raise CallFailed("content_filter", choice.message.refusal[:200])
    usage: Any = answer.usage
    details = usage.prompt_tokens_details if usage else None
    return Completion(
        text=choice.message.content or "",
        finish_reason=choice.finish_reason or "",
        prompt_tokens=(usage.prompt_tokens if usage else None) or 0,
        cached_tokens=(details.cached_tokens if details else None) or 0,
        completion_tokens=(usage.completion_tokens if usage else None) or 0,
        first=_first(choice),
    )


def _first(choice: Any) -> dict[str, float]:
    """The candidates of the answer's first token, where the endpoint gives them."""
    tokens = choice.logprobs.content if choice.logprobs else None
    return {candidate.token: candidate.logprob for candidate in tokens[0].top_logprobs} if tokens else {}


def _said(error: openai.APIStatusError) -> str:
    """Message and code of an error body, whichever of the usual shapes it has."""
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict):
            parts = [str(inner[key]) for key in ("code", "type", "message", "detail") if inner.get(key)]
            return ": ".join(parts) or error.message
        return str(inner)
    return error.message


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


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
