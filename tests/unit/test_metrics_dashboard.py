"""What synthesis tells Prometheus, and that the dashboard asks for exactly that."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from ray.util.metrics import Metric

from actors.engine import Call
from actors.metrics import MemoryMetrics, WorkerMetrics
from synuc.config import Method
from synuc.synthesis import crashed
from tests.scripted import Driver, Script, a_seed

DASHBOARD = json.loads((Path(__file__).parents[2] / "cluster" / "grafana-synthesis.json").read_text("utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
QUERY = re.compile(r"ray_(\w+)\{([^}]*)\}")


def made() -> dict[str, set[str]]:
    """The metrics that the code makes, with their tags."""
    rooms = (WorkerMetrics("r"), MemoryMetrics("r", {}))
    metrics = [value for room in rooms for value in vars(room).values() if isinstance(value, Metric)]
    return {metric.info["name"]: set(metric.info["tag_keys"]) for metric in metrics}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], list[float]]:
    """What is told to Ray from now on, by name and tags without the run."""
    seen: dict[tuple[str, ...], list[float]] = defaultdict(list)

    def record(self: Any, value: float, tags: dict[str, str] | None = None) -> None:
        tags = {**self.info["default_tags"], **(tags or {})}
        assert set(tags) == set(self.info["tag_keys"])
        assert tags.pop("run") == "r"
        seen[self.info["name"], *tags.values()].append(value)

    monkeypatch.setattr(Metric, "_record", record)
    return seen


def test_the_dashboard_asks_for_what_there_is_and_for_all_of_it() -> None:
    asked = {name for query in QUERIES for name in re.findall(r"ray_\w+", query)}
    assert asked == {f"ray_{name}" for name in made()}


def test_queries_group_and_filter_by_tags_that_there_are() -> None:
    tags = made()
    for query in QUERIES:
        for name, filters in QUERY.findall(query):
            filtered = set(re.findall(r"(\w+)\s*(?:=~|!=|=)", filters))
            grouped = {tag for by in re.findall(r"by \(([^)]*)\)", query) for tag in by.split(", ")}
            assert "run" in filtered
            assert filtered | grouped <= tags[name], query
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            by = re.search(r"by \(([^)]*)\)", target["expr"])
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert named == (set(by[1].split(", ")) if by else set())


def test_counters_end_as_prometheus_names_them_and_gauges_dont() -> None:
    for room in (WorkerMetrics("r"), MemoryMetrics("r", {})):
        for metric in vars(room).values():
            if isinstance(metric, Metric):
                is_counter = type(metric).__name__ == "Counter"
                assert metric.info["name"].endswith("_total") is is_counter


def test_calls_are_counted_by_role_and_result(recorded: dict[tuple[str, ...], list[float]]) -> None:
    metrics = WorkerMetrics("r")
    call = Call("k", "match", "generator", "m", 0, 0.0, 1.0, 100, 60, 10, "stop", "", 0.5)
    metrics.called(call)
    failed = {"role": "verifier", "prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0, "cost": 0.0}
    metrics.called(Call(**{**vars(call), **failed, "error": "EngineUnavailable"}))
    assert recorded == {
        ("synuc_calls_total", "generator", "ok"): [1.0],
        ("synuc_prompt_tokens_total", "generator"): [100],
        ("synuc_cached_tokens_total", "generator"): [60],
        ("synuc_completion_tokens_total", "generator"): [10],
        ("synuc_cost_total", "generator"): [0.5],
        ("synuc_calls_total", "verifier", "EngineUnavailable"): [1.0],
    }


def test_samples_are_counted_by_label_and_outcome(recorded: dict[tuple[str, ...], list[float]]) -> None:
    metrics = WorkerMetrics("r")
    seed = a_seed("s", [("Write a story.", "Once."), ("Make it calm.", "A calm night.")])
    made = Driver(Script({"judge_global/IC": {"confidence": 1}})).samples(seed, Method())
    metrics.finished([*made.values(), crashed(seed)])
    of = {key[1:]: sum(values) for key, values in recorded.items() if key[0] == "synuc_samples_total"}
    assert of["IC", "rejected"] == of["ER", "accepted"] == of["-", "failed"] == 1


def test_gauges_follow_what_is_in_the_worker(recorded: dict[tuple[str, ...], list[float]]) -> None:
    metrics = WorkerMetrics("r")
    with metrics.present(), metrics.present(), metrics.asking("generator"), metrics.asking("generator"):
        metrics.publish(at_work=1)
    with pytest.raises(KeyError), metrics.present(), metrics.asking("curator"):
        raise KeyError
    metrics.publish(at_work=0)
    assert recorded["synuc_calls_in_flight", "generator"] == [2, 0]
    assert recorded["synuc_calls_in_flight", "curator"] == [0, 0]
    assert recorded["synuc_dialogues_in_flight",] == [1, 0]
    assert recorded["synuc_dialogues_waiting",] == [1, 0]


def test_the_memory_tells_versions_from_its_start(recorded: dict[tuple[str, ...], list[float]]) -> None:
    metrics = MemoryMetrics("r", {"key": 4, "genre": 0})
    metrics.publish()
    metrics.updated("key", 5)
    metrics.publish()
    assert recorded["synuc_memory_version", "key"] == [4, 5]
    assert recorded["synuc_memory_version", "genre"] == [0, 0]
    assert recorded["synuc_memory_updates_total", "key"] == [1.0]
