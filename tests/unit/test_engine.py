"""`ask`, schemas and the OpenAI engine against a stand-in endpoint in another process."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ConfigDict, Field

from actors.engine import (
    Call,
    Completion,
    Engine,
    EngineUnavailable,
    ask,
    build_engine,
    cost,
    parse,
    reply_schema,
    sampling_seed,
    sampling_temperature,
)
from actors.openai_api import body, completion, other_limit
from actors.openai_engine import OpenAIEndpoint
from synuc.config import OpenAIEngine, Price
from synuc.types import CallFailed, LLMRequest, Spoken
from tests.standin import Running

Standin = Callable[..., Running]
KEY = "sk-0123456789abcdef"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    title: Annotated[str, Field(min_length=3, max_length=40)]
    kind: Literal["explicit", "implicit"] = "explicit"


class Reply(BaseModel):
    model_config = ConfigDict(extra="forbid")

    parts: Annotated[tuple[Part, ...], Field(min_length=1, max_length=4)]
    q: Annotated[int, Field(ge=0, le=100)]
    ok: bool
    note: str | None = None


class Looping(BaseModel):
    inner: list[Looping]


def request(content: str = "hello", key: str = "k", **changes: Any) -> LLMRequest:
    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": content})
    fields: dict[str, Any] = {"max_tokens": 400, "temperature": 0.0, "stage": "er.pair", **changes}
    return LLMRequest(role="generator", key=key, messages=messages, reply=Reply, **fields)


def config(url: str, **changes: Any) -> OpenAIEngine:
    settings: dict[str, Any] = {"model": "standin", "give_up_after_s": 20, "timeout_s": 10, **changes}
    return OpenAIEngine(kind="openai", base_url=url, api_key_env="SYNUC_TEST_KEY", **settings)


def run_calls(engine_config: OpenAIEngine, *requests: LLMRequest, attempts: int = 3) -> tuple[list[Any], list[Call]]:
    """What each call gave, an exception or a value, and the ledger."""

    async def main() -> tuple[list[Any], list[Call]]:
        engine, ledger = build_engine(engine_config), list[Call]()
        try:
            calls = (ask(engine, item, ledger, attempts) for item in requests)
            return await asyncio.gather(*calls, return_exceptions=True), ledger
        finally:
            await engine.close()

    return asyncio.run(main())


def run_check(engine_config: OpenAIEngine) -> None:
    async def main() -> None:
        engine = build_engine(engine_config)
        try:
            await engine.check()
        finally:
            await engine.close()

    asyncio.run(main())


def test_an_answer_is_parsed_and_leaves_a_row(standin: Standin) -> None:
    (value,), (call,) = run_calls(config(standin().url, price=Price(prompt=1e6, completion=2e6)), request())
    assert isinstance(value, Reply)
    assert value.q == 100
    assert (call.key, call.stage, call.role, call.model) == ("k", "er.pair", "generator", "standin")
    assert (call.attempt, call.error, call.finish_reason) == (0, "", "stop")
    assert call.cost == call.prompt_tokens + 2 * call.completion_tokens > 0
    assert abs(call.started - time.time()) < 60
    assert 0.01 <= call.seconds < 10


@pytest.mark.parametrize("structured", ["json_schema", "json_object", "none"])
def test_every_structured_mode_asks_for_the_schema(standin: Standin, structured: str) -> None:
    (value,), _ = run_calls(config(standin().url, structured=structured), request())
    assert isinstance(value, Reply)


@pytest.mark.parametrize("fault", ["429", "500", "503", "drop", "garbage"])
def test_faults_are_retried(standin: Standin, fault: str) -> None:
    endpoint = standin("--fault", fault, "--fail-first", "2")
    (value,), ledger = run_calls(config(endpoint.url), request())
    assert isinstance(value, Reply)
    assert [call.error for call in ledger] == [""]
    assert endpoint.stats()["requests"] == 3


def test_many_calls_get_through_a_flaky_endpoint(standin: Standin) -> None:
    endpoint = standin("--error-rate", "0.2")
    values, ledger = run_calls(config(endpoint.url), *(request(f"call {n}") for n in range(100)))
    assert all(isinstance(value, Reply) for value in values)
    assert len(ledger) == 100
    assert endpoint.stats()["errors"] > 5


def test_retry_after_is_honoured(standin: Standin) -> None:
    endpoint = standin("--fault", "429", "--fail-first", "1", "--retry-after", "1.5")
    _, (call,) = run_calls(config(endpoint.url), request())
    assert 1.5 <= call.seconds < 5


def test_an_endpoint_that_asks_to_wait_too_long_is_given_up_at_once(standin: Standin) -> None:
    endpoint = standin("--fault", "429", "--fail-first", "1", "--retry-after", "600")
    (error,), (call,) = run_calls(config(endpoint.url), request())
    assert isinstance(error, EngineUnavailable)
    assert "asks to wait 600 s" in str(error)
    assert call.seconds < 5


def test_a_poisonous_call_fails_alone_while_others_are_answered(standin: Standin) -> None:
    endpoint = standin("--service-time", "0.3")
    poison = request("TRICK_POISON")
    others = [request(f"call {n}") for n in range(12)]
    values, _ = run_calls(config(endpoint.url, give_up_after_s=1, max_in_flight=2), poison, *others)
    assert isinstance(values[0], CallFailed)
    assert values[0].kind == "endpoint"
    assert all(isinstance(value, Reply) for value in values[1:])


def test_a_wrong_key_stops_the_run_and_is_not_shown(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNUC_TEST_KEY", KEY)
    engine_config = config(standin("--key", "another").url)
    (error,), _ = run_calls(engine_config, request())
    assert isinstance(error, EngineUnavailable)
    assert "SYNUC_TEST_KEY" in str(error)
    assert KEY not in str(error) + repr(error) + repr(vars(OpenAIEndpoint(engine_config))["_client"])
    with pytest.raises(EngineUnavailable, match="SYNUC_TEST_KEY"):
        run_check(engine_config)


def test_the_right_key_is_let_in(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNUC_TEST_KEY", KEY)
    run_check(config(standin("--key", KEY).url))


def test_a_remote_endpoint_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYNUC_TEST_KEY", raising=False)
    with pytest.raises(EngineUnavailable, match="set the environment variable SYNUC_TEST_KEY"):
        build_engine(config("https://llm.example/v1"))


def test_a_missing_model_stops_the_run(standin: Standin) -> None:
    with pytest.raises(EngineUnavailable, match="no model missing"):
        run_check(config(standin().url, model="missing"))


def test_an_endpoint_without_structured_output_says_which_mode_to_take(standin: Standin) -> None:
    with pytest.raises(EngineUnavailable, match=r"set engine\.structured=json_object"):
        run_check(config(standin().url, model="unconstrained"))
    run_check(config(standin().url, model="unconstrained", structured="none"))


def test_models_that_want_max_completion_tokens_get_it(standin: Standin) -> None:
    values, _ = run_calls(config(standin().url, model="modern"), request("a"), request("b"))
    assert all(isinstance(value, Reply) for value in values)


@pytest.mark.parametrize(
    ("limit", "said", "other"),
    [
        ("max_tokens", "'max_tokens' is not supported, use 'max_completion_tokens' instead", "max_completion_tokens"),
        ("max_completion_tokens", "unknown field max_completion_tokens, did you mean max_tokens", "max_tokens"),
        ("max_tokens", "max_tokens is too large", None),
        ("max_tokens", "max_tokens or max_completion_tokens exceed the maximum context length of 8", None),
    ],
)
def test_an_error_says_whether_the_token_limit_has_another_name(limit: str, said: str, other: str | None) -> None:
    assert other_limit(limit, 400, said) == other_limit(limit, 422, said) == other
    assert other_limit(limit, 500, said) is None


def test_an_endpoint_that_takes_neither_name_of_the_token_limit_is_not_asked_for_ever() -> None:
    asked: list[str] = []

    async def refuse(got: web.Request) -> web.Response:
        asked.append(*(name for name in await got.json() if name.endswith("_tokens")))
        return web.json_response({"error": {"message": "neither max_tokens nor max_completion_tokens"}}, status=400)

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", refuse)
        async with TestServer(app) as server:
            made = OpenAIEndpoint(config(str(server.make_url("/v1"))))
            with pytest.raises(CallFailed, match="neither"):
                await made.complete(request(), 0)
            await made.close()

    asyncio.run(main())
    assert asked == ["max_tokens", "max_completion_tokens"]


def test_an_unreachable_port_is_given_up_in_time() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begun = time.monotonic()
    (error,), (call,) = run_calls(config(f"http://127.0.0.1:{port}/v1", give_up_after_s=2), request())
    assert isinstance(error, EngineUnavailable)
    assert "unreachable" in str(error)
    assert 1.5 < time.monotonic() - begun < 8
    assert call.error == "EngineUnavailable"


def test_a_call_without_an_answer_times_out(standin: Standin) -> None:
    endpoint = standin("--service-time", "30")
    (error,), (call,) = run_calls(config(endpoint.url, timeout_s=0.5, give_up_after_s=0), request())
    assert isinstance(error, EngineUnavailable)
    assert "timeout_s=0.5" in str(error)
    assert call.seconds < 5


def test_an_answer_that_does_not_end_is_truncated_after_n_attempts(standin: Standin) -> None:
    (error,), ledger = run_calls(config(standin().url), request(max_tokens=3), attempts=2)
    assert isinstance(error, CallFailed)
    assert error.kind == "truncated"
    assert [(call.attempt, call.error, call.finish_reason) for call in ledger] == [
        (0, "truncated", "length"),
        (1, "truncated", "length"),
    ]


def test_nonsense_is_unparseable_after_n_attempts(standin: Standin) -> None:
    endpoint = standin("--nonsense")
    (error,), ledger = run_calls(config(endpoint.url), request(), attempts=3)
    assert isinstance(error, CallFailed)
    assert error.kind == "unparseable"
    assert "the answer begins" in error.reason
    assert len(error.reason) < 400
    assert [call.error for call in ledger] == ["unparseable"] * 3
    assert all(call.completion_tokens for call in ledger)
    assert endpoint.stats()["answered"] == 3


def test_an_answer_of_no_use_is_kept_whole() -> None:
    class Rambling:
        name, price = "rambling", Price()

        async def complete(self, request: LLMRequest, attempt: int) -> Completion:
            return Completion("Well, it depends. " * 500, "stop", 10, 0, 2000)

    ledger: list[Call] = []
    with pytest.raises(CallFailed, match="the answer begins"):
        asyncio.run(ask(cast(Engine, Rambling()), request(), ledger, attempts=2))
    assert [call.unused for call in ledger] == ["Well, it depends. " * 500] * 2


@pytest.mark.parametrize(
    ("trick", "kind"), [("TRICK_TOO_LONG", "context_length"), ("TRICK_FILTERED", "content_filter")]
)
def test_a_refused_call_fails_at_once(standin: Standin, trick: str, kind: str) -> None:
    (error,), ledger = run_calls(config(standin().url), request(trick))
    assert isinstance(error, CallFailed)
    assert error.kind == kind
    assert [call.error for call in ledger] == [kind]


def test_fences_are_tolerated_and_surrogates_cleaned(standin: Standin) -> None:
    values, _ = run_calls(config(standin().url), request("TRICK_FENCES"), request("TRICK_SURROGATE"))
    assert isinstance(values[0], Reply)
    assert isinstance(values[1], Reply)
    assert values[1].parts[0].title.startswith("\ufffd")
    assert "\x00" not in values[1].parts[0].title


def test_calls_in_flight_are_bounded(standin: Standin) -> None:
    endpoint = standin()

    async def main() -> None:
        engine = build_engine(config(endpoint.url, max_in_flight=50), share=5)
        await asyncio.gather(*(ask(engine, request(f"call {n}"), [], 1) for n in range(40)))
        await engine.close()

    asyncio.run(main())
    assert endpoint.stats()["max_in_flight"] == 5


def test_control_tokens_are_broken_on_their_way_out() -> None:
    fields = body(config("http://127.0.0.1:1/v1", extra_body={"top_k": 1}), request("a<|im_end|>"), 1)
    assert fields["messages"][1]["content"] == "a<\u200b|im_end|>"
    assert fields["response_format"]["json_schema"]["name"] == "er_pair"
    assert fields["top_k"] == 1
    assert fields["temperature"] == 0.7
    assert fields["seed"] == sampling_seed(request(), 1)


def test_seeds_are_stable_and_differ_between_attempts() -> None:
    assert sampling_seed(request(), 0) == 1022449131
    seeds = {sampling_seed(request(key=key), attempt) for key in "ab" for attempt in range(3)}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_retry_is_not_greedy() -> None:
    assert [sampling_temperature(request(temperature=t), a) for t, a in ((0.0, 0), (0.0, 1), (1.0, 1))] == [
        0.0,
        0.7,
        1.0,
    ]


def test_cached_tokens_have_their_own_price() -> None:
    completion = Completion("", "stop", prompt_tokens=1000, cached_tokens=600, completion_tokens=100)
    assert cost(completion, Price(prompt=2, cached_prompt=1, completion=10)) == pytest.approx(2400e-6)


GOOD = {"parts": [{"title": "abc", "kind": "implicit"}], "q": 3, "ok": True, "note": None}
TEXT = json.dumps(GOOD)


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"```json\n{TEXT}\n```",
        f"Sure {{really}}:\n{TEXT}\nDone.",
        f'<think>maybe {{"q": 1}}</think>{TEXT}',
        TEXT.replace('"abc"', '"a\nc"'),
        f"\ufeff  {TEXT}",
    ],
)
def test_one_object_is_found_in_its_surroundings(text: str) -> None:
    assert isinstance(parse(Completion(text, "stop", 0, 0, 0), Reply), Reply)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no JSON objects"),
        ("[1, 2]", "no JSON objects"),
        (TEXT + TEXT, "2 JSON objects"),
        ('{"outer": {"parts": []}, oops}', "Expecting property name"),
        (TEXT[:-9], "Unterminated string"),
        (TEXT.replace("3", "300"), "q: Input should be less than or equal to 100"),
        (TEXT.replace("3", "NaN"), "NaN is no JSON"),
        (TEXT.replace("3", "9" * 5000), "integer string conversion"),
        (TEXT.replace("true", '"perhaps"'), "ok: "),
        ('{"a":' * 100_000, "recursion"),
        (TEXT.replace('"abc"', '"\\u0000\\u0000\\u0000"'), "at least 3 characters"),
    ],
)
def test_anything_else_is_unparseable(text: str, says: str) -> None:
    with pytest.raises(CallFailed, match=says) as caught:
        parse(Completion(text, "stop", 0, 0, 0), Reply)
    assert caught.value.kind == "unparseable"


def test_schemas_are_flat_and_strict() -> None:
    schema = reply_schema(Reply)
    assert reply_schema(Reply) is schema
    part = schema["properties"]["parts"]["items"]
    assert part["properties"]["title"] == {"type": "string", "minLength": 3, "maxLength": 40}
    assert part["required"] == ["title", "kind"]
    assert part["additionalProperties"] is schema["additionalProperties"] is False
    assert schema["required"] == ["parts", "q", "ok", "note"]
    assert not {"$ref", "$defs", "default"} & set(json.dumps(schema).replace('"', " ").split())


def test_a_schema_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="Looping contains itself"):
        reply_schema(Looping)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_that_an_endpoint_gives_apart_are_kept(field: str) -> None:
    message = {"role": "assistant", "content": "Fine.", field: "they want\ud800 quiet"}
    answer = ChatCompletion.model_validate(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        }
    )
    spoken = parse(completion(answer), Spoken)
    assert isinstance(spoken, Spoken)
    assert spoken.text == "Fine."
    assert spoken.thoughts.startswith("they want")
    assert spoken.thoughts.endswith(" quiet")
    assert spoken.thoughts.encode()
