"""The worker of an evaluation on a stand-in endpoint: what it asks, keeps and doesn't ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from actors import openai_api
from eval.protocol import Evaluation, Item
from eval.worker import EvalWorker, Row, request_hash
from synuc.config import OpenAIEngine
from synuc.effects import Fork
from synuc.types import CallFailed, LLMRequest, Spoken
from tests.standin import TRICKS, Running


class Verdict(BaseModel):
    reason: str
    right: bool


@dataclass(frozen=True)
class Judged:
    """The model answers, then two judges look at it side by side."""

    name = "judged"

    def snapshot(self) -> dict[str, Any]:
        return {}

    def program(self, item: Item) -> Generator[Any, Any, dict[str, Any]]:
        answer: Spoken = yield request("model", item, item["text"], Spoken)
        verdicts = yield Fork((self.judge(item, answer.text, "a"), self.judge(item, answer.text, "b")))
        return {"answer": answer.text, "verdicts": verdicts}

    def judge(self, item: Item, answer: str, which: str) -> Generator[Any, Any, bool]:
        verdict: Verdict = yield request("judge", item, f"{which}: {answer} {item.get('trick', '')}", Verdict)
        return verdict.right

    def figures(self, items: Any, results: Any) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Forgiving(Judged):
    """A judge that fails costs its verdict only."""

    def judge(self, item: Item, answer: str, which: str) -> Generator[Any, Any, bool]:
        try:
            return (yield from super().judge(item, answer, which))
        except CallFailed:
            return False


def request(role: Any, item: Item, text: str, reply: type[BaseModel]) -> LLMRequest:
    messages = ({"role": "user", "content": text},)
    return LLMRequest(stage=role, role=role, key=item["id"], messages=messages, reply=reply, max_tokens=4000)


def engine(url: str, **more: Any) -> OpenAIEngine:
    return OpenAIEngine(kind="openai", model="standin", base_url=url, give_up_after_s=1, **more)


def work(
    endpoint: Running,
    item: Item,
    known: dict[str, Any] | None = None,
    evaluation: Evaluation | None = None,
    seed: int = 0,
    draw: int = 0,
) -> list[Row]:
    async def all_rows() -> list[Row]:
        config = engine(endpoint.url)
        worker = EvalWorker({"model": config, "judge": config}, workers=1, attempts=2, seed=seed)
        try:
            return [row async for row in worker.work(evaluation or Judged(), item, known or {}, draw)]
        finally:
            await worker.close()

    return asyncio.run(all_rows())


def rows_of(table: str, rows: list[Row]) -> list[dict[str, Any]]:
    return [row for name, row in rows if name == table]


@pytest.fixture
def endpoint(standin: Callable[..., Running]) -> Running:
    return standin()


def test_every_prompt_answer_and_token_is_kept(endpoint: Running) -> None:
    rows = work(endpoint, {"id": "1", "text": "Write a poem."})
    (result,) = rows_of("results", rows)
    assert rows[-1] == ("results", result)
    assert result["kind"] == ""
    assert result["value"]["verdicts"] == [True, True]
    answers = rows_of("answers", rows)
    assert [answer["role"] for answer in answers] == ["model", "judge", "judge"]
    assert answers[0]["messages"] == [{"role": "user", "content": "Write a poem."}]
    assert answers[0]["reply"]["text"] == result["value"]["answer"]
    assert {answer["messages"][0]["content"][0] for answer in answers[1:]} == {"a", "b"}
    calls = rows_of("calls", rows)
    assert [(call["item"], call["error"]) for call in calls] == [("1", "")] * 3
    assert all(call["prompt_tokens"] > 0 and call["completion_tokens"] > 0 for call in calls)


def test_what_was_answered_is_not_asked_again(endpoint: Running) -> None:
    item = {"id": "1", "text": "Write a poem."}
    first = work(endpoint, item)
    known = {answer["request"]: answer["reply"] for answer in rows_of("answers", first)}
    asked = endpoint.stats()["requests"]
    again = work(endpoint, item, known)
    assert [name for name, _ in again] == ["results"]
    assert again[-1] == first[-1]
    # Only what is missing is asked.
    del known[rows_of("answers", first)[2]["request"]]
    assert len(rows_of("answers", work(endpoint, item, known))) == 1
    assert endpoint.stats()["requests"] == asked + 1


def test_a_call_that_fails_makes_the_item_a_failure_with_its_reason(endpoint: Running) -> None:
    rows = work(endpoint, {"id": "1", "text": "TRICK_TOO_LONG"})
    (result,) = rows_of("results", rows)
    assert (result["kind"], result["value"]) == ("context_length", None)
    assert "maximum context length" in result["reason"]
    assert [call["error"] for call in rows_of("calls", rows)] == ["context_length"]


def test_a_failure_inside_a_fork_reaches_the_program(endpoint: Running) -> None:
    item = {"id": "1", "text": "Write.", "trick": "TRICK_NONSENSE"}
    assert rows_of("results", work(endpoint, item))[0]["kind"] == "unparseable"
    result = rows_of("results", work(endpoint, item, evaluation=Forgiving()))[0]
    assert result["value"]["verdicts"] == [False, False]


def test_an_answer_beside_a_failure_is_kept(endpoint: Running) -> None:
    @dataclass(frozen=True)
    class OneFails(Judged):
        def judge(self, item: Item, answer: str, which: str) -> Generator[Any, Any, bool]:
            text = "TRICK_TOO_LONG" if which == "a" else f"{which}: {answer}"
            verdict: Verdict = yield request("judge", item, text, Verdict)
            return verdict.right

    rows = work(endpoint, {"id": "1", "text": "Write."}, evaluation=OneFails())
    assert rows[-1][1]["kind"] == "context_length"
    assert [answer["role"] for answer in rows_of("answers", rows)] == ["model", "judge"]
    assert [call["error"] for call in rows_of("calls", rows)].count("context_length") == 1
    assert len(rows_of("calls", rows)) == 3


def test_runs_of_other_seeds_draw_other_answers(endpoint: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def seed(request: LLMRequest, attempt: int) -> int:
        drawn.append(request.key)
        return 1

    monkeypatch.setattr(openai_api, "sampling_seed", seed)
    for run in (0, 1):
        rows = work(endpoint, {"id": "1", "text": "Write."}, seed=run)
        assert {call["key"] for call in rows_of("calls", rows)} == {"1"}
    assert drawn == ["0/1"] * 3 + ["1/1"] * 3


@dataclass(frozen=True)
class Picky(Judged):
    """Takes no answer, however good."""

    def program(self, item: Item) -> Generator[Any, Any, dict[str, Any]]:
        answer: Spoken = yield request("model", item, item["text"], Spoken)
        raise CallFailed("not_good", answer.text[:10])


def test_an_item_that_failed_on_its_answers_is_asked_anew(endpoint: Running) -> None:
    item = {"id": "1", "text": "Write."}
    first = work(endpoint, item, evaluation=Picky())
    assert (first[-1][1]["kind"], first[-1][1]["draw"]) == ("not_good", 1)
    known = {answer["request"]: answer["reply"] for answer in rows_of("answers", first)}
    # A start that broke off before the result goes on with its answers, the next draw asks for others.
    assert rows_of("calls", work(endpoint, item, known, Picky())) == []
    again = work(endpoint, item, known, Picky(), draw=1)
    assert len(rows_of("calls", again)) == 1
    assert again[-1][1]["draw"] == 2
    known |= {answer["request"]: answer["reply"] for answer in rows_of("answers", again)}
    assert rows_of("calls", work(endpoint, item, known, Picky(), draw=1)) == []


def test_a_call_that_failed_is_all_that_a_next_start_asks_again(endpoint: Running) -> None:
    item = {"id": "1", "text": "Write.", "trick": "TRICK_NONSENSE"}
    rows = work(endpoint, item)
    assert (rows[-1][1]["kind"], rows[-1][1]["draw"]) == ("unparseable", 0)


def test_an_answer_of_no_use_is_kept_with_its_prompt(endpoint: Running) -> None:
    nonsense = TRICKS["TRICK_NONSENSE"]("")
    calls = rows_of("calls", work(endpoint, {"id": "1", "text": "Write.", "trick": "TRICK_NONSENSE"}))
    wasted = [call for call in calls if call["error"]]
    assert [(call["error"], call["unused"]) for call in wasted] == [("unparseable", nonsense)] * 4
    assert all("TRICK_NONSENSE" in call["messages"][0]["content"] for call in wasted)
    assert [call["unused"] for call in calls if not call["error"]] == [""]
    assert "messages" not in calls[0]


def test_an_endpoint_that_is_gone_stops_the_run(endpoint: Running) -> None:
    rows = work(Running("http://127.0.0.1:9/v1", 9, 0), {"id": "1", "text": "Write."})
    assert rows[-1][0] == "fatal"
    assert "127.0.0.1:9" in rows[-1][1]["reason"]


def test_a_question_is_another_one_with_another_model_or_sampling() -> None:
    item = {"id": "1"}
    ask = request("model", item, "Write.", Spoken)
    one = engine("http://a/v1")
    asked = {
        request_hash(ask, one),
        request_hash(ask, one.model_copy(update={"model": "other"})),
        request_hash(ask, engine("http://b/v1")),
        request_hash(request("model", item, "Write!", Spoken), one),
        request_hash(request("model", item, "Write.", Verdict), one),
        request_hash(request("model", {"id": "2"}, "Write.", Spoken), one),
    }
    assert len(asked) == 6
    assert request_hash(request("model", item, "Write.", Spoken), engine("http://a/v1", timeout_s=5)) in asked
