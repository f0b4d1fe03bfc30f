"""Data sets from a run: UC-Data-SFT and UC-Data-GRPO (JSONL and Parquet), a benchmark, all intermediates, and a card.

Only accepted samples are exported, in the order of their ids, so that a run always gives the same bytes. Samples pass
one by one: they go into a scratch file first, and then out of it in order; only ids and positions are held in memory,
and what a selection chooses by.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq

from pipelines.bench import bench_item
from pipelines.card import LeftOut, Totals, card
from pipelines.card_method import model_name
from pipelines.quality.choice import NONE, Candidate, Selection, choose, left_out
from pipelines.quality.difficulty import as_json, level
from pipelines.quality.rows import rows as details
from pipelines.run_folder import SAMPLES, RunFolder
from synuc.folder import json_line
from synuc.formatting import Retention, grpo_example, sft_example
from synuc.problem import Problem
from synuc.sample import UC_DATA, Outcome, Sample
from synuc.types import Label

ROWS_PER_GROUP = 512
FILES = (
    "uc-data-sft.jsonl",
    "uc-data-sft.parquet",
    "uc-data-grpo.jsonl",
    "uc-data-grpo.parquet",
    UC_DATA,
    "uc-bench.jsonl",
    "README.md",
)

EXAMPLE = [
    ("id", pa.string()),
    ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
    ("label", pa.string()),
    ("language", pa.string()),
    ("seed_id", pa.string()),
]
CONSTRAINT = pa.struct([(name, pa.string()) for name in ("type", "dimension", "value", "evidence")])
REFERENCE = pa.struct(
    [
        ("label", pa.string()),
        ("relation", pa.string()),
        ("historical_constraint", CONSTRAINT),
        ("new_constraint", CONSTRAINT),
    ]
)
SFT = pa.schema(EXAMPLE)
GRPO = pa.schema([*EXAMPLE, ("reference", REFERENCE)])


class ExportError(Problem):
    """A run with nothing to export; the message says where to look."""


def export(folder: RunFolder, retention: Retention, selection: Selection | None = None) -> list[str]:
    """Write RUN/export anew, each file whole or not at all; the lines say what is there and what is missing.

    Without a selection all accepted samples are exported. A run that is not finished can be exported: the lines and the
    card then say how many dialogues are open.

    Raises:
        ExportError: the run has no accepted sample.
    """
    facts = folder.ingest() or {"taken": 0, "sources": {}}
    unfinished = facts["taken"] - len(folder.finished())
    target = folder.path / "export"
    try:
        with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.path) as name:
            scratch = Path(name)
            order, repeated = _collect(folder, scratch / "records")
            if not order:
                raise ExportError(
                    f"{folder.path} has no accepted sample to export; see why with: synuc report {folder.path}"
                )
            spared = None
            if selection:
                order, spared = _select(folder, order, selection)
            totals = _write(scratch, order, retention, _provenance(folder), selection)
            text = card(folder.path.name, folder.method, facts, totals, retention, unfinished, spared)
            (scratch / "README.md").write_text(text, encoding="utf-8")
            target.mkdir(exist_ok=True)
            for file in FILES:
                publish(scratch / file, target / file)
    except OSError as error:
        raise ExportError(f"can't write to {target}: {error.strerror or error}; make room and export again") from None
    per_label = ", ".join(f"{totals.of(label)} {label.value}" for label in Label)
    lines = [f"{len(order)} accepted samples ({per_label}), assistant turns {retention.value}:"]
    lines += [f"  {target / file}" for file in FILES]
    if spared and spared.samples:
        by = ", ".join(spared.balance)
        lines.append(f"{spared.samples} accepted samples were left out to balance {by}: see its README.md.")
    if unfinished:
        lines.append(f"{unfinished} of {facts['taken']} dialogues aren't finished: go on with synuc synthesize.")
    if repeated:
        lines.append(f"{repeated} samples have the id of another and were left out: see synuc report {folder.path}")
    return lines


def publish(file: Path, target: Path) -> None:
    """Put a file written in full in the place of `target`, on disk before anyone sees it."""
    with file.open("rb") as written:
        os.fsync(written.fileno())
    file.replace(target)


def _collect(folder: RunFolder, records: Path) -> tuple[list[tuple[str, int, int]], int]:
    """Put the accepted samples' JSON one after the other into `records`.

    Gives (id, offset, length) in the order of ids, and how many rows were left out because they repeat an id.
    """
    places: dict[str, tuple[int, int]] = {}
    end = repeated = 0
    with records.open("wb") as file:
        for id, record in _accepted(folder):
            if id in places:
                repeated += 1
                continue
            data = record.encode()
            file.write(data)
            places[id] = (end, len(data))
            end += len(data)
    return [(id, *places[id]) for id in sorted(places)], repeated


def _accepted(folder: RunFolder) -> Iterator[tuple[str, str]]:
    parts = folder.parts("samples")
    if not parts:
        return
    rows = pa.dataset.dataset(parts, format="parquet", schema=SAMPLES)
    where = pc.field("outcome") == Outcome.ACCEPTED.value
    for batch in rows.to_batches(columns=["id", "record"], filter=where, batch_size=256):
        yield from zip(batch["id"].to_pylist(), batch["record"].to_pylist(), strict=True)


def _select(
    folder: RunFolder, order: list[tuple[str, int, int]], selection: Selection
) -> tuple[list[tuple[str, int, int]], LeftOut]:
    """What is kept of the samples, and what the card says of the rest."""
    rows = folder.read("samples", ["id", "outcome", "label", "relation", "language", "speaking"])
    accepted = rows.filter(pc.equal(rows["outcome"], Outcome.ACCEPTED.value)).drop_columns(["outcome"]).to_pylist()
    values = {
        row["id"]: {name: value or NONE for name, value in row.items() if name != "id"}
        | {"difficulty": level(selection.difficulty, row["id"]).value}
        for row in accepted
    }
    if {"dimension", "distance"} & {*selection.balance, *selection.stratify}:
        for row in details(folder):
            distance = str(row.distance) if row.distance else NONE
            values[row.id] |= {"dimension": row.anchor_dimension or NONE, "distance": distance}
    candidates = [Candidate(id, values[id]) for id, *_ in order]
    kept = choose(candidates, selection)
    spared = LeftOut(
        samples=len(order) - len(kept),
        balance=selection.balance,
        stratify=selection.stratify,
        values=left_out(candidates, kept, selection),
    )
    return [place for place in order if place[0] in kept], spared


def _write(
    scratch: Path,
    order: list[tuple[str, int, int]],
    retention: Retention,
    provenance: Mapping[str, Any],
    selection: Selection | None,
) -> Totals:
    """The data files, into `scratch`. Samples with a known difficulty have it in uc-data.jsonl."""
    found = selection.difficulty if selection else {}
    totals = Totals()
    with ExitStack() as stack:
        records = stack.enter_context((scratch / "records").open("rb"))
        sft = stack.enter_context(_Table(scratch, "uc-data-sft", SFT))
        grpo = stack.enter_context(_Table(scratch, "uc-data-grpo", GRPO))
        everything = stack.enter_context((scratch / UC_DATA).open("w", encoding="utf-8"))
        bench = stack.enter_context((scratch / "uc-bench.jsonl").open("w", encoding="utf-8"))
        for id, offset, length in order:
            records.seek(offset)
            sample = Sample.model_validate_json(records.read(length))
            row = sft_example(sample, retention)
            sft.add(row)
            grpo.add(grpo_example(sample, retention))
            hard = {"difficulty": as_json(found[id])} if id in found else {}
            everything.write(json_line({**sample.model_dump(mode="json"), **hard, "made_by": provenance}))
            bench.write(json_line(bench_item(sample)))
            totals.add(Label(row["label"]), sample)
    return totals


class _Table:
    """The same rows as JSONL and as Parquet."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows: list[dict[str, Any]] = []
        self.jsonl = (folder / f"{name}.jsonl").open("w", encoding="utf-8")
        self.parquet = pq.ParquetWriter(folder / f"{name}.parquet", schema, compression="zstd")

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *error: object) -> None:
        self._flush()
        self.parquet.close()
        self.jsonl.close()

    def add(self, row: dict[str, Any]) -> None:
        self.jsonl.write(json_line(row))
        self.rows.append(row)
        if len(self.rows) >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self.rows:
            self.parquet.write_table(pa.Table.from_pylist(self.rows, schema=self.schema))
            self.rows = []


def _provenance(folder: RunFolder) -> dict[str, Any]:
    method = folder.method
    return {
        "run": method["fingerprint"],
        "prompts": method["prompts"],
        "models": {role: model_name(engine) for role, engine in method["engines"].items()},
    }
