"""The stand-in endpoint, which besides says when the calls of a job came and went.

A trial call before a job has no system message, so it doesn't count: Ray's start after it is no part of the window.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from aiohttp import web

from tests.standin import Standin, arguments

MIDDLE = (0.25, 0.75)


@dataclass(frozen=True)
class Window:
    """From the arrival of the first call to the end of the last.

    `seconds` of wall time, `service` seconds that the calls took in their slots by plan, `middle_rate` calls per second
    while the middle half of them ended: begin and end of the job are left out.
    """

    calls: int
    seconds: float
    service: float
    middle_rate: float


def middle_rate(ends: Sequence[float]) -> float:
    """Calls per second between the ends of those at a quarter and at three quarters; 0 if they are too few to say."""
    first, last = (int(share * (len(ends) - 1)) for share in MIDDLE)
    return (last - first) / (ends[last] - ends[first]) if last > first else 0.0


def planned_service(options: argparse.Namespace, calls: int) -> float:
    """Seconds in slots of so many calls without faults. Their luck is drawn again: slow or not, then faulty or not."""
    luck, slow = random.Random(options.seed), 0
    for _ in range(calls):
        slow += luck.random() < options.slow_share
        luck.random()
    return float(options.service_time * (calls + slow * (options.slow_factor - 1)))


class Watched(Standin):
    """A stand-in that keeps the times of the calls with a system message."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.first = 0.0
        self.ends: list[float] = []

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_get("/window", self.show_window)
        return app

    async def chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        counts = b'"system"' in raw
        if not counts and not json.loads(raw)["messages"]:
            # A peer asks so for the headers with rate limits. OpenAI refuses it, too.
            return web.json_response({"error": {"message": "no messages"}}, status=400)
        if counts:
            self.first = self.first or time.time()
        answer = await super().chat(request)
        if counts and answer.status == 200:
            self.ends.append(time.time())
        return answer

    async def show_window(self, _: web.Request) -> web.Response:
        calls = len(self.ends)
        seconds = self.ends[-1] - self.first if calls else 0.0
        # Of all calls, a trial's too, because they have drawn their luck; then only of as many as count.
        service = planned_service(self.options, self.stats.requests) * calls / max(1, self.stats.requests)
        return web.json_response(asdict(Window(calls, seconds, service, middle_rate(self.ends))))


async def serve(options: argparse.Namespace) -> None:
    """Serve until ended; the port is printed first."""
    runner = web.AppRunner(Watched(options).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", options.port, backlog=1024).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


@dataclass(frozen=True)
class Endpoint:
    """A watched stand-in in a process of its own; `url` is its API's base."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def window(self) -> Window:
        """What came and went so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/window", timeout=30) as answer:
            return Window(**json.load(answer))


@contextmanager
def watched(slots: int, service_time: float, *options: str) -> Iterator[Endpoint]:
    """A watched stand-in for the length of the block, with these options of `tests.standin` besides."""
    command = [sys.executable, "-m", "tests.bench.endpoint", "--slots", str(slots)]
    command += ["--service-time", str(service_time), *options]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield Endpoint(int(process.stdout.readline()))
        finally:
            process.terminate()


if __name__ == "__main__":
    asyncio.run(serve(arguments(sys.argv[1:])))
