"""Where finished dialogues leave the stream: their samples and calls go to the run folder, in few files, soon."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from actors.replies import forget, kept
from pipelines.budget import Purse
from pipelines.progress import Progress
from pipelines.run_folder import ROWS_PER_FILE, CallId, RunFolder, call_id, sample_row
from synuc.sample import Sample

SECONDS_PER_FILE = 5.0


class Sink:
    """Collects finished dialogues and writes them every `SECONDS_PER_FILE`, and at the end however it comes."""

    def __init__(self, folder: RunFolder, progress: Progress, purse: Purse) -> None:
        self.folder = folder
        self.progress = progress
        self.purse = purse
        self.samples: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.seen: set[str] = set()
        self.failure: OSError | None = None
        # A dialogue that is begun again brings the calls that it had made before; some may be in the ledger.
        self._resumed = folder.call_ids(kept(folder.path))
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._over = threading.Event()
        self._written = time.monotonic()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Sink:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._flush()

    def add(self, row: dict[str, Any]) -> None:
        if self.failure:
            raise self.failure
        # Whatever comes of a dialogue, its calls were made and are paid for.
        new = not row["fatal"] and row["seed_id"] not in self.seen
        samples = [sample_row(Sample.model_validate(sample)) for sample in json.loads(row["samples"])] if new else []
        known = self._known(row["seed_id"])
        calls = [{"seed_id": row["seed_id"], **call} for call in json.loads(row["calls"])]
        calls = [call for call in calls if call_id(call) not in known]
        self.purse.pay(calls)
        if new:
            self.seen.add(row["seed_id"])
        with self._lock:
            self.samples += samples
            self.calls += calls
            self.progress.add(samples, calls)

    def _known(self, seed_id: str) -> set[CallId]:
        if seed_id not in self.seen:
            return self._resumed.get(seed_id, set())
        self._flush()
        return self.folder.call_ids([seed_id])[seed_id]

    def _tick(self) -> None:
        while not self._over.wait(0.5):
            try:
                with self._lock:
                    full = len(self.calls) >= ROWS_PER_FILE * 8
                if full or time.monotonic() - self._written >= SECONDS_PER_FILE:
                    self._flush()
            except OSError as error:
                self.failure = error
                return
            self.progress.show()

    def _flush(self) -> None:
        with self._flushing:
            with self._lock:
                samples, calls = self.samples, self.calls
                self.samples, self.calls = [], []
            try:
                # Calls first: should the samples not be written, their dialogues are begun again.
                self.folder.write_part("calls", calls)
                self.folder.write_part("samples", samples)
                forget(self.folder.path, {sample["seed_id"] for sample in samples})
            finally:
                self._written = time.monotonic()
