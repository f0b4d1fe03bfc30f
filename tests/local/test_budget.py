"""Budgets, estimates and metrics of real runs on local Ray against the stand-in endpoint."""

from __future__ import annotations

import io
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.metrics import Metric
from rich.console import Console

from actors.metrics import MemoryMetrics, WorkerMetrics
from pipelines.budget import BudgetReached
from pipelines.report import figures
from pipelines.run_folder import RunFolder
from pipelines.synthesize import synthesize
from pipelines.trial import try_out
from synuc.config import Budget, RunConfig
from tests.local.test_synthesize import config, counts, dialogues, quiet
from tests.standin import Running

pytestmark = pytest.mark.usefixtures("ray_running")

Standin = Callable[..., Running]
IN_FLIGHT = 4


def settings(seeds: Path, url: str, workers: int = 1, **budget: Any) -> RunConfig:
    """Small workers and a price of one per thousand answer tokens; ER and IC of each dialogue."""
    made = config(seeds, url, task_filter=False, alpha=0.0)
    engine = made.engine.model_copy(
        update={"price": made.engine.price.model_copy(update={"completion": 1000.0}), "max_in_flight": 16}
    )
    cluster = made.cluster.model_copy(update={"workers": workers, "dialogues_in_flight": IN_FLIGHT})
    return made.model_copy(update={"engine": engine, "cluster": cluster, "budget": Budget(**budget)})


def per_dialogue(folder: RunFolder) -> tuple[float, float]:
    """Money and tokens of one dialogue on average."""
    usd, tokens = folder.spent()
    return usd / len(folder.finished()), tokens / len(folder.finished())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_budget_stops_a_run_and_a_higher_one_goes_on(tmp_path: Path, standin: Standin, workers: int) -> None:
    seeds, url = dialogues(tmp_path / "seeds.jsonl", 100), standin().url
    synthesize(settings(dialogues(tmp_path / "few.jsonl", 6), url), tmp_path / "few", quiet())
    usd, tokens = per_dialogue(RunFolder(tmp_path / "few"))
    run = RunFolder(tmp_path / "run")
    with pytest.raises(BudgetReached, match="of 100 dialogues are finished"):
        synthesize(settings(seeds, url, workers, usd=10 * usd), run.path, quiet())
    spent, _ = run.spent()
    done = len(run.finished())
    assert spent >= 10 * usd
    # Those in flight, and those that were finished and on their way to the driver.
    assert 8 <= done <= 12 + 6 * IN_FLIGHT * workers
    ids, _ = counts(run.path)
    assert set(ids.values()) == {1}
    assert len(ids) == 2 * done
    assert figures(run)["usage"]["calls_of_unfinished"] == 0
    assert run.sessions()[-1]["ended"] == "budget"

    # What earlier starts have spent counts.
    with pytest.raises(BudgetReached):
        synthesize(settings(seeds, url, workers, usd=10 * usd), run.path, quiet())
    assert run.spent()[0] == spent
    with pytest.raises(BudgetReached):
        synthesize(settings(seeds, url, workers, tokens=int((done + 10) * tokens)), run.path, quiet())
    assert done < len(run.finished()) < 100

    assert synthesize(settings(seeds, url, workers), run.path, quiet())
    ids, _ = counts(run.path)
    assert set(ids.values()) == {1}
    assert len(ids) == 200
    assert figures(run)["adds_up"]


def test_a_budget_that_suffices_changes_nothing(tmp_path: Path, standin: Standin) -> None:
    made = settings(dialogues(tmp_path / "seeds.jsonl", 12), standin().url, usd=1e6, tokens=10**12)
    assert synthesize(made, tmp_path / "enough", quiet())
    assert len(RunFolder(tmp_path / "enough").finished()) == 12


def test_an_estimate_holds_for_the_run_and_leaves_nothing(tmp_path: Path, standin: Standin) -> None:
    made = settings(dialogues(tmp_path / "seeds.jsonl", 30), standin().url)
    out = io.StringIO()
    before = set(tmp_path.iterdir())
    try_out(made, tmp_path / "runs" / "run", 10, Console(width=200, file=out))
    assert set(tmp_path.iterdir()) == before
    said = out.getvalue()
    assert "10 dialogues, drawn at random from the 30" in said
    answer_tokens = next(line.split() for line in said.splitlines() if line.startswith("answer tokens"))
    low, high = (float(cell.replace(",", "")) for cell in answer_tokens[-2:])
    assert synthesize(made, tmp_path / "runs" / "run", quiet())
    used = figures(RunFolder(tmp_path / "runs" / "run"))["usage"]["completion_tokens"]
    assert low * 0.7 <= used <= high * 1.3


def exported() -> str:
    """What this node tells Prometheus now."""
    (node,) = ray.nodes()  # type: ignore[no-untyped-call]
    address = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(address, timeout=20) as answer:
        return str(answer.read(), "utf-8")


def test_prometheus_gets_what_the_dashboard_asks_for(tmp_path: Path, standin: Standin) -> None:
    # Calls of a second, so that the run is still there when Ray exports, every ten seconds.
    url = standin("--service-time", "1").url
    made = settings(dialogues(tmp_path / "seeds.jsonl", 30), url)
    made = made.model_copy(update={"method": made.method.model_copy(update={"update_threshold": 1})})
    thread = threading.Thread(target=synthesize, args=(made, tmp_path / "watched", quiet()), daemon=True)
    thread.start()
    rooms = (WorkerMetrics("watched"), MemoryMetrics("watched", {}))
    made_by_us = [value for room in rooms for value in vars(room).values() if isinstance(value, Metric)]
    # The stand-in caches nothing, and what is zero isn't counted.
    names = {f"ray_{metric.info['name']}" for metric in made_by_us} - {"ray_synuc_cached_tokens_total"}
    seen: set[str] = set()
    while thread.is_alive() and seen < names:
        seen |= {name for name in names for line in exported().splitlines() if line.startswith(name + "{")}
        time.sleep(1)
    thread.join()
    assert seen == names
