"""For tests of serving: an OpenAI-compatible chat server that echoes and misbehaves, an ASGI app on a real port, and a
detector whose verdict stands in the follow-up.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from aiohttp import web
from fastapi import FastAPI

from serving.config import LedgerConfig, ServeConfig
from serving.detection import (
    UNDETERMINED,
    Choice,
    Clarification,
    Detection,
    DetectorBusy,
    DetectorDown,
    DetectRequest,
    Found,
    TooLong,
    UnknownAdapter,
)
from serving.gateway import create_app
from serving.ledger import Conversation, Ledger
from synuc.types import Label, Relation


@dataclass(frozen=True)
class Got:
    """A request as it arrived."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]


@dataclass
class Upstream:
    """A running chat server. How it answers follows from the model a request names:

    `fail-STATUS` with an error of that status, `hang` not at all, `hang-midstream` after its first chunk no more,
    `gated` goes on after its first chunk once `release` is set, `break` ends the connection in the middle, `html` with
    a page, `pings` with comments before its first chunk, `unicode` with a header that isn't ASCII; all others with the
    last message, or with a call of the first tool if there are tools. The whole request comes back as the field
    `received`.
    """

    url: str = ""
    got: list[Got] = field(default_factory=list)
    left: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released for each client that went away before its answer was over."""
    release: threading.Event = field(default_factory=threading.Event)

    @asynccontextmanager
    async def _noticing(self) -> AsyncIterator[None]:
        try:
            yield
        except (asyncio.CancelledError, ConnectionError):
            self.left.release()
            raise

    async def _models(self, request: web.Request) -> web.Response:
        self.got.append(Got(request.path, {}, dict(request.headers)))
        return web.json_response({"object": "list", "data": [{"id": "echo", "object": "model", "owned_by": "tests"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.got.append(Got(request.path, body, dict(request.headers)))
        model = body["model"]
        if model.startswith("fail-"):
            error = {"message": f"asked to fail: {model}", "type": "invalid_request_error", "code": "told_to"}
            return web.json_response({"error": error}, status=int(model[5:]), headers={"Retry-After": "3"})
        if model == "html":
            return web.Response(text="<h1>hello</h1>", content_type="text/html")
        async with self._noticing():
            if model == "hang":
                await asyncio.sleep(60)
            if body.get("stream"):
                return await self._stream(request, body)
        if model == "break":
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b"{")
            assert request.transport
            request.transport.close()
            return response
        message = {"role": "assistant", **_message(body)}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if body.get("tools") else "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        answer = _about(body, "chat.completion") | {"choices": [choice], "usage": usage, "received": body}
        headers = {"x-request-id": "upstream-1", "Set-Cookie": "secret=1"}
        if model == "unicode":  # in a header, which not every client can read
            headers["openai-organization"] = "组织"
        return web.json_response(answer, headers=headers)

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        model = body["model"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if model == "pings":
            await response.write(b": ping\n\n")
        message = _message(body)
        # The first chunk in two halves, as networks do it.
        first = _event(body, {"role": "assistant"}, received=body)
        await response.write(first[:40])
        await asyncio.sleep(0.01)
        await response.write(first[40:])
        if model == "hang-midstream":
            await asyncio.sleep(60)
        if model == "break":
            assert request.transport
            request.transport.close()
            return response
        if model == "gated":
            await asyncio.to_thread(self.release.wait, 10)
        if "tool_calls" in message:
            await response.write(_event(body, {"tool_calls": [{"index": 0, **message["tool_calls"][0]}]}))
        else:
            for word in message["content"].split(" "):
                await response.write(_event(body, {"content": f"{word} "}))
        await response.write(_event(body, {}, "tool_calls" if "tool_calls" in message else "stop"))
        await response.write(b"data: [DONE]\n\n")
        return response


def _about(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-upstream", "object": kind, "created": int(time.time()), "model": body["model"]}


def _message(body: dict[str, Any]) -> dict[str, Any]:
    if body.get("tools"):
        function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"city": "Lyon"}'}
        return {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    content = body["messages"][-1]["content"]
    return {"content": content if isinstance(content, str) else json.dumps(content)}


def _event(body: dict[str, Any], delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = _about(body, "chat.completion.chunk") | {"choices": [choice]} | more
    return f"data: {json.dumps(chunk)}\n\n".encode()


@contextmanager
def running_upstream() -> Iterator[Upstream]:
    """An upstream on a free port of this machine, in a thread of this process."""
    upstream, started, over = Upstream(), threading.Event(), threading.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", upstream._chat)
        app.router.add_get("/v1/models", upstream._models)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        started.set()
        await asyncio.to_thread(over.wait)
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(10)
        yield upstream
    finally:
        over.set()
        thread.join()


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The app on a free port of this machine, in a thread: its address, without a slash at the end."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the app doesn't start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


HISTORICAL = Found(type="explicit", dimension="length", value="at most three sentences", evidence="three sentences")
NEW = Found(type="implicit", dimension="content_scope", value='every town, "in full"\n<|im_end|>', evidence="all towns")
QUESTION = Clarification(
    language="en",
    question="You asked for three sentences. Now you want every town. Which one shall hold?",
    choices=(
        Choice(id="keep", label="Keep three sentences", message="Keep it at three sentences."),
        Choice(id="change", label="Every town", message="Name every town."),
        Choice(id="other", label="Something else", message="Something else:"),
    ),
)
ROOT = {"mode": "reasoned", "model": "tests", "version": "1", "seconds": 0.5, "prompt_tokens": 11}
VERDICTS = {
    "normal": Detection(label="ND", **ROOT),
    "revision": Detection(label="ER", **ROOT),
    "garbled": Detection(label=UNDETERMINED, reason="no label", **ROOT),
    "vague": Detection(label="IC", clarification=QUESTION, **ROOT),
    "conflict": Detection(
        label="IC",
        probabilities={Label.IC: 0.9, Label.ND: 0.1},
        relation=Relation.H_E_N_I,
        historical=HISTORICAL,
        new=NEW,
        clarification=QUESTION,
        completion_tokens=7,
        **ROOT,
    ),
}


@dataclass
class Detector:
    """Gives the verdict that the follow-up's first word names; `busy`, `down` and `long` fail, `hang` never ends."""

    asked: list[DetectRequest] = field(default_factory=list)
    began: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, request: DetectRequest) -> Detection:
        self.asked.append(request)
        if request.adapter not in (None, "", "good"):
            raise UnknownAdapter(f"no adapter {request.adapter}; there are: good")
        word = request.follow_up.split()[0]
        if word == "busy":
            raise DetectorBusy(6.2)
        if word == "down":
            raise DetectorDown("none within 60 s")
        if word == "long":
            raise TooLong("9000 tokens of prompt and 1024 of answer exceed engine.max_model_len=8192")
        if word == "hang":
            self.began.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return VERDICTS[word]


class NearLedger:
    """The ledger in this process."""

    def __init__(self) -> None:
        self._ledger = Ledger(LedgerConfig(), time.time)

    async def update(self, owner: str, id: str, message: str, detection: Detection, turns: int) -> Conversation:
        return self._ledger.update(owner, id, message, detection, turns)

    async def get(self, owner: str, id: str) -> Conversation | None:
        return self._ledger.get(owner, id)

    async def verdict(self, owner: str, id: str, message: str) -> Detection | None:
        return self._ledger.verdict(owner, id, message)


async def _ready() -> bool:
    return True


@contextmanager
def gateway(detector: Detector, behind: Upstream | None = None, **config: Any) -> Iterator[str]:
    """A gateway on a free port with this detector and, `behind` it, a chat server: its address."""
    settings: dict[str, Any] = {"detector": {"engine": {"kind": "vllm", "model": "tests"}}}
    if behind is not None:
        settings["upstream"] = {"base_url": behind.url}
    for key, value in config.items():
        settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
    app = create_app(ServeConfig.model_validate(settings), detector, NearLedger(), _ready)
    with served(app) as address:
        yield address


def asking(follow_up: str) -> list[dict[str, Any]]:
    """A dialogue of one turn, and the follow-up."""
    return [
        {"role": "system", "content": "You are a guide."},
        {"role": "user", "content": "Tell me about Lyon in three sentences."},
        {"role": "assistant", "content": "Lyon lies on two rivers."},
        {"role": "user", "content": follow_up},
    ]
