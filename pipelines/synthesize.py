"""The main job: Ray Data streams seed dialogues through synthesis workers into a run folder.

A dialogue leaves its worker as soon as it is done, and the driver writes finished dialogues in small Parquet files.
Resuming skips dialogues whose samples are written, whatever the blocks were; the others are given the replies that they
had before (`actors.replies`). A block that Ray repeats after the loss of a node may bring a dialogue twice or miss one:
the first is not written again, the second is streamed again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from rich.console import Console

from actors.engine import build_engine
from actors.replies import forget, kept
from actors.retrieval import check as check_retrieval
from cluster.connect import connected, nodes
from cluster.placement import place
from pipelines.batches import announce, lease_s, waited_for, with_folders
from pipelines.budget import Closing, Purse
from pipelines.programs import program, prompts_version
from pipelines.progress import Progress
from pipelines.readers import Refused
from pipelines.reviewed import remember, summary, take
from pipelines.run_folder import ROWS_PER_FILE, RunFolder
from pipelines.seeds import SeedStats, read_seeds
from pipelines.sink import Sink
from synuc.config import RunConfig, method_snapshot
from synuc.folder import RunError
from synuc.problem import Problem

DIALOGUES_PER_BLOCK = 8
BLOCKS_IN_FLIGHT = 128


class RunStopped(Problem):
    """The run can't go on; everything finished is written. The message says why and what to do."""


def synthesize(config: RunConfig, place: Path | str, console: Console) -> bool:
    """Synthesise, or go on with, the run at `place`, a path or a URL. True if anything was left to do.

    Raises:
        RunError: the folder is in use, or was begun with another method.
        ReviewsError: what people said for its memory can't be used, or has changed.
        SeedError: the seeds can't be read.
        RetrievalUnavailable, EmbeddingModelMissing: what the method's retrieval needs isn't there.
        EngineUnavailable: an engine doesn't answer, before anything was begun.
        ConfigError: the budget is in money, and no engine has a price.
        BudgetReached: all starts together have spent the budget, and dialogues are left.
        RunStopped: an engine went away, or the disk is full.
    """
    folder = RunFolder(place)
    with folder.locked(), _disk_errors(folder):
        purse = Purse(config, folder)
        _begin(config, folder, console)
        config = with_folders(config, folder.path)
        facts = folder.ingest() or _ingest(config, folder, console)
        finished = folder.finished()
        total = facts["taken"]
        if len(finished) >= total:
            console.print(f"Nothing left to do: all {total} dialogues of {folder} are finished.")
            return False
        check_retrieval(config.method)
        _check_engines(config)
        announce(config, console)
        started = time.time()
        ended = "stopped"
        try:
            with Progress(console, total, len(finished), lambda: waited_for(config)) as progress:
                while len(finished) < total:
                    if purse.empty:
                        ended = "budget"
                        raise purse.reached(len(finished), total)
                    _stream(config, folder, finished, progress, purse)
                    before, finished = len(finished), folder.finished()
                    if len(finished) == before and not purse.empty:
                        raise RunStopped(f"{total - before} dialogues came back without samples; see Ray's logs")
            ended = "finished"
            forget(folder.path, kept(folder.path))
            console.print(progress.line(), soft_wrap=True)
        except KeyboardInterrupt:
            ended = "interrupted"
            raise
        finally:
            folder.note_session(
                started=started,
                seconds=time.time() - started,
                ended=ended,
                dialogues=progress.done - progress.before,
                workers=config.cluster.workers,
            )
    return True


def _begin(config: RunConfig, folder: RunFolder, console: Console) -> None:
    """Begin the run or go on with it; its memory begins with what people said, if they said anything."""
    reviewed = take(config.memory_from, folder.path)
    folder.begin(config, method_snapshot(config, prompts_version(config.method.program), reviewed.fingerprint))
    if reviewed.trajectories:
        remember(reviewed, folder, config.method.k, config.method.update_threshold)
        console.print(summary(reviewed.counts), soft_wrap=True)


def _ingest(config: RunConfig, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Read, filter and store the seeds. It is over when ingest.json is there; before, it begins anew."""
    for table in ("seeds", "rejects"):
        for part in folder.parts(table):
            Path(part).unlink()
    stats = SeedStats()
    seeds: list[dict[str, Any]] = []
    rejects: list[dict[str, Any]] = []
    for item in read_seeds(config.seeds):
        stats.add(item)
        if isinstance(item, Refused):
            rejects.append(item.as_row())
        else:
            seeds.append({"id": item.seed.id, "seed": item.seed.model_dump_json()})
        for table, rows in (("seeds", seeds), ("rejects", rejects)):
            if len(rows) >= ROWS_PER_FILE:
                folder.write_part(table, rows)
                rows.clear()
    folder.write_part("seeds", seeds)
    folder.write_part("rejects", rejects)
    facts = stats.as_dict()
    if not facts["taken"]:
        raise RunError(
            f"none of the {facts['read']} dialogues read can be used; see why with: "
            f"synuc seeds stats {' '.join(config.seeds.paths)}"
        )
    folder.write_ingest(facts)
    console.print(f"Read {facts['read']} dialogues: {facts['taken']} taken, {facts['read'] - facts['taken']} refused.")
    return facts


def _check_engines(config: RunConfig) -> None:
    async def check() -> None:
        for engine_config in config.engines():
            engine = build_engine(engine_config)
            try:
                await engine.check()
            finally:
                await engine.close()

    asyncio.run(check())


def _stream(config: RunConfig, folder: RunFolder, finished: pa.Array, progress: Progress, purse: Purse) -> None:
    with connected(config.cluster.address):
        import ray

        from actors.memory import start_memory
        from actors.replies import start_replies
        from actors.worker import SynthesisWorker

        placement = place(config.engines(), config.cluster, nodes())
        most = config.cluster.max_workers or placement.workers
        here = ray.get_runtime_context().get_node_id()
        memory = start_memory(
            folder.path, config.method.k, config.method.update_threshold, lease_s(config), here, folder.url
        )
        replies = start_replies(folder.path, here)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        # Backpressure reserves this much object store for each dialogue in flight; a finished one is some 20 KB.
        context.target_max_block_size = 256 * 1024
        # It would poll from one thread per dialogue in flight: more than half of the CPU on two cores.
        context.memory_usage_poll_interval_s = None
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        pending = _pending(folder, finished)
        # Small blocks: a worker gets a few dialogues at a time, and all workers get some. No `map_batches` may stand
        # before the repartition: it would be fused with the workers', and a whole file be one task.
        left = progress.total - len(finished)
        dialogues = min(placement.dialogues_in_flight, left)
        # Each block has a thread of its worker: larger ones where very many dialogues wait at once, as for batch files.
        largest = max(DIALOGUES_PER_BLOCK, dialogues // BLOCKS_IN_FLIGHT)
        block = max(1, min(largest, left // (4 * most)))
        rows = pending.repartition(target_num_rows_per_block=block).map_batches(
            cast(Any, SynthesisWorker),
            fn_constructor_args=(config, memory, replies, most, dialogues, program(config.method.program)),
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=placement.cpus,
            num_gpus=placement.gpus or None,
            # Ray would give each process as many threads as CPUs it reserves, which is one for an engine on CPUs.
            runtime_env={"env_vars": {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count()))}},
            compute=pool(placement.workers, most, -(-dialogues // block)),
        )
        tables: Iterable[Any] = rows.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
        try:
            with Sink(folder, progress, purse) as sink:
                _collect(tables, sink, purse, memory)
        finally:
            # On a shared cluster the name must be free for the next start. What workers still say to `replies` counts.
            ray.kill(memory)


def pool(least: int, most: int, blocks: int) -> Any:
    """Workers, at least and at most so many; each has use for so many blocks at once.

    While all have twice as many and more wait, Ray adds workers for which the cluster has room, and asks its autoscaler
    for nodes. It ends a worker that has no block, and thus no dialogue, when few blocks are left.
    """
    import ray

    return ray.data.ActorPoolStrategy(
        min_size=least,
        max_size=most,
        # More blocks than dialogues in flight need: one that waits for its last dialogue leaves room. The quotient of
        # these two has to be more than 1.75, or Ray would add no worker.
        max_tasks_in_flight_per_actor=4 * blocks,
        max_concurrent_calls_per_actor=2 * blocks,
        enable_true_multi_threading=True,
    )


def _pending(folder: RunFolder, finished: pa.Array) -> Any:
    """The dialogues that aren't finished. Of millions only files that are finished in part need a filter."""
    import ray
    from ray.data.expressions import col

    def read(parts: Sequence[str]) -> Any:
        files, filesystem = folder.everywhere(parts)
        return ray.data.read_parquet(files, filesystem=filesystem)

    fresh, begun, ids = folder.begun_seeds(finished)
    if not begun:
        return read(fresh)
    rest = read(begun).filter(expr=col("id").not_in(ids))
    return rest.union(read(fresh)) if fresh else rest


def _collect(tables: Iterable[Any], sink: Sink, purse: Purse, memory: Any) -> None:
    """Take what workers give back until nothing comes any more, or the budget is spent and nothing is in flight.

    Raises:
        RunStopped: no dialogue can be worked on.
    """
    import ray

    closing = Closing()
    for table in tables:
        for row in table.to_pylist():
            if row["held"]:
                closing.held(row["seed_id"])
            else:
                sink.add(row)
            if row["fatal"]:
                raise RunStopped(row["fatal"])
        # Asked each time: a memory that Ray has restarted meanwhile isn't closed any more.
        if purse.empty and closing.over(ray.get(memory.close.remote()), sink.seen):
            break


@contextmanager
def _disk_errors(folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunStopped(
            f"can't write to {folder}: {error.strerror or error}. Everything finished before is kept; "
            "put that right and give the same command again."
        ) from None
