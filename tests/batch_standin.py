"""A stand-in for an endpoint with `/v1/files` and `/v1/batches`, in a thread of the test, which tells it what to do."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.standin import Standin, arguments


@dataclass
class Batches:
    """What the endpoint has, and does next.

    `ends`: how the next batches end, one after the other, then all `completed`. `hold`: none ends. `unanswered`: so
    many requests of a batch get no line where it doesn't complete. `statuses`: what the next requests are answered with
    in place of an answer. `forget`: so many batches are made and the call that made them fails.
    """

    ends: list[str] = field(default_factory=list)
    errors: list[dict[str, str]] = field(default_factory=list)
    hold: bool = False
    unanswered: int = 1
    statuses: list[int] = field(default_factory=list)
    forget: int = 0
    down: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)

    def requests(self, file: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.files[file].splitlines()]

    @property
    def sent(self) -> list[str]:
        """The ids of all requests of all batches, in order."""
        return [line["custom_id"] for batch in self.batches.values() for line in self.requests(batch["input_file_id"])]


class BatchStandin(Standin):
    """The chat endpoint with batches."""

    def __init__(self, batches: Batches) -> None:
        super().__init__(arguments(["--service-time", "0.01"]))
        self.state = batches

    def app(self) -> web.Application:
        app = super().app()
        app.middlewares.append(self.up)
        app.router.add_post("/v1/files", self.upload)
        app.router.add_get("/v1/files/{id}/content", self.content)
        app.router.add_post("/v1/batches", self.create)
        app.router.add_get("/v1/batches", self.list)
        app.router.add_get("/v1/batches/{id}", self.retrieve)
        return app

    @web.middleware
    async def up(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.state.down:
            return web.json_response({"error": {"code": "server_error", "message": "down"}}, status=503)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        assert form["purpose"] == "batch"
        file = form["file"]
        assert isinstance(file, web.FileField)
        return web.json_response(self._file(file.file.read()))

    def _file(self, data: bytes) -> dict[str, Any]:
        id = f"file-{len(self.state.files)}"
        self.state.files[id] = data
        return {
            "id": id,
            "object": "file",
            "bytes": len(data),
            "created_at": int(time.time()),
            "filename": id,
            "purpose": "batch",
            "status": "processed",
        }

    async def content(self, request: web.Request) -> web.Response:
        return web.Response(body=self.state.files[request.match_info["id"]])

    async def create(self, request: web.Request) -> web.Response:
        asked = await request.json()
        assert asked["endpoint"] == "/v1/chat/completions"
        state = self.state
        batch = {
            "id": f"batch-{len(state.batches)}",
            "object": "batch",
            "created_at": int(time.time()),
            "status": "in_progress",
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            **asked,
        }
        state.batches[batch["id"]] = batch
        if state.forget:
            state.forget -= 1
            return web.json_response({"error": {"code": "server_error", "message": "oh"}}, status=500)
        return web.json_response(batch)

    async def list(self, request: web.Request) -> web.Response:
        newest = [*self.state.batches.values()][::-1]
        return web.json_response({"object": "list", "data": newest, "has_more": False})

    async def retrieve(self, request: web.Request) -> web.Response:
        batch = self.state.batches[request.match_info["id"]]
        if batch["status"] == "in_progress" and not self.state.hold:
            self._end(batch, self.state.ends.pop(0) if self.state.ends else "completed")
        return web.json_response(batch)

    def _end(self, batch: dict[str, Any], how: str) -> None:
        batch["status"] = how
        if how == "failed":
            batch["errors"] = {"object": "list", "data": self.state.errors}
            return
        requests = self.state.requests(batch["input_file_id"])
        good: list[str] = []
        bad: list[str] = []
        for request in requests[: None if how == "completed" else -self.state.unanswered]:
            status = self.state.statuses.pop(0) if self.state.statuses else 200
            line = answer_line(self, request, status)
            (good if status == 200 and line["response"]["status_code"] == 200 else bad).append(json.dumps(line))
        # Answers come in any order.
        random.Random(0).shuffle(good)
        for name, lines in (("output_file_id", good), ("error_file_id", bad)):
            if lines:
                batch[name] = self._file("\n".join(lines).encode())["id"]


def answer_line(standin: Standin, request: dict[str, Any], status: int = 200) -> dict[str, Any]:
    """The line with which a request of a wave is answered."""
    body = request["body"]
    refused = standin._refusal(body)
    if status != 200:
        response = {"status_code": status, "body": {"error": {"code": "injected", "message": "injected fault"}}}
    elif refused and isinstance(refused.text, str):
        response = {"status_code": refused.status, "body": json.loads(refused.text)}
    else:
        raw = json.dumps(body).encode()
        response = {"status_code": 200, "body": json.loads(standin._answer(raw, body, "true"))}
    return {"id": "r", "custom_id": request["custom_id"], "response": response, "error": None}


@contextmanager
def batch_endpoint() -> Iterator[tuple[str, Batches]]:
    """The URL of a stand-in, and what it does."""
    state = Batches()
    loop = asyncio.new_event_loop()

    async def start() -> tuple[web.AppRunner, int]:
        runner = web.AppRunner(BatchStandin(state).app(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield f"http://127.0.0.1:{port}/v1", state
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
