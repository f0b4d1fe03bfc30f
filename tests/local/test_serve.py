"""The service on real Ray Serve with the embedded model: detection, guard, adapters under load, faults, overload."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import torch
from peft import LoraConfig, get_peft_model
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema
from transformers import AutoModelForCausalLM

from actors.embedded import embedded_model
from actors.vllm_adapters import read_adapter
from serving import app
from tests.local.test_engine_death import engine_processes, title
from tests.upstream import Upstream, running_upstream

pytest.importorskip("vllm")
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("ray_running")]

IN_FLIGHT, QUEUE = 4, 16
START_S = 150.0
"""Seconds within which an engine starts on a slow machine."""


def messages(n: int = 0) -> Any:
    """As the clients want them, whose types are their own."""
    return [
        {"role": "user", "content": f"Write poem number {n} about the sea in four lines."},
        {"role": "assistant", "content": "The sea is wide, the sea is deep."},
        {"role": "user", "content": "Now tell the sailor's whole life in every detail."},
    ]


def lora(folder: Path, seed: int) -> Path:
    """An adapter of the embedded model that does something, but nothing sensible."""
    torch.manual_seed(seed)
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(embedded_model(), dtype=torch.float32)
    settings = LoraConfig(r=8, lora_alpha=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(model, settings).save_pretrained(str(folder))
    return folder


@dataclass(frozen=True)
class Service:
    """The running service: its address, its two adapters, and `deploy`, which makes one of them `a`."""

    url: str
    old: Path
    new: Path
    deploy: Callable[[Path], None]


def serve_file(adapter: Path, args_adapter: Path, upstream: str) -> ServeDeploySchema:
    """What `serve deploy` would send. The arguments stay the same, whatever adapter is deployed."""
    engine = {"kind": "vllm", "model": "embedded", "max_model_len": 2048, "max_in_flight": IN_FLIGHT}
    detector = {
        "engine": {**engine, "cpu_kv_cache_gib": 1},
        "adapters": {"a": str(args_adapter)},
        "default": "a",
        "prompt": "zero_shot",
        "mode": "fast",
        "max_tokens": 64,
        "timeout_s": START_S,
        "queue": QUEUE,
    }
    application = {
        "name": app.NAME,
        "route_prefix": "/",
        "import_path": "serving.app:build",
        "args": {"detector": detector, "upstream": {"base_url": upstream}},
        "deployments": [{"name": "Detector", "user_config": {"adapters": {"a": str(adapter)}}}],
    }
    return ServeDeploySchema.model_validate({"applications": [application]})


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def service(ray_running: None, tmp_path_factory: pytest.TempPathFactory, upstream: Upstream) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("adapters")
    old, new = lora(folder / "old", 1), lora(folder / "new", 2)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config=app.QUIET)

    def deploy(adapter: Path) -> None:
        client: Any = _get_global_client()
        client.deploy_apps(serve_file(adapter, old, upstream.url))

    try:
        deploy(old)
        url = f"http://127.0.0.1:{port}"
        wait_until_it_answers(url)
        yield Service(url, old, new, deploy)
    finally:
        app.stop()


def wait_until_it_answers(url: str) -> None:
    begun = time.monotonic()
    while time.monotonic() < begun + START_S:
        try:
            if httpx.get(f"{url}/readyz", timeout=10).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.3)
    pytest.fail(f"no answer within {START_S:g} s: {serve.status()}")


@dataclass(frozen=True)
class Answer:
    """Of one request: when it began (monotonic seconds), how long it took, and what came."""

    begun: float
    seconds: float
    status: int
    version: str
    retry_after: str | None


@dataclass
class Load:
    """Clients that ask one detection after the other, and what they got."""

    answers: list[Answer] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    over: bool = False

    async def client(self, http: httpx.AsyncClient, n: int) -> None:
        while not self.over:
            begun = time.monotonic()
            n += 1000
            response = await http.post("/v1/detect", json={"messages": messages(n)})
            version = response.json()["version"] if response.status_code == 200 else ""
            wait = response.headers.get("Retry-After")
            async with self.changed:
                self.answers.append(Answer(begun, time.monotonic() - begun, response.status_code, version, wait))
                self.changed.notify_all()
            if response.status_code == 503:
                await asyncio.sleep(0.2)

    async def until(self, holds: Callable[[Answer], bool], seconds: float) -> None:
        """Until there is such an answer."""
        async with asyncio.timeout(seconds), self.changed:
            await self.changed.wait_for(lambda: any(map(holds, self.answers)))

    @property
    def statuses(self) -> Counter[int]:
        return Counter(answer.status for answer in self.answers)

    @property
    def slowest(self) -> float:
        """Seconds, of those that were let in."""
        return max(answer.seconds for answer in self.answers if answer.status == 200)


@asynccontextmanager
async def loaded(url: str, clients: int) -> AsyncIterator[Load]:
    """So many clients for the length of the block; every one of them gets its last answer."""
    load = Load()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=START_S + 30, limits=limits) as http:
        tasks = [asyncio.create_task(load.client(http, n)) for n in range(clients)]
        try:
            yield load
        finally:
            load.over = True
            await asyncio.gather(*tasks)


def test_it_detects(service: Service) -> None:
    version = read_adapter(service.old, "").version
    with httpx.Client(base_url=service.url, timeout=60) as client:
        fast = client.post("/v1/detect", json={"messages": messages()}).json()
        assert fast["label"] in ("ND", "ER", "IC")
        assert sum(fast["probabilities"].values()) == pytest.approx(1)
        assert (fast["adapter"], fast["version"], fast["completion_tokens"]) == ("a", version, 1)
        assert 0 <= fast["queued"] <= fast["seconds"] < 60
        bare = client.post("/v1/detect", json={"messages": messages(), "adapter": ""}).json()
        assert bare["version"] == bare["model"]
        assert bare["probabilities"] != fast["probabilities"]
        reasoned = client.post("/v1/detect", json={"messages": messages(), "mode": "reasoned"}).json()
        assert reasoned["mode"] == "reasoned"
        # The embedded model can hardly do the task; the verdict says so.
        assert (reasoned["label"] == "undetermined") is (reasoned["reason"] != "")
        assert reasoned["completion_tokens"] > 1
        body = {"dialogues": [{"messages": messages(n)} for n in range(8)] + [{"messages": []}]}
        *good, bad = client.post("/v1/detect", json=body).json()["detections"]
        assert all(one["label"] in ("ND", "ER", "IC") for one in good)
        assert "error" in bad


def test_the_guard_works_with_a_plain_client(service: Service, upstream: Upstream) -> None:
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="sk-mine", max_retries=0)
    raw = client.chat.completions.with_raw_response.create(model="echo", messages=messages())
    assert raw.headers["x-synuc-label"] in ("ND", "ER", "IC")
    assert raw.parse().choices[0].message.content == messages()[-1]["content"]
    stream = client.chat.completions.create(model="echo", messages=messages(), stream=True)
    words = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(words).strip() == messages()[-1]["content"]
    assert upstream.got[-1].body["stream"] is True


def test_a_stream_passes_through_unbuffered(service: Service, upstream: Upstream) -> None:
    upstream.release.clear()
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="sk-mine", max_retries=0)
    stream = client.chat.completions.create(model="gated", messages=messages(), stream=True)
    next(iter(stream))
    upstream.release.set()
    assert list(stream)[-1].choices[0].finish_reason == "stop"


def test_a_client_that_goes_away_takes_its_upstream_call_with_it(service: Service, upstream: Upstream) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{service.url}/v1/chat/completions", json={"model": "hang", "messages": messages()}, timeout=5)
    assert upstream.left.acquire(timeout=10)


def test_a_new_adapter_goes_live_under_load(service: Service) -> None:
    old, new = (read_adapter(folder, "").version for folder in (service.old, service.new))

    async def main() -> tuple[Load, float]:
        async with loaded(service.url, 6) as load:
            await asyncio.sleep(3)
            await asyncio.to_thread(service.deploy, service.new)
            await load.until(lambda answer: answer.version == new, 30)
            live = time.monotonic()
            await asyncio.sleep(3)
        return load, live

    load, live = asyncio.run(main())
    assert set(load.statuses) == {200}
    assert {answer.version for answer in load.answers} == {old, new}
    assert {answer.version for answer in load.answers if answer.begun > live} == {new}


def test_twice_the_capacity(service: Service) -> None:
    async def main(clients: int) -> Load:
        async with loaded(service.url, clients) as load:
            await asyncio.sleep(8)
        return load

    capacity = IN_FLIGHT + QUEUE
    full, twice = asyncio.run(main(capacity)), asyncio.run(main(2 * capacity))
    assert set(twice.statuses) == {200, 503}
    refused = [answer for answer in twice.answers if answer.status == 503]
    assert all(answer.retry_after and int(answer.retry_after) >= 1 for answer in refused)
    # Those that are let in wait about as long as in a queue that is just full.
    assert twice.slowest < 3 * full.slowest + 2


def replicas(of: str = "Detector") -> list[psutil.Process]:
    """The processes of a deployment's replicas."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if title(process).startswith(f"ray::ServeReplica:{app.NAME}:{of}")
    ]


def gateways() -> list[psutil.Process]:
    return replicas("Gateway")


def engines() -> list[psutil.Process]:
    return [process for process in engine_processes() if "EngineCore" in title(process)]


@pytest.mark.parametrize("victims", [engines, replicas, gateways])
@pytest.mark.timeout(400)
def test_what_dies_comes_back_and_every_request_is_answered(
    service: Service, victims: Callable[[], list[psutil.Process]]
) -> None:
    async def main() -> tuple[Load, float]:
        async with loaded(service.url, 6) as load:
            await asyncio.sleep(2)
            (victim,) = await asyncio.to_thread(victims)
            victim.kill()
            killed = time.monotonic()
            await load.until(lambda answer: answer.begun > killed + 1 and answer.status == 200, START_S)
        return load, killed

    load, killed = asyncio.run(main())
    # `loaded` would have raised for a request that the service didn't answer.
    # Serve's proxy answers 500 for what a gateway was about when it died.
    assert set(load.statuses) <= ({200, 500, 503} if victims is gateways else {200, 503})
    assert any(answer.begun < killed < answer.begun + answer.seconds for answer in load.answers)
    assert httpx.post(f"{service.url}/v1/detect", json={"messages": messages()}, timeout=60).status_code == 200


def test_what_was_begun_is_finished_before_it_stops(service: Service) -> None:
    """The last one: the service is gone afterwards."""

    async def main() -> httpx.Response:
        async with httpx.AsyncClient(base_url=service.url, timeout=120) as http:
            asked = asyncio.create_task(http.post("/v1/detect", json={"messages": messages(), "mode": "reasoned"}))
            await asyncio.sleep(0.4)
            assert not asked.done()
            await asyncio.to_thread(serve.delete, app.NAME)
            return await asked

    answer = asyncio.run(main())
    assert answer.status_code == 200
    assert answer.json()["mode"] == "reasoned"
    _, left = psutil.wait_procs(engine_processes(), timeout=60)
    assert not left
