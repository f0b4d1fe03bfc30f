"""One protocol for language models, and `ask`, which turns a request into a parsed answer or a `CallFailed`.

The engines are in `vllm_engine.py` (inside the process), `openai_engine.py` (any compatible endpoint) and
`batch_engine.py` (files of requests).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NoReturn, Protocol

from pydantic import BaseModel, ValidationError

from synuc.config import AnyEngine, BatchEngine, OpenAIEngine, Price, VllmEngine
from synuc.neutralise import BREAK
from synuc.problem import Problem
from synuc.types import CallFailed, LLMRequest, Spoken, clean

# An answer that couldn't be used would come again at temperature 0.
RETRY_TEMPERATURE = 0.7
FIRST_TOKENS = 20
"""Candidates of an answer's first token that are asked for: as many as vLLM and OpenAI give."""


class EngineUnavailable(Problem):
    """Stops the run: no endpoint, key, model or package to run it with. The message says what to do."""


class EngineDead(Exception):
    """The engine core of an in-process vLLM died: the actor must exit so that Ray replaces it."""


@dataclass(frozen=True)
class Completion:
    """What an engine answered. `prompt_tokens` include `cached_tokens`; `finish_reason` as OpenAI names it.

    `first` and `thoughts` as in `synuc.types.Spoken`; `tokens` are the answer's token ids, where the engine is in this
    process.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first: dict[str, float] = field(default_factory=dict)
    tokens: tuple[int, ...] = ()
    thoughts: str = ""


@dataclass(frozen=True)
class Call:
    """A row of the usage ledger: one attempt.

    `started` in Unix seconds, `seconds` of wall time with all waiting, `error` empty if the answer was used, `cost`
    in the currency of the engine's price, `unused` the whole text of an answer that was of no use. `again`: it had been
    made before, by a process that died before the answer came.
    """

    key: str
    stage: str
    role: str
    model: str
    attempt: int
    started: float
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: str
    error: str
    cost: float
    unused: str = ""
    again: bool = False


class Answering(Protocol):
    """What can be asked."""

    @property
    def name(self) -> str:
        """The model, as the config names it."""

    @property
    def price(self) -> Price: ...

    async def complete(self, request: LLMRequest, attempt: int) -> Completion:
        """One attempt, from 0.

        Raises:
            CallFailed: the engine refuses this request, now and always.
            EngineUnavailable: it would refuse every request.
            EngineDead: the process must be replaced.
        """


class Engine(Answering, Protocol):
    """A language model."""

    async def check(self) -> None:
        """A cheap look before a run.

        Raises:
            EngineUnavailable: with a message that says what to do.
        """

    async def close(self) -> None:
        """Free what the engine holds; it isn't used afterwards."""


def build_engine(config: AnyEngine, share: int | None = None) -> Engine:
    """The engine that `config` describes. It starts at its first call, inside the running event loop.

    `share` bounds an endpoint's calls in flight from this one of several workers, else `max_in_flight` does.
    """
    if isinstance(config, VllmEngine):
        from actors.vllm_engine import InProcessVllm

        return InProcessVllm(config)
    if isinstance(config, BatchEngine):
        from actors.batch_engine import BatchFiles

        return BatchFiles(config)
    from actors.openai_engine import OpenAIEndpoint

    return OpenAIEndpoint(config, share)


def build_engines(configs: Mapping[str, AnyEngine], workers: int) -> dict[str, Engine]:
    """An engine for each role, as `build_engine` makes it; roles with the same configuration have the same one.

    `workers` of them share an endpoint's calls in flight.
    """
    built: list[tuple[AnyEngine, Engine]] = []
    engines: dict[str, Engine] = {}
    for role, config in configs.items():
        engine = next((engine for other, engine in built if other == config), None)
        if engine is None:
            share = max(1, config.max_in_flight // workers) if isinstance(config, OpenAIEngine) else None
            engine = build_engine(config, share)
            built.append((config, engine))
        engines[role] = engine
    return engines


async def ask(
    engine: Answering, request: LLMRequest, ledger: list[Call] | Callable[[Call], None], attempts: int
) -> BaseModel:
    """The answer to `request`, as an instance of `request.reply`. Every attempt leaves one row in `ledger`.

    Raises:
        CallFailed: no usable answer: `truncated` or `unparseable` after `attempts` attempts, or at once what the
            engine refuses (`context_length`, `content_filter`, `bad_request`, ...).
        EngineUnavailable, EngineDead: from the engine.
    """
    record = ledger.append if isinstance(ledger, list) else ledger
    for attempt in range(attempts):
        started, clock = time.time(), time.perf_counter()
        completion, error = Completion("", "", 0, 0, 0), "cancelled"
        try:
            completion = await engine.complete(request, attempt)
            value = parse(completion, request.reply)
            error = ""
            return value
        except CallFailed as failed:
            error = failed.kind
            if error not in ("truncated", "unparseable") or attempt + 1 == attempts:
                raise
        except Exception as failed:
            error = type(failed).__name__
            raise
        finally:
            record(
                Call(
                    key=request.key,
                    stage=request.stage,
                    role=request.role,
                    model=engine.name,
                    attempt=attempt,
                    started=started,
                    seconds=time.perf_counter() - clock,
                    prompt_tokens=completion.prompt_tokens,
                    cached_tokens=completion.cached_tokens,
                    completion_tokens=completion.completion_tokens,
                    finish_reason=completion.finish_reason,
                    error=error,
                    cost=cost(completion, engine.price),
                    unused=clean(completion.text) if error else "",
                )
            )
    raise ValueError("a call needs at least one attempt")


def cost(completion: Completion, price: Price) -> float:
    """What `completion` costs, in the currency of `price`."""
    fresh = completion.prompt_tokens - completion.cached_tokens
    return (
        fresh * price.prompt
        + completion.cached_tokens * price.cached_prompt
        + completion.completion_tokens * price.completion
    ) / 1e6


def parse(completion: Completion, reply: type[BaseModel]) -> BaseModel:
    """The one JSON object of an answer, its strings clean, as `reply`. Fences and text around it may be.

    Free text, where `reply` is `Spoken`, is taken as it is, also if it was cut off.

    Raises:
        CallFailed: `truncated`, `content_filter` or `unparseable`.
    """
    if completion.finish_reason == "content_filter":
        raise CallFailed("content_filter", "the endpoint withheld the answer")
    if reply is Spoken:
        text = clean(completion.text.replace(BREAK, ""))
        return Spoken(
            text=text,
            cut=completion.finish_reason == "length",
            thoughts=clean(completion.thoughts),
            first=completion.first,
            prompt_tokens=completion.prompt_tokens,
            completion_tokens=completion.completion_tokens,
        )
    if completion.finish_reason == "length":
        raise CallFailed("truncated", f"no end within {completion.completion_tokens} tokens")
    value = _cleaned(_json_object(completion.text))
    try:
        return reply.model_validate_json(json.dumps(value, ensure_ascii=False))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _unparseable(f"{where}: {first['msg']}", completion.text) from None


_OBJECT = re.compile(r'\{\s*["}]')


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


# Not strict: models that aren't constrained write newlines into strings.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_constant)


def _json_object(text: str) -> dict[str, Any]:
    # Some endpoints leave the thoughts of a reasoning model in the answer.
    rest = text.rpartition("</think>")[2]
    found: list[dict[str, Any]] = []
    at = _OBJECT.search(rest)
    while at:
        try:
            value, end = _DECODER.raw_decode(rest, at.start())
        except (ValueError, RecursionError) as error:
            # Looking on from here could take a part of a broken object for the answer.
            raise _unparseable(str(error) or type(error).__name__, text) from None
        found.append(value)
        at = _OBJECT.search(rest, end)
    if len(found) != 1:
        raise _unparseable(f"{len(found) or 'no'} JSON objects", text)
    return found[0]


def _unparseable(reason: str, text: str) -> CallFailed:
    return CallFailed("unparseable", f"{reason}; the answer begins {clean(text[:200])!r}")


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        # A control token quoted from a dialogue comes back as the dialogue has it.
        return clean(value.replace(BREAK, ""))
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): _cleaned(item) for key, item in value.items()}
    return value


def sampling_temperature(request: LLMRequest, attempt: int) -> float:
    """The temperature of an attempt."""
    return request.temperature if attempt == 0 else max(request.temperature, RETRY_TEMPERATURE)


def sampling_seed(request: LLMRequest, attempt: int) -> int:
    """31 bits that are the same for a call in every run, on every machine."""
    digest = hashlib.sha256(f"{request.key}\0{request.stage}\0{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF


@lru_cache(maxsize=256)
def reply_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of `model` as every endpoint takes it. It is shared: don't change it.

    No `$ref`, titles and defaults, `anyOf` for `oneOf`; objects with properties require all, allow no others.

    Raises:
        ValueError: the model contains itself.
    """
    schema = model.model_json_schema()
    inlined: dict[str, Any] = _inline(schema, schema.get("$defs", {}), ())
    return inlined


def _inline(schema: Any, definitions: dict[str, Any], inside: tuple[str, ...]) -> Any:
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in inside:
            raise ValueError(f"the reply model {name} contains itself, no bounded schema describes it")
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        return _inline({**definitions[name], **siblings}, definitions, (*inside, name))
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("title", "default", "$defs", "discriminator"):
            continue
        if key == "properties":
            result[key] = {name: _inline(item, definitions, inside) for name, item in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            options = [_inline(item, definitions, inside) for item in value]
            result["anyOf" if key == "oneOf" else key] = options
        elif key in ("items", "additionalProperties"):
            result[key] = _inline(value, definitions, inside)
        else:
            result[key] = value
    if "properties" in result:
        result["additionalProperties"] = False
        result["required"] = list(result["properties"])
    return result
