"""A stand-in for an OpenAI-compatible chat endpoint, for tests and measurements: no model, just time and faults.

    python -m tests.standin --port 0 --slots 64 --service-time 0.2

prints its port and serves until it is ended. Answers satisfy the JSON schema a request brings and follow from a hash
of its body; without one the answer is some words, with a label where one is asked for. Model `missing` is a 404, the
header `x-booleans` and some words in the last message ask for other answers (see `TRICKS`).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

_TEXT = (
    "please keep every answer short and write about the museum in Lyon with three examples next week use plain "
    "language no tables only a list of cheap vegetarian places near the old harbour then plan one quiet day"
)
WORDS = _TEXT.split()
LABELS = ("Normal Dialogue", "Explicit Revision", "Implicit Conflict")
FAULTS = ("429", "500", "503", "drop", "garbage")
HANG = "hang"
# Fields that end a sample early if they are true.
FALSE = ("revision_signal",)
# What an answer's text becomes if the last message holds the word.
TRICKS: dict[str, Callable[[str], str]] = {
    "TRICK_FENCES": lambda text: f"Here you are:\n```json\n{text}\n```\nAnything else?",
    "TRICK_NONSENSE": lambda _: "I would rather not say.",
    "TRICK_SURROGATE": lambda text: text.replace('"title": "', '"title": "\\ud83d\\u0000'),
}
Make = Callable[[random.Random], Any]


@dataclass
class Stats:
    """What was served. Times in Unix seconds; `busy` is the sum over slots of seconds in use."""

    requests: int = 0
    answered: int = 0
    errors: int = 0
    first_arrival: float = 0.0
    last_finish: float = 0.0
    busy: float = 0.0
    in_flight: int = 0
    max_in_flight: int = 0


def maker(schema: dict[str, Any], root: dict[str, Any], booleans: str) -> Make:
    """A function that draws values satisfying `schema`. Optional bounds decide: integers are at their maximum."""
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return maker(target, root, booleans)
    if "const" in schema:
        return lambda _: schema["const"]
    if "enum" in schema:
        return lambda rng: rng.choice(schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            options = [maker(option, root, booleans) for option in schema[key]]
            return lambda rng: rng.choice(options)(rng)
    kind = schema.get("type", "object")
    if kind == "object":
        fields = {key: maker(value, root, booleans) for key, value in schema.get("properties", {}).items()}
        fields |= {key: _false for key in FALSE if key in fields}
        return lambda rng: {key: make(rng) for key, make in fields.items()}
    if kind == "array":
        item = maker(schema.get("items", {"type": "string"}), root, booleans)
        least, most = schema.get("minItems", 0), schema.get("maxItems", 3)
        low, high = max(least, min(1, most)), max(least, min(3, most))
        return lambda rng: [item(rng) for _ in range(rng.randint(low, high))]
    if kind == "string":
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength", 10_000)
        return lambda rng: _words(rng, shortest, longest)
    if kind == "integer":
        top = schema.get("maximum", schema.get("exclusiveMaximum", 101) - 1)
        return lambda _: top
    if kind == "number":
        return lambda _: schema.get("maximum", 1.0)
    if kind == "boolean":
        return lambda rng: booleans != "random" or rng.random() < 0.5
    return lambda _: None


def _false(_: random.Random) -> bool:
    return False


def _words(rng: random.Random, shortest: int, longest: int) -> str:
    text = " ".join(rng.choices(WORDS, k=rng.randint(3, 8)))
    while len(text) < shortest:
        text += " " + rng.choice(WORDS)
    return text[:longest]


class Standin:
    """The server's state."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.stats = Stats()
        self.slots = asyncio.Semaphore(options.slots)
        self.makers: dict[tuple[str, str], Make] = {}
        # Faults and slow calls come at random, as they do; answers don't.
        self.luck = random.Random(options.seed)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/stats", self.show_stats)
        return app

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "standin", "object": "model"}]})

    async def show_stats(self, _: web.Request) -> web.Response:
        return web.json_response(asdict(self.stats))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        now = time.time()
        stats, options = self.stats, self.options
        stats.requests += 1
        stats.first_arrival = stats.first_arrival or now
        stats.in_flight += 1
        stats.max_in_flight = max(stats.max_in_flight, stats.in_flight)
        try:
            if options.key and request.headers.get("authorization") != f"Bearer {options.key}":
                return _error(401, "invalid_api_key", "Incorrect API key provided")
            body = json.loads(raw)
            if refusal := self._refusal(body):
                return refusal
            async with self.slots:
                slow = options.slow_factor if self.luck.random() < options.slow_share else 1.0
                fault = self._fault()
                begun = time.perf_counter()
                if fault is None:
                    await asyncio.sleep(options.service_time * slow)
                stats.busy += time.perf_counter() - begun
            if fault == HANG:
                await asyncio.sleep(options.hang)
            if fault:
                stats.errors += 1
                return self._faulty(fault, request)
            answer = self._answer(raw, body, request.headers.get("x-booleans", options.booleans))
            stats.answered += 1
            return web.Response(text=answer, content_type="application/json")
        finally:
            stats.in_flight -= 1
            stats.last_finish = time.time()

    def _refusal(self, body: dict[str, Any]) -> web.Response | None:
        last = body["messages"][-1]["content"]
        if body["model"] == "missing":
            return _error(404, "model_not_found", "The model `missing` does not exist")
        if body["model"] == "unconstrained" and "response_format" in body:
            return _error(400, "invalid_request", "This model does not support response_format json_schema")
        if body["model"] == "modern" and "max_tokens" in body:
            return _error(400, "unsupported_parameter", "Use 'max_completion_tokens' instead of 'max_tokens'")
        if "TRICK_TOO_LONG" in last:
            return _error(400, "context_length_exceeded", "This model's maximum context length is 8 tokens")
        if "TRICK_FILTERED" in last:
            return _error(400, "content_filter", "The prompt triggered the content management policy")
        if "TRICK_POISON" in last:
            return _error(500, "server_error", "this call always fails")
        return None

    def _fault(self) -> str | None:
        if self.stats.requests <= self.options.fail_first:
            return str(self.options.fault or "503")
        if self.luck.random() >= self.options.error_rate:
            return None
        return str(self.options.fault or self.luck.choice((*FAULTS, HANG) if self.options.hang else FAULTS))

    def _faulty(self, fault: str, request: web.Request) -> web.StreamResponse:
        if fault in ("drop", HANG):
            if request.transport:
                request.transport.abort()
            return web.Response()
        if fault == "garbage":
            return web.Response(text='{"id": "x", "choi', content_type="application/json")
        answer = _error(int(fault), "injected", "injected fault")
        if fault == "429":
            answer.headers["Retry-After"] = str(self.options.retry_after)
        return answer

    def _answer(self, raw: bytes, body: dict[str, Any], booleans: str) -> str:
        last = body["messages"][-1]["content"]
        rng = random.Random(hashlib.md5(raw, usedforsecurity=False).digest())
        if self.options.nonsense:
            text = " ".join(rng.choices(WORDS, k=12))
        elif "response_format" in body or "JSON schema" in last:
            text = json.dumps(self._maker(body, last, booleans)(rng))
        else:
            text = _spoken(body, rng)
        for word, trick in TRICKS.items():
            if word in last:
                text = trick(text)
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 10**9
        cut = len(text) // 4 + 1 > limit
        prompt = sum(len(message["content"]) for message in body["messages"])
        usage = {
            "prompt_tokens": prompt // 4,
            "completion_tokens": min(len(text) // 4 + 1, limit),
            "total_tokens": prompt // 4 + min(len(text) // 4 + 1, limit),
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        message = {"role": "assistant", "content": text[: limit * 4] if cut else text}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if cut else "stop", "message": message}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [_candidates(text, body["top_logprobs"], rng)]}
        return json.dumps(
            {
                "id": "standin",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [choice],
                "usage": usage,
            }
        )

    def _maker(self, body: dict[str, Any], last: str, booleans: str) -> Make:
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
        # The other structured modes: the schema is the end of the last message.
        text = json.dumps(schema) if schema else last[last.rfind("\n{") + 1 :]
        if (text, booleans) not in self.makers:
            try:
                schema = json.loads(text)
            except ValueError:
                schema = {"type": "object", "properties": {"text": {"type": "string"}}}
            self.makers[text, booleans] = maker(schema, schema, booleans)
        return self.makers[text, booleans]


def _spoken(body: dict[str, Any], rng: random.Random) -> str:
    """Some words; where a label is asked for, they end in one; where the answer is begun, or it alone, one is all."""
    asked = body["messages"][0]["content"]
    label = rng.choice(LABELS)
    if body.get("continue_final_message") or "with the label alone" in asked:
        return label
    return _words(rng, 60, 600) + (f"\n\n[Final Judgment]\n{label}" if "[Final Judgment]" in asked else "")


def _candidates(text: str, most: int, rng: random.Random) -> dict[str, Any]:
    """The first token as the endpoint's `logprobs` have it: one word of `text`, and the labels' first words."""
    first = text.split()[0]
    shares = {first: 0.6, **{label.split()[0]: 0.1 for label in LABELS if label.split()[0] != first}}
    top = [{"token": token, "logprob": math.log(share), "bytes": None} for token, share in shares.items()][:most]
    return {**top[0], "top_logprobs": top}


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "type": code, "message": message}}, status=status)


def arguments(argv: list[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="tests.standin")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--slots", type=int, default=64, help="calls served at once; others queue")
    parser.add_argument("--service-time", type=float, default=0.2, help="seconds a call takes in its slot")
    parser.add_argument("--slow-share", type=float, default=0.0)
    parser.add_argument("--slow-factor", type=float, default=10.0)
    parser.add_argument("--error-rate", type=float, default=0.0)
    parser.add_argument("--fail-first", type=int, default=0, help="so many calls fail before the first good one")
    parser.add_argument("--fault", choices=FAULTS, help="the only kind of fault; else all kinds at random")
    parser.add_argument("--hang", type=float, default=0.0, help="seconds that some faults keep silent; 0: none does")
    parser.add_argument("--retry-after", type=float, default=0.1, help="seconds, in the header of a 429")
    parser.add_argument("--nonsense", action="store_true", help="answers that are no JSON")
    parser.add_argument("--booleans", choices=("true", "random"), default="true")
    parser.add_argument("--key", help="the only key that is let in")
    parser.add_argument("--seed", type=int, default=0, help="of faults and slow calls")
    parser.add_argument("--stats-file", type=Path, help="where /stats is written as well, twice a second")
    return parser.parse_args(argv)


async def serve(options: argparse.Namespace) -> None:
    """Serve until cancelled."""
    standin = Standin(options)
    runner = web.AppRunner(standin.app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", options.port, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    while True:
        await asyncio.sleep(0.5)
        if options.stats_file:
            part = options.stats_file.with_suffix(".part")
            part.write_text(json.dumps(asdict(standin.stats)))
            part.replace(options.stats_file)


@dataclass(frozen=True)
class Running:
    """A stand-in in a process of its own."""

    url: str
    port: int
    pid: int

    def stats(self) -> dict[str, Any]:
        """What `/stats` says now."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/stats", timeout=10) as answer:
            result: dict[str, Any] = json.load(answer)
        return result


@contextmanager
def running(*options: str) -> Iterator[Running]:
    """A stand-in with these command line options, ended on leaving."""
    command = [sys.executable, "-m", "tests.standin", *options]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            port = int(process.stdout.readline())
            yield Running(f"http://127.0.0.1:{port}/v1", port, process.pid)
        finally:
            process.terminate()


if __name__ == "__main__":
    asyncio.run(serve(arguments(sys.argv[1:])))
