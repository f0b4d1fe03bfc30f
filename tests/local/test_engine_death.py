"""An engine that dies inside a Ray worker: the worker is replaced, nothing is lost, and nothing is tried forever."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from actors.engine import Completion, Engine, EngineDead
from actors.worker import SynthesisWorker
from pipelines.report import figures
from pipelines.run_folder import RunFolder
from pipelines.synthesize import RunStopped, synthesize
from synuc.config import load
from synuc.types import LLMRequest
from tests.local.test_synthesize import Standin, config, counts, dialogues, quiet

pytestmark = pytest.mark.usefixtures("ray_running")

POISON = "POISON"


def engine_processes() -> set[psutil.Process]:
    """The processes of vLLM engines below this process, that is in its own Ray."""
    return {process for process in psutil.Process().children(recursive=True) if title(process).startswith("VLLM::")}


def title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def crash_counts(run: Path) -> dict[str, int]:
    """What the memory of a run at work knows of crashes."""
    memory: Any = ray.get_actor(f"synuc-memory-{run.name}")
    found: dict[str, int] = ray.get(memory.crash_counts.remote())
    return found


@pytest.mark.engine
@pytest.mark.timeout(1200)
def test_a_killed_engine_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    in_flight = 3
    method = ["method.task_filter=false", "method.labels=[IC]"]
    settings = load(
        ["configs/local.yaml", "configs/demo.yaml"],
        ["seeds.limit=5", f"cluster.dialogues_in_flight={in_flight}", *method],
    )
    folder = RunFolder(tmp_path / "engine-killed")
    finished: set[str] = set()
    killed: list[psutil.Process] = []
    crashes: dict[str, int] = {}
    processes: set[psutil.Process] = set()
    over = threading.Event()

    def kill_one() -> None:
        while not over.wait(0.2):
            processes.update(engine_processes())
            if not killed and folder.parts("samples"):
                finished.update(folder.finished().to_pylist())
                killed.extend(process for process in processes if "EngineCore" in title(process))
                for process in killed:
                    process.kill()
            elif killed and not crashes:
                crashes.update(crash_counts(folder.path))

    thread = threading.Thread(target=kill_one)
    thread.start()
    try:
        assert synthesize(settings, folder.path, quiet())
    finally:
        over.set()
        thread.join()

    assert len(killed) == 1
    taken = set(folder.read("seeds")["id"].to_pylist())
    # Those in flight when the engine died, each once, and no other.
    assert 1 <= len(crashes) <= in_flight
    assert set(crashes.values()) == {1}
    assert set(crashes) <= taken - finished
    ids, _ = counts(folder.path)
    assert ids == {f"{seed}-IC": 1 for seed in taken}
    assert "engine_crash" not in folder.read("samples")["kind"].to_pylist()
    assert figures(folder)["adds_up"]
    # Two engines of at least two processes. vLLM's last process looks after itself, in some seconds.
    assert len(processes) >= 4
    _, left = psutil.wait_procs(processes, timeout=60)
    assert not left


@pytest.mark.engine
def test_an_engine_that_cannot_start_stops_the_run(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    settings = load(["configs/local.yaml", "configs/demo.yaml"], ["seeds.limit=2", "engine.cpu_kv_cache_gib=100000"])
    with pytest.raises(RunStopped, match=r"vLLM can't start embedded: .*Ray's logs"):
        synthesize(settings, tmp_path / "no-start", quiet())


class MortalEngine:
    """An engine that dies, with all its calls, of a prompt that holds `POISON`."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self.price = engine.price
        self.engine = engine
        self.death = asyncio.Event()

    async def complete(self, request: LLMRequest, attempt: int) -> Completion:
        if any(POISON in message["content"] for message in request.messages):
            self.death.set()
        answer = asyncio.ensure_future(self.engine.complete(request, attempt))
        death = asyncio.ensure_future(self.death.wait())
        await asyncio.wait([answer, death], return_when=asyncio.FIRST_COMPLETED)
        if self.death.is_set():
            raise EngineDead("the engine of the test died")
        death.cancel()
        return answer.result()

    async def check(self) -> None:
        await self.engine.check()

    async def close(self) -> None:
        await self.engine.close()


class MortalWorker(SynthesisWorker):
    """A worker whose engines are mortal. Ray imports it by name in its own processes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.engines = {role: MortalEngine(engine) for role, engine in self.engines.items()}


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.worker.SynthesisWorker", MortalWorker)


@pytest.mark.usefixtures("mortal")
def test_a_dialogue_that_kills_its_engine_each_time_fails_and_the_others_finish(
    tmp_path: Path, standin: Standin
) -> None:
    path = dialogues(tmp_path / "seeds.jsonl", 12)
    path.write_text(path.read_text("utf-8").replace("story number 5.", f"story number 5. {POISON}"), "utf-8")
    settings = config(path, standin().url, task_filter=False, alpha=0.0)
    folder = RunFolder(tmp_path / "poisoned")
    assert synthesize(settings, folder.path, quiet())
    samples = {sample.id: sample for sample in folder.samples()}
    taken = {row["id"]: row["seed"] for row in folder.read("seeds").to_pylist()}
    (poisoned,) = (seed for seed, text in taken.items() if POISON in text)
    healthy = taken.keys() - {poisoned}
    ids, _ = counts(folder.path)
    assert ids == {f"{poisoned}-unrouted": 1, **{f"{seed}-{label}": 1 for seed in healthy for label in ("ER", "IC")}}
    failed = {id: (sample.outcome, sample.kind) for id, sample in samples.items() if sample.outcome == "failed"}
    assert failed == {f"{poisoned}-unrouted": ("failed", "engine_crash")}
    assert figures(folder)["adds_up"]


@pytest.mark.usefixtures("mortal")
def test_an_engine_that_never_finishes_a_dialogue_stops_the_run(tmp_path: Path, standin: Standin) -> None:
    path = dialogues(tmp_path / "seeds.jsonl", 40)
    path.write_text(path.read_text("utf-8").replace("Make it calm", f"{POISON} Make it calm"), "utf-8")
    settings = config(path, standin().url, task_filter=False, alpha=0.0)
    with pytest.raises(RunStopped, match="5 engines in a row died"):
        synthesize(settings, tmp_path / "hopeless", quiet())
    # At most those that were the only ones in flight.
    _, outcomes = counts(tmp_path / "hopeless")
    assert outcomes.total() == outcomes["failed"] <= 2
