"""A cluster of raylets on this machine, and how to find the processes in it that can be killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
from ray.cluster_utils import Cluster

NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 * 2**20}


@contextmanager
def cluster(nodes: int) -> Iterator[Cluster]:
    """A cluster of so many nodes; the first is the head, to which drivers attach."""
    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            made.add_node(**NODE)
        made.wait_for_nodes()
        yield made
    finally:
        made.shutdown()  # type: ignore[no-untyped-call]


def workers(made: Cluster) -> list[psutil.Process]:
    """The processes of synthesis workers."""
    return _titled(made, "ray::MapWorker(MapBatches(SynthesisWorker")


def memories(made: Cluster) -> list[psutil.Process]:
    """The process of the memory actor."""
    return _titled(made, "ray::Memory")


def nodes(made: Cluster) -> list[Any]:
    """The nodes that are alive, the head first."""
    return list(made.list_all_nodes())  # type: ignore[no-untyped-call]


def _titled(made: Cluster, title: str) -> list[psutil.Process]:
    """The actors' processes to which Ray gave this title, or one that begins so."""
    found = []
    for node in nodes(made):
        for child in psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if " ".join(child.cmdline()).startswith(title):
                    found.append(child)
    return found


def kill_one(candidates: list[psutil.Process], luck: random.Random) -> bool:
    """SIGKILL one of these. False if there is none."""
    if not candidates:
        return False
    luck.choice(candidates).kill()
    return True


def lose_a_node(made: Cluster, luck: random.Random) -> bool:
    """Kill all processes of a node that isn't the head, and add a new one."""
    made.remove_node(luck.choice([node for node in nodes(made) if node is not made.head_node]), allow_graceful=False)
    made.add_node(**NODE)
    return True
