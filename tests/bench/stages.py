"""`python -m tests.bench.stages`: our pipeline against one Ray Data stage after another, on the embedded model in vLLM.

The same prompts (`tests.bench.fixed`), dialogues and engine settings. The other side has one `map_batches` a step of
the method, over all dialogues before the next step begins, ER and IC of a dialogue beside each other in one step. Its
stages share one engine, which a user's would not, and give it all calls of a stage at once. The dialogues together are
larger than the engine's cache, as in any real run. Seconds count from the first answer to the last: starting an engine
is no part of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import ray
from rich.console import Console

from actors.vllm_engine import InProcessVllm
from cluster.connect import connected
from pipelines.run_folder import RunFolder
from pipelines.synthesize import synthesize
from synuc.config import RunConfig, VllmEngine
from synuc.types import LLMRequest, Seed
from tests.bench.fixed import fixed, requests_of
from tests.bench.verdicts import Row, conclude

TARGET = 1.5


@dataclass(frozen=True)
class Figures:
    """What a side did. `ends` in Unix seconds, of every answer."""

    ends: Sequence[float]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def seconds(self) -> float:
        return max(self.ends) - min(self.ends)

    @property
    def cached(self) -> float:
        return self.cached_tokens / self.prompt_tokens


def settings(seeds: int) -> RunConfig:
    """Of both sides. The cache holds the dialogues in flight, and no more than a part of all."""
    return RunConfig.model_validate(
        {
            "seeds": {"paths": ["sharegpt-sample"], "limit": seeds, "min_chars": 4500, "max_chars": 8000},
            "engine": {
                "kind": "vllm",
                "model": "embedded",
                "max_in_flight": 8,
                "cpu_kv_cache_gib": 1,
                "enforce_eager": True,
            },
            "method": {
                "labels": ["ER", "IC"],
                "task_filter": False,
                "update_threshold": 1_000_000,
                "parse_attempts": 1,
            },
        }
    )


def pipeline(config: RunConfig, folder: Path) -> tuple[Figures, list[Seed]]:
    """Our pipeline, with the fixed prompts; and the dialogues that it took."""
    with patch("pipelines.synthesize.program", return_value=fixed):
        synthesize(config, folder, Console(quiet=True))
    run = RunFolder(folder)
    calls = run.read("calls")
    tokens = [int(pc.sum(calls[f"{kind}_tokens"]).as_py()) for kind in ("prompt", "cached", "completion")]
    seeds = [Seed.model_validate_json(seed) for seed in run.read("seeds")["seed"].to_pylist()]
    return Figures(pc.add(calls["started"], calls["seconds"]).to_pylist(), *tokens), seeds


class SharedEngine:
    """The one engine of all stages."""

    def __init__(self, config: VllmEngine) -> None:
        self.engine = InProcessVllm(config)

    async def start(self) -> None:
        await self.engine.start()

    async def close(self) -> None:
        await self.engine.close()

    async def answer(self, requests: list[LLMRequest]) -> list[dict[str, Any]]:
        """All of a stage, as many at a time as the engine takes."""
        return list(await asyncio.gather(*(self._answer(request) for request in requests)))

    async def _answer(self, request: LLMRequest) -> dict[str, Any]:
        done = await self.engine.complete(request, 0)
        return {
            "text": done.text,
            "end": time.time(),
            "prompt_tokens": done.prompt_tokens,
            "cached_tokens": done.cached_tokens,
            "completion_tokens": done.completion_tokens,
        }


class Stage:
    """One step for all dialogues. Rows name its requests by number."""

    def __init__(self, engine: Any, requests: Sequence[LLMRequest]) -> None:
        self.engine = engine
        self.requests = requests

    def __call__(self, batch: pa.Table) -> pa.Table:
        requests = [self.requests[number] for number in batch["number"].to_pylist()]
        return pa.Table.from_pylist(ray.get(self.engine.answer.remote(requests)))


def stages(config: RunConfig, seeds: Sequence[Seed]) -> Figures:
    """One stage after the other."""
    steps: dict[str, list[LLMRequest]] = {}
    for seed in seeds:
        for request in requests_of(seed, config.method):
            steps.setdefault(request.stage, []).append(request)
    tables: list[pa.Table] = []
    threads = os.environ.get("OMP_NUM_THREADS", str(os.cpu_count()))
    with connected(None):
        remote: Any = ray.remote(SharedEngine)
        engine = remote.options(runtime_env={"env_vars": {"OMP_NUM_THREADS": threads}}).remote(config.engine)
        ray.get(engine.start.remote())
        stage: Any = Stage
        ray.data.DataContext.get_current().enable_progress_bars = False
        for requests in steps.values():
            numbers = [{"number": number} for number in range(len(requests))]
            done = ray.data.from_items(numbers, override_num_blocks=1).map_batches(
                stage,
                fn_constructor_args=(engine, requests),
                batch_size=None,
                batch_format="pyarrow",
                num_cpus=0,
                compute=ray.data.ActorPoolStrategy(size=1),
            )
            tables += done.iter_batches(batch_size=None, batch_format="pyarrow")
        ray.get(engine.close.remote())
    table = pa.concat_tables(tables)
    tokens = [int(pc.sum(table[f"{kind}_tokens"]).as_py()) for kind in ("prompt", "cached", "completion")]
    return Figures(table["end"].to_pylist(), *tokens)


def rows(seeds: int, ours: Figures, theirs: Figures) -> list[Row]:
    """Both sides and their ratio."""
    found = []
    for name, side in (("our pipeline", ours), ("one stage after another", theirs)):
        figures = f"{60 * seeds / side.seconds:.2f} seeds/min, {side.cached:.1%} of prompt tokens cached"
        tokens = f"{len(side.ends)} calls, {side.prompt_tokens:,} + {side.completion_tokens:,} tokens"
        found.append(Row(name, f"{figures} ({tokens}, {side.seconds:.0f} s)"))
    ratio = theirs.seconds / ours.seconds
    return [*found, Row("pipeline over stages", f"{ratio:.2f}", f"at least {TARGET}", ratio >= TARGET)]


def main() -> int:
    """Both sides; the exit status is 1 if ours isn't so much faster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=24)
    options = parser.parse_args()
    config = settings(options.seeds)
    with tempfile.TemporaryDirectory() as folder:
        ours, seeds = pipeline(config, Path(folder) / "run")
    theirs = stages(config, seeds)
    if (len(ours.ends), ours.prompt_tokens) != (len(theirs.ends), theirs.prompt_tokens):
        raise RuntimeError(
            f"not the same prompts: {len(ours.ends)} calls of {ours.prompt_tokens} tokens against "
            f"{len(theirs.ends)} of {theirs.prompt_tokens}"
        )
    return conclude(f"{len(seeds)} dialogues, the embedded model", rows(len(seeds), ours, theirs))


if __name__ == "__main__":
    sys.exit(main())
