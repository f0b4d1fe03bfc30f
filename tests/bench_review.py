"""Twenty annotators click through ten thousand items: how long each request takes.

    python -m tests.bench_review [--db URL] [--items 10000] [--people 20] [--seconds 60] [--think 0.5]

The server is a process of its own, on a project made for this, in SQLite unless a URL is given. Each annotator takes an
item, saves a draft, answers, and now and then looks at the progress, with a pause before every click as people make it.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean, quantiles
from tempfile import TemporaryDirectory

from tests.reviewing import Team, a_project, entries, serving_process


class Times:
    """Seconds of each kind of request, from all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def add(self, name: str, seconds: float) -> None:
        with self.lock:
            self.seconds[name].append(seconds)

    def table(self) -> str:
        rows = {**self.seconds, "all": [one for values in self.seconds.values() for one in values]}
        lines = [f"{'request':10} {'n':>7} {'mean ms':>9} {'p50 ms':>8} {'p95 ms':>8} {'max ms':>8}"]
        for name, values in rows.items():
            cuts = quantiles(values, n=100)
            figures = (fmean(values), cuts[49], cuts[94], max(values))
            lines.append(f"{name:10} {len(values):7} " + " ".join(f"{1000 * value:8.1f}" for value in figures))
        return "\n".join(lines)


def click(team: Team, name: str, times: Times, end: float, think: float) -> None:
    """One annotator, until the time is over."""
    rng = random.Random(name)
    client = team[name].client

    def timed(kind: str, method: str, path: str, json: object = None) -> object:
        time.sleep(rng.expovariate(1 / think) if think else 0)
        begun = time.perf_counter()
        reply = client.request(method, path, json=json).raise_for_status()
        times.add(kind, time.perf_counter() - begun)
        return reply.json() if reply.content else None

    while time.monotonic() < end:
        task = timed("next", "POST", "/api/next", {})
        assert isinstance(task, dict)
        id = task["item"]["id"]
        label = rng.choice(["ND", "ER", "IC"])
        why = {"text": "a reason"} if label != "ND" else None
        form = {"target": "ND"} if task["step"] == "target" else {"label": label, "why": why, "note": "x" * 200}
        sent = {"step": task["step"], "round": task["round"], "form": form}
        timed("draft", "PUT", f"/api/items/{id}/draft", sent)
        timed("answer", "POST", f"/api/items/{id}/answer", sent)
        if rng.random() < 0.2:
            timed("progress", "GET", "/api/progress")


def main(db: str | None, items: int, people: int, seconds: float, think: float) -> None:
    with TemporaryDirectory() as name:
        roles: dict[str, tuple[str, ...]] = {f"p{n}": ("annotator",) for n in range(people)}
        config, tokens = a_project(db or f"sqlite:///{name}/review.db", entries(items, turns=6), roles=roles)
        times = Times()
        with serving_process(Path(name), config) as (_, url):
            team = Team(url, tokens)
            for person in roles:
                team[person]
            end = time.monotonic() + seconds
            threads = [threading.Thread(target=click, args=(team, who, times, end, think)) for who in roles]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        print(f"{items} items, {people} annotators, {seconds:g} s, {think:g} s before each click")
        print(times.table())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="tests.bench_review")
    parser.add_argument("--db")
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--think", type=float, default=0.5)
    options = parser.parse_args()
    main(options.db, options.items, options.people, options.seconds, options.think)
