"""`make chaos`: kills processes of synthesis runs at random moments and counts what was lost, doubled or asked again.

    python -m tests.chaos.runs [--times 20] [--kind driver --kind worker ...]

Each run has 60 dialogues on a cluster of three nodes on this machine, against the stand-in endpoint with 5% of the
calls failing (429, 500, 503, dropped, cut off, silent). At two random moments a process of the kind is killed with
SIGKILL; a driver that ended is started again by the same command until it says that all is done. Then:

- lost, doubled: samples that a dialogue lacks, or has more than once;
- forgotten: trajectories that were on disk when a process was killed, and aren't in the memory at the end;
- repeated: good answers of the endpoint beyond one for each call that the samples rest on;
- unaccounted: good answers that no row of the usage ledger tells of.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ray.cluster_utils import Cluster
from rich.console import Console
from rich.table import Table

from actors.journal import load_memory
from pipelines.run_folder import RunFolder
from tests.bench.ours import synthesis
from tests.chaos.victims import cluster, kill_one, lose_a_node, memories, workers
from tests.local.test_synthesize import dialogues
from tests.standin import Running, running

DIALOGUES = 60
CALLS = 500
"""An undisturbed run has a little more."""
KILLS = 2
SLOTS = 12
IN_FLIGHT = 2 * KILLS * SLOTS
"""Calls that kills may cost: those under way, and as many again until all processes of a dead driver have ended."""
FAULTS = ("--error-rate", "0.05", "--hang", "6", "--service-time", "0.1", "--slots", str(SLOTS))
SETTINGS = {
    "engine.timeout_s": "3",
    "seeds.languages": "[]",
    "method.task_filter": "false",
    "method.alpha": "1",
    "cluster.workers": "3",
    "cluster.dialogues_in_flight": "6",
    "cluster.lease_s": "5",
}
KINDS = ("driver", "worker", "memory", "node")
SECONDS_PER_RUN = 300.0


@dataclass
class Outcome:
    """What a run with kills came to; all but `kills`, `starts` and `seconds` count samples, trajectories or calls."""

    kind: str
    seed: int
    kills: int = 0
    starts: int = 0
    faults: int = 0
    answered: int = 0
    seconds: float = 0.0
    lost: int = 0
    doubled: int = 0
    forgotten: int = 0
    repeated: int = 0
    unaccounted: int = 0


def one_run(made: Cluster, kind: str, seed: int, endpoint: Running, folder: Path) -> Outcome:
    """Synthesise into `folder`, with kills of this kind at moments that follow from `seed`."""
    outcome, luck, started = Outcome(kind, seed), random.Random(seed), time.monotonic()
    run = folder / f"run-{kind}-{seed}"
    seeds = dialogues(folder / "seeds.jsonl", DIALOGUES)
    command = synthesis(run, seeds, endpoint.url, SLOTS, {**SETTINGS, "cluster.address": made.address})
    acknowledged: set[str] = set()
    before = endpoint.stats()
    moments = sorted(luck.uniform(0, CALLS) for _ in range(KILLS))
    driver = _start(command, outcome, run)
    while True:
        if time.monotonic() - started > SECONDS_PER_RUN:
            driver.kill()
            raise TimeoutError(f"{kind}, seed {seed}: not at its end after {SECONDS_PER_RUN:.0f} s")
        if (code := driver.poll()) is not None:
            if code == 0:
                break
            driver = _start(command, outcome, run)
        if moments and endpoint.stats()["answered"] - before["answered"] >= moments[0]:
            acknowledged |= _trajectories(run)
            if _kill(kind, made, driver, luck):
                moments.pop(0)
                outcome.kills += 1
        time.sleep(0.05)
    after = endpoint.stats()
    outcome.seconds = time.monotonic() - started
    outcome.answered = after["answered"] - before["answered"]
    outcome.faults = after["errors"] - before["errors"]
    _count(outcome, run, acknowledged)
    return outcome


def _start(command: Sequence[str], outcome: Outcome, run: Path) -> subprocess.Popen[bytes]:
    outcome.starts += 1
    with run.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _trajectories(run: Path) -> set[str]:
    try:
        state = load_memory(run / "memory")
    except FileNotFoundError:
        return set()
    return {id for shelf in state.shelves.values() for id in shelf.seen}


def _kill(kind: str, made: Cluster, driver: subprocess.Popen[bytes], luck: random.Random) -> bool:
    kills: dict[str, Callable[[], bool]] = {
        "worker": lambda: kill_one(workers(made), luck),
        "memory": lambda: kill_one(memories(made), luck),
        "node": lambda: lose_a_node(made, luck),
    }
    if kind == "driver":
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        return True
    return kills[kind]()


def _count(outcome: Outcome, run: Path, acknowledged: set[str]) -> None:
    folder = RunFolder(run)
    samples = Counter(folder.read("samples")["id"].to_pylist())
    expected = {f"{seed}-{label}" for seed in folder.read("seeds")["id"].to_pylist() for label in ("ND", "ER", "IC")}
    outcome.lost = len(expected - set(samples))
    outcome.doubled = sum(count - 1 for count in samples.values()) + len(set(samples) - expected)
    outcome.forgotten = len(acknowledged - _trajectories(run))
    calls = folder.read("calls")
    good = [key for key, error in zip(_keys(calls), calls["error"].to_pylist(), strict=True) if not error]
    outcome.repeated = outcome.answered - len(set(good))
    outcome.unaccounted = outcome.answered - len(good)


def _keys(calls: object) -> list[tuple[str, str, int]]:
    columns = (calls[name].to_pylist() for name in ("key", "stage", "attempt"))  # type: ignore[index]
    return list(zip(*columns, strict=True))


def table(outcomes: Sequence[Outcome]) -> Table:
    """One row per kind."""
    made = Table(title="Kills at random moments")
    names = ("kills", "faults", "lost", "doubled", "forgotten", "repeated", "unaccounted", "starts")
    for name in ("kind", "runs", *names):
        made.add_column(name, justify="left" if name == "kind" else "right")
    for kind in dict.fromkeys(one.kind for one in outcomes):
        of = [one for one in outcomes if one.kind == kind]
        figures = [sum(getattr(one, name) for one in of) for name in names]
        made.add_row(kind, str(len(of)), *map(str, figures))
    return made


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos.runs")
    parser.add_argument("--times", type=int, default=20, help="runs of each kind")
    parser.add_argument("--kind", action="append", choices=KINDS)
    options = parser.parse_args(argv)
    console = Console(width=120)
    outcomes = []
    for kind in options.kind or KINDS:
        for seed in range(options.times):
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                endpoint = stack.enter_context(running(*FAULTS, "--seed", str(seed)))
                made = stack.enter_context(cluster(3))
                outcomes.append(one_run(made, kind, seed, endpoint, folder))
            console.print(outcomes[-1], soft_wrap=True)
    console.print(table(outcomes))
    wrong = [one for one in outcomes if one.lost or one.doubled or one.forgotten or one.kills < KILLS]
    wrong += [one for one in outcomes if max(one.repeated, one.unaccounted) > IN_FLIGHT]
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
