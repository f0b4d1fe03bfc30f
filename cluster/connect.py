"""Joins a Ray cluster, or starts Ray on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from synuc.problem import Problem

NAMESPACE = "synuc"
ROOT = Path(__file__).resolve().parent.parent


class ClusterError(Problem):
    """Ray can't be joined or started; the message says what to do."""


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Ray for the length of the block: the cluster at `address` (or RAY_ADDRESS), else a local one that ends with it.

    An initialised Ray (a test's cluster) is used as it is and left running.

    Raises:
        ClusterError: no cluster answers at the address.
    """
    # Read when Ray is imported: its C++ side would print warnings over the progress.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray

    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    # Workers import the folders of this checkout by plain name.
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    os.environ["PYTHONPATH"] = python_path
    try:
        if address:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        else:
            # Without `local`, Ray would join whatever cluster it finds on this machine.
            ray.init(
                address="local",
                namespace=NAMESPACE,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=512 * 1024 * 1024,
            )
    except Exception as error:  # Ray raises bare ones, too, e.g. where a start takes too long
        where = f"the Ray cluster at {address}" if address else "Ray on this machine"
        raise ClusterError(f"can't start or join {where}: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


def nodes() -> list[dict[str, float]]:
    """What each node of the cluster that was joined has: CPU, GPU and more."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
