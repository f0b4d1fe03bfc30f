"""Detectors, their client and the whole application in one process, on an engine whose answers are scripted."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import httpx
import pytest
from ray import serve
from ray.exceptions import ActorDiedError, RayTaskError, TaskCancelledError
from ray.serve._private import constants
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from actors.engine import Completion, EngineDead, EngineUnavailable
from actors.vllm_adapters import read_adapter
from actors.vllm_engine import InProcessVllm
from serving import app, deployment
from serving.config import DetectorConfig, ServeConfig
from serving.deployment import Detector, DetectorClient, LedgersClient
from serving.detection import Detection, DetectorBusy, DetectorDown, DetectRequest, TooLong, UnknownAdapter
from serving.gateway import create_app
from serving.ledger import LedgerDown
from synuc.effects import Fork
from synuc.types import CallFailed, Dialogue, LLMRequest, Spoken, Turn
from tests.unit.test_serve_config import adapter, local
from tests.upstream import served

pytest.importorskip("vllm")

Answering = Callable[[LLMRequest, str], Awaitable[Completion]]
HISTORY = Dialogue(turns=(Turn(user="Write a poem in four lines.", assistant="Here it is."),))
REQUEST = DetectRequest(dialogue=HISTORY, follow_up="Now tell the whole saga in detail.")
SURE = {"Imp": math.log(0.9), "Normal": math.log(0.1)}


class Llm:
    """What of vLLM the adapters need."""

    def __init__(self) -> None:
        self.errored = False
        self.model_config = SimpleNamespace(hf_text_config=SimpleNamespace(hidden_size=576, num_hidden_layers=30))
        self.loaded: dict[int, str] = {}
        self.refuse = ""
        self.added = asyncio.Event()

    async def add_lora(self, lora: Any) -> None:
        if self.refuse and self.refuse in lora.lora_path:
            raise RuntimeError("the weights are odd")
        self.loaded[lora.lora_int_id] = lora.lora_path
        self.added.set()

    async def remove_lora(self, number: int) -> None:
        self.loaded.pop(number, None)

    def shutdown(self) -> None:
        self.errored = True


class Engine(InProcessVllm):
    """The real engine around a vLLM that answers as `answering` says, and knows where an adapter's weights lie."""

    async def _start(self) -> None:
        self._llm = Llm()
        self._adapters.own("", None)

    @staticmethod
    async def answering(request: LLMRequest, path: str) -> Completion:
        return Completion("Implicit Conflict", "stop", 100, 60, 1, SURE if request.logprobs else {})

    async def _complete(self, request: LLMRequest, attempt: int, lora: Any) -> Completion:
        return await self.answering(request, lora.lora_path if lora else "")


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> type[Engine]:
    class Scripted(Engine):
        pass

    monkeypatch.setattr(deployment, "InProcessVllm", Scripted)
    return Scripted


def config(**changes: Any) -> DetectorConfig:
    return local().detector.model_copy(update=changes)


async def started(adapters: dict[str, Path] | None = None, **changes: Any) -> Detector:
    detector = Detector(config(**changes))
    await detector.reconfigure({"adapters": {name: str(path) for name, path in (adapters or {}).items()}})
    return detector


def llm(detector: Detector) -> Llm:
    found = detector._running._llm
    assert isinstance(found, Llm)
    return found


def test_a_detection_says_who_gave_it_and_what_it_took() -> None:
    async def main() -> Detection:
        return await (await started()).detect(REQUEST)

    found = asyncio.run(main())
    assert (found.label, found.mode, found.model, found.adapter, found.version) == (
        "IC",
        "fast",
        "embedded",
        "",
        "embedded",
    )
    assert found.probabilities
    assert found.probabilities[max(found.probabilities, key=lambda label: label == "IC")] == pytest.approx(0.9)
    assert (found.prompt_tokens, found.completion_tokens) == (100, 1)
    assert 0 < found.seconds < 5
    assert found.clarification


def test_a_request_chooses_mode_and_adapter(engine: type[Engine], tmp_path: Path) -> None:
    adapters = {name: adapter(tmp_path / name, value=n) for n, name in enumerate("ab")}
    seen: list[tuple[str, bool]] = []

    async def answering(request: LLMRequest, path: str) -> Completion:
        seen.append((Path(path).name, request.logprobs))
        return await Engine.answering(request, path)

    engine.answering = staticmethod(answering)  # type: ignore[method-assign]

    async def main() -> list[Detection]:
        detector = await started(adapters, default="a")
        asked = (REQUEST.model_copy(update=u) for u in ({}, {"adapter": "b"}, {"adapter": ""}, {"mode": "reasoned"}))
        found = [await detector.detect(request) for request in asked]
        with pytest.raises(UnknownAdapter, match="no adapter 'c'; there are: a, b"):
            await detector.detect(REQUEST.model_copy(update={"adapter": "c"}))
        return found

    a, b, bare, reasoned = asyncio.run(main())
    assert [x.adapter for x in (a, b, bare, reasoned)] == ["a", "b", "", "a"]
    assert len({a.version, b.version, bare.version}) == 3
    assert [x.mode for x in (a, reasoned)] == ["fast", "reasoned"]
    assert seen[:3] == [("a", True), ("b", True), ("", True)]
    assert seen[3] == ("a", False)


def test_a_detection_ends_on_the_adapter_that_it_began_with(engine: type[Engine], tmp_path: Path) -> None:
    old, new = adapter(tmp_path / "old"), adapter(tmp_path / "new", value=1.0)
    first, going, paths = asyncio.Event(), asyncio.Event(), list[str]()

    async def answering(request: LLMRequest, path: str) -> Completion:
        paths.append(Path(path).name)
        if not request.logprobs:
            first.set()
            await going.wait()
            return Completion("Because.\n\n[Final Judgment]\nImplicit Conflict", "stop", 100, 0, 20, {})
        return await Engine.answering(request, path)

    engine.answering = staticmethod(answering)  # type: ignore[method-assign]

    async def main() -> None:
        detector = await started({"a": old}, default="a")
        before = asyncio.create_task(detector.detect(REQUEST.model_copy(update={"mode": "reasoned"})))
        await first.wait()
        llm(detector).added.clear()
        # Serve doesn't wait for what is under way.
        await asyncio.wait_for(detector.reconfigure({"adapters": {"a": str(new)}}), 1)
        await llm(detector).added.wait()
        after = await detector.detect(REQUEST)
        assert len(llm(detector).loaded) == 2
        going.set()
        begun = await before
        assert begun.label == "IC"
        assert begun.version == detector_version(old) != after.version == detector_version(new)
        assert paths == ["old", "new", "old"]
        assert detector._latest
        await detector._latest
        assert list(llm(detector).loaded.values()) == [str(new)]

    asyncio.run(main())


def detector_version(folder: Path) -> str:
    return read_adapter(folder, "").version


def test_every_loading_has_a_number_and_a_name_of_its_own(tmp_path: Path) -> None:
    """Of two loadings with the same name and the same path vLLM would share the prefix cache."""
    folder = adapter(tmp_path / "a")

    async def main() -> None:
        detector = await started({"a": folder})
        names = set()
        for value in (1.0, 2.0):
            with detector._running.held("a") as held:
                names.add((held.key, held.lora.lora_name, held.lora.lora_int_id))
            adapter(folder, value=value)
            await detector.reload({"a": folder})
        assert len(names) == len({name for _, name, _ in names}) == len({number for *_, number in names}) == 2

    asyncio.run(main())


def test_an_adapter_that_is_as_it_was_is_not_loaded_again(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")

    async def main() -> None:
        detector = await started({"a": folder})
        numbers = set(llm(detector).loaded)
        await detector.reload({"a": folder})
        assert set(llm(detector).loaded) == numbers

    asyncio.run(main())


def test_an_adapter_can_be_taken_away_and_another_take_its_place(tmp_path: Path) -> None:
    one, two = adapter(tmp_path / "one"), adapter(tmp_path / "two", value=1.0)

    async def main() -> None:
        detector = await started({"a": one})
        await detector.reload({"b": two})
        assert set(detector._running.versions) == {"", "b"}
        assert list(llm(detector).loaded.values()) == [str(two)]

    asyncio.run(main())


def test_the_last_reload_wins(tmp_path: Path) -> None:
    folders = [adapter(tmp_path / str(n), value=n) for n in range(4)]

    async def main() -> None:
        detector = await started({"a": folders[0]})
        await asyncio.gather(*(detector.reload({"a": folder}) for folder in folders[1:]))
        assert detector._running.versions["a"] == detector_version(folders[-1])
        assert list(llm(detector).loaded.values()) == [str(folders[-1])]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden": 64}, r"trained on another model \(hidden size 64, 1 layers; the engine's has 576 and 30\)"),
        ({"layers": 31}, r"trained on another model \(hidden size 576, 31 layers"),
        ({"rank": 32}, r"rank 32 is more than the engine has room for; raise engine\.max_adapter_rank=16"),
    ],
)
def test_an_adapter_that_does_not_fit(tmp_path: Path, changes: dict[str, int], says: str) -> None:
    good, bad = adapter(tmp_path / "good"), adapter(tmp_path / "bad", **changes)

    async def main() -> None:
        detector = await started({"a": good}, default="a")
        with pytest.raises(EngineUnavailable, match=says):
            await detector.reload({"a": bad})
        assert (await detector.detect(REQUEST)).version == detector_version(good)

    asyncio.run(main())


def test_an_adapter_that_does_not_fit_costs_no_other_its_place(tmp_path: Path) -> None:
    one, two = adapter(tmp_path / "one"), adapter(tmp_path / "two", value=1.0)
    bad = adapter(tmp_path / "bad", hidden=64)

    async def main() -> None:
        detector = await started({"a": one, "b": two})
        with pytest.raises(EngineUnavailable, match="trained on another model"):
            await detector.reload({"a": bad})
        assert detector._running.versions == {"": "", "a": detector_version(one), "b": detector_version(two)}

    asyncio.run(main())


def test_more_adapters_than_there_is_room_for(tmp_path: Path) -> None:
    one, two = adapter(tmp_path / "one"), adapter(tmp_path / "two", value=1.0)

    async def main() -> None:
        detector = await started({"a": one})
        with pytest.raises(EngineUnavailable, match=r"room for 1 adapters; remove one or raise engine\.max_adapters"):
            await detector.reload({"a": one, "b": two})

    asyncio.run(main())


def test_the_engine_has_room_for_what_it_begins_with(tmp_path: Path) -> None:
    adapters = {name: adapter(tmp_path / name, rank=rank) for name, rank in (("a", 8), ("b", 64))}

    async def main() -> None:
        assert set((await started(adapters))._running.versions) == {"", "a", "b"}

    asyncio.run(main())


def test_what_vllm_refuses_leaves_the_old_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good, odd = adapter(tmp_path / "good"), adapter(tmp_path / "odd", value=1.0)

    async def main() -> None:
        detector = await started({"a": good}, default="a")
        llm(detector).refuse = "odd"
        await detector.reconfigure({"adapters": {"a": str(odd)}})
        assert detector._latest
        await detector._latest
        assert (await detector.detect(REQUEST)).version == detector_version(good)
        assert list(llm(detector).loaded.values()) == [str(good)]

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert f"as they should be: adapter a={odd}: vLLM can't load it: the weights are odd; there are: a" in caplog.text


def test_the_default_can_not_be_taken_away(tmp_path: Path) -> None:
    good = adapter(tmp_path / "good")

    async def main() -> None:
        detector = await started({"a": good}, default="a")
        with pytest.raises(EngineUnavailable, match=r"lack a, which detector\.default names"):
            await detector.reload({"b": good})

    asyncio.run(main())


def test_a_replica_starts_with_a_missing_adapter_in_no_case(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="no LoRA adapter"):
        asyncio.run(started({"a": tmp_path / "none"}))


def test_a_call_that_fails_is_undetermined(engine: type[Engine]) -> None:
    async def answering(request: LLMRequest, path: str) -> NoReturn:
        raise CallFailed(kind, "why")

    engine.answering = staticmethod(answering)  # type: ignore[method-assign]

    async def main() -> Detection:
        return await (await started()).detect(REQUEST)

    kind = "bad_request"
    found = asyncio.run(main())
    assert (found.label, found.reason) == ("undetermined", "bad_request")
    kind = "context_length"
    with pytest.raises(TooLong, match="why"):
        asyncio.run(main())


def test_a_dead_engine_ends_the_replica(engine: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    async def answering(request: LLMRequest, path: str) -> NoReturn:
        raise EngineDead("it died")

    class Exited(BaseException):
        pass

    def leave(status: int) -> NoReturn:
        raise Exited(status)

    engine.answering = staticmethod(answering)  # type: ignore[method-assign]
    monkeypatch.setattr(os, "_exit", leave)

    async def main() -> None:
        detector = await started()
        await detector.check_health()
        assert await detector.ready()
        with pytest.raises(Exited):
            await detector.detect(REQUEST)
        llm(detector).errored = True
        assert not await detector.ready()
        with pytest.raises(EngineDead):
            await detector.check_health()

    asyncio.run(main())


def test_programs_that_fork_are_driven_side_by_side() -> None:
    def part(n: int) -> Any:
        spoken = yield LLMRequest("s", "model", str(n), ({"role": "user", "content": "x"},), Spoken, 5)
        return n, spoken.text

    def whole() -> Any:
        return (yield Fork((part(1), part(2))))

    async def main() -> Any:
        return await (await started())._drive(whole(), "", [])

    assert asyncio.run(main()) == [(1, "Implicit Conflict"), (2, "Implicit Conflict")]


class Response:
    """What a handle returns: an answer or an error to come, which can be cancelled."""

    def __init__(self, outcome: Any, seconds: float) -> None:
        self._outcome, self._seconds = outcome, seconds
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def __await__(self) -> Iterator[Any]:
        return self._result().__await__()

    async def _result(self) -> Any:
        await asyncio.sleep(self._seconds)
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


class Handle:
    """A deployment handle whose calls end in `outcomes`, one after the other, each after so many seconds."""

    def __init__(self, *outcomes: Any, seconds: float = 0.0) -> None:
        self._outcomes, self._seconds = list(outcomes), seconds
        self.responses: list[Response] = []
        self.detect = self.ready = self.get = self.update = self.verdict = self

    def remote(self, *_: Any) -> Response:
        self.responses.append(Response(self._outcomes.pop(0), self._seconds))
        return self.responses[-1]


FOUND = Detection(label="ND", mode="fast", model="m", seconds=0.01)


def ask(handle: Handle, timeout_s: float = 5.0) -> Detection:
    async def main() -> Detection:
        return await DetectorClient(handle, timeout_s)(REQUEST)

    return asyncio.run(main())


def as_ray_brings_it(error: Exception) -> Exception:
    task_error: Any = RayTaskError
    raised: Exception = task_error("detect", "a long traceback", error).as_instanceof_cause()
    return raised


def test_the_client_counts_the_queue() -> None:
    found = ask(Handle(FOUND, seconds=0.05))
    assert 0.05 <= found.seconds < 2
    assert found.queued == pytest.approx(found.seconds - 0.01)


def test_a_request_whose_replica_died_is_asked_once_more() -> None:
    assert ask(Handle(ActorDiedError(), FOUND)).label == "ND"
    twice = Handle(ActorDiedError(), ActorDiedError(), FOUND)
    with pytest.raises(DetectorDown, match="and another one"):
        ask(twice)
    assert len(twice.responses) == 2


def test_a_full_queue_is_busy_for_about_as_long_as_a_detection_takes() -> None:
    async def main() -> float:
        client = DetectorClient(Handle(FOUND, BackPressureError(3, 3), seconds=1.2), 5.0)
        await client(REQUEST)
        with pytest.raises(DetectorBusy) as busy:
            await client(REQUEST)
        return busy.value.retry_after

    assert asyncio.run(main()) == 2
    with pytest.raises(DetectorBusy):
        ask(Handle(as_ray_brings_it(BackPressureError(3, 3))))


def test_what_takes_too_long_is_given_up_there_too() -> None:
    handle = Handle(FOUND, seconds=30)
    with pytest.raises(DetectorDown, match=r"no detection within 0\.1 s"):
        ask(handle, timeout_s=0.1)
    assert handle.responses[0].cancelled


def test_cancelling_passes_on() -> None:
    handle = Handle(FOUND, seconds=30)

    async def main() -> None:
        asking = asyncio.ensure_future(DetectorClient(handle, 60)(REQUEST))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(main())
    assert handle.responses[0].cancelled


@pytest.mark.parametrize("kind", [UnknownAdapter, TooLong])
def test_what_is_wrong_with_a_request_is_said_in_its_own_words(kind: type[Exception]) -> None:
    for error in (kind("it is this"), as_ray_brings_it(kind("it is this"))):
        with pytest.raises(kind) as refused:
            ask(Handle(error))
        assert str(refused.value) == "it is this"


def test_a_fault_of_ours_is_a_detector_that_is_down() -> None:
    with pytest.raises(DetectorDown, match="the detection failed: oops"):
        ask(Handle(as_ray_brings_it(ValueError("oops"))))
    with pytest.raises(DetectorDown, match="isn't there"):
        ask(Handle(DeploymentUnavailableError(SimpleNamespace(name="Detector"))))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "expected"), [(True, True), (False, False), (BackPressureError(1, 1), True), (ActorDiedError(), False)]
)
def test_readiness(outcome: Any, expected: bool) -> None:
    async def main() -> bool:
        return await DetectorClient(Handle(outcome), 5.0).ready()

    assert asyncio.run(main()) is expected


def test_a_detector_that_just_answered_is_ready() -> None:
    async def main() -> bool:
        client = DetectorClient(Handle(FOUND), 5.0)
        await client(REQUEST)
        return await client.ready()

    assert asyncio.run(main())


def test_a_ledger_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "PATIENCE_S", 0.05)
    handle = Handle(None, seconds=30)
    with pytest.raises(LedgerDown, match=r"within 0\.05 s"):
        asyncio.run(LedgersClient(handle).get("", "a"))
    assert handle.responses[0].cancelled


@pytest.mark.parametrize("error", [ActorDiedError(), BackPressureError(1, 1), as_ray_brings_it(ValueError("oops"))])
def test_a_ledger_that_fails_is_down(error: Exception) -> None:
    with pytest.raises(LedgerDown):
        asyncio.run(LedgersClient(Handle(error)).get("", "a"))
    with pytest.raises(LedgerDown):
        asyncio.run(LedgersClient(Handle(error)).update("", "a", "m", FOUND, 1))
    with pytest.raises(LedgerDown):
        asyncio.run(LedgersClient(Handle(error)).verdict("", "a", "m"))


def test_a_detection_that_ray_lost_is_a_detector_that_is_down() -> None:
    with pytest.raises(DetectorDown, match="was lost: TaskCancelledError"):
        ask(Handle(TaskCancelledError()))


def test_serve_knows_what_the_gateway_sets() -> None:
    """A variable that Serve no longer reads would be ignored without a word."""
    assert all(hasattr(constants, name) for name in app.ONE_LOOP)


def test_the_three_parts_work_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Serve binds them, in its mode for tests, behind a real server."""
    apps: list[Any] = []

    def kept(*arguments: Any) -> Any:
        apps.append(create_app(*arguments))
        return apps[-1]

    monkeypatch.setattr(deployment, "create_app", kept)
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    settings: ServeConfig = local()
    serve.run(app.application(settings), name="tests", _local_testing_mode=True)
    messages = [
        {"role": "user", "content": "Write a poem in four lines."},
        {"role": "assistant", "content": "Here it is."},
        {"role": "user", "content": "Now tell the whole saga in detail."},
    ]
    with served(apps[-1]) as url, httpx.Client(base_url=url) as client:
        assert client.get("/readyz").status_code == 200
        one = client.post("/v1/detect", json={"messages": messages, "conversation_id": "c"}).json()
        assert (one["label"], one["model"], one["mode"]) == ("IC", "embedded", "fast")
        assert 0 <= one["queued"] <= one["seconds"]
        many = client.post("/v1/detect", json={"dialogues": [{"messages": messages}] * 5}).json()["detections"]
        assert [found["label"] for found in many] == ["IC"] * 5
        unknown = client.post("/v1/detect", json={"messages": messages, "adapter": "b"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_adapter")
        assert client.get("/v1/conversations/c").json()["verdicts"] == {"IC": 1}
