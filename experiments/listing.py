"""The experiments of a folder, for a terminal."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table

from experiments.config import SCALES, Scale, load, shipped
from experiments.plan import cells, distinct, needs


def listed(folder: Path) -> Table:
    """Of each experiment: what it reproduces, and by scale its cells, its steps (shared ones once), and what it needs.

    Raises:
        ConfigError: there are none, or one can't be read.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("experiment", "reproduces", "scale", "cells", "steps", "needs"):
        table.add_column(name, justify="right" if name in ("cells", "steps") else "left", overflow="fold")
    for file in shipped(folder):
        for first, scale in zip((True, False), SCALES, strict=True):
            reproduces, *figures = _row(file, scale)
            table.add_row(*((file.stem, reproduces) if first else ("", "")), scale, *figures)
    return table


def _row(file: Path, scale: Scale) -> tuple[str, str, str, str]:
    experiment = load(file, scale)
    planned = cells(experiment)
    steps = distinct(planned)
    return experiment.reproduces, str(len(planned)), str(len(steps)), ", ".join(needs(steps)) or "nothing"
