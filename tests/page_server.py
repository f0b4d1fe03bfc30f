"""A stand-in for the service behind the page, for tests only: canned verdicts and a chat that repeats what it hears.

    python -m tests.page_server --port 8080

No model: a message is an implicit conflict if it holds the second words of a pair in `CONFLICTS` and the user has
written the first before, an explicit revision if it holds one of `REVISIONS`, and undetermined
if it holds `UNREADABLE`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

from aiohttp import web

from serving.config import LedgerConfig
from serving.detection import Choice, Clarification, Detection, Found, Span, Verdict
from serving.ledger import Ledger
from synuc.types import Relation

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "serving" / "page"
CONFLICTS = [
    ("They are ten years old", "the terms a graduate seminar expects"),
    ("She uses a wheelchair", "the spiral staircase to the top of Belém Tower"),
    ("isn’t connected to any network", "fetch the name of the place from OpenStreetMap"),
    ("我外婆快八十了，刚拿到第一部智能手机", "用 adb 命令清掉预装应用、调整 DPI"),
    ("百年校庆典礼的主持词", "多放点最近的网络热梗"),
    ("医生让他吃清淡些", "腊肉蒸咸鱼，再配一碟腌萝卜"),
]
UNREADABLE = "TRICK_UNREADABLE"
REVISIONS = ("instead", "now, not", "changed my mind", "改一下", "改主意")


@dataclass
class Service:
    """What the stand-in has been told to do, and what it was asked: `asked` holds (path, headers, body)."""

    key: str = ""
    model: str = "stand-in"
    faults: deque[tuple[int, str, dict[str, str]]] = field(default_factory=deque)
    conflicts: list[tuple[str, str]] = field(default_factory=lambda: list(CONFLICTS))
    pause: float = 0.0
    break_off: bool = False
    asked: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=lambda: Ledger(LedgerConfig(), time.time))

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guarded])
        app.router.add_post("/v1/detect", self._detect)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/conversations/{id}", self._conversation)
        app.router.add_get("/", self._index)
        app.router.add_static("/page/shared", ROOT / "synuc" / "page")
        app.router.add_static("/page", PAGE)
        return app

    def bodies(self, path: str) -> list[dict[str, Any]]:
        """What was posted to a path."""
        return [body for asked, _, body in self.asked if asked == path]

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        api = request.path.startswith("/v1/")
        if api and self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return _error(401, "The key is missing or not known.")
        if request.method == "POST":
            self.asked.append((request.path, dict(request.headers), await request.json()))
            if self.faults:
                status, words, headers = self.faults.popleft()
                return _error(status, words, headers)
            await asyncio.sleep(self.pause)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _index(self, _: web.Request) -> web.FileResponse:
        return web.FileResponse(PAGE / "index.html")

    async def _models(self, _: web.Request) -> web.Response:
        if not self.model:
            return _error(404, "There is no chat model behind this service.")
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def _conversation(self, request: web.Request) -> web.Response:
        conversation = self.ledger.get("", request.match_info["id"])
        return web.json_response(conversation.model_dump(mode="json")) if conversation else _error(404, "unknown")

    async def _detect(self, request: web.Request) -> web.Response:
        body = await request.json()
        said = [message["content"] for message in body["messages"] if message["role"] == "user"]
        detection = verdict(said, self.conflicts, fast=body["mode"] == "fast")
        self.ledger.update("", body["conversation_id"], "", detection, len(said))
        return web.json_response(detection.model_dump(mode="json"))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for word in ["You", " said:", "\n", *body["messages"][-1]["content"]]:
            chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": word}}]}
            await answer.write(f"data: {json.dumps(chunk)}\n\n".encode())
            await asyncio.sleep(self.pause / 20)
        if self.break_off and request.transport:
            request.transport.abort()
            return answer
        await answer.write(b"data: [DONE]\n\n")
        return answer


def verdict(said: Sequence[str], conflicts: Sequence[tuple[str, str]], fast: bool) -> Detection:
    """The canned verdict on the last of the user's messages. Offsets are in code points, as in the real service."""
    *before, follow_up = said
    if UNREADABLE in follow_up:
        return Detection(label="undetermined", reason="cut_off", mode="reasoned", model="stand-in")
    revises = any(words in follow_up for words in REVISIONS)
    label: Verdict = "ER" if before and revises else "ND"
    pair: dict[str, Any] = {}
    for old, new in conflicts:
        turn = next((number for number, text in enumerate(before, 1) if old in text), 0)
        if turn and new in follow_up and not revises:
            label, pair = "IC", _pair(old, turn, new, said)
    shares = {"ND": 0.04, "ER": 0.035, "IC": 0.035} | {label: 0.925}
    listed = () if fast else tuple(_request(text, number) for number, text in enumerate(before, 1))
    return Detection.model_validate(
        {
            "label": label,
            "probabilities": shares,
            "constraints": [*listed, *([pair["historical"]] if pair else [])],
            "new_constraints": () if fast else (pair.get("new", _request(follow_up, len(said))),),
            "reasoning": "" if fast else "[Task Level]\nActive main task: what the user asked for first",
            "mode": "fast" if fast else "reasoned",
            "model": "stand-in",
            "seconds": 0.42,
            "prompt_tokens": 512,
            "completion_tokens": 1 if fast else 230,
            **pair,
        }
    )


def _pair(old: str, turn: int, new: str, said: Sequence[str]) -> dict[str, Any]:
    start, begin = said[turn - 1].index(old), said[-1].index(new)
    historical = Found(
        type="implicit",
        dimension="audience_knowledge",
        value=f"Suits this: {old}",
        evidence=old,
        where=Span(turn=turn, start=start, end=start + len(old)),
    )
    brought = Found(
        type="explicit",
        dimension="content_scope",
        value=f"Includes {new}",
        evidence=new,
        where=Span(turn=len(said), start=begin, end=begin + len(new)),
    )
    chinese = "\u4e00" <= old[-1] <= "\u9fff"
    return {
        "relation": Relation.H_I_N_E,
        "historical": historical,
        "new": brought,
        "clarification": _clarification(old, new, chinese),
    }


def _clarification(old: str, new: str, chinese: bool) -> Clarification:
    words = (
        (
            "你之前提到“{old}”，现在又要“{new}”，两者难以同时满足。你希望怎么办？",
            ("保留：{old}", "改为：{new}", "其他"),
            ("请保留先前的要求：{old}。", "我改主意了，按新的要求：{new}。", "两个都不完全对，我再说明一下。"),
        )
        if chinese
        else (
            "Earlier you said “{old}”; now you ask for “{new}”. These can’t both be met. Which one counts?",
            ("Keep: {old}", "Change to: {new}", "Something else"),
            ("Keep to this: {old}.", "I changed my mind: {new}.", "Neither quite: let me explain."),
        )
    )
    question, labels, messages = words
    return Clarification(
        language="zh" if chinese else "en",
        question=question.format(old=old, new=new),
        choices=tuple(
            Choice.model_validate(
                {"id": name, "label": label.format(old=old, new=new), "message": message.format(old=old, new=new)}
            )
            for name, label, message in zip(("keep", "change", "other"), labels, messages, strict=True)
        ),
    )


def _request(text: str, turn: int) -> Found:
    return Found(type="explicit", dimension="request", value=text[:60], where=Span(turn=turn, start=0, end=60))


def _error(status: int, words: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"error": {"message": words, "type": "error", "code": status}}
    return web.json_response(body, status=status, headers=headers)


async def _start(service: Service, port: int) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(service.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/"


@contextmanager
def serving(service: Service) -> Iterator[str]:
    """The address of the page, served from a thread until the block ends."""
    loop, ready, address = asyncio.new_event_loop(), Event(), ""

    async def run() -> None:
        nonlocal address
        runner, address = await _start(service, 0)
        ready.set()
        await ended.wait()
        await runner.cleanup()

    ended = asyncio.Event()
    thread = Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    ready.wait()
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


async def _main(port: int, pause: float, key: str, model: str) -> None:
    _, address = await _start(Service(pause=pause, key=key, model=model), port)
    print(address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="tests.page_server")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--pause", type=float, default=0.8, help="seconds before each answer")
    parser.add_argument("--key", default="", help="the only key that is let in")
    parser.add_argument("--model", default="stand-in", help="name of the chat model; empty: there is none")
    options = parser.parse_args()
    asyncio.run(_main(options.port, options.pause, options.key, options.model))
