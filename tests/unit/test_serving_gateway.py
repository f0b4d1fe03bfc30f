"""Detection over HTTP, conversations, the page, the probes, and errors in words."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.config import ServeConfig
from serving.detection import Detection
from serving.gateway import create_app
from serving.ledger import LedgerDown
from tests.upstream import VERDICTS, Detector, NearLedger, asking, gateway, served


@pytest.fixture
def detector() -> Detector:
    return Detector()


@pytest.fixture
def client(detector: Detector) -> Iterator[httpx.Client]:
    with gateway(detector) as address, httpx.Client(base_url=address, timeout=10) as client:
        yield client


def error(response: httpx.Response) -> tuple[int, str, str]:
    found = response.json()["error"]
    assert set(found) == {"message", "type", "code"}
    return response.status_code, found["code"], found["message"]


def test_one_dialogue(client: httpx.Client, detector: Detector) -> None:
    body = {"messages": asking("conflict please"), "mode": "fast", "adapter": "good"}
    response = client.post("/v1/detect", json=body)
    assert response.status_code == 200
    assert Detection.model_validate(response.json()) == VERDICTS["conflict"]
    [asked] = detector.asked
    assert (asked.mode, asked.adapter, asked.follow_up) == ("fast", "good", "conflict please")
    assert asked.dialogue.system == "You are a guide."
    assert asked.dialogue.turns[0].user == "Tell me about Lyon in three sentences."


def test_what_a_request_does_not_name_is_left_to_the_detector(client: httpx.Client, detector: Detector) -> None:
    client.post("/v1/detect", json={"messages": asking("normal")})
    assert (detector.asked[0].mode, detector.asked[0].adapter) == (None, None)


def test_a_bad_dialogue_in_a_list_fails_alone(client: httpx.Client) -> None:
    dialogues = [
        {"messages": asking("revision please")},
        {"messages": asking("normal")[:3]},
        {"messages": asking("busy")},
        {"messages": "text"},
        7,
        {"messages": asking("normal"), "adapter": "none"},
        {"messages": asking("conflict")},
    ]
    response = client.post("/v1/detect", json={"dialogues": dialogues})
    assert response.status_code == 200
    found = response.json()["detections"]
    assert [each["label"] if "label" in each else each["error"]["code"] for each in found] == [
        "ER",
        "bad_conversation",
        "detector_busy",
        "invalid_request",
        "invalid_request",
        "unknown_adapter",
        "IC",
    ]
    assert "messages" in found[3]["error"]["message"]


@pytest.mark.parametrize(
    ("follow_up", "status", "code", "retry"),
    [
        ("busy", 503, "detector_busy", "7"),
        ("down", 503, "detector_down", "5"),
        ("long", 413, "too_many_tokens", None),
    ],
)
def test_a_detector_that_cannot(
    client: httpx.Client, follow_up: str, status: int, code: str, retry: str | None
) -> None:
    response = client.post("/v1/detect", json={"messages": asking(follow_up)})
    assert error(response)[:2] == (status, code)
    assert response.headers.get("retry-after") == retry


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        (b'{"messages": [', 400, "invalid_json", "no JSON"),
        (b'{"messages": "\xff"}', 400, "invalid_json", "send JSON in UTF-8"),
        (b"[" * 100_000, 400, "invalid_json", "can't be read"),
        (b"[]", 422, "invalid_request", "body"),
        (b"{}", 422, "invalid_request", "messages: Field required"),
        (b'{"messages": [], "modus": "fast"}', 422, "invalid_request", "modus"),
        (b'{"messages": [], "mode": "slow"}', 422, "invalid_request", "mode: Input should be 'reasoned' or 'fast'"),
        (b'{"messages": [], "conversation_id": ""}', 422, "invalid_request", "conversation_id"),
        (b'{"messages": []}', 400, "bad_conversation", "last message"),
        (b'{"messages": [{"role": "boss", "content": "x"}]}', 400, "bad_conversation", "messages[0]"),
        (b'{"dialogues": {}}', 422, "invalid_request", "dialogues"),
    ],
)
def test_bad_input_gets_one_clear_error(client: httpx.Client, body: bytes, status: int, code: str, says: str) -> None:
    found = error(client.post("/v1/detect", content=body, headers={"Content-Type": "application/json"}))
    assert found[:2] == (status, code)
    assert says in found[2]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
@pytest.mark.parametrize("path", ["/v1/detect", "/v1/chat/completions", "/beta/litellm_basic_guardrail_api"])
def test_a_body_that_is_not_sent_as_json(client: httpx.Client, kind: str, path: str) -> None:
    body = json.dumps({"messages": asking("normal")}).encode()
    status, code, message = error(client.post(path, content=body, headers={"Content-Type": kind} if kind else {}))
    assert (status, code) == (415, "not_json")
    assert "Content-Type: application/json" in message


def test_unknown_adapters_and_paths(client: httpx.Client) -> None:
    response = client.post("/v1/detect", json={"messages": asking("normal"), "adapter": "x"})
    assert error(response) == (404, "unknown_adapter", "no adapter x; there are: good")
    assert error(client.get("/v2"))[:2] == (404, "not_found")
    assert error(client.get("/v1/detect"))[:2] == (405, "not_found")
    status, code, message = error(client.post("/v1/chat/completions", json={"messages": asking("normal")}))
    assert (status, code) == (404, "no_upstream")
    assert "upstream.base_url" in message
    assert error(client.get("/v1/models"))[:2] == (404, "no_upstream")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
message = st.fixed_dictionaries(
    {}, optional={"role": st.sampled_from(["user", "assistant", "tool", "x"]) | json_values, "content": json_values}
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.fixed_dictionaries({}, optional={"messages": st.lists(message | json_values, max_size=4) | json_values}))
def test_nothing_sent_is_our_fault(client: httpx.Client, body: dict[str, Any]) -> None:
    for sent in (body, {"dialogues": [body]}):
        response = client.post(
            "/v1/detect", content=json.dumps(sent).encode(), headers={"Content-Type": "application/json"}
        )
        if response.status_code == 500:  # the detector of these tests knows few words
            assert "messages" in body
            assert body["messages"][-1]["role"] == "user"
        else:
            assert response.status_code in (200, 400, 422)


def test_the_page_is_not_framed(client: httpx.Client) -> None:
    assert client.get("/").headers["content-security-policy"] == "frame-ancestors 'none'"


def test_a_conversation_is_remembered(client: httpx.Client) -> None:
    assert error(client.get("/v1/conversations/visit"))[:2] == (404, "unknown_conversation")
    client.post("/v1/detect", json={"messages": asking("conflict"), "conversation_id": "visit"})
    response = client.get("/v1/conversations/visit")
    assert response.status_code == 200
    assert response.json()["turns"] == 2


class BrokenLedger(NearLedger):
    async def update(self, owner: str, id: str, message: str, detection: Detection, turns: int) -> Any:
        raise LedgerDown("the process is gone")

    async def get(self, owner: str, id: str) -> Any:
        raise LedgerDown("no answer")

    async def verdict(self, owner: str, id: str, message: str) -> Any:
        raise LedgerDown("no answer")


async def not_ready() -> bool:
    return False


def test_a_verdict_does_not_depend_on_the_ledger() -> None:
    config = ServeConfig.model_validate({"detector": {"engine": {"kind": "vllm", "model": "tests"}}})
    with served(create_app(config, Detector(), BrokenLedger(), not_ready)) as address:
        response = httpx.post(f"{address}/v1/detect", json={"messages": asking("conflict"), "conversation_id": "a"})
        assert response.json()["label"] == "IC"
        assert error(httpx.get(f"{address}/v1/conversations/a"))[:2] == (503, "ledger_down")
        assert httpx.get(f"{address}/healthz").status_code == 200
        assert error(httpx.get(f"{address}/readyz"))[:2] == (503, "not_ready")


def test_probes_page_and_documentation(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert client.get("/page/index.html").text == page.text
    docs = client.get("/docs").text
    assert "openapi.json" in docs
    files = re.findall(r'(?:src|href)="([^"]+)"', docs)
    assert {"/docs/files/swagger-ui-bundle.js", "/docs/files/swagger-ui.css"} <= set(files)
    assert "//" not in "".join(files)
    assert all(client.get(file).status_code == 200 for file in files)
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/detect", "/v1/chat/completions", "/v1/models", "/v1/conversations/{id}", "/metrics"} <= set(paths)


def test_a_client_that_goes_away_ends_its_detection(client: httpx.Client, detector: Detector) -> None:
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/detect", json={"messages": asking("hang")}, timeout=0.3)
    assert detector.cancelled.wait(5)
    deadline = time.monotonic() + 5
    wanted = 'synuc_requests_total{method="POST",route="/v1/detect",status="499"} 1.0'
    while wanted not in client.get("/metrics").text:
        assert time.monotonic() < deadline


def test_a_client_that_goes_away_ends_all_of_its_detections(client: httpx.Client, detector: Detector) -> None:
    dialogues = [{"messages": asking("hang")}, {"messages": asking("normal")}]
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/detect", json={"dialogues": dialogues}, timeout=0.3)
    assert detector.cancelled.wait(5)


def test_a_client_that_goes_away_amid_its_body_harms_nobody(client: httpx.Client) -> None:
    url = urlsplit(str(client.base_url))
    with socket.create_connection((url.hostname, url.port)) as connection:
        head = "POST /v1/detect HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
        connection.sendall(head.encode() + b'{"messages": [')
    assert client.post("/v1/detect", json={"messages": asking("normal")}).status_code == 200
    assert 'status="500"' not in client.get("/metrics").text
