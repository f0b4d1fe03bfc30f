"""`synuc synthesize --estimate`: synthesises a few dialogues in a folder that is thrown away, and extrapolates."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args
from urllib.parse import urlsplit

from rich.console import Console

from actors.store import is_url
from cluster.connect import connected, nodes
from cluster.placement import place
from pipelines.estimate import COUNTED, EngineUse, estimate, print_estimate
from pipelines.readers import Refused
from pipelines.run_folder import RunFolder
from pipelines.seeds import Taken, read_seeds
from pipelines.synthesize import synthesize
from synuc.config import BatchEngine, Budget, RunConfig, VllmEngine
from synuc.folder import RunError
from synuc.types import Role, Seed


def try_out(config: RunConfig, run: Path | str, seeds: int, console: Console) -> None:
    """Print what the run in `run` would use, cost and take, by `seeds` of its dialogues; the folder isn't touched.

    Raises:
        RunError: fewer than two dialogues pass the filters, or an engine of batch files would have it take hours.
        SeedError, EngineUnavailable, RunStopped: as a run does.
    """
    if any(isinstance(engine, BatchEngine) for engine in config.engines()):
        raise RunError(
            "an estimate by batch files would take as long as a run: estimate with the endpoint that answers at once "
            "(--set engine.kind=openai, with engine.model and engine.base_url), with the prices of batches"
        )
    console.print("Counting the dialogues that pass the filters ...")
    sample, total = draw(read_seeds(config.seeds), seeds, config.method.seed)
    if len(sample) < 2:
        raise RunError(f"{total} of the dialogues pass the filters: an estimate needs two at least, a run doesn't")
    console.print(f"{total:,} pass; {len(sample)} of them are synthesised now, as a trial.")
    with _folder_beside(run) as folder, connected(config.cluster.address):
        folder.write_part("seeds", [{"id": seed.id, "seed": seed.model_dump_json()} for seed in sample])
        folder.write_ingest({"taken": len(sample)})
        synthesize(config.model_copy(update={"budget": Budget()}), folder.url or folder.path, console)
        columns = ["seed_id", "key", "stage", "role", "started", "seconds", *COUNTED]
        calls = folder.read("calls", columns).to_pylist()
        workers = _workers(config)
    used = engine_uses(config, workers)
    print_estimate(estimate(calls, [seed.id for seed in sample], total, used, workers), console)


@contextmanager
def _folder_beside(run: Path | str) -> Iterator[RunFolder]:
    """A folder beside the run, where other machines of a cluster can read it, too; in the end it is gone."""
    if is_url(run):
        parts = urlsplit(str(run))
        folder = RunFolder(parts._replace(path=f"{parts.path.rstrip('/')}-estimate-{uuid.uuid4().hex[:8]}").geturl())
        assert folder.mirror is not None
        try:
            yield folder
        finally:
            folder.mirror.store.delete_all()
            shutil.rmtree(folder.path.parent)
        return
    path = Path(run).resolve()
    beside = next(parent for parent in path.parents if parent.is_dir())
    with TemporaryDirectory(prefix=f".{path.name}-estimate-", dir=beside) as name:
        yield RunFolder(Path(name))


def draw(items: Iterable[Taken | Refused], n: int, seed: int) -> tuple[list[Seed], int]:
    """At most `n` of the dialogues taken, each with the same chance, and how many were taken; memory for `n` only."""
    rng = random.Random(seed)
    sample: list[Seed] = []
    total = 0
    for item in items:
        if isinstance(item, Refused):
            continue
        total += 1
        if len(sample) < n:
            sample.append(item.seed)
        elif (at := rng.randrange(total)) < n:
            sample[at] = item.seed
    return sample, total


def _workers(config: RunConfig) -> int:
    return place(config.engines(), config.cluster, nodes()).workers


def engine_uses(config: RunConfig, workers: int) -> list[EngineUse]:
    """The engines of a run. Each worker has an in-process engine of its own; an endpoint is shared by all."""
    return [
        EngineUse(
            model=engine.model,
            roles=frozenset(role for role in get_args(Role) if config.engine_of(role) == engine),
            slots=engine.max_in_flight * (workers if isinstance(engine, VllmEngine) else 1),
            starts=isinstance(engine, VllmEngine),
        )
        for engine in config.engines()
    ]
