"""Who may ask, how much at once and until when: keys, limits, clients that go away; and the shape of every refusal."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import os
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.config import Limits, ServeConfig
from synuc.problem import Problem
from synuc.types import Dialogue

LOG = logging.getLogger(__name__)
OPEN = ("/", "/healthz", "/readyz", "/docs", "/openapi.json")
"""Paths that need no key."""

OPEN_UNDER = ("/page/", "/docs/")
"""Neither does what lies under these: the files of the page and of the documentation."""

BODY_S = 60.0
"""Seconds until a body must have arrived, so that nobody holds a place by sending a byte now and then."""


class Refused(HTTPException):
    """A request that isn't served: the HTTP status, a message that says what to do, and a short code for programs.

    `retry_after`: seconds after which another try makes sense.
    """

    def __init__(self, status: int, message: str, code: str, retry_after: float | None = None) -> None:
        headers = None if retry_after is None else {"Retry-After": str(max(1, math.ceil(retry_after)))}
        super().__init__(status, message, headers)
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI's API words one."""
        return error_body(self.status_code, self.detail, self.code)


def error_body(status: int, message: str, code: str) -> dict[str, Any]:
    """`{"error": {"message", "type", "code"}}`, as OpenAI's API does it."""
    kind = "server_error" if status >= 500 else "authentication_error" if status == 401 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "code": code}}


def keys_of(config: ServeConfig) -> tuple[str, ...]:
    """The keys that may ask; empty: anybody may.

    Raises:
        Problem: the configuration names a variable that holds no key.
    """
    if not config.api_keys_env:
        return ()
    keys = tuple(key.strip() for key in os.environ.get(config.api_keys_env, "").split(",") if key.strip())
    if not keys:
        raise Problem(
            f"the environment variable {config.api_keys_env} holds no key: set it to one or more keys separated by "
            "commas, or leave api_keys_env empty so that anybody may ask"
        )
    return keys


def check_messages(messages: Sequence[Any], limits: Limits) -> None:
    """Raises Refused (413) if there are more messages than one dialogue may have."""
    if len(messages) > limits.messages:
        raise Refused(
            413,
            f"{len(messages):,} messages, a dialogue may have {limits.messages:,}: leave out the oldest, or raise "
            "limits.messages",
            "too_many_messages",
        )


def check_characters(dialogue: Dialogue, follow_up: str, limits: Limits) -> None:
    """Raises Refused (413) if a dialogue and its follow-up are longer than allowed."""
    characters = len(dialogue.system) + len(follow_up)
    characters += sum(len(turn.user) + len(turn.assistant) for turn in dialogue.turns)
    if characters > limits.characters:
        raise Refused(
            413,
            f"{characters:,} characters, a dialogue may have {limits.characters:,}: leave out the oldest messages, or "
            "raise limits.characters",
            "dialogue_too_long",
        )


class Access:
    """ASGI middleware: a key for all paths that aren't open, whose hash goes into the record as the `owner` of what is
    remembered; and bounds on the body, counted and timed as it arrives.

    The key comes as `Authorization: Bearer KEY`, or as `x-api-key`, which LiteLLM sends.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], body_bytes: int) -> None:
        self._app = app
        # Digests have one length, so that comparing tells nothing about a key's.
        self._digests = [_digest(key.encode()) for key in keys]
        self._body_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if self._digests and path not in OPEN and not path.startswith(OPEN_UNDER):
            given = self._given(Headers(scope=scope))
            if not self._known(given):
                message = "no key, or an unknown one: send a key of this service as `Authorization: Bearer KEY`"
                answer = JSONResponse(error_body(401, message, "invalid_api_key"), 401, {"WWW-Authenticate": "Bearer"})
                await answer(scope, receive, send)
                return
            scope["record"].owner = given.hex()
        await self._app(scope, self._counted(scope, receive), send)

    def _given(self, headers: Headers) -> bytes:
        """The digest of the key that came."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")
        return _digest(key.strip().encode("latin-1"))

    def _known(self, given: bytes) -> bool:
        # All are compared, so that the time doesn't tell which one it was.
        equal = [hmac.compare_digest(given, digest) for digest in self._digests]
        return any(equal)

    def _counted(self, scope: Scope, receive: Receive) -> Receive:
        seen, whole = 0, False
        until = asyncio.get_running_loop().time() + BODY_S
        announced = Headers(scope=scope).get("content-length", "")

        async def counted() -> Message:
            nonlocal seen, whole
            if announced.isdecimal() and int(announced) > self._body_bytes:
                raise self._too_large()
            try:
                # What comes after the body is the client's leaving, which may take its time.
                async with asyncio.timeout_at(None if whole else until):
                    message = await receive()
            except TimeoutError:
                raise _closing(408, f"the body took more than {BODY_S:g} s to arrive", "body_too_slow") from None
            whole = not message.get("more_body", False)
            seen += len(message.get("body", b""))
            if seen > self._body_bytes:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> Refused:
        message = f"the body has more than {self._body_bytes:,} bytes: send less, or raise limits.body_bytes"
        return _closing(413, message, "body_too_large")


class CancelWhenGone:
    """ASGI middleware that cancels a request's work, detection and upstream alike, once its client has gone away."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # One message ahead of the app, so that a body isn't read faster than it is used.
        messages: asyncio.Queue[Message] = asyncio.Queue(1)
        answered = gone = False

        async def watched(message: Message) -> None:
            nonlocal answered
            # Before it is sent: servers report a disconnect after each complete answer.
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        async def watch() -> None:
            nonlocal gone
            try:
                while (message := await receive())["type"] != "http.disconnect":
                    await messages.put(message)
            except Exception:  # so Ray Serve says that its proxy is gone
                LOG.exception("a request broke off")
            if not answered:
                gone = True
                work.cancel()

        work = asyncio.ensure_future(self._app(scope, messages.get, watched))
        watcher = asyncio.create_task(watch())
        try:
            await work
        except asyncio.CancelledError:
            if not gone:
                raise
        finally:
            watcher.cancel()


def _closing(status: int, message: str, code: str) -> Refused:
    """A refusal before the whole body is there: servers would read on, and throw it away, as long as it comes."""
    refused = Refused(status, message, code)
    refused.headers = {"Connection": "close"}
    return refused


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
