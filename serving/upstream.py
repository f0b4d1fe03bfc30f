"""The chat model behind the guard: any OpenAI-compatible server, whose answers pass through as they come."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from starlette.responses import Response, StreamingResponse

from serving.access import Refused, error_body
from serving.config import ServeConfig, Upstream
from serving.metrics import Metrics
from synuc.problem import Problem

LOG = logging.getLogger(__name__)
CONNECT_S = 10.0
"""Seconds for a connection to the upstream; a busy model is slow to answer, not to connect."""
IDLE_S = 3.0
"""Seconds that an idle connection is kept: less than servers do (uvicorn: 5), so that none is used as it closes."""

ANSWER_BYTES = 32 * 2**20
"""The longest answer that isn't a stream; it is held in memory."""

HELD_BYTES = 2**20
"""The longest beginning of a stream in which its first event is looked for."""

TO_UPSTREAM = ("accept", "traceparent", "tracestate", "x-request-id")
CREDENTIALS = ("authorization", "openai-organization", "openai-project")
"""Headers that go upstream; those of the second kind only if the client's key is meant for the upstream."""

_FROM_UPSTREAM = re.compile(r"content-type|cache-control|retry-after|x-request-id|openai-.*|x-ratelimit-.*", re.I)
_FIRST_EVENT = re.compile(rb"^data:.*\n", re.M)


class UpstreamClient:
    """Sends requests to the upstream that the configuration names, and to no other.

    Raises:
        Problem: the configuration names a variable for the upstream's key that holds none.
    """

    def __init__(self, config: Upstream, metrics: Metrics, ours: bool) -> None:
        """`ours`: clients send keys of this service, which must not go upstream."""
        self._config = config
        self._metrics = metrics
        self._key = os.environ.get(config.api_key_env, "") if config.api_key_env else ""
        if config.api_key_env and not self._key:
            raise Problem(
                f"the environment variable {config.api_key_env} holds no key for {config.base_url}: set it, or leave "
                "upstream.api_key_env empty so that each client's own key is passed on"
            )
        self._passes_credentials = not self._key and not ours
        self._session: aiohttp.ClientSession

    async def open(self) -> None:
        """Make the connection pool; in the event loop that uses it."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self._config.timeout_s),
            # One client's cookies are none of the next one's business.
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def chat(
        self, body: Mapping[str, Any], headers: Mapping[str, str], marks: Mapping[str, str], synuc: Mapping[str, Any]
    ) -> Response:
        """The upstream's answer to a chat request, whatever its status. A chat completion gets `synuc` as one more
        field, a stream in its first chunk; every answer gets the headers `marks`.

        Raises:
            Refused: 400 if the body is nested too deeply, 502 if the upstream can't be reached, doesn't take this
                service's key or answers without end, 504 if it sends nothing for too long.
        """
        if self._config.model:
            body = {**body, "model": self._config.model}
        try:
            sent = json.dumps(body).encode()
        except RecursionError:  # writing it takes a little more room than reading it did
            raise Refused(400, "the body is nested too deeply", "invalid_json") from None
        answer = await self._ask("POST", "chat/completions", headers, sent)
        passed = {**_passed(answer), **marks}
        if answer.status == 200 and answer.content_type == "text/event-stream":
            passed["x-accel-buffering"] = "no"  # proxies on the way to the client
            return StreamingResponse(_marked(_events(answer), synuc), headers=passed)
        content = await _read(answer)
        if answer.status == 200:
            content = _with_field(content, synuc)
        return Response(content, answer.status, passed)

    async def models(self, headers: Mapping[str, str]) -> Response:
        """The upstream's list of models, as it is. Raises Refused as `chat` does."""
        answer = await self._ask("GET", "models", headers, None)
        return Response(await _read(answer), answer.status, _passed(answer))

    async def _ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        names = (*TO_UPSTREAM, *CREDENTIALS) if self._passes_credentials else TO_UPSTREAM
        sent = {name: headers[name] for name in names if name in headers}
        # Parts of a compressed stream may wait in the compressor.
        sent |= {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._key:
            sent["Authorization"] = f"Bearer {self._key}"
        started = time.perf_counter()
        try:
            answer = await self._session.request(
                method,
                f"{self._config.base_url.rstrip('/')}/{path}",
                data=body,
                headers=sent,
                allow_redirects=False,  # they could lead anywhere
            )
        except (aiohttp.ClientError, OSError) as error:
            raise _refused(error) from None
        self._metrics.first_byte.observe(time.perf_counter() - started)
        if answer.status == 401 and not self._passes_credentials:
            answer.close()
            # Passed on, it would tell clients that theirs is wrong.
            message = "the chat model wants a key, or another one: set the variable that upstream.api_key_env names"
            raise Refused(502, message, "upstream_key")
        return answer


def upstream_of(config: ServeConfig, metrics: Metrics) -> UpstreamClient | None:
    """The client for the configured upstream, if there is one. Raises Problem as `UpstreamClient` does."""
    if config.upstream is None:
        return None
    return UpstreamClient(config.upstream, metrics, ours=bool(config.api_keys_env))


def _refused(error: Exception) -> Refused:
    LOG.warning("upstream: %s: %s", type(error).__name__, error)
    if isinstance(error, TimeoutError):
        return Refused(504, "the chat model took too long to answer; try again", "upstream_timeout")
    return Refused(
        502,
        "the chat model can't be reached or broke off its answer; try again, or check upstream.base_url",
        "upstream_unreachable",
    )


def _passed(answer: aiohttp.ClientResponse) -> dict[str, str]:
    # As the same bytes: aiohttp reads headers as UTF-8, Starlette writes them as Latin-1.
    return {
        name: value.encode("utf-8", "surrogateescape").decode("latin-1")
        for name, value in answer.headers.items()
        if _FROM_UPSTREAM.fullmatch(name)
    }


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async with answer:
        try:
            async for part in answer.content.iter_any():
                content += part
                if len(content) > ANSWER_BYTES:
                    message = f"the chat model's answer has more than {ANSWER_BYTES:,} bytes; ask for a stream"
                    raise Refused(502, message, "upstream_too_large")
        except (aiohttp.ClientError, OSError) as error:
            raise _refused(error) from None
    return bytes(content)


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The stream's bytes as they come. If the upstream breaks off, one event says so, as OpenAI's clients read it."""
    async with answer:
        try:
            async for chunk in answer.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            refused = _refused(error)
            body = error_body(refused.status_code, refused.detail, refused.code)
            yield b"\n\ndata: " + json.dumps(body).encode() + b"\n\n"


async def _marked(chunks: AsyncIterator[bytes], synuc: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """`chunks` with `synuc` as one more field of the first event. All else stays as it is; nothing but the beginning
    of a line whose end hasn't come is held back, and only before that event is over, up to `HELD_BYTES`.
    """
    held, done = b"", False
    async for chunk in chunks:
        if done:
            yield chunk
            continue
        held += chunk
        if b"\n" in chunk and (event := _FIRST_EVENT.search(held)):
            line = event[0].rstrip(b"\r\n")
            marked = b"data: " + _with_field(line[5:].strip(), synuc) + event[0][len(line) :]
            yield held[: event.start()] + marked + held[event.end() :]
            held, done = b"", True
        elif len(held) > HELD_BYTES:
            yield held
            held, done = b"", True
        elif whole := held.rfind(b"\n") + 1:
            yield held[:whole]
            held = held[whole:]
    if held:
        yield held


def _with_field(content: bytes, synuc: Mapping[str, Any]) -> bytes:
    """The JSON object `content` with the field `synuc`; what is none, e.g. `[DONE]`, stays as it is."""
    try:
        value = json.loads(content)
        return json.dumps({**value, "synuc": synuc}).encode() if isinstance(value, dict) else content
    except (ValueError, RecursionError):
        return content
