"""A real LiteLLM proxy that asks this service before it calls a model, and OpenAI's client in front of it."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml
from openai.types.chat import ChatCompletion

from serving.guard import note, spoken
from tests.upstream import QUESTION, VERDICTS, Detector, Upstream, asking, gateway, running_upstream

LITELLM = Path(__file__).parents[2] / ".venv-litellm/bin/litellm"
pytestmark = pytest.mark.skipif(not LITELLM.exists(), reason="no LiteLLM proxy: `make servers` installs it")

START_S = 180.0
"""Seconds within which a proxy starts on a busy machine."""
STOP_S = 20.0
SERVICE_KEY = "key-of-the-service"
NOTE = f"\n\n[{note(VERDICTS['conflict'])}]"


def guardrail(name: str, api_base: str, **params: Any) -> dict[str, Any]:
    """A guardrail of LiteLLM's configuration that asks this service."""
    common = {"guardrail": "generic_guardrail_api", "mode": "pre_call", "api_base": api_base, "api_key": SERVICE_KEY}
    return {"guardrail_name": name, "litellm_params": {**common, **params}}


def config(service: str, nobody: str, upstream: str) -> dict[str, Any]:
    """LiteLLM's configuration: one guardrail for all requests, and others that a request names to add them."""
    model = {"model": "openai/echo", "api_base": upstream, "api_key": "none"}
    return {
        "model_list": [{"model_name": "echo", "litellm_params": model}],
        "guardrails": [
            guardrail(
                "always",
                service,
                default_on=True,
                unreachable_fallback="fail_open",
                additional_provider_specific_params={"policy": "inject"},
            ),
            guardrail("ask", service, additional_provider_specific_params={"policy": "clarify"}),
            guardrail("wrong-key", service, api_key="another", unreachable_fallback="fail_open"),
            guardrail("down-open", nobody, unreachable_fallback="fail_open"),
            guardrail("down-closed", nobody, unreachable_fallback="fail_closed"),
        ],
        "general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY"},
    }


@contextmanager
def refusing() -> Iterator[str]:
    """An address of this machine at which nobody answers, and nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def running_proxy(config: dict[str, Any], folder: Path) -> Iterator[openai.OpenAI]:
    """A LiteLLM proxy with this configuration: a client of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file, log = folder / "litellm.yaml", folder / "proxy.log"
    file.write_text(yaml.safe_dump(config), "utf-8")
    key = f"sk-{secrets.token_hex(24)}"
    # Nothing else of this environment: a database's address or keys would change what the proxy does. Without the
    # prices of models in its own files it would look for them in the network.
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": key,
    }
    command = [str(LITELLM), "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        proxy = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_it_answers(f"{url}/health/readiness", proxy, log)
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60) as client:
            yield client
    finally:
        proxy.terminate()
        try:
            proxy.wait(STOP_S)
        except subprocess.TimeoutExpired:
            proxy.kill()
            proxy.wait()


def wait_until_it_answers(url: str, proxy: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        said = log.read_text("utf-8", errors="replace")[-3000:]
        assert proxy.poll() is None, f"the proxy ended:\n{said}"
        assert time.monotonic() < deadline, f"the proxy doesn't start:\n{said}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector()


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with running_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def client(detector: Detector, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_KEYS", SERVICE_KEY)
        with (
            gateway(detector, api_keys_env="TEST_KEYS", on_error="block") as service,
            refusing() as nobody,
            running_proxy(config(service, nobody, upstream.url), tmp_path_factory.mktemp("litellm")) as client,
        ):
            yield client


@pytest.fixture(autouse=True)
def forgotten(detector: Detector, upstream: Upstream) -> None:
    """What other tests left behind."""
    detector.asked.clear()
    upstream.got.clear()


def ask(client: openai.OpenAI, messages: Any, *guardrails: str) -> ChatCompletion:
    """The proxy's answer; the guardrails are those to add to the one that always runs."""
    more = {"guardrails": list(guardrails)} if guardrails else {}
    return client.chat.completions.create(model="echo", messages=messages, extra_body=more)


def arrived(upstream: Upstream) -> list[dict[str, Any]]:
    """The messages of the one request that reached the model."""
    [got] = upstream.got
    messages: list[dict[str, Any]] = got.body["messages"]
    return messages


def test_a_dialogue_without_conflict_passes_unchanged(
    client: openai.OpenAI, detector: Detector, upstream: Upstream
) -> None:
    answer = ask(client, asking("normal"), "ask")
    assert answer.choices[0].message.content == "normal"
    assert arrived(upstream) == asking("normal")
    # Both guardrails asked, and the detector saw the dialogue that the client sent.
    assert [asked.follow_up for asked in detector.asked] == ["normal", "normal"]
    assert detector.asked[0].dialogue.system == "You are a guide."
    assert [turn.user for turn in detector.asked[0].dialogue.turns] == ["Tell me about Lyon in three sentences."]


@pytest.mark.parametrize("stream", [False, True])
def test_clarify_blocks_and_the_error_is_the_question(client: openai.OpenAI, upstream: Upstream, stream: bool) -> None:
    messages: Any = asking("conflict")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="echo", messages=messages, stream=stream, extra_body={"guardrails": ["ask"]}
        )
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["message"] == spoken(QUESTION)
    assert upstream.got == []


def test_inject_gives_the_model_the_note(client: openai.OpenAI, upstream: Upstream) -> None:
    ask(client, asking("conflict"))
    assert arrived(upstream) == [*asking("conflict")[:-1], {"role": "user", "content": f"conflict{NOTE}"}]


def test_inject_gives_the_note_in_a_stream_too(client: openai.OpenAI, upstream: Upstream) -> None:
    messages: Any = asking("conflict")
    chunks = client.chat.completions.create(model="echo", messages=messages, stream=True)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said.strip() == arrived(upstream)[-1]["content"] == f"conflict{NOTE}"


def test_inject_among_images_and_calls_of_tools(client: openai.OpenAI, upstream: Upstream) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    system, first, reply, _ = asking("")
    sent = [
        {**system, "content": [{"type": "text", "text": system["content"]}]},
        first,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "12 degrees"},
        reply,
        {"role": "user", "content": [{"type": "text", "text": "conflict"}, image]},
        {"role": "user", "content": [image]},
    ]
    ask(client, sent)
    got = arrived(upstream)
    assert got[-2]["content"] == [{"type": "text", "text": f"conflict{NOTE}"}, image]
    assert got[-1] == sent[-1]
    assert [message["role"] for message in got] == [message["role"] for message in sent]


def test_a_service_that_is_down_is_for_litellm_to_decide(client: openai.OpenAI, upstream: Upstream) -> None:
    assert ask(client, asking("normal"), "down-open").choices[0].message.content == "normal"
    assert arrived(upstream) == asking("normal")
    with pytest.raises(openai.InternalServerError, match="Generic Guardrail API failed"):
        ask(client, asking("normal"), "down-closed")
    assert len(upstream.got) == 1


def test_a_detector_that_is_down_counts_as_a_service_that_is(client: openai.OpenAI, upstream: Upstream) -> None:
    ask(client, asking("down"))
    assert arrived(upstream) == asking("down")
    with pytest.raises(openai.InternalServerError, match="503 Service Unavailable"):
        ask(client, asking("down"), "ask")
    assert len(upstream.got) == 1


def test_a_wrong_key_is_no_reason_to_go_on(client: openai.OpenAI, upstream: Upstream) -> None:
    with pytest.raises(openai.InternalServerError, match="401 Unauthorized"):
        ask(client, asking("normal"), "wrong-key")
    assert upstream.got == []
