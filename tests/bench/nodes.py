"""`python -m tests.bench.nodes`: throughput at 1, 2 and 4 nodes of a cluster on one machine, bound by latency.

Every node has one worker with so many dialogues in flight, each of which waits for a slow endpoint with a slot for
everybody; the work grows with the nodes. What is compared are calls per second while the middle half of them ended,
because on one machine workers start one after the other; the share of the whole is printed beside it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.endpoint import Window, watched
from tests.bench.ours import EIGHT_CALLS, ROOT, synthesis
from tests.bench.processes import TAIL, CommandFailed
from tests.bench.seeds import write_seeds
from tests.bench.verdicts import Row, conclude
from tests.chaos.victims import cluster

TARGET = 0.95
NODES = (1, 2, 4)
CALLS = 8
# Calls that last differently soon spread over time; all in step, they would come in bursts.
UNEVEN = ("--slow-share", "0.1", "--slow-factor", "3")


def run(nodes: int, dialogues: int, rounds: int, service_time: float) -> Window:
    """The calls of a run on so many nodes."""
    in_flight = nodes * dialogues
    settings = {
        **EIGHT_CALLS,
        "seeds.languages": "[]",
        "cluster.workers": str(nodes),
        "cluster.dialogues_in_flight": str(dialogues),
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        watched(in_flight, service_time, *UNEVEN) as endpoint,
        cluster(nodes) as made,
    ):
        file = write_seeds(Path(folder) / "seeds.jsonl", in_flight * rounds)
        settings["cluster.address"] = made.address
        command = synthesis(Path(folder) / "run", file, endpoint.url, in_flight, settings)
        limit = 300 + 10 * CALLS * rounds * service_time
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
        if done.returncode:
            raise CommandFailed(f"exit status {done.returncode}: {(done.stdout + done.stderr)[-TAIL:]}")
        return endpoint.window()


def main() -> int:
    """All sizes; the exit status is 1 if one misses the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialogues", type=int, default=8, help="in flight on each node")
    parser.add_argument("--rounds", type=int, default=20, help="so many times as many dialogues are worked on")
    parser.add_argument("--service-time", type=float, default=0.5, help="seconds")
    options = parser.parse_args()
    rows: list[Row] = []
    one = None
    for nodes in NODES:
        window = run(nodes, options.dialogues, options.rounds, options.service_time)
        one = one or window
        middle = window.middle_rate / (nodes * one.middle_rate)
        whole = window.calls / window.seconds / (nodes * one.calls / one.seconds)
        figures = f"{window.middle_rate:.1f} calls/s, {middle:.3f} of linear (begin and end included {whole:.3f})"
        judged = nodes > 1
        target = f"at least {TARGET}" if judged else ""
        rows.append(Row(f"{nodes} node{'s' * judged}", figures, target, middle >= TARGET if judged else None))
    title = f"{options.dialogues} dialogues in flight on each node, {options.service_time * 1000:.0f} ms a call"
    return conclude(title, rows)


if __name__ == "__main__":
    sys.exit(main())
