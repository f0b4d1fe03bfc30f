"""The shape of OpenAI's chat API, for the engines that speak it: a request's body, an answer, what an error means."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from typing import Any
from urllib.parse import urlsplit

from openai.types.chat import ChatCompletion

from actors.engine import (
    FIRST_TOKENS,
    Completion,
    EngineUnavailable,
    reply_schema,
    sampling_seed,
    sampling_temperature,
)
from synuc.config import BatchEngine, OpenAIEngine, OpenAIRequests
from synuc.neutralise import neutralise
from synuc.types import CallFailed, LLMRequest, Spoken

_TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum.{0,20}(context|input|prompt)|max_model_len|too (long|many tokens)",
    re.I,
)
_FILTERED = re.compile(r"content.?(filter|management|policy)|ResponsibleAI|data_inspection|moderation", re.I)
_STRUCTURED = re.compile(r"response_format|json_?schema|structured|guided|grammar", re.I)
# What can't be put right by waiting, although its status is 429.
_NO_QUOTA = re.compile(r"insufficient_quota|billing|balance", re.I)


class Fault(Exception):
    """The endpoint failed this time. `wait` is how many seconds it asks for, if it does."""

    def __init__(self, reason: str, wait: float | None = None, throttled: bool = False) -> None:
        super().__init__(reason)
        self.wait = wait
        self.throttled = throttled


def api_key(base_url: str, name: str) -> str:
    """The key in the environment variable `name`; an endpoint on this machine needs none.

    Raises:
        EngineUnavailable: there is none.
    """
    key = os.environ.get(name, "")
    if not key and not _loopback(base_url):
        raise EngineUnavailable(
            f"no key for {base_url}: set the environment variable {name}, "
            "or name another one in engine.api_key_env (any value if the endpoint wants no key)"
        )
    return key or "EMPTY"


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def body(config: OpenAIRequests, request: LLMRequest, attempt: int) -> dict[str, Any]:
    """The fields of a request, but for the model and the bound on the answer's tokens."""
    messages = [{**message, "content": neutralise(message["content"])} for message in request.messages]
    fields: dict[str, Any] = {"messages": messages, "temperature": sampling_temperature(request, attempt)}
    if request.reply is not Spoken:
        _constrain(fields, config.structured, request)
    if request.begun:
        # vLLM's and SGLang's servers take it; others say that they don't.
        messages.append({"role": "assistant", "content": request.begun})
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if request.logprobs:
        fields |= {"logprobs": True, "top_logprobs": FIRST_TOKENS}
    if config.per_request_seed:
        fields["seed"] = sampling_seed(request, attempt)
    return fields | config.extra_body


def _constrain(fields: dict[str, Any], mode: str, request: LLMRequest) -> None:
    """Ask for one JSON object, in the way that this endpoint takes."""
    schema = reply_schema(request.reply)
    if mode == "json_schema":
        name = re.sub(r"\W", "_", request.stage, flags=re.ASCII)[:64]
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": name, "schema": schema, "strict": True},
        }
        return
    fields["messages"][-1]["content"] += (
        "\n\nAnswer with one JSON object that satisfies this JSON schema, and nothing else:\n"
        + json.dumps(schema, ensure_ascii=False)
    )
    if mode == "json_object":
        fields["response_format"] = {"type": "json_object"}


def completion(answer: Any) -> Completion:
    """An answer as the openai package gives it: nothing in it was validated.

    Raises:
        CallFailed: the model refuses.
        Fault: it is no answer.
    """
    # A body that isn't JSON comes as a string, a gateway's error as an answer without choices.
    if not isinstance(answer, ChatCompletion) or not answer.choices or not answer.choices[0].message:
        raise Fault("an answer that is no chat completion")
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
        # A field that OpenAI's own API lacks; endpoints of reasoning models have it under one of two names.
        thoughts=getattr(choice.message, "reasoning_content", None) or getattr(choice.message, "reasoning", None) or "",
    )


def _first(choice: Any) -> dict[str, float]:
    """The candidates of the answer's first token, where the endpoint gives them."""
    tokens = choice.logprobs.content if choice.logprobs else None
    return {candidate.token: candidate.logprob for candidate in tokens[0].top_logprobs} if tokens else {}


def said(error: Any, key: str) -> str:
    """Message and code of an error's body, whichever of the usual shapes it has; empty if none. `key` isn't shown."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        if isinstance(inner, dict):
            error = ": ".join(str(inner[part]) for part in ("code", "type", "message", "detail") if inner.get(part))
        else:
            error = str(inner)
    return shown(str(error or ""), key)


def shown(text: str, key: str) -> str:
    """`text`, not too long and without the key."""
    # A made-up key of a few letters would be found everywhere.
    return (text.replace(key, "***") if len(key) > 7 else text)[:300]


def other_limit(limit: str, status: int, said: str) -> str | None:
    """The other name of the bound on an answer's tokens, if an error says that it isn't called `limit` there.

    OpenAI's reasoning models take `max_completion_tokens` only; many other endpoints know `max_tokens` only.
    """
    other = "max_completion_tokens" if limit == "max_tokens" else "max_tokens"
    # vLLM's server gives both names where the prompt is too long.
    wanted = status in (400, 422) and limit in said and other in said and not _TOO_LONG.search(said)
    return other if wanted else None


def refusal(
    config: OpenAIEngine | BatchEngine, status: int, said: str, wait: float | None = None
) -> EngineUnavailable | CallFailed | Fault:
    """What it means that a call is answered by this status and these words; a Fault is to be tried again."""
    place = config.base_url or "who answers"
    if status in (401, 403):
        # What the endpoint says isn't repeated: it may hold a part of the key.
        return EngineUnavailable(
            f"{place} refuses the key (HTTP {status}): check the environment variable "
            f"{config.api_key_env} and that this key may use {config.model}"
        )
    if status == 404:
        return EngineUnavailable(
            f"{place} has no model {config.model} (HTTP 404: {said}): check engine.model, "
            "and that engine.base_url ends as the endpoint wants it, mostly in /v1"
        )
    if status == 402 or (status == 429 and _NO_QUOTA.search(said)):
        return EngineUnavailable(f"{place} wants money (HTTP {status}): {said}")
    if status in (408, 409, 429) or status >= 500:
        return Fault(f"HTTP {status}: {said}", wait, throttled=status == 429)
    if _FILTERED.search(said):
        return CallFailed("content_filter", said)
    if status == 413 or _TOO_LONG.search(said):
        return CallFailed("context_length", said)
    if config.structured != "none" and _STRUCTURED.search(said):
        other = "json_object" if config.structured == "json_schema" else "none"
        return EngineUnavailable(
            f"{place} doesn't take structured output as {config.structured} "
            f"(HTTP {status}: {said}): set engine.structured={other}"
        )
    return CallFailed("bad_request", f"HTTP {status}: {said}")
