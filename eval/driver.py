"""Runs an evaluation on Ray: items stream through workers, every answer is kept as it comes, and it can be continued.

The same command goes on where it stopped: items with a result are skipped, those that failed are tried again, and what
was already asked about an item that wasn't finished is not asked again, unless the item failed on just these answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from actors.engine import build_engine
from cluster.connect import connected, nodes
from cluster.placement import Placement, place
from eval import prompting
from eval.config import EvalRun
from eval.folder import EvalFolder
from eval.protocol import Evaluation, Item, Result
from eval.worker import EvalWorker
from synuc.config import OpenAIEngine, VllmEngine
from synuc.problem import Problem
from synuc.progress import Status, duration, meanwhile

CRASHES_PER_ITEM = 3
"""An item during which engines died this often is not tried again."""

BARREN_ENGINES = CRASHES_PER_ITEM + 2
"""As many engines of each worker as may die in a row without finishing an item."""

CRASHED = "crashed"
"""The kind of failure of such an item."""

SECONDS_TO_REPLACE = 0.5
"""Between looks at a worker that is being replaced."""


class EvaluationStopped(Problem):
    """An evaluation can't go on; what was answered is kept. The message says why and what to do."""


def evaluate(
    evaluation: Evaluation,
    items: Sequence[Item],
    run: EvalRun,
    path: Path,
    console: Console,
    refused: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Ask about `items`, or go on with it, in the folder `path`; the figures, which metrics.json then holds.

    `refused`: the records of the items' files that give no item, for the folder to keep.

    Raises:
        RunError: the folder is in use, or was begun with other settings.
        EngineUnavailable: an engine doesn't answer, before anything was asked.
        EvaluationStopped: an engine went away, or the disk is full.
    """
    folder = EvalFolder(path)
    snapshot = _snapshot(evaluation, items, run)
    with folder.locked():
        if folder.begun():
            folder.check(snapshot)
            with _written(folder):
                folder.mend()
        finished = {result.id for result in folder.results() if not result.kind}
        left = [item for item in items if item["id"] not in finished]
        if left:
            # Before the folder is begun: a mistyped model isn't one that it is bound to.
            asyncio.run(_check(run.distinct()))
        with _written(folder):
            folder.begin(run, snapshot)
            folder.write_items(items, refused)
        if left:
            _ask(evaluation, left, run, folder, len(items), console)
        else:
            said = f"Nothing left to ask: all {len(items)} items of {folder.path} have results."
            console.print(said, soft_wrap=True, highlight=False, markup=False)
        metrics = evaluation.figures(items, _in_order(items, folder.results()))
        with _written(folder):
            # Figures that were added to these results, by `synuc eval states`, stay.
            folder.write_metrics({**(folder.metrics if folder.finished() else {}), **metrics})
    return metrics


def _snapshot(evaluation: Evaluation, items: Sequence[Item], run: EvalRun) -> dict[str, Any]:
    """What may not change while a run is continued."""
    digest = hashlib.sha256(json.dumps(list(items), sort_keys=True).encode()).hexdigest()[:16]
    return {
        "protocol": evaluation.name,
        "engines": run.engines_snapshot(),
        **evaluation.snapshot(),
        "seed": run.settings.seed,
        "items": f"{len(items)} of digest {digest}",
        "prompts": prompting.version(),
    }


@contextmanager
def _written(folder: EvalFolder) -> Iterator[None]:
    """For the length of the block, what can't be written stops the evaluation."""
    try:
        yield
    except OSError as error:
        raise EvaluationStopped(
            f"can't write to {folder.path}: {error.strerror or error}. What was answered before is kept; "
            "make room and give the same command again."
        ) from None


def _in_order(items: Sequence[Item], results: Sequence[Result]) -> list[Result]:
    by_id = {result.id: result for result in results}
    return [by_id[item["id"]] for item in items]


async def _check(engines: Sequence[VllmEngine | OpenAIEngine]) -> None:
    for config in engines:
        engine = build_engine(config)
        try:
            await engine.check()
        finally:
            await engine.close()


def _ask(
    evaluation: Evaluation, left: Sequence[Item], run: EvalRun, folder: EvalFolder, total: int, console: Console
) -> None:
    with connected(run.settings.cluster.address):
        placement = place(run.distinct(), run.settings.cluster, nodes())
        with _written(folder):
            folder.drop_metrics()
        with _Progress(console, total, total - len(left)) as progress, meanwhile(progress.look):
            asyncio.run(_Run(evaluation, run, folder, placement, progress).all(left))
        console.print(progress.line(), soft_wrap=True, highlight=False, markup=False)


class _Progress(Status):
    """Counts what has come. `done` items had results before."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        super().__init__(console, "Starting the engines ...")
        self.total, self.done, self.before = total, done, done
        self.failed: Counter[str] = Counter()
        self.calls = self.tokens = 0
        self.started = time.monotonic()

    def look(self) -> None:
        """Show how far it is. An answer can take minutes, so there is something new before an item is finished."""
        if self.calls or self.done > self.before:
            self.say(self.line())

    def line(self) -> str:
        seconds = max(time.monotonic() - self.started, 1e-9)
        parts = [f"{self.done}/{self.total} items"]
        if self.failed:
            parts.append(", ".join(f"{n} failed ({kind})" for kind, n in sorted(self.failed.items())))
        parts.append(f"{self.calls / seconds:.1f} calls/s, {self.tokens / seconds:,.0f} tokens/s")
        if finished := self.done - self.before:
            parts.append(f"{duration(seconds / finished * (self.total - self.done))} left")
        return " · ".join(parts)


def _workers(run: EvalRun, placement: Placement) -> list[Any]:
    """The actors, which Ray starts anew whenever they die."""
    import ray

    options = {"num_cpus": placement.cpus, "num_gpus": placement.gpus or None, "max_restarts": -1}
    actor = ray.remote(EvalWorker).options(**options, runtime_env={"env_vars": {"OMP_NUM_THREADS": run.threads()}})
    given = (run.engines, placement.workers, run.settings.parse_attempts, run.settings.seed)
    return [actor.remote(*given) for _ in range(placement.workers)]


class _Run:
    """The items of one start, on their workers."""

    def __init__(
        self, evaluation: Evaluation, run: EvalRun, folder: EvalFolder, placement: Placement, progress: _Progress
    ) -> None:
        self.workers = _workers(run, placement)
        self.rooms = [asyncio.Semaphore(placement.dialogues_in_flight) for _ in self.workers]
        self.evaluation, self.folder, self.progress = evaluation, folder, progress
        self.known: dict[str, dict[str, Any]] = defaultdict(dict)
        for answer in folder.answers():
            self.known[answer["item"]][answer["request"]] = answer["reply"]
        self.draws = {result.id: result.draw for result in folder.results()}
        self.crashes: Counter[str] = Counter()
        self.lives = [0] * len(self.workers)
        self.barren = 0
        self.suspected = asyncio.Lock()

    async def all(self, items: Sequence[Item]) -> None:
        """Work on all items; at the first that can't go on for a reason that stops the run, none goes on."""
        try:
            async with asyncio.TaskGroup() as group:
                for place, item in enumerate(items):
                    group.create_task(self._item(item, place % len(self.workers)))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        # All is answered: an engine that dies now costs nothing.
        await asyncio.gather(*(worker.close.remote() for worker in self.workers), return_exceptions=True)

    async def _item(self, item: Item, at: int) -> None:
        from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError

        async with self.rooms[at]:
            while self.crashes[item["id"]] < CRASHES_PER_ITEM:
                # All that were in flight are blamed for a crash; the last try is made one by one.
                last = self.crashes[item["id"]] == CRASHES_PER_ITEM - 1
                async with self.suspected if last else nullcontext():
                    await self._up(at)
                    life = self.lives[at]
                    try:
                        await self._once(item, at)
                    except (RayActorError, OutOfMemoryError, ObjectLostError) as error:
                        self._died(item, at, life, str(error))
                    else:
                        return
            reason = f"{CRASHES_PER_ITEM} engines died while it was asked about"
            draw = self.draws.get(item["id"], 0)
            self._row("results", Result(id=item["id"], kind=CRASHED, reason=reason, draw=draw).model_dump())

    async def _up(self, at: int) -> None:
        """Wait for the worker: what it is asked while Ray replaces it fails at once, which no item is to blame for."""
        from ray.exceptions import ActorUnavailableError

        while True:
            try:
                await self.workers[at].__ray_ready__.remote()
                return
            except ActorUnavailableError:
                await asyncio.sleep(SECONDS_TO_REPLACE)

    async def _once(self, item: Item, at: int) -> None:
        work = self.workers[at].work.options(num_returns="streaming")
        rows = work.remote(self.evaluation, item, self.known[item["id"]], self.draws.get(item["id"], 0))
        async for reference in rows:
            table, row = await reference
            if table == "fatal":
                raise EvaluationStopped(f"{row['reason']}\nWhat was answered is kept; the same command goes on.")
            self._row(table, row)

    def _died(self, item: Item, at: int, life: int, reason: str) -> None:
        """Count a worker's death once, though all its items come here."""
        self.crashes[item["id"]] += 1
        if self.lives[at] != life:
            return
        self.lives[at] += 1
        self.barren += 1
        if self.barren >= BARREN_ENGINES * len(self.workers):
            raise EvaluationStopped(
                f"{self.barren} engines in a row died without finishing an item: {reason}. Ray's logs "
                "(/tmp/ray/session_latest/logs) say more. What was answered is kept."
            )

    def _row(self, table: str, row: Mapping[str, Any]) -> None:
        with _written(self.folder):
            self.folder.append(table, row)
        if table == "answers":
            self.known[row["item"]][row["request"]] = row["reply"]
        elif table == "calls":
            self.progress.calls += 1
            self.progress.tokens += row["prompt_tokens"] + row["completion_tokens"]
        else:
            self.progress.done += 1
            if row["kind"] != CRASHED:
                self.barren = 0
            if row["kind"]:
                self.progress.failed[row["kind"]] += 1
