"""Keys, limits and what operators see, on real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import access
from serving.access import OPEN, Access, Refused, check_characters, check_messages, keys_of
from serving.config import Limits, ServeConfig
from serving.metrics import LOG, Record
from synuc.problem import Problem
from synuc.types import Dialogue, Turn
from tests.upstream import Detector, asking, gateway

ENGINE = {"engine": {"kind": "vllm", "model": "tests"}}
KEYS: Any = {"api_keys_env": "TEST_KEYS"}


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    monkeypatch.setenv("TEST_KEYS", "first-key, zweiter-schlüssel ,")
    with gateway(Detector(), **KEYS) as address, httpx.Client(base_url=address) as client:
        yield client


def detect(client: httpx.Client, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    return client.post("/v1/detect", json={"messages": asking("normal please")} | body, headers=headers)


def test_a_key_opens(locked: httpx.Client) -> None:
    for headers in (
        {"Authorization": "Bearer first-key"},
        {"authorization": "bearer first-key"},
        {"x-api-key": "first-key"},
    ):
        assert detect(locked, headers).status_code == 200, headers
    assert locked.get("/metrics", headers={"Authorization": "Bearer first-key"}).status_code == 200
    response = locked.post(
        "/v1/detect",
        json={"messages": asking("normal please")},
        headers=[(b"Authorization", "Bearer zweiter-schlüssel".encode())],
    )
    assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer first-ke"},
        {"Authorization": "Bearer first-key2"},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic first-key"},
        {"Authorization": "Bearer first-key, zweiter-schlüssel".encode().decode("latin-1")},
        {"x-api-key": ""},
    ],
)
def test_without_a_known_key_nothing_opens(locked: httpx.Client, headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    for method, path in (("POST", "/v1/detect"), ("POST", "/v1/chat/completions"), ("GET", "/metrics"), ("GET", "/x")):
        response = locked.request(method, path, headers=raw, content=b"no JSON")
        assert response.status_code == 401, path
        assert response.headers["www-authenticate"] == "Bearer"
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


def test_the_page_and_the_probes_are_open(locked: httpx.Client) -> None:
    for path in OPEN:
        assert locked.get(path).status_code == 200, path
    assert locked.get("/page/index.html").status_code == 200


def test_page_paths_open_nothing_else(locked: httpx.Client) -> None:
    for path in (
        "/page/../config.py",
        "/page/%2e%2e/config.py",
        "/page/..%2fconfig.py",
        "/docs/../v1/models",
        "/docs/files/../core.py",
        "//v1/conversations/x",
    ):
        assert locked.get(path).status_code in (401, 404), path


def test_a_conversation_is_seen_by_the_key_that_began_it(locked: httpx.Client) -> None:
    first = {"Authorization": "Bearer first-key"}
    second = [(b"x-api-key", "zweiter-schlüssel".encode())]
    assert detect(locked, first, conversation_id="trip").status_code == 200
    for headers in (first, {"x-api-key": "first-key"}):
        assert locked.get("/v1/conversations/trip", headers=headers).json()["turns"] == 2
    foreign = locked.get("/v1/conversations/trip", headers=second)
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, "unknown_conversation")
    # The other key's conversation of this name is another one.
    body = {"messages": asking("conflict"), "conversation_id": "trip"}
    locked.post("/v1/detect", json=body, headers=second)
    assert locked.get("/v1/conversations/trip", headers=second).json()["verdicts"] == {"IC": 1}
    assert locked.get("/v1/conversations/trip", headers=first).json()["verdicts"] == {"ND": 1}


@pytest.mark.parametrize("value", [None, "", " , ,"])
def test_a_named_variable_must_hold_a_key(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("TEST_KEYS", raising=False)
    else:
        monkeypatch.setenv("TEST_KEYS", value)
    with pytest.raises(Problem, match="TEST_KEYS holds no key"):
        keys_of(ServeConfig.model_validate({"detector": ENGINE, **KEYS}))
    assert keys_of(ServeConfig.model_validate({"detector": ENGINE})) == ()


@given(st.text(min_size=1), st.lists(st.text(min_size=1), min_size=1))
def test_only_a_key_is_known(given_key: str, keys: list[str]) -> None:
    status = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        nonlocal status
        status = status or message["status"]

    header = (b"authorization", b"Bearer " + given_key.encode("utf-8", "surrogatepass"))
    scope = {"type": "http", "path": "/v1/detect", "headers": [header], "method": "POST", "record": Record()}
    keys = [key.encode("utf-8", "surrogatepass").decode("utf-8", "replace").strip() for key in keys]
    asyncio.run(Access(app, keys, 10)(scope, None, send))  # type: ignore[arg-type]
    stripped = given_key.encode("utf-8", "surrogatepass").decode("latin-1").strip().encode("latin-1")
    assert (status == 200) is (stripped in [key.encode() for key in keys])


def test_a_large_body_is_refused_with_and_without_its_length() -> None:
    with gateway(Detector(), limits={"body_bytes": 2000}) as address, httpx.Client(base_url=address) as client:
        body = json.dumps({"messages": asking("normal " + "x" * 2000)}).encode()
        for path in ("/v1/detect", "/v1/chat/completions", "/beta/litellm_basic_guardrail_api"):
            announced = client.post(path, content=body, headers={"Content-Type": "application/json"})
            counted = client.post(
                path, content=iter([body[:700], body[700:]]), headers={"Content-Type": "application/json"}
            )
            assert "content-length" not in counted.request.headers
            for response in (announced, counted):
                assert response.status_code == 413, path
                assert response.json()["error"]["code"] == "body_too_large"
                assert "2,000 bytes" in response.json()["error"]["message"]
        assert detect(client).status_code == 200


def test_a_body_without_end_is_cut_off() -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(5000):
            sent += 10_000
            yield b"x" * 10_000

    with gateway(Detector(), limits={"body_bytes": 20_000}) as address:
        response = httpx.post(f"{address}/v1/detect", content=endless(), headers={"Content-Type": "application/json"})
        assert response.status_code == 413
        assert sent < 50_000_000


def test_a_body_that_comes_too_slowly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "BODY_S", 0.3)

    def dripping() -> Iterator[bytes]:
        for _ in range(20):
            time.sleep(0.1)
            yield b" "

    with gateway(Detector()) as address:
        response = httpx.post(f"{address}/v1/detect", content=dripping(), headers={"Content-Type": "application/json"})
        assert response.status_code == 408
        assert response.json()["error"]["code"] == "body_too_slow"
        # What comes later than that is no body: a detection may take longer.
        assert httpx.post(f"{address}/v1/detect", json={"messages": asking("normal")}).status_code == 200


def test_a_connection_that_fails_ends_the_work(caplog: pytest.LogCaptureFixture) -> None:
    """Ray Serve raises the failure of its proxy where a disconnect is waited for."""
    ended = False

    async def work(scope: Any, receive: Any, send: Any) -> None:
        nonlocal ended
        try:
            await receive()
        except asyncio.CancelledError:
            ended = True
            raise

    async def broken() -> Any:
        raise RuntimeError("the proxy is gone")

    asyncio.run(asyncio.wait_for(access.CancelWhenGone(work)({"type": "http"}, broken, None), 5))  # type: ignore[arg-type]
    assert ended
    assert "a request broke off" in caplog.text


def test_limits_of_a_dialogue() -> None:
    limits = Limits(messages=3, characters=100)
    check_messages([1, 2, 3], limits)
    with pytest.raises(Refused, match="4 messages") as too_many:
        check_messages([1, 2, 3, 4], limits)
    dialogue = Dialogue(turns=(Turn(user="a" * 30, assistant="b" * 30),), system="c" * 30)
    check_characters(dialogue, "d" * 10, limits)
    with pytest.raises(Refused, match="101 characters") as too_long:
        check_characters(dialogue, "d" * 11, limits)
    assert (too_many.value.status_code, too_long.value.status_code) == (413, 413)


def test_limits_hold_on_every_way_in() -> None:
    limits = {"messages": 4, "characters": 200, "dialogues": 2}
    with gateway(Detector(), limits=limits) as address, httpx.Client(base_url=address) as client:
        assert detect(client).status_code == 200
        long, many = asking("normal " + "x" * 200), asking("normal") + asking("normal")
        for messages, code in ((long, "dialogue_too_long"), (many, "too_many_messages")):
            response = client.post("/v1/detect", json={"messages": messages})
            assert (response.status_code, response.json()["error"]["code"]) == (413, code)
            body = {"input_type": "request", "texts": [], "structured_messages": messages}
            response = client.post("/beta/litellm_basic_guardrail_api", json=body)
            assert (response.status_code, response.json()["error"]["code"]) == (413, code)
        response = client.post("/v1/detect", json={"dialogues": [{"messages": asking("normal")}] * 3})
        assert (response.status_code, response.json()["error"]["code"]) == (413, "too_many_dialogues")


@pytest.mark.parametrize("log_text", [False, True])
def test_the_log_has_no_text_unless_asked(log_text: bool, caplog: pytest.LogCaptureFixture) -> None:
    LOG.addHandler(caplog.handler)
    LOG.setLevel(logging.INFO)
    try:
        with gateway(Detector(), log_text=log_text) as address, httpx.Client(base_url=address) as client:
            detect(client, messages=asking("conflict Zanzibar"), conversation_id="visitor-17")
            client.get("/v1/conversations/visitor-17")
            client.get("/made-up/Zanzibar")
    finally:
        LOG.removeHandler(caplog.handler)
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == LOG.name]
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("POST", "/v1/detect", 200),
        ("GET", "/v1/conversations/{id}", 200),
        ("GET", "unknown", 404),
    ]
    assert lines[0]["label"] == "IC"
    assert lines[0]["conversation"] == lines[1]["conversation"]
    assert 0 < lines[0]["seconds"] < 10
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "visitor-17" not in said
    assert ("Zanzibar" in said) is log_text


def test_metrics_count() -> None:
    with gateway(Detector()) as address, httpx.Client(base_url=address) as client:
        detect(client, messages=asking("conflict here"))
        detect(client, messages=asking("busy"))
        client.get("/nowhere/4711")
        client.request("PROPFIND", "/nowhere")
        response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    lines = response.text.splitlines()
    for line in (
        'synuc_requests_total{method="POST",route="/v1/detect",status="200"} 1.0',
        'synuc_requests_total{method="POST",route="/v1/detect",status="503"} 1.0',
        'synuc_requests_total{method="GET",route="unknown",status="404"} 1.0',
        'synuc_detections_total{label="IC"} 1.0',
        'synuc_requests_total{method="other",route="unknown",status="404"} 1.0',
        "synuc_queue_full_total 1.0",
        "synuc_detections_in_progress 0.0",
        'synuc_tokens_total{kind="prompt"} 11.0',
        'synuc_tokens_total{kind="completion"} 7.0',
        'synuc_detection_seconds_count{mode="reasoned"} 1.0',
    ):
        assert line in lines
    assert "4711" not in response.text


def test_every_app_counts_for_itself() -> None:
    with gateway(Detector()) as one, gateway(Detector()) as other:
        httpx.post(f"{one}/v1/detect", json={"messages": asking("normal")})
        assert "/v1/detect" not in httpx.get(f"{other}/metrics").text


def test_several_gateways_are_told_apart() -> None:
    """Behind one address each of them answers now and then: without a name their counters would seem to jump."""
    names = set()
    for _ in range(2):
        with gateway(Detector(), gateways=2) as address, httpx.Client(base_url=address) as client:
            detect(client, messages=asking("conflict"))
            samples = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
        labels = [re.search(r'[{,]gateway="(\w+)"', line) for line in samples]
        assert all(labels)
        found = {label[1] for label in labels if label}
        assert len(found) == 1
        names |= found
        assert f'synuc_detections_total{{gateway="{found.pop()}",label="IC"}} 1.0' in samples
    assert len(names) == 2
