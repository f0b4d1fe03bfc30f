"""LiteLLM's generic guardrail API, with requests as LiteLLM sends them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from serving.detection import Detection, DetectRequest
from serving.guard import note, spoken
from serving.litellm import PATH
from tests.upstream import QUESTION, VERDICTS, Detector, asking, gateway


@pytest.fixture
def detector() -> Detector:
    return Detector()


@pytest.fixture
def client(detector: Detector) -> Iterator[httpx.Client]:
    with gateway(detector) as address, httpx.Client(base_url=address) as client:
        yield client


def request(follow_up: str, policy: str | None = None, **more: Any) -> dict[str, Any]:
    messages = asking(follow_up)
    return {
        "texts": [message["content"] for message in messages],
        "images": None,
        "tools": None,
        "tool_calls": None,
        "structured_messages": messages,
        "request_data": {"user_api_key_hash": "abc", "user_api_key_alias": None},
        "input_type": "request",
        "litellm_call_id": "call-1",
        "litellm_trace_id": "trace-1",
        "additional_provider_specific_params": {"threshold": 0.8} | ({"policy": policy} if policy else {}),
        "field_of_a_later_version": 1,
        **more,
    }


def test_annotate_lets_a_conflict_pass(client: httpx.Client, detector: Detector) -> None:
    for policy in (None, "annotate"):
        response = client.post(PATH, json=request("conflict", policy))
        assert response.status_code == 200
        assert response.json()["action"] == "NONE"
    assert [asked.follow_up for asked in detector.asked] == ["conflict", "conflict"]


def test_clarify_blocks_with_the_question(client: httpx.Client) -> None:
    response = client.post(PATH, json=request("conflict", "clarify"))
    assert response.json() == {"action": "BLOCKED", "blocked_reason": spoken(QUESTION), "texts": None}


def test_inject_adds_a_note_to_the_last_text(client: httpx.Client) -> None:
    sent = request("conflict", "inject")
    found = client.post(PATH, json=sent).json()
    assert found["action"] == "GUARDRAIL_INTERVENED"
    assert found["texts"][:-1] == sent["texts"][:-1]
    assert found["texts"][-1] == f"conflict\n\n[{note(VERDICTS['conflict'])}]"


def test_inject_finds_the_last_text_among_parts(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "conflict"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    sent = request("conflict", "inject")
    sent["structured_messages"][-1]["content"] = parts
    found = client.post(PATH, json=sent).json()
    assert len(found["texts"]) == len(sent["texts"])
    assert found["texts"][-1].startswith("conflict\n\n[Note")


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


def test_inject_finds_the_last_text_before_an_image(client: httpx.Client) -> None:
    sent = request("conflict", "inject")
    sent["structured_messages"].append(IMAGE)
    found = client.post(PATH, json=sent).json()
    assert found["texts"] == [*sent["texts"][:-1], f"conflict\n\n[{note(VERDICTS['conflict'])}]"]


def test_inject_passes_by_the_results_of_tools(client: httpx.Client) -> None:
    sent = request("conflict", "inject")
    sent["structured_messages"].insert(-1, {"role": "tool", "tool_call_id": "c", "content": "42"})
    sent["texts"].append("42")
    found = client.post(PATH, json=sent).json()
    assert found["texts"] == [*sent["texts"][:-2], f"conflict\n\n[{note(VERDICTS['conflict'])}]", "42"]


def test_inject_lets_an_image_alone_pass() -> None:
    class Sure(Detector):
        async def __call__(self, request: DetectRequest) -> Detection:
            return VERDICTS["conflict"]

    sent = request("", "inject", structured_messages=[*asking("")[:-1], IMAGE])
    sent["texts"].pop()
    with gateway(Sure()) as address:
        assert httpx.post(address + PATH, json=sent).json()["action"] == "NONE"


@pytest.mark.parametrize("texts", [[], None, ["something else"]])
def test_texts_that_are_not_the_messages_are_an_error(client: httpx.Client, texts: list[str] | None) -> None:
    response = client.post(PATH, json=request("conflict", "inject", texts=texts))
    assert response.status_code == 422
    assert response.json()["error"]["message"].startswith("texts:")


@pytest.mark.parametrize("follow_up", ["normal", "revision", "garbled"])
@pytest.mark.parametrize("policy", ["clarify", "inject"])
def test_all_but_conflicts_pass(client: httpx.Client, policy: str, follow_up: str) -> None:
    assert client.post(PATH, json=request(follow_up, policy)).json()["action"] == "NONE"


def test_what_is_no_follow_up_passes_unasked(client: httpx.Client, detector: Detector) -> None:
    tool = [*asking("conflict"), {"role": "assistant", "content": "one moment"}]
    for more in (
        {"input_type": "response"},
        {"structured_messages": None},
        {"structured_messages": tool},
    ):
        assert client.post(PATH, json=request("conflict", "clarify", **more)).json()["action"] == "NONE"
    assert detector.asked == []


def test_a_wrong_policy_is_an_error(client: httpx.Client) -> None:
    response = client.post(PATH, json=request("conflict", "shout"))
    assert response.status_code == 422
    assert "additional_provider_specific_params.policy" in response.json()["error"]["message"]


def test_the_configured_policy_and_on_error() -> None:
    with gateway(Detector(), policy="clarify", on_error="block") as address:
        assert httpx.post(address + PATH, json=request("conflict")).json()["action"] == "BLOCKED"
        assert httpx.post(address + PATH, json=request("conflict", "annotate")).json()["action"] == "NONE"
        # LiteLLM decides by its own `unreachable_fallback` what a 503 means.
        response = httpx.post(address + PATH, json=request("busy"))
        assert (response.status_code, response.headers["retry-after"]) == (503, "7")
    with gateway(Detector()) as address:
        assert httpx.post(address + PATH, json=request("down", "clarify")).json()["action"] == "NONE"


def test_the_key_comes_in_either_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEYS", "k1")
    with gateway(Detector(), api_keys_env="TEST_KEYS") as address:
        for headers, status in (
            ({"x-api-key": "k1"}, 200),
            ({"Authorization": "Bearer k1"}, 200),
            ({"x-api-key": "k2"}, 401),
            ({}, 401),
        ):
            assert httpx.post(address + PATH, json=request("normal"), headers=headers).status_code == status
