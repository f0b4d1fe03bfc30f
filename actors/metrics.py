"""What synthesis tells Prometheus, through Ray: `cluster/grafana-synthesis.json` shows it.

Ray exports each metric with the prefix `ray_`. Counters count what this process has done; what Ray has repeated after a
death is counted again, so that the run folder's figures, not these, are the result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import get_args

from ray.util.metrics import Counter, Gauge

from actors.engine import Call
from synuc.sample import Sample
from synuc.types import Role

# Ray exports every ten seconds, and drops a gauge that wasn't set since the export before.
SECONDS_BETWEEN_GAUGES = 4.0


class WorkerMetrics:
    """Of one synthesis worker; `run` is the run folder's name."""

    def __init__(self, run: str) -> None:
        self.samples = _counter(run, "synuc_samples_total", "Samples by label and outcome", "label", "outcome")
        self.calls = _counter(run, "synuc_calls_total", "Attempts at calls by role and result", "role", "result")
        self.prompt = _counter(run, "synuc_prompt_tokens_total", "Tokens of prompts, cached ones too", "role")
        self.cached = _counter(run, "synuc_cached_tokens_total", "Tokens of prompts from a cache", "role")
        self.completion = _counter(run, "synuc_completion_tokens_total", "Tokens of answers", "role")
        self.cost = _counter(run, "synuc_cost_total", "Money by the engines' prices", "role")
        self.asked = _gauge(run, "synuc_calls_in_flight", "Calls whose answer is awaited", "role")
        self.at_work = _gauge(run, "synuc_dialogues_in_flight", "Dialogues at work")
        self.waiting = _gauge(run, "synuc_dialogues_waiting", "Dialogues that wait in a worker for their turn")
        self._asked = dict.fromkeys(get_args(Role), 0)
        self._present = 0

    @contextmanager
    def present(self) -> Iterator[None]:
        """A dialogue is in this worker for the length of the block, at work or waiting."""
        self._present += 1
        try:
            yield
        finally:
            self._present -= 1

    @contextmanager
    def asking(self, role: str) -> Iterator[None]:
        """A call is in flight for the length of the block."""
        self._asked[role] += 1
        try:
            yield
        finally:
            self._asked[role] -= 1

    def called(self, call: Call) -> None:
        """Count one attempt at a call."""
        role = {"role": call.role}
        self.calls.inc(tags={**role, "result": call.error or "ok"})
        _add(self.prompt, call.prompt_tokens, role)
        _add(self.cached, call.cached_tokens, role)
        _add(self.completion, call.completion_tokens, role)
        _add(self.cost, call.cost, role)

    def finished(self, samples: list[Sample]) -> None:
        """Count the samples of a dialogue."""
        for sample in samples:
            self.samples.inc(tags={"label": sample.label or "-", "outcome": sample.outcome})

    def publish(self, at_work: int) -> None:
        """Set the gauges; `at_work` of the dialogues that are here are at work."""
        for role, calls in self._asked.items():
            self.asked.set(calls, {"role": role})
        self.at_work.set(at_work)
        self.waiting.set(self._present - at_work)


class MemoryMetrics:
    """Of the memory actor. `versions`: those of the repositories, by schema, when it starts."""

    def __init__(self, run: str, versions: Mapping[str, int]) -> None:
        self.updates = _counter(run, "synuc_memory_updates_total", "Committed updates of repositories", "schema")
        self.version = _gauge(run, "synuc_memory_version", "Versions of the repositories", "schema")
        self._versions = dict(versions)

    def updated(self, schema: str, version: int) -> None:
        """Count an update that was committed."""
        self._versions[schema] = version
        self.updates.inc(tags={"schema": schema})

    def publish(self) -> None:
        """Set the gauges."""
        for schema, version in self._versions.items():
            self.version.set(version, {"schema": schema})


def keep_publishing(publish: Callable[[], None]) -> None:
    """Set a process's gauges again and again, until it ends."""

    def forever() -> None:
        while True:
            publish()
            time.sleep(SECONDS_BETWEEN_GAUGES)

    threading.Thread(target=forever, daemon=True).start()


def _counter(run: str, name: str, what: str, *tags: str) -> Counter:
    counter = Counter(name, what, ("run", *tags))
    counter.set_default_tags({"run": run})
    return counter


def _gauge(run: str, name: str, what: str, *tags: str) -> Gauge:
    gauge = Gauge(name, what, ("run", *tags))
    gauge.set_default_tags({"run": run})
    return gauge


def _add(counter: Counter, value: float, tags: dict[str, str]) -> None:
    # A counter takes nothing but what is above zero.
    if value:
        counter.inc(value, tags)
