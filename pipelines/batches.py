"""What a synthesis run does for engines of batch files: it gives them a folder, and tells what they wait for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from rich.console import Console

from actors.batch_files import waiting
from synuc.config import AnyEngine, BatchEngine, RunConfig
from synuc.layers import ConfigError
from synuc.types import Role

# Providers give a batch 24 hours; a memory update that is asked for in one has to last longer than it.
LEASE_S = 26 * 3600.0


def with_folders(config: RunConfig, run: Path) -> RunConfig:
    """The configuration with a folder for every engine of batch files: below `run`, where none is named.

    Raises:
        ConfigError: two different ones would share one.
    """
    roles = {role: _with_folder(config.engine_of(role), run) for role in get_args(Role)}
    made = config.model_copy(update={"roles": roles})
    folders = [engine.folder for engine in _batch_engines(made)]
    for folder in folders:
        if folders.count(folder) > 1:
            raise ConfigError(f"two engines of batch files would share {folder}: name another `folder` for one of them")
    return made


def _with_folder(engine: AnyEngine, run: Path) -> AnyEngine:
    if not isinstance(engine, BatchEngine):
        return engine
    own = engine.folder or run / "batches" / re.sub(r"[^\w.-]+", "-", engine.model)
    return engine.model_copy(update={"folder": own.absolute()})


def _batch_engines(config: RunConfig) -> list[BatchEngine]:
    return [engine for engine in config.engines() if isinstance(engine, BatchEngine)]


def lease_s(config: RunConfig) -> float:
    """How long a worker may take for a memory update, in seconds."""
    by_batch = isinstance(config.engine_of("curator"), BatchEngine)
    return max(config.cluster.lease_s, LEASE_S) if by_batch else config.cluster.lease_s


def announce(config: RunConfig, console: Console) -> None:
    """Say where the files are, and whose turn it is."""
    for engine in _batch_engines(config):
        whose = f"{engine.base_url} answers them" if engine.base_url else "put the answers there as *.answers.jsonl"
        said = f"Requests to {engine.model} go to {engine.folder} as wave-*.jsonl; {whose}. Stop and go on as you like."
        console.print(said, soft_wrap=True, highlight=False, markup=False)


def waited_for(config: RunConfig) -> list[str]:
    """A line for each wave that isn't answered yet."""
    return [line for engine in _batch_engines(config) if engine.folder for line in waiting(engine.folder)]
