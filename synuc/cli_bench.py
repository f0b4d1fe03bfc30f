"""The commands `synuc bench ...`. Each imports its job only when it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipelines.seeds import SeedStats
    from synuc.config import Seeds
    from synuc.types import Seed

app = typer.Typer(no_args_is_help=True, help="Make a benchmark from chat logs.")


@app.command()
def mine(
    seeds: Annotated[
        list[str], typer.Option("--seeds", help="Files, folders, globs, hf:NAME, or sharegpt-sample; again for more.")
    ],
    run: Annotated[Path, typer.Option("--run", help="Folder of the mining; an existing one is continued.")],
    configs: Annotated[
        list[Path], typer.Option("--config", help="YAML file; give it again to lay one over another.")
    ] = [],
    overrides: Annotated[list[str], typer.Option("--set", help="One value over the files, e.g. keep=50.")] = [],
) -> None:
    """Find dialogues that suit a benchmark of implicit conflicts; candidates.jsonl holds the best."""
    from rich.console import Console

    from eval.mining import MiningConfig, draw
    from eval.mining import mine as job
    from pipelines.seeds import SeedStats
    from synuc.layers import compose

    config = compose(MiningConfig, configs, overrides, over={"--seeds": {"seeds": {"paths": seeds}}})
    stats = SeedStats()
    drawn = draw(_passed(config.seeds, stats), config.per_language, config.seed)
    job(config, drawn, stats.as_dict(), ["synuc", *sys.argv[1:]], run, Console())


def _passed(seeds: Seeds, stats: SeedStats) -> Iterator[Seed]:
    """What passes the rule filter; `stats` counts everything."""
    from pipelines.seeds import Taken, read_seeds

    for item in read_seeds(seeds):
        stats.add(item)
        if isinstance(item, Taken):
            yield item.seed
