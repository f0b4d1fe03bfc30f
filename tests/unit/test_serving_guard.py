"""The guard with the plain openai client, streaming and not, in front of a real chat server."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from fastapi.responses import RedirectResponse
from hypothesis import given
from hypothesis import strategies as st

from serving import upstream as upstream_module
from serving.config import ServeConfig
from serving.detection import UNDETERMINED, Detection, DetectRequest
from serving.guard import QUOTED, note, spoken, with_note
from serving.metrics import Metrics
from serving.upstream import HELD_BYTES, _marked, _with_field, upstream_of
from synuc.problem import Problem
from tests.upstream import QUESTION, VERDICTS, Detector, Upstream, asking, gateway, running_upstream, served

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wie ist das Wetter? 天气",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Upstream, str]]:
    with running_upstream() as upstream, gateway(Detector(), upstream) as address:
        yield upstream, address


@pytest.fixture
def upstream(servers: tuple[Upstream, str]) -> Upstream:
    servers[0].got.clear()
    return servers[0]


@pytest.fixture
def address(servers: tuple[Upstream, str]) -> str:
    return servers[1]


def client_of(address: str, policy: str = "", **more: Any) -> openai.OpenAI:
    headers = {"x-synuc-policy": policy} if policy else {}
    return openai.OpenAI(
        base_url=f"{address}/v1", api_key="client-key", max_retries=0, default_headers=headers, timeout=10, **more
    )


def messages(follow_up: str) -> Any:
    return asking(follow_up)


def test_an_answer_passes_with_the_verdict(upstream: Upstream, address: str) -> None:
    create = client_of(address).chat.completions.with_raw_response.create
    raw = create(model="unicode", messages=messages("conflict now"))
    completion = raw.parse()
    assert completion.choices[0].message.content == "conflict now"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 5
    assert completion.model_extra is not None
    assert completion.model_extra["synuc"] == VERDICTS["conflict"].model_dump(mode="json")
    assert (raw.headers["x-synuc-label"], raw.headers["x-synuc-policy"]) == ("IC", "annotate")
    assert raw.headers["x-request-id"] == "upstream-1"
    assert raw.headers["openai-organization"] == "组织"
    assert "set-cookie" not in raw.headers
    assert upstream.got[0].body == {"model": "unicode", "messages": asking("conflict now")}


def test_a_stream_passes_with_the_verdict_in_its_first_chunk(upstream: Upstream, address: str) -> None:
    for model in ("echo", "pings"):
        raw = client_of(address).chat.completions.with_raw_response.create(
            model=model, messages=messages("revision of it"), stream=True
        )
        chunks = list(raw.parse())
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "revision of it "
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
        marked = [(chunk.model_extra or {}).get("synuc") for chunk in chunks]
        assert marked[0] == VERDICTS["revision"].model_dump(mode="json")
        assert not any(marked[1:])
        assert raw.headers["x-synuc-label"] == "ER"


def test_a_stream_is_not_held_back(upstream: Upstream, address: str) -> None:
    upstream.release.clear()
    stream = client_of(address).chat.completions.create(model="gated", messages=messages("normal words"), stream=True)
    assert next(iter(stream)).choices[0].delta.role == "assistant"
    # Only now may the upstream go on.
    upstream.release.set()
    assert [chunk.choices[0].delta.content for chunk in stream][:2] == ["normal ", "words "]


UNKNOWN = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["ü", "\ud83d"]}}},
    "tool_choice": "auto",
    "seed": 2**70,
    "temperature": 0.1,
    "frobnicate": {"deep": [None, True, {"": 1.5}]},
}


@pytest.mark.parametrize("stream", [False, True])
def test_tools_and_unknown_fields_survive(upstream: Upstream, address: str, stream: bool) -> None:
    body = {"model": "echo", "messages": asking("normal"), "tools": TOOLS, "stream": stream, **UNKNOWN}
    response = httpx.post(
        f"{address}/v1/chat/completions",
        content=json.dumps({**body, "conversation_id": "trip"}).encode(),
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 200
    assert upstream.got[0].body == body
    first = response.text.split("\n\n")[0].removeprefix("data: ") if stream else response.text
    assert json.loads(first)["received"] == body
    assert httpx.get(f"{address}/v1/conversations/trip").json()["id"] == "trip"


def test_tool_calls_reach_the_client(upstream: Upstream, address: str) -> None:
    client = client_of(address)
    completion = client.chat.completions.create(model="echo", messages=messages("normal"), tools=TOOLS)
    [call] = completion.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Lyon"}')
    with client.chat.completions.stream(model="echo", messages=messages("normal"), tools=TOOLS) as stream:
        [call] = stream.get_final_completion().choices[0].message.tool_calls or []
    assert call.function.name == "weather"


def test_a_tools_answer_goes_through_without_a_detection(upstream: Upstream, address: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    exchange: Any = [
        *asking("conflict"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    for policy in ("annotate", "clarify", "inject"):
        raw = client_of(address, policy).chat.completions.with_raw_response.create(model="echo", messages=exchange)
        assert raw.parse().choices[0].message.content == "rain"
        assert raw.headers["x-synuc-label"] == "undetermined"
        assert upstream.got.pop().body["messages"] == exchange


@pytest.mark.parametrize("usage", [False, True])
def test_clarify_asks_the_user_instead_of_the_model(upstream: Upstream, address: str, usage: bool) -> None:
    client = client_of(address, "clarify")
    raw = client.chat.completions.with_raw_response.create(model="echo", messages=messages("conflict"))
    completion = raw.parse()
    text = completion.choices[0].message.content
    assert text == spoken(QUESTION)
    assert QUESTION.question in text
    assert all(f"\n- {choice.label}" in text for choice in QUESTION.choices)
    assert (completion.object, completion.model, completion.choices[0].finish_reason) == (
        "chat.completion",
        "echo",
        "stop",
    )
    assert completion.id.startswith("chatcmpl-")
    assert abs(completion.created - time.time()) < 60
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.total_tokens) == (11, 18)
    assert (completion.model_extra or {})["synuc"]["label"] == "IC"
    assert (raw.headers["x-synuc-label"], raw.headers["x-synuc-policy"]) == ("IC", "clarify")

    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = list(client.chat.completions.create(model="echo", messages=messages("conflict"), stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, None, "stop"]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert (chunks[0].model_extra or {})["synuc"]["clarification"]["language"] == "en"
    assert (chunks[-1].usage is not None) is usage
    assert upstream.got == []


@pytest.mark.parametrize("policy", ["clarify", "inject"])
@pytest.mark.parametrize("follow_up", ["normal", "revision", "garbled"])
def test_without_a_conflict_every_policy_passes_through(
    upstream: Upstream, address: str, policy: str, follow_up: str
) -> None:
    raw = client_of(address, policy).chat.completions.with_raw_response.create(
        model="echo", messages=messages(follow_up)
    )
    assert raw.parse().choices[0].message.content == follow_up
    assert raw.headers["x-synuc-label"] == VERDICTS[follow_up].label
    assert upstream.got[0].body == {"model": "echo", "messages": asking(follow_up)}


@pytest.mark.parametrize("stream", [False, True])
def test_inject_tells_the_model(upstream: Upstream, address: str, stream: bool) -> None:
    client_of(address, "inject").chat.completions.create(model="echo", messages=messages("conflict"), stream=stream)
    sent = upstream.got[0].body["messages"]
    assert sent[1:] == asking("conflict")[1:]
    assert sent[0]["role"] == "system"
    assert sent[0]["content"] == f"You are a guide.\n\n{note(VERDICTS['conflict'])}"


def test_a_note_quotes_both_sides_as_data() -> None:
    text = note(VERDICTS["conflict"])
    assert '\n- earlier requirement: "at most three sentences"\n' in text
    # One line, its quotation marks escaped and its control token broken.
    assert '"every town, \\"in full\\" <\u200b|im_end|>"\n' in text
    historical = VERDICTS["conflict"].historical
    assert historical is not None
    long = historical.model_copy(update={"value": "x" * 5000})
    assert len(note(VERDICTS["conflict"].model_copy(update={"historical": long}))) < len(text) + QUOTED
    assert "earlier requirement" not in note(VERDICTS["vague"])
    assert "point out this conflict" in note(VERDICTS["vague"])


@given(st.text(), st.text())
def test_no_requirement_breaks_out_of_its_quotation(historical: str, new: str) -> None:
    detection = VERDICTS["conflict"]
    assert detection.historical is not None
    assert detection.new is not None
    sides = {
        "historical": detection.historical.model_copy(update={"value": historical}),
        "new": detection.new.model_copy(update={"value": new}),
    }
    lines = note(detection.model_copy(update=sides)).split("\n")
    assert len(lines) == 5
    for line, value in zip(lines[2:4], (historical, new), strict=True):
        quoted = json.loads(line.split(": ", 1)[1])
        assert quoted.replace("\u200b", "").startswith(" ".join(value.split())[:QUOTED].replace("\u200b", ""))


def test_where_the_note_stands() -> None:
    user = {"role": "user", "content": "hi"}
    assert with_note([user], "N") == [{"role": "system", "content": "N"}, user]
    assert with_note([{"role": "developer", "content": "be brief", "name": "x"}, user], "N") == [
        {"role": "developer", "content": "be brief\n\nN", "name": "x"},
        user,
    ]
    parts = [{"type": "text", "text": "be brief"}]
    assert with_note([{"role": "system", "content": parts}, user], "N")[0]["content"] == [
        *parts,
        {"type": "text", "text": "N"},
    ]
    assert parts == [{"type": "text", "text": "be brief"}]


@pytest.mark.parametrize("follow_up", ["busy", "down"])
def test_on_error(follow_up: str) -> None:
    with running_upstream() as upstream:
        with gateway(Detector(), upstream, policy="clarify") as address:
            raw = client_of(address).chat.completions.with_raw_response.create(
                model="echo", messages=messages(follow_up)
            )
            assert raw.parse().choices[0].message.content == follow_up
            assert (raw.headers["x-synuc-label"], raw.headers["x-synuc-policy"]) == ("undetermined", "clarify")
            assert (raw.parse().model_extra or {})["synuc"]["reason"]
        upstream.got.clear()
        with gateway(Detector(), upstream, on_error="block") as address:
            with pytest.raises(openai.InternalServerError) as blocked:
                client_of(address).chat.completions.create(model="echo", messages=messages(follow_up))
            assert blocked.value.status_code == 503
            assert blocked.value.code == f"detector_{follow_up}"
            assert int(blocked.value.response.headers["retry-after"]) > 0
            boss: Any = [{"role": "boss", "content": "x"}, *messages("normal")]
            with pytest.raises(openai.BadRequestError, match=r"messages\[0\]"):
                client_of(address).chat.completions.create(model="echo", messages=boss)
        assert upstream.got == []


def test_too_many_tokens_for_the_detector_may_be_few_for_the_model() -> None:
    with running_upstream() as upstream:
        with gateway(Detector(), upstream) as address:
            raw = client_of(address).chat.completions.with_raw_response.create(model="echo", messages=messages("long"))
            assert raw.headers["x-synuc-label"] == "undetermined"
            assert "too many tokens" in (raw.parse().model_extra or {})["synuc"]["reason"]
        upstream.got.clear()
        with gateway(Detector(), upstream, on_error="block") as address:
            with pytest.raises(openai.APIStatusError, match="leave out the oldest messages") as blocked:
                client_of(address).chat.completions.create(model="echo", messages=messages("long"))
            assert (blocked.value.status_code, blocked.value.code) == (413, "too_many_tokens")
        assert upstream.got == []


def test_a_message_of_a_conversation_is_judged_once(upstream: Upstream) -> None:
    detector = Detector()
    with gateway(detector, upstream) as address:

        def answered(follow_up: str, conversation: str) -> str:
            response = httpx.post(
                f"{address}/v1/chat/completions",
                json={"model": "echo", "messages": asking(follow_up)},
                headers={"x-synuc-conversation": conversation},
            )
            return response.headers["x-synuc-label"]

        detected = {"messages": asking("conflict"), "conversation_id": "a"}
        assert httpx.post(f"{address}/v1/detect", json=detected).json()["label"] == "IC"
        assert answered("conflict", "a") == answered("conflict", "a") == "IC"
        assert len(detector.asked) == 1
        assert httpx.get(f"{address}/v1/conversations/a").json()["verdicts"] == {"IC": 1}
        assert 'synuc_detections_total{label="IC"} 1.0' in httpx.get(f"{address}/metrics").text
        # Another message, or one of another conversation, is another matter; and who asks for a verdict gets a new one.
        assert answered("normal", "a") == "ND"
        assert answered("conflict", "b") == "IC"
        httpx.post(f"{address}/v1/detect", json=detected)
        assert len(detector.asked) == 4


@dataclass
class Fickle(Detector):
    """Fails at first, as an engine does whose limit is reached; answers in the mode and with the adapter asked for."""

    failures: int = 0

    async def __call__(self, request: DetectRequest) -> Detection:
        detection = await super().__call__(request)
        used = {"mode": request.mode or "reasoned", "adapter": request.adapter or ""}
        if len(self.asked) <= self.failures:
            used |= {"label": UNDETERMINED, "reason": "rate_limit"}
        return detection.model_copy(update=used)


def test_what_has_no_label_is_judged_again(upstream: Upstream) -> None:
    detector = Fickle(failures=2)
    with gateway(detector, upstream) as address:
        labels = [
            httpx.post(
                f"{address}/v1/chat/completions",
                json={"model": "echo", "messages": asking("conflict"), "conversation_id": "a"},
            ).headers["x-synuc-label"]
            for _ in range(4)
        ]
    assert labels == ["undetermined", "undetermined", "IC", "IC"]
    assert len(detector.asked) == 3


@pytest.mark.parametrize("other", [{"mode": "fast"}, {"adapter": "good"}])
def test_the_verdict_of_another_detector_is_not_the_guards(upstream: Upstream, other: dict[str, str]) -> None:
    detector = Fickle()
    with gateway(detector, upstream) as address:
        detected = {"messages": asking("conflict"), "conversation_id": "a", **other}
        assert httpx.post(f"{address}/v1/detect", json=detected).json()["label"] == "IC"
        body = {"model": "echo", "messages": asking("conflict"), "conversation_id": "a"}
        for _ in range(2):
            assert httpx.post(f"{address}/v1/chat/completions", json=body).headers["x-synuc-label"] == "IC"
    assert [(asked.mode, asked.adapter) for asked in detector.asked] == [
        (other.get("mode"), other.get("adapter")),
        (None, None),
    ]


def test_bad_requests(address: str) -> None:
    client = client_of(address, "ask")
    with pytest.raises(openai.UnprocessableEntityError, match="x-synuc-policy: Input should be 'annotate', 'clarify'"):
        client.chat.completions.create(model="echo", messages=messages("normal"))
    for body in ({}, {"messages": "hi"}, {"messages": [1]}, {"messages": [], "conversation_id": 7}):
        response = httpx.post(f"{address}/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (422, "invalid_request")
    for options in ("x", [1], 7):
        sent = {"messages": asking("conflict"), "stream": True, "stream_options": options}
        response = httpx.post(f"{address}/v1/chat/completions", json=sent, headers={"x-synuc-policy": "clarify"})
        assert response.status_code == 200
    response = httpx.post(f"{address}/v1/chat/completions", content=b"{", headers={"Content-Type": "application/json"})
    assert response.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("stream", [False, True])
def test_the_upstreams_refusals_pass(address: str, stream: bool) -> None:
    client = client_of(address)
    with pytest.raises(openai.RateLimitError, match="asked to fail") as limited:
        client.chat.completions.create(model="fail-429", messages=messages("normal"), stream=stream)
    assert limited.value.code == "told_to"
    assert limited.value.response.headers["retry-after"] == "3"
    assert limited.value.response.headers["x-synuc-label"] == "ND"
    for status in (400, 404, 500):
        with pytest.raises(openai.APIStatusError) as failed:
            client.chat.completions.create(model=f"fail-{status}", messages=messages("normal"), stream=stream)
        assert failed.value.status_code == status


def test_a_key_that_the_upstream_refuses_is_not_the_clients(
    monkeypatch: pytest.MonkeyPatch, upstream: Upstream, address: str
) -> None:
    with pytest.raises(openai.AuthenticationError, match="asked to fail"):
        client_of(address).chat.completions.create(model="fail-401", messages=messages("normal"))
    monkeypatch.setenv("TEST_UPSTREAM_KEY", "sk-wrong")
    behind = {"base_url": upstream.url, "api_key_env": "TEST_UPSTREAM_KEY"}
    refused = pytest.raises(openai.InternalServerError, match="wants a key, or another one")
    with gateway(Detector(), upstream=behind) as ours, refused as failed:
        client_of(ours).chat.completions.create(model="fail-401", messages=messages("normal"))
    assert (failed.value.status_code, failed.value.code) == (502, "upstream_key")
    assert "sk-wrong" not in str(failed.value)


def test_a_body_that_is_nested_too_deeply_is_the_clients_fault(address: str) -> None:
    statuses = set()
    for depth in range(900, 1000):
        nested = "[" * depth + "]" * depth
        body = f'{{"model": "html", "messages": {json.dumps(asking("normal"))}, "x": {nested}}}'
        headers = {"Content-Type": "application/json"}
        statuses.add(httpx.post(f"{address}/v1/chat/completions", content=body.encode(), headers=headers).status_code)
    assert statuses == {200, 400}


def test_an_answer_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch, upstream: Upstream, address: str) -> None:
    monkeypatch.setattr(upstream_module, "ANSWER_BYTES", 1000)
    with pytest.raises(openai.InternalServerError, match="more than 1,000 bytes") as failed:
        client_of(address).chat.completions.create(model="echo", messages=messages("normal " + "x" * 1000))
    assert (failed.value.status_code, failed.value.code) == (502, "upstream_too_large")


def test_an_answer_that_is_no_json_passes(address: str) -> None:
    response = httpx.post(f"{address}/v1/chat/completions", json={"model": "html", "messages": asking("normal")})
    assert (response.text, response.headers["content-type"]) == ("<h1>hello</h1>", "text/html; charset=utf-8")


def test_an_upstream_that_is_not_there(unused_upstream: Upstream) -> None:
    with gateway(Detector(), unused_upstream) as address:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match="can't be reached") as failed:
                client_of(address).chat.completions.create(model="echo", messages=messages("normal"), stream=stream)
            assert (failed.value.status_code, failed.value.code) == (502, "upstream_unreachable")
        assert httpx.get(f"{address}/v1/models").status_code == 502


@pytest.fixture
def unused_upstream() -> Upstream:
    with running_upstream() as upstream:
        pass
    return upstream


def test_an_upstream_that_breaks_off(upstream: Upstream, address: str) -> None:
    client = client_of(address)
    with pytest.raises(openai.InternalServerError) as failed:
        client.chat.completions.create(model="break", messages=messages("normal"))
    assert failed.value.status_code == 502
    stream = client.chat.completions.create(model="break", messages=messages("normal"), stream=True)
    assert next(iter(stream)).choices[0].delta.role == "assistant"
    with pytest.raises(openai.APIError, match="broke off"):
        list(stream)


def test_an_upstream_that_hangs(upstream: Upstream) -> None:
    with gateway(Detector(), upstream={"base_url": upstream.url, "timeout_s": 0.3}) as address:
        client = client_of(address)
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError) as failed:
                client.chat.completions.create(model="hang", messages=messages("normal"), stream=stream)
            assert (failed.value.status_code, failed.value.code) == (504, "upstream_timeout")
        with pytest.raises(openai.APIError, match="took too long"):
            list(client.chat.completions.create(model="hang-midstream", messages=messages("normal"), stream=True))
    for _ in range(3):
        assert upstream.left.acquire(timeout=5)


def test_a_client_that_goes_away_ends_the_upstreams_work(upstream: Upstream, address: str) -> None:
    client = client_of(address)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).chat.completions.create(model="hang", messages=messages("normal"))
    assert upstream.left.acquire(timeout=5)
    stream = client.chat.completions.create(model="hang-midstream", messages=messages("normal"), stream=True)
    assert next(iter(stream)).choices
    stream.close()
    assert upstream.left.acquire(timeout=5)


def test_a_client_that_goes_away_while_it_is_judged_asks_no_model() -> None:
    detector = Detector()
    with running_upstream() as upstream, gateway(detector, upstream) as address:
        with pytest.raises(openai.APITimeoutError):
            client_of(address).with_options(timeout=0.3).chat.completions.create(
                model="echo", messages=messages("hang")
            )
        assert detector.cancelled.wait(5)
        time.sleep(0.1)
        assert upstream.got == []


def test_models_pass(upstream: Upstream, address: str) -> None:
    assert [model.id for model in client_of(address).models.list()] == ["echo"]


@pytest.mark.parametrize(
    ("upstream_key", "our_keys", "arrives"),
    [
        ("", "", "Bearer client-key"),
        ("", "client-key", None),
        ("sk-upstream", "", "Bearer sk-upstream"),
        ("sk-upstream", "client-key", "Bearer sk-upstream"),
    ],
)
def test_whose_key_goes_upstream(
    monkeypatch: pytest.MonkeyPatch, upstream: Upstream, upstream_key: str, our_keys: str, arrives: str | None
) -> None:
    monkeypatch.setenv("TEST_UPSTREAM_KEY", upstream_key)
    monkeypatch.setenv("TEST_KEYS", our_keys)
    config: Any = {
        "upstream": {"base_url": upstream.url, "api_key_env": "TEST_UPSTREAM_KEY" if upstream_key else ""},
        "api_keys_env": "TEST_KEYS" if our_keys else "",
    }
    extra = {"x-api-key": "client-key", "Cookie": "a=b", "OpenAI-Organization": "org-1", "traceparent": "00-1-2-3"}
    with gateway(Detector(), **config) as address:
        client = client_of(address)
        client.chat.completions.create(model="echo", messages=messages("normal"), extra_headers=extra)
        client.models.list(extra_headers=extra)
    assert [got.path for got in upstream.got] == ["/v1/chat/completions", "/v1/models"]
    for got in upstream.got:
        headers = {name.lower(): value for name, value in got.headers.items()}
        assert headers.get("authorization") == arrives
        assert ("openai-organization" in headers) is (arrives == "Bearer client-key")
        assert headers["traceparent"] == "00-1-2-3"
        assert not {"cookie", "x-api-key"} & set(headers)


def test_a_named_key_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_UPSTREAM_KEY", raising=False)
    config = {
        "detector": {"engine": {"kind": "vllm", "model": "tests"}},
        "upstream": {"base_url": "http://127.0.0.1:1/v1", "api_key_env": "TEST_UPSTREAM_KEY"},
    }
    with pytest.raises(Problem, match="TEST_UPSTREAM_KEY holds no key"):
        upstream_of(ServeConfig.model_validate(config), Metrics())


def test_the_configuration_may_name_the_model(upstream: Upstream) -> None:
    with gateway(Detector(), upstream={"base_url": f"{upstream.url}/", "model": "real-model"}) as address:
        client_of(address).chat.completions.create(model="whatever", messages=messages("normal"))
    assert upstream.got[0].body["model"] == "real-model"


def test_one_clients_cookies_are_not_sent_for_another(upstream: Upstream) -> None:
    # By name: for bare addresses no cookies are kept anyway.
    with gateway(Detector(), upstream={"base_url": upstream.url.replace("127.0.0.1", "localhost")}) as address:
        for _ in range(2):
            client_of(address).chat.completions.create(model="echo", messages=messages("normal"))
    assert len(upstream.got) == 2
    assert not any("Cookie" in got.headers for got in upstream.got)


def test_only_the_configuration_says_where_messages_go(upstream: Upstream) -> None:
    """An upstream that points elsewhere isn't followed, and the client isn't told to go there by itself."""
    elsewhere = FastAPI()

    @elsewhere.post("/v1/chat/completions")
    async def moved() -> RedirectResponse:
        return RedirectResponse(f"{upstream.url}/chat/completions", 307)

    with served(elsewhere) as url, gateway(Detector(), upstream={"base_url": f"{url}/v1"}) as address:
        named = {"base_url": upstream.url, "api_base": upstream.url, "upstream": {"base_url": upstream.url}}
        body = {"model": "echo", "messages": asking("normal"), **named}
        answer = httpx.post(f"{address}/v1/chat/completions", json=body)
    assert answer.status_code == 307
    assert "location" not in answer.headers
    assert upstream.got == []


def test_conversations_by_header_and_field(upstream: Upstream, address: str) -> None:
    client = client_of(address)
    header = {"x-synuc-conversation": "by-header"}
    client.chat.completions.create(model="echo", messages=messages("conflict"), extra_headers=header)
    client.chat.completions.create(model="echo", messages=messages("conflict"), extra_body={"conversation_id": "field"})
    for name in ("by-header", "field"):
        assert httpx.get(f"{address}/v1/conversations/{name}").json()["id"] == name
    assert all("conversation_id" not in got.body for got in upstream.got)


def test_many_at_once(upstream: Upstream, address: str) -> None:
    answers: dict[int, str | None] = {}

    def ask(number: int) -> None:
        completion = client_of(address).chat.completions.create(model="echo", messages=messages(f"normal {number}"))
        answers[number] = completion.choices[0].message.content

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"normal {number}" for number in range(12)}


@given(st.binary(max_size=30), st.lists(st.integers(0, 80)), st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_marking_a_stream_changes_its_first_event_only(rest: bytes, cuts: list[int], end: bytes) -> None:
    head, event = b": ping" + end, b'data: {"a": "\xc3\xbc"}' + end
    whole = head + event + rest
    edges = [0, *sorted(cuts), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(edges)]

    async def chunks() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def collect() -> bytes:
        return b"".join([chunk async for chunk in _marked(chunks(), {"label": "ND"})])

    marked = asyncio.run(collect())
    assert marked.startswith(head)
    line, _, after = marked.removeprefix(head).partition(end)
    assert json.loads(line.removeprefix(b"data: ")) == {"a": "ü", "synuc": {"label": "ND"}}
    assert after == rest


def test_a_line_without_end_is_not_kept() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(3 * HELD_BYTES // 1000):
            yield b"x" * 1000

    async def longest() -> tuple[int, int]:
        sizes = [len(chunk) async for chunk in _marked(endless(), {"label": "ND"})]
        return max(sizes), sum(sizes)

    most, whole = asyncio.run(longest())
    assert most <= HELD_BYTES + 1000
    assert whole == 3 * HELD_BYTES // 1000 * 1000


def test_json_that_is_too_deep_passes_as_it_is() -> None:
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert _with_field(deep, {"label": "ND"}) == deep
