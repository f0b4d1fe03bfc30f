"""The engine of batch files: against whoever answers files in a folder, and against an endpoint that has batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from actors import batch_upload
from actors.batch_engine import BatchFiles
from actors.batch_files import waiting
from actors.engine import Call, Completion, EngineUnavailable, ask, build_engine
from actors.openai_api import body
from actors.replies import Recorder, ReplyFiles, Work
from synuc.config import BatchEngine
from synuc.types import CallFailed, LLMRequest
from tests.batch_standin import Batches, answer_line, batch_endpoint
from tests.standin import Running, Standin, arguments
from tests.unit.test_replies import Actor, Engine

ANSWERING = Standin(arguments([]))


class Reply(BaseModel):
    model_config = ConfigDict(extra="forbid")

    note: str
    ok: bool


def request(content: str = "hello", key: str = "k", **changes: Any) -> LLMRequest:
    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": content})
    fields: dict[str, Any] = {"max_tokens": 400, "temperature": 0.0, "stage": "er.pair", **changes}
    return LLMRequest(role="generator", key=key, messages=messages, reply=Reply, **fields)


def config(folder: Path, **changes: Any) -> BatchEngine:
    settings = {"model": "standin", "settle_s": 0.05, "poll_s": 0.05, "api_key_env": "SYNUC_TEST_KEY", **changes}
    return BatchEngine(kind="batch", folder=folder, **settings)


@asynccontextmanager
async def engine(folder: Path, **changes: Any) -> AsyncIterator[BatchFiles]:
    made = BatchFiles(config(folder, **changes))
    try:
        yield made
    finally:
        await made.close()


async def until(true: Callable[[], Any]) -> None:
    for _ in range(3000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


def waves(folder: Path) -> list[list[dict[str, Any]]]:
    """The requests of each wave."""
    return [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("wave-*[0-9].jsonl"))
    ]


def put(folder: Path, name: str, lines: Sequence[Any]) -> None:
    """Put answers, or any text, into a file that grows."""
    with (folder / f"{name}.answers.jsonl").open("a") as file:
        file.writelines(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)


def good(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [answer_line(ANSWERING, line) for line in requests]


def bad(requests: Sequence[dict[str, Any]], status: int, message: str = "oh") -> list[dict[str, Any]]:
    response = {"status_code": status, "body": {"error": {"code": "", "message": message}}}
    return [{"custom_id": line["custom_id"], "response": response, "error": None} for line in requests]


async def gathered(calls: Sequence[Awaitable[Any]]) -> list[Any]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*calls, return_exceptions=True)


def asked(made: BatchFiles, *requests: LLMRequest, attempt: int = 0) -> asyncio.Task[list[Any]]:
    return asyncio.create_task(gathered([made.complete(item, attempt) for item in requests]))


def test_what_is_asked_together_is_one_file_in_the_shape_of_the_batch_api(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine(tmp_path) as made:
            calls = asked(made, *(request(f"call {n}") for n in range(5)), request("call 0"))
            await until(lambda: waves(tmp_path))
            (wave,) = waves(tmp_path)
            assert len(wave) == len({line["custom_id"] for line in wave}) == 5
            assert {(line["method"], line["url"]) for line in wave} == {("POST", "/v1/chat/completions")}
            fields = {"model": "standin", "max_completion_tokens": 400}
            assert wave[3]["body"] == fields | body(config(tmp_path), request("call 3"), 0)
            await until(lambda: waiting(tmp_path))
            assert waiting(tmp_path)[0].startswith("wave-000001: 5 requests, 0 answered, waiting since")
            put(tmp_path, "wave-000001", good(wave)[::-1])
            answers = await calls
            assert answers[0] == answers[5]
            # Each its own: the stand-in's answer follows from the body.
            assert len({answer.text for answer in answers}) == 5
            await until(lambda: not waiting(tmp_path))

    asyncio.run(main())


def test_the_engine_is_asked_like_any_other(tmp_path: Path) -> None:
    async def main() -> None:
        made = build_engine(config(tmp_path, price={"completion": 1e6}))
        ledger: list[Call] = []
        call = asyncio.create_task(ask(made, request(), ledger, 1))
        await until(lambda: waves(tmp_path))
        put(tmp_path, "any", good(waves(tmp_path)[0]))
        assert isinstance(await call, Reply)
        assert ledger[0].cost == ledger[0].completion_tokens > 0
        await made.close()

    asyncio.run(main())


def test_another_attempt_is_another_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine(tmp_path) as made:
            call = asyncio.create_task(ask(made, request(), [], 2))
            await until(lambda: waves(tmp_path))
            (first,) = good(waves(tmp_path)[0])
            first["response"]["body"]["choices"][0]["message"]["content"] = "no JSON"
            put(tmp_path, "a", [first])
            await until(lambda: len(waves(tmp_path)) == 2)
            put(tmp_path, "a", good(waves(tmp_path)[1]))
            assert isinstance(await call, Reply)

    asyncio.run(main())


def test_a_stopped_engine_takes_the_answers_there_are_and_asks_nothing_twice(tmp_path: Path) -> None:
    requests = [request(f"call {n}") for n in range(4)]

    async def stopped() -> None:
        async with engine(tmp_path) as made:
            calls = asked(made, *requests)
            await until(lambda: waves(tmp_path))
            put(tmp_path, "first", good(waves(tmp_path)[0][:1]))
            await until(lambda: "1 answered" in str(waiting(tmp_path)))
            calls.cancel()
        # While nobody looked.
        put(tmp_path, "first", good(waves(tmp_path)[0][1:2]))

    async def continued() -> None:
        async with engine(tmp_path) as made:
            calls = asked(made, *requests, request("new"))
            await until(lambda: len(waves(tmp_path)) == 2)
            assert [line["body"]["messages"][1]["content"] for line in waves(tmp_path)[1]] == ["new"]
            put(tmp_path, "rest", good([*waves(tmp_path)[0][2:], *waves(tmp_path)[1]]))
            assert all(isinstance(answer, Completion) for answer in await calls)
            again = await asked(made, *requests)
            assert all(isinstance(answer, Completion) for answer in again)
            assert len(waves(tmp_path)) == 2

    asyncio.run(stopped())
    asyncio.run(continued())


def test_it_says_which_requests_it_has_kept(tmp_path: Path) -> None:
    async def stopped() -> None:
        async with engine(tmp_path) as made:
            calls = asked(made, *(request(content) for content in ("answered", "open", "refused", "lost")))
            await until(lambda: waves(tmp_path))
            (wave,) = waves(tmp_path)
            lines = [*good(wave[:1]), *bad(wave[2:3], 400), *bad(wave[3:], 500)]
            put(tmp_path, "a", lines)
            calls.cancel()

    async def continued() -> None:
        async with engine(tmp_path) as made:
            contents = ("answered", "open", "refused", "lost", "new")
            assert [await made.has(request(content), 0) for content in contents] == [True, True, True, False, False]
            assert not await made.has(request("open"), 1)

    asyncio.run(stopped())
    asyncio.run(continued())


def test_a_stopped_dialogue_counts_as_asked_once_what_was_in_a_file(tmp_path: Path) -> None:
    files = ReplyFiles(str(tmp_path))
    folder = tmp_path / "batches"

    async def dialogue(killed: bool) -> list[Call]:
        process = Engine()
        recorder = Recorder(Actor(files, process))
        work = Work("s", recorder, await recorder.read("s"))
        async with engine(folder) as made:
            asking = work.asking(made, lambda call: None)
            call = asyncio.create_task(ask(asking, request(), asking.record, 1))
            await until(lambda: waves(folder))
            await recorder.written()
            if killed:
                process.dead = True
                call.cancel()
            else:
                put(folder, "a", good(waves(folder)[0]))
            await asyncio.wait([call])
            await recorder.written()
            return work.ledger

    asyncio.run(dialogue(killed=True))
    (call,) = asyncio.run(dialogue(killed=False))
    assert (call.error, call.again) == ("", False)
    assert len(waves(folder)) == 1


def test_a_line_counts_once_it_is_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine(tmp_path) as made:
            calls = asked(made, request())
            await until(lambda: waves(tmp_path))
            text = json.dumps(good(waves(tmp_path)[0])[0])
            put(tmp_path, "a", [text])
            await asyncio.sleep(0.3)
            assert not calls.done()
            put(tmp_path, "a", ["\n"])
            assert isinstance((await calls)[0], Completion)

    asyncio.run(main())


def test_lines_of_no_use_are_counted_and_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine(tmp_path) as made:
            calls = asked(made, request())
            await until(lambda: waves(tmp_path))
            (line,) = good(waves(tmp_path)[0])
            put(tmp_path, "a", ["{broken\n", "[]\n", {**line, "custom_id": "0" * 32}, "\n", line, line])
            assert isinstance((await calls)[0], Completion)
            useless = "1 to nothing that was asked, 1 repeated, 2 unreadable"
            await until(lambda: waiting(tmp_path) == [f"lines of answers that are of no use: {useless}"])
        assert (tmp_path / "a.answers.jsonl").read_text().startswith("{broken\n[]\n")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "maximum context length is 8 tokens", "context_length"),
        (400, "content management policy", "content_filter"),
        (422, "no", "bad_request"),
        (
            400,
            "max_tokens or max_completion_tokens exceed the maximum context length of 8",
            "context_length",
        ),
    ],
)
def test_what_an_error_line_refuses_fails_at_once(tmp_path: Path, status: int, message: str, kind: str) -> None:
    async def main() -> None:
        async with engine(tmp_path) as made:
            calls = asked(made, request())
            await until(lambda: waves(tmp_path))
            put(tmp_path, "a", bad(waves(tmp_path)[0], status, message))
            (failed,) = await calls
            assert isinstance(failed, CallFailed)
            assert failed.kind == kind
            # It stays refused, and nothing is asked again.
            assert [error.kind for error in await asked(made, request())] == [kind]
            assert len(waves(tmp_path)) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "message", "says"),
    [
        (401, "bad key", "SYNUC_TEST_KEY"),
        (404, "no such model", "no model standin"),
        (400, "response_format isn't supported", "set engine.structured=json_object"),
        (400, "use max_tokens instead of max_completion_tokens", "set engine.token_limit=max_tokens"),
    ],
)
def test_what_would_refuse_every_request_stops_and_is_asked_again(
    tmp_path: Path, status: int, message: str, says: str
) -> None:
    async def stopped() -> None:
        async with engine(tmp_path) as made:
            calls = asked(made, request("a"), request("b"))
            await until(lambda: waves(tmp_path))
            put(tmp_path, "a", bad(waves(tmp_path)[0], status, message))
            for failed in await calls:
                assert isinstance(failed, EngineUnavailable)
                assert says in str(failed)

    async def continued() -> None:
        async with engine(tmp_path) as made:
            calls = asked(made, request("a"), request("b"))
            await until(lambda: len(waves(tmp_path)) == 2)
            put(tmp_path, "a", good(waves(tmp_path)[1]))
            assert all(isinstance(answer, Completion) for answer in await calls)

    asyncio.run(stopped())
    asyncio.run(continued())


@pytest.mark.parametrize("how", ["500", "429", "expired", "no completion"])
def test_what_comes_back_without_an_answer_goes_into_the_next_file_so_many_times(tmp_path: Path, how: str) -> None:
    def lost(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if how.isdigit():
            return bad(requests, int(how))
        if how == "expired":
            error = {"code": "batch_expired", "message": "too late"}
            return [{"custom_id": line["custom_id"], "response": None, "error": error} for line in requests]
        response = {"status_code": 200, "body": {"hello": 1}}
        return [{"custom_id": line["custom_id"], "response": response, "error": None} for line in requests]

    async def main() -> None:
        async with engine(tmp_path, tries=3) as made:
            calls = asked(made, request("poison"), request("well"))
            for n in range(3):
                await until(lambda n=n: len(waves(tmp_path)) == n + 1)  # type: ignore[misc]
                poison, *rest = waves(tmp_path)[n]
                assert "poison" in poison["body"]["messages"][1]["content"]
                assert len(rest) == (n == 0)
                put(tmp_path, f"answer-{n}", [*lost([poison]), *good(rest)])
            failed, answer = await calls
            assert isinstance(answer, Completion)
            assert isinstance(failed, CallFailed)
            assert failed.kind == "endpoint"
            assert "came back 3 times" in failed.reason
            assert len(waves(tmp_path)) == 3

    asyncio.run(main())


def test_files_are_not_too_large(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine(tmp_path, max_requests=4) as made:
            calls = asked(made, *(request(f"call {n}") for n in range(10)))
            await until(lambda: sum(map(len, waves(tmp_path))) == 10)
            assert [len(wave) for wave in waves(tmp_path)] == [4, 4, 2]
            put(tmp_path, "a", good([line for wave in waves(tmp_path) for line in wave]))
            assert all(isinstance(answer, Completion) for answer in await calls)

    asyncio.run(main())


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine(tmp_path) as first, engine(tmp_path) as second:
            calls = asked(first, request("a"))
            await until(lambda: waves(tmp_path))
            (refused,) = await asked(second, request("b"))
            assert isinstance(refused, EngineUnavailable)
            assert "or another engine.folder" in str(refused)
            calls.cancel()

    asyncio.run(main())


def test_a_folder_that_takes_nothing_stops_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def main() -> None:
        async with engine(tmp_path / "file") as made:
            (failed,) = await asked(made, request())
            assert isinstance(failed, EngineUnavailable)
            assert "make room" in str(failed)
            with pytest.raises(EngineUnavailable, match="make room"):
                await made.check()

    asyncio.run(main())


# With an endpoint


@pytest.fixture
def endpoint() -> Iterator[tuple[str, Batches]]:
    with batch_endpoint() as running:
        yield running


async def answers(folder: Path, url: str, n: int = 5, **changes: Any) -> list[Any]:
    async with engine(folder, base_url=url, **changes) as made:
        return await asked(made, *(request(f"call {n}") for n in range(n)))


def test_waves_are_uploaded_and_their_answers_fetched(tmp_path: Path, endpoint: tuple[str, Batches]) -> None:
    url, batches = endpoint
    got = asyncio.run(answers(tmp_path, url))
    assert all(isinstance(answer, Completion) for answer in got)
    assert len(batches.batches) == 1
    assert len(batches.sent) == 5
    assert [line["custom_id"] for line in waves(tmp_path)[0]] == batches.sent


def test_a_batch_that_was_sent_goes_on_while_nobody_looks(tmp_path: Path, endpoint: tuple[str, Batches]) -> None:
    url, batches = endpoint
    batches.hold = True

    async def stopped() -> None:
        async with engine(tmp_path, base_url=url) as made:
            calls = asked(made, *(request(f"call {n}") for n in range(5)))
            await until(lambda: "batch-0 in_progress" in str(waiting(tmp_path)))
            calls.cancel()

    asyncio.run(stopped())
    batches.hold = False
    assert all(isinstance(answer, Completion) for answer in asyncio.run(answers(tmp_path, url)))
    assert len(batches.batches) == 1


def test_a_batch_whose_making_was_not_answered_is_found_again(tmp_path: Path, endpoint: tuple[str, Batches]) -> None:
    url, batches = endpoint
    batches.forget = 1
    assert all(isinstance(answer, Completion) for answer in asyncio.run(answers(tmp_path, url)))
    assert len(batches.batches) == 1


@pytest.mark.parametrize("how", ["expired", "cancelled"])
def test_what_a_batch_left_open_goes_into_the_next(tmp_path: Path, endpoint: tuple[str, Batches], how: str) -> None:
    url, batches = endpoint
    batches.ends, batches.unanswered = [how], 2
    assert all(isinstance(answer, Completion) for answer in asyncio.run(answers(tmp_path, url)))
    assert [len(wave) for wave in waves(tmp_path)] == [5, 2]
    assert batches.sent[5:] == batches.sent[3:5]


def test_a_request_that_no_batch_answers_fails_alone(tmp_path: Path, endpoint: tuple[str, Batches]) -> None:
    url, batches = endpoint
    batches.ends = ["expired"] * 2
    *others, last = asyncio.run(answers(tmp_path, url, tries=2))
    assert all(isinstance(answer, Completion) for answer in others)
    assert isinstance(last, CallFailed)
    assert "ended as expired" in last.reason
    assert len(batches.sent) == 6


def test_error_files_are_read_too(tmp_path: Path, endpoint: tuple[str, Batches]) -> None:
    url, batches = endpoint
    batches.statuses = [500, 400]
    got = asyncio.run(answers(tmp_path, url))
    assert isinstance(got[1], CallFailed)
    assert got[1].kind == "bad_request"
    assert [isinstance(answer, Completion) for answer in got] == [True, False, True, True, True]
    assert batches.sent[5:] == batches.sent[:1]


def test_a_full_queue_is_waited_for(
    tmp_path: Path, endpoint: tuple[str, Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, batches = endpoint
    monkeypatch.setattr(batch_upload, "SECONDS_FOR_A_QUEUE", 0.1)
    batches.ends = ["failed"] * 2
    batches.errors = [{"code": "token_limit_exceeded", "message": "Enqueued token limit reached"}]
    assert all(isinstance(answer, Completion) for answer in asyncio.run(answers(tmp_path, url)))
    assert {batch["input_file_id"] for batch in batches.batches.values()} == {"file-0"}
    assert len(batches.batches) == 3


def test_a_file_that_is_refused_stops_and_its_requests_are_sent_anew(
    tmp_path: Path, endpoint: tuple[str, Batches]
) -> None:
    url, batches = endpoint
    batches.ends = ["failed"]
    batches.errors = [{"code": "too_many", "message": "this file has too many lines"}]
    for failed in asyncio.run(answers(tmp_path, url)):
        assert isinstance(failed, EngineUnavailable)
        assert "too many lines" in str(failed)
    assert all(isinstance(answer, Completion) for answer in asyncio.run(answers(tmp_path, url, max_requests=3)))
    assert [len(wave) for wave in waves(tmp_path)] == [3, 2]
    assert (tmp_path / "wave-000001.refused.jsonl").exists()


def test_an_endpoint_that_is_down_for_a_while_is_waited_for(tmp_path: Path, endpoint: tuple[str, Batches]) -> None:
    url, batches = endpoint
    batches.hold = True

    async def main() -> None:
        async with engine(tmp_path, base_url=url) as made:
            calls = asked(made, request())
            await until(lambda: batches.batches)
            batches.down = True
            await until(lambda: "fails: HTTP 503" in str(waiting(tmp_path)))
            batches.down = batches.hold = False
            assert isinstance((await calls)[0], Completion)

    asyncio.run(main())


def checked(folder: Path, url: str, **changes: Any) -> None:
    async def main() -> None:
        async with engine(folder, base_url=url, **changes) as made:
            await made.check()

    asyncio.run(main())


def test_a_check_finds_what_would_show_after_hours(
    tmp_path: Path,
    endpoint: tuple[str, Batches],
    standin: Callable[..., Running],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, batches = endpoint
    checked(tmp_path, url)
    assert not batches.batches
    with pytest.raises(EngineUnavailable, match=r"engine\.token_limit=max_completion_tokens"):
        checked(tmp_path, url, model="modern", token_limit="max_tokens")
    with pytest.raises(EngineUnavailable, match="no model missing"):
        checked(tmp_path, url, model="missing")
    with pytest.raises(EngineUnavailable, match=r"no batches .* use engine\.kind=openai"):
        checked(tmp_path, standin().url)
    monkeypatch.delenv("SYNUC_TEST_KEY", raising=False)
    with pytest.raises(EngineUnavailable, match="set the environment variable SYNUC_TEST_KEY"):
        checked(tmp_path, "https://llm.example/v1")
