"""A run's folder: what is in it, and the rule that a run is only continued by the method it began with.

    config.yaml       the configuration of the last start (no secrets)
    method.json       what may not change, and its fingerprint
    seeds/            the dialogues taken (Parquet) and ingest.json, the statistics of reading
    rejects/          the dialogues refused at reading, each with reason and position (Parquet)
    samples/          one row per sample (Parquet); a dialogue is finished when its samples are here
    calls/            the usage ledger: one row per call of an LLM (Parquet)
    memory/           snapshot and journal of the memory actor
    replies/          what engines have answered to dialogues that aren't finished
    batches/          requests and answers of engines of batch files (`actors.batch_files`)
    reviewed.json     what the memory began with from people's reviews, if anything, and counts
    sessions.jsonl    one line per start: when, how long, how it ended
    export/           made by `synuc export`

Every file appears whole or not at all: it is written under a hidden name and renamed. A run can be at a URL; its folder
is then a working copy (`pipelines.mirror`), and what has been written is at the URL, too, but for `replies/` and
`batches/`.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq

from actors.store import Store, is_url
from pipelines.mirror import Mirror, looked
from synuc.folder import Folder, RunError, json_line
from synuc.sample import Sample

SAMPLES = pa.schema(
    [
        ("id", pa.string()),
        ("seed_id", pa.string()),
        ("label", pa.string()),
        ("outcome", pa.string()),
        ("stage", pa.string()),
        ("kind", pa.string()),
        ("reason", pa.string()),
        ("language", pa.string()),
        ("source", pa.string()),
        ("speaking", pa.string()),
        ("relation", pa.string()),
        ("confidence", pa.int32()),
        ("repository_version", pa.int32()),
        ("turns", pa.int32()),
        ("record", pa.string()),
    ]
)
CALLS = pa.schema(
    [
        ("seed_id", pa.string()),
        ("key", pa.string()),
        ("stage", pa.string()),
        ("role", pa.string()),
        ("model", pa.string()),
        ("attempt", pa.int32()),
        ("started", pa.float64()),
        ("seconds", pa.float64()),
        ("prompt_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("finish_reason", pa.string()),
        ("error", pa.string()),
        ("cost", pa.float64()),
        ("unused", pa.string()),
        ("again", pa.bool_()),
    ]
)
SEEDS = pa.schema([("id", pa.string()), ("seed", pa.string())])
REJECTS = pa.schema(
    [
        ("source", pa.string()),
        ("position", pa.string()),
        ("source_id", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
    ]
)
ROWS_PER_FILE = 1024
TABLES = {"samples": SAMPLES, "calls": CALLS, "seeds": SEEDS, "rejects": REJECTS}
AT_URL = ("config.yaml", "method.json", *TABLES, "memory", "reviewed.json", "sessions.jsonl", "export")
"""What is at the URL of a run."""


CallId = tuple[Any, ...]
CALL_ID = ("key", "stage", "attempt", "started")


def call_id(call: Mapping[str, Any]) -> CallId:
    """What tells a call from all others of its dialogue."""
    return tuple(call[name] for name in CALL_ID)


def sample_row(sample: Sample) -> dict[str, Any]:
    """The columns of `SAMPLES`: what one filters by, and the whole sample as JSON in `record`."""
    return {
        "id": sample.id,
        "seed_id": sample.seed_id,
        "label": sample.label.value if sample.label else None,
        "outcome": sample.outcome.value,
        "stage": sample.stage,
        "kind": sample.kind,
        "reason": sample.reason,
        "language": sample.language,
        "source": sample.source,
        "speaking": sample.speaking.value if sample.speaking else None,
        "relation": sample.relation.value if sample.relation else None,
        "confidence": sample.judgment.confidence if sample.judgment else None,
        "repository_version": sample.repository_version,
        "turns": len(sample.dialogue.turns),
        "record": sample.model_dump_json(),
    }


class RunFolder(Folder):
    """Reads and writes the folder of a synthesis run.

    `place` is its path, or its URL: `path` is its working copy then.
    """

    def __init__(self, place: Path | str) -> None:
        """Raises RunError: the URL is of no known kind."""
        self.mirror = None
        if is_url(place):
            store = Store(str(place))
            place = store.working_copy
            self.mirror = Mirror(store, place, AT_URL)
        super().__init__(Path(place))

    @classmethod
    def existing(cls, place: Path | str) -> RunFolder:
        """The folder of a run that was begun, to read; of a run at a URL as it is there now.

        Raises:
            RunError: there is none, or the store doesn't answer.
        """
        folder = cls(place)
        if folder.mirror:
            looked(folder.mirror)
        if not folder.begun():
            raise RunError(f"{place} is no run folder; begin one with: synuc synthesize --config ... --run {place}")
        return folder

    @property
    def url(self) -> str | None:
        """The URL at which the run is, if it is at one."""
        return self.mirror.store.url if self.mirror else None

    def __str__(self) -> str:
        return self.url or super().__str__()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The right to write, for the length of the block; of a run at a URL both here and there.

        Raises:
            RunError: another process has it, or the folder or the URL can't be written to.
        """
        with ExitStack() as stack:
            if self.mirror is None:
                stack.enter_context(super().locked())
            else:
                with self.mirror.fetching():
                    stack.enter_context(super().locked())
                    try:
                        stack.enter_context(self.mirror.held())
                    except OSError as error:
                        raise RunError(f"can't use {self}: {error.strerror or error}") from None
            yield

    def write(self, name: str, text: str) -> None:
        """Write a text file of the run, whole or not at all."""
        super().write(name, text)
        self._publish(name)

    def _publish(self, name: str) -> None:
        if self.mirror:
            self.mirror.publish(name)

    def write_part(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to a table as one new file. Seeds and rejects get to the URL when they are complete."""
        if not rows:
            return
        folder = self.path / table
        folder.mkdir(exist_ok=True)
        number = 1 + max((int(file.stem.split("-")[1]) for file in folder.glob("part-*.parquet")), default=-1)
        path = folder / f"part-{number:06d}.parquet"
        temporary = path.with_name(f".{path.name}")
        data = pa.Table.from_pylist(list(rows), schema=TABLES[table])
        pq.write_table(data, temporary, compression="zstd")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        if table not in ("seeds", "rejects"):
            self._publish(f"{table}/{path.name}")

    def read(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A whole table, or some of its columns; empty if nothing was written yet."""
        if not self.parts(table):
            schema = TABLES[table]
            return schema.empty_table().select(list(columns or schema.names))
        return self._dataset(table).to_table(columns=columns)

    def parts(self, table: str) -> list[str]:
        """The files of a table, in the order in which they were written."""
        return sorted(str(file) for file in (self.path / table).glob("part-*.parquet"))

    def everywhere(self, parts: Sequence[str]) -> tuple[list[str], Any]:
        """Files of a table for tasks on other nodes, and the file system that they are in; None: this machine's."""
        if self.mirror is None:
            return list(parts), None
        store = self.mirror.store
        return [store.path(str(Path(part).relative_to(self.path))) for part in parts], store.files

    def _dataset(self, table: str) -> pa.dataset.Dataset:
        return pa.dataset.dataset(self.parts(table), format="parquet", schema=TABLES[table])

    def finished(self) -> pa.Array:
        """The ids of the dialogues whose samples are written."""
        return pc.unique(self.read("samples", ["seed_id"])["seed_id"].combine_chunks())

    def begun_seeds(self, finished: pa.Array) -> tuple[list[str], list[str], list[str]]:
        """The files of the seeds of which no dialogue is `finished`, those of which some are, and the ids of these."""
        done = set(finished.to_pylist())
        fresh, begun, ids = [], [], []
        for part in self.parts("seeds"):
            within = pq.read_table(part, columns=["id"])["id"].to_pylist()
            there = [id for id in within if id in done]
            if not there:
                fresh.append(part)
            elif len(there) < len(within):
                begun.append(part)
                ids += there
        return fresh, begun, ids

    def spent(self) -> tuple[float, int]:
        """Money, and tokens of prompts and answers, of all calls in the ledger."""
        usd, tokens = 0.0, 0
        if self.parts("calls"):
            for batch in self._dataset("calls").to_batches(columns=["cost", "prompt_tokens", "completion_tokens"]):
                cost, prompt, completion = (pc.sum(column).as_py() or 0 for column in batch.columns)
                usd, tokens = usd + cost, tokens + prompt + completion
        return usd, tokens

    def call_ids(self, seed_ids: Sequence[str]) -> dict[str, set[CallId]]:
        """Of these dialogues, the calls that are in the ledger."""
        ids: dict[str, set[CallId]] = defaultdict(set)
        if seed_ids and self.parts("calls"):
            where = pc.field("seed_id").isin(list(seed_ids))
            for call in self._dataset("calls").to_table(["seed_id", *CALL_ID], filter=where).to_pylist():
                ids[call["seed_id"]].add(call_id(call))
        return ids

    def samples(self, outcome: str | None = None) -> Iterator[Sample]:
        """The samples, one after the other, of one outcome if given."""
        if not self.parts("samples"):
            return
        where = None if outcome is None else pc.field("outcome") == outcome
        for batch in self._dataset("samples").to_batches(columns=["record"], filter=where, batch_size=256):
            for record in batch["record"]:
                yield Sample.model_validate_json(record.as_py())

    def ingest(self) -> dict[str, Any] | None:
        """Statistics of reading the seeds, or None if reading has not ended."""
        path = self.path / "seeds" / "ingest.json"
        if not path.exists():
            return None
        data: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return data

    def write_ingest(self, facts: Mapping[str, Any]) -> None:
        """Say that reading the seeds has ended."""
        super().write("seeds/ingest.json", json.dumps(facts, indent=2, ensure_ascii=False))
        if self.mirror:
            self.mirror.publish_complete()

    def note_session(self, **facts: Any) -> None:
        """Add a line to sessions.jsonl."""
        with (self.path / "sessions.jsonl").open("a", encoding="utf-8") as file:
            file.write(json_line(facts))
        self._publish("sessions.jsonl")

    def sessions(self) -> list[dict[str, Any]]:
        """What was noted of every start so far."""
        path = self.path / "sessions.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
