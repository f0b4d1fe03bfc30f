"""The pool of workers on a cluster of raylets to which a node comes: it grows onto it, and shrinks at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pyarrow as pa
import ray

from cluster.connect import connected
from pipelines.synthesize import pool
from tests.chaos.victims import NODE, cluster, workers

ROWS = 400
LAST = ROWS - 1


class SynthesisWorkerThatSleeps:
    """By this name `victims.workers` finds its processes. A row takes half a second, the last one a minute."""

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        node = ray.get_runtime_context().get_node_id()
        for n in batch["id"].to_pylist():
            time.sleep(60.0 if n == LAST else 0.5)
            yield pa.table({"id": [n], "node": [node]})


def test_workers_come_with_a_node_and_go_when_little_is_left() -> None:
    with cluster(1) as made, connected(made.address):
        # Each reserves a CPU, so that one fits on the first node beside the tasks that read.
        rows = (
            ray.data.range(ROWS)
            .repartition(target_num_rows_per_block=1)
            .map_batches(
                cast(Any, SynthesisWorkerThatSleeps),
                batch_size=None,
                batch_format="pyarrow",
                num_cpus=1,
                compute=pool(1, 3, 2),
            )
        )
        nodes: Counter[str] = Counter()
        ids: Counter[int] = Counter()
        most = 0
        tables: Iterable[Any] = rows.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
        for table in tables:
            ids.update(table["id"].to_pylist())
            nodes.update(table["node"].to_pylist())
            most = max(most, len(workers(made)))
            if ids.total() == 10:
                assert len(nodes) == 1
                made.add_node(**NODE)
            if ids.total() == ROWS - 1 and not ids[LAST]:
                until = time.monotonic() + 40
                while len(workers(made)) > 1 and time.monotonic() < until:
                    time.sleep(0.2)
                assert len(workers(made)) == 1, "those that have nothing to do are ended"
    assert ids == Counter(range(ROWS)), "no row is lost with a worker, and none comes twice"
    assert len(nodes) == 2, "the new node has worked"
    assert 2 <= most <= 3
