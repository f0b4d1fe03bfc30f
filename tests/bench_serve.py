"""`make bench-serve`: what the service costs beside its engine, on one machine with the embedded model.

(a) Detections per second against plain vLLM (`vllm.entrypoints.openai.api_server`) that is fed the same prompts with
    the same settings and as many clients, one side at a time, in turns. Target: at least 0.9.
(b) Milliseconds that the gateway adds where nothing is detected, against asking the upstream directly, in turns: to
    the list of models, and to a chat request that ends with a tool's answer. Target: p50 at most 5, p99 at most 20.
    Besides, what it adds to a first message, which goes to a detector, but to no model.
(c) Minutes of steady load: errors, and memory at its end over memory at its beginning. Target: none, and no growth.
(d) Twice as many clients as engine and queue take: how many get a 503, and the p99 of those that are let in.

Each row is printed as soon as it is measured. `python -m tests.bench_serve --minutes 1` for a short look, and
`python -m tests.bench_serve latency` for one part: latency (b), endurance (c, d) or throughput (a).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from ray import serve

from actors.embedded import embedded_model
from actors.engine import FIRST_TOKENS
from actors.vllm_engine import cpu_binding, cpu_dtype
from cluster.connect import connected
from serving import app
from serving.config import ServeConfig
from synuc.formatting import Retention, messages_for
from synuc.layers import compose
from synuc.types import Dialogue, Turn
from tests.upstream import running_upstream

LOCAL = Path(__file__).parent.parent / "configs" / "serve" / "local.yaml"
PORT, PLAIN_PORT = 8123, 8124
START_S = 180.0
STORY = "Then the ship sailed on past grey cliffs, and the crew told each other what they had left behind. "


@dataclass(frozen=True)
class Asked:
    """One request: when it began (monotonic seconds), how long it took, and its status, 0 without an answer."""

    begun: float
    seconds: float
    status: int


def dialogue(n: int) -> tuple[Dialogue, str]:
    """A dialogue unlike all others from its first words on, so that the cache has only the instructions, as in life."""
    turns = (
        Turn(user=f"Story {n}: write a tale of {n + 3} sailors in two short lines.", assistant=f"{n}. {STORY * 6}"),
        Turn(user=f"Keep it calm, and name harbour {n}.", assistant=f"Harbour {n}. {STORY * 6}"),
    )
    return Dialogue(turns=turns), f"Now tell chapter {n} with every battle in full length."


def ours(n: int) -> tuple[str, dict[str, Any]]:
    """Path and body of a detection."""
    history, follow_up = dialogue(n)
    pairs = ((("user", turn.user), ("assistant", turn.assistant)) for turn in history.turns)
    messages = [{"role": role, "content": content} for pair in pairs for role, content in pair]
    return "/v1/detect", {"messages": [*messages, {"role": "user", "content": follow_up}]}


def plain(n: int) -> tuple[str, dict[str, Any]]:
    """The same question as the detector asks it."""
    messages = messages_for(*dialogue(n), Retention.PARTIAL, "zero_shot", "label")
    sampling = {"max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": FIRST_TOKENS}
    return "/v1/chat/completions", {"model": str(embedded_model()), "messages": messages, **sampling}


async def load(url: str, bodies: Iterator[tuple[str, dict[str, Any]]], clients: int) -> list[Asked]:
    """All bodies, by so many clients, each of which asks one after the other; after a 503 it waits 0.2 s."""
    answers: list[Asked] = []

    async def client(http: httpx.AsyncClient) -> None:
        for path, body in bodies:
            begun = time.monotonic()
            try:
                status = (await http.post(path, json=body)).status_code
            except httpx.HTTPError:
                status = 0
            answers.append(Asked(begun, time.monotonic() - begun, status))
            if status == 503:
                await asyncio.sleep(0.2)

    async with httpx.AsyncClient(base_url=url, timeout=START_S, limits=httpx.Limits(max_connections=None)) as http:
        await asyncio.gather(*(client(http) for _ in range(clients)))
    return answers


def until(seconds: float, first: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Detections for so long, all different."""
    end = time.monotonic() + seconds
    return itertools.takewhile(lambda _: time.monotonic() < end, map(ours, itertools.count(first)))


def row(what: str, measured: str, target: str = "") -> None:
    """One figure, printed at once: the next one may take ten minutes, or fail."""
    print(f"{what:<42} {measured:<62} {target}".rstrip(), flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@contextmanager
def service(*overrides: str) -> Iterator[tuple[str, ServeConfig]]:
    """Our service: its address and configuration."""
    config = compose(ServeConfig, [LOCAL], [f"port={PORT}", *overrides])
    app.check(config)
    with connected(None):
        serve.start(http_options={"host": config.host, "port": config.port}, logging_config=app.QUIET)
        try:
            app.start(config)
            yield f"http://{config.host}:{config.port}", config
        finally:
            app.stop()


@contextmanager
def plain_vllm() -> Iterator[str]:
    """vLLM's own server with the settings of our engine: its address."""
    engine = compose(ServeConfig, [LOCAL]).detector.engine
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(embedded_model())]
    command += ["--dtype", cpu_dtype(), "--max-model-len", str(engine.max_model_len), "--enforce-eager"]
    command += ["--max-num-seqs", str(engine.max_in_flight), "--enable-prefix-caching", "--disable-log-stats"]
    command += ["--port", str(PLAIN_PORT), "--host", "127.0.0.1", "--uvicorn-log-level", "error"]
    environment = {
        **os.environ,
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(engine.cpu_kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": cpu_binding(),
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
    }
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{PLAIN_PORT}"
    try:
        end = time.monotonic() + START_S
        while not _answers(f"{url}/health"):
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"plain vLLM doesn't start: {' '.join(command)}")
            time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def rate(url: str, question: Any, first: int, requests: int, clients: int) -> float:
    """Answers per second, after some to warm up."""
    asyncio.run(load(url, map(question, range(first, first + clients)), clients))
    begun = time.monotonic()
    answers = asyncio.run(load(url, map(question, range(first + clients, first + clients + requests)), clients))
    seconds = time.monotonic() - begun
    if failed := [answer.status for answer in answers if answer.status != 200]:
        raise RuntimeError(f"{len(failed)} of {requests} requests to {url} failed: {failed[:5]}")
    return requests / seconds


def throughput(rounds: int, requests: int, clients: int) -> None:
    mine, theirs = [], []
    for turn in range(rounds):
        with service() as (url, _):
            mine.append(rate(url, ours, 10_000 * turn, requests, clients))
        with plain_vllm() as url:
            theirs.append(rate(url, plain, 10_000 * turn, requests, clients))
        row(f"detections/s, round {turn + 1}", f"service {mine[-1]:.2f}, plain vLLM {theirs[-1]:.2f}")
    row("service over plain", f"{statistics.mean(mine) / statistics.mean(theirs):.2f}", "at least 0.9")


def latency(samples: int) -> None:
    user = {"role": "user", "content": "Hello"}
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    called: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    tool: list[dict[str, Any]] = [user, called, {"role": "tool", "tool_call_id": "c", "content": "12 degrees"}]
    target = "p50 at most 5, p99 at most 20"
    cases: list[tuple[str, list[dict[str, Any]], str]] = [
        ("the list of models", [], target),
        ("a chat without detection", tool, target),
        ("a first message", [user], ""),
    ]
    with (
        running_upstream() as upstream,
        service(f"upstream.base_url={upstream.url}") as (url, _),
        httpx.Client(timeout=60) as client,
    ):
        for what, messages, wanted in cases:
            direct, through = taken(client, upstream.url, f"{url}/v1", messages, samples)
            p50, p99 = (1000 * (percentile(through, p) - percentile(direct, p)) for p in (0.5, 0.99))
            row(f"ms added to {what}", f"p50 {p50:.1f}, p99 {p99:.1f}", wanted)


def taken(
    client: httpx.Client, direct: str, through: str, messages: list[dict[str, Any]], samples: int
) -> tuple[list[float], list[float]]:
    """Seconds of each request to either address, in turns: of chats, or without messages of lists of models."""
    seconds: dict[str, list[float]] = {direct: [], through: []}
    body = {"model": "echo", "messages": messages}
    for _ in range(samples):
        for base, into in seconds.items():
            begun = time.perf_counter()
            answer = client.post(f"{base}/chat/completions", json=body) if messages else client.get(f"{base}/models")
            into.append(time.perf_counter() - begun)
            answer.raise_for_status()
    return seconds[direct], seconds[through]


async def steady(url: str, seconds: float, clients: int) -> tuple[list[Asked], list[int]]:
    """Detections for so long, and the bytes of all processes below this one, every two seconds."""
    memory: list[int] = []

    async def watch() -> None:
        while True:
            memory.append(await asyncio.to_thread(_memory))
            await asyncio.sleep(2)

    watching = asyncio.create_task(watch())
    answers = await load(url, until(seconds, 1_000_000), clients)
    watching.cancel()
    return answers, memory


def _memory() -> int:
    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def endurance(minutes: float) -> None:
    with service() as (url, config):
        engine, queue = config.detector.engine.max_in_flight, config.detector.queue
        answers, memory = asyncio.run(steady(url, 60 * minutes, engine))
        errors = sum(answer.status != 200 for answer in answers)
        # The first third warms up: the caches of prefixes, allocators and connections fill.
        third = max(1, len(memory) // 3)
        early, late = statistics.mean(memory[third : 2 * third]), statistics.mean(memory[2 * third :])
        row(f"{minutes:g} minutes, {len(answers)} detections", f"{errors} errors", "none")
        row("memory, last third over second", f"{late / 2**20:.0f} MiB / {early / 2**20:.0f}", "no growth")
        full = asyncio.run(load(url, until(20, 2_000_000), engine + queue))
        twice = asyncio.run(load(url, until(20, 3_000_000), 2 * (engine + queue)))
        for what, found in (("at capacity", full), ("at twice the capacity", twice)):
            accepted = [answer.seconds for answer in found if answer.status == 200]
            refused = sum(answer.status == 503 for answer in found)
            other = len(found) - len(accepted) - refused
            figures = f"{len(accepted)} let in, p99 {percentile(accepted, 0.99):.1f} s; {refused} got 503; {other} else"
            row(what, figures, "p99 bounded, none else")


def main() -> None:
    """Measure all, or the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="latency, endurance, throughput; none: all of them")
    parser.add_argument("--rounds", type=int, default=3, help="of (a)")
    parser.add_argument("--requests", type=int, default=200, help="of each side in a round of (a)")
    parser.add_argument("--clients", type=int, default=16, help="at once, in (a)")
    parser.add_argument("--samples", type=int, default=1000, help="of (b)")
    parser.add_argument("--minutes", type=float, default=10.0, help="of (c)")
    options = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "latency": lambda: latency(options.samples),
        "endurance": lambda: endurance(options.minutes),
        "throughput": lambda: throughput(options.rounds, options.requests, options.clients),
    }
    if unknown := set(options.parts) - parts.keys():
        parser.error(f"no part {', '.join(unknown)}: choose from {', '.join(parts)}")
    for part in options.parts or parts:
        parts[part]()


if __name__ == "__main__":
    main()
