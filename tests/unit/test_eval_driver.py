"""How the driver takes the deaths of workers, on workers that die as Ray's do: no Ray is started."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError
from rich.console import Console

from cluster.placement import Placement
from eval import driver
from eval.config import EvalRun, Settings
from eval.driver import EvaluationStopped, _Progress, _Run
from eval.folder import EvalFolder
from eval.protocol import Item, Result
from eval.worker import Row


class Worker:
    """Dies of the items in `deadly`, as often as they say; what it is asked until it is back fails at once."""

    def __init__(self, deadly: dict[str, int]) -> None:
        self.deadly = deadly
        self.deaths = 0
        self.back = asyncio.Event()
        self.back.set()
        self.died = asyncio.Event()
        self.draws: list[int] = []
        self.work = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._work))
        self.close = SimpleNamespace(remote=self._there)

    @property
    def __ray_ready__(self) -> Any:
        return SimpleNamespace(remote=self._there)

    async def _there(self) -> None:
        if not self.back.is_set():
            raise ActorUnavailableError("the actor is restarting", None)

    async def _work(self, evaluation: Any, item: Item, known: Any, draw: int) -> AsyncIterator[Awaitable[Row]]:
        await self._there()
        self.draws.append(draw)
        died = self.died
        if self.deadly.get(item["id"], 0) > 0:
            self.deadly[item["id"]] -= 1
            self.deaths += 1
            self.back.clear()
            self.died = asyncio.Event()
            died.set()
            asyncio.get_running_loop().call_later(0.03, self.back.set)
        try:
            await asyncio.wait_for(died.wait(), 0.02)
        except TimeoutError:
            yield _result(item)
        else:
            raise ActorUnavailableError("the process is gone", None)


async def _result(item: Item) -> Row:
    return "results", Result(id=item["id"], value={}).model_dump()


def work(
    folder: EvalFolder, items: int, deadly: dict[str, int], monkeypatch: pytest.MonkeyPatch, in_flight: int = 100
) -> Worker:
    monkeypatch.setattr(driver, "SECONDS_TO_REPLACE", 0.005)
    evaluation: Any = None
    run = EvalRun(command=(), settings=Settings(), engines={})

    async def all_items() -> Worker:
        worker = Worker(dict(deadly))
        monkeypatch.setattr(driver, "_workers", lambda *_: [worker])
        with _Progress(Console(file=io.StringIO()), items, 0) as progress:
            started = _Run(evaluation, run, folder, Placement(1, 1, 0, in_flight), progress)
            await started.all([{"id": f"{at}"} for at in range(items)])
        return worker

    return asyncio.run(all_items())


def kinds(folder: EvalFolder) -> dict[str, str]:
    return {result.id: result.kind for result in folder.results()}


def test_one_death_costs_no_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = EvalFolder(tmp_path)
    assert work(folder, 6, {"0": 1}, monkeypatch).deaths == 1
    assert kinds(folder) == {f"{at}": "" for at in range(6)}


@pytest.mark.parametrize("at", range(4))
def test_an_item_that_kills_its_worker_is_given_up_alone(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = EvalFolder(tmp_path)
    assert work(folder, 4, {f"{at}": 99}, monkeypatch).deaths == 3
    assert kinds(folder) == {f"{n}": "crashed" if n == at else "" for n in range(4)}


@pytest.mark.parametrize(("in_flight", "given_up"), [(1, {"0": "crashed"}), (100, {})])
def test_engines_that_die_of_everything_stop_the_run(
    in_flight: int, given_up: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = EvalFolder(tmp_path)
    with pytest.raises(EvaluationStopped, match="5 engines in a row died without finishing an item"):
        work(folder, 20, {f"{n}": 99 for n in range(20)}, monkeypatch, in_flight)
    assert kinds(folder) == given_up


def test_an_item_that_failed_on_its_answers_gets_the_next_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = EvalFolder(tmp_path)
    for draw in (1, 2):
        folder.append("results", Result(id="0", kind="too_few_facts", draw=draw).model_dump())
    assert work(folder, 2, {}, monkeypatch).draws == [2, 0]
