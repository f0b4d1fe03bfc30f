"""The table of a sweep: for every backbone, data set and stage the mean over seeds and its 95% interval."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from eval.metrics import interval
from synuc.folder import write_whole
from training.card import FIGURES
from training.cells import CellFolder, cells
from training.config import SweepConfig

TEST = {
    "precision": "macro P",
    "recall": "macro R",
    "f1": "macro F1",
    "recall_ic": "R(IC)",
    "unparseable": "unparseable",
}
"""The figures of the test and their columns, in per cent."""

NONE = "–"


def rows(config: SweepConfig, run: Path) -> list[dict[str, Any]]:
    """A row for every backbone, data set and stage: these, `seeds` (how many are done) and the figures.

    A figure is `mean` and `half_width` (None for one seed). Without a test they are those of the last training steps.
    """
    kind = "test" if config.test else "training"
    results: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for cell in cells(config):
        path = CellFolder(run, cell.name).result
        done = json.loads(path.read_text("utf-8"))["stages"] if path.exists() else {}
        for stage in config.stages:
            found = results.setdefault((cell.backbone.stem, cell.data, stage), [])
            found += [done[stage][kind]] if stage in done else []
    return [_row(*key, seeds) for key, seeds in results.items()]


def _row(backbone: str, data: str, stage: str, seeds: Sequence[dict[str, float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"backbone": backbone, "data": data, "stage": stage, "seeds": len(seeds)}
    for name in (*TEST, *FIGURES):
        if values := [figures[name] for figures in seeds if name in figures]:
            mean, half_width = interval(values)
            row[name] = {"mean": mean, "half_width": half_width}
    return row


def write(config: SweepConfig, run: Path) -> Table:
    """Write `table.md` and `table.json` into the sweep's folder, and give the table for a terminal."""
    made = rows(config, run)
    names = list(TEST) if config.test else [name for name in FIGURES if any(name in row for row in made)]
    header = ["backbone", "data", "stage", *(TEST.get(name, name) for name in names), "n seeds"]
    lines = [
        [row["backbone"], row["data"], row["stage"].upper(), *(_shown(row, name) for name in names), str(row["seeds"])]
        for row in made
    ]
    write_whole(run / "table.json", json.dumps(made, indent=2, ensure_ascii=False))
    write_whole(run / "table.md", _markdown(header, lines, _caption(config)))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=_caption(config), caption_justify="left")
    for place, name in enumerate(header):
        table.add_column(name, no_wrap=place < 3, overflow="fold")
    for line in lines:
        table.add_row(*line)
    return table


def _shown(row: dict[str, Any], name: str) -> str:
    if name not in row:
        return NONE
    scale, digits = (100, 1) if name in TEST else (1, 4)
    mean, half_width = row[name]["mean"], row[name]["half_width"]
    text = f"{mean * scale:.{digits}f}"
    return text if half_width is None else f"{text} ± {half_width * scale:.{digits}f}"


def _caption(config: SweepConfig) -> str:
    if config.test:
        return "Per cent on the test samples: mean over seeds ± half the 95% t-interval."
    return "Last logged steps of training, not a test result: mean over seeds ± half the 95% t-interval."


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]], caption: str) -> str:
    table = [header, ["---"] * len(header), *lines]
    return "\n".join(["| " + " | ".join(line) + " |" for line in table] + ["", caption, ""])
