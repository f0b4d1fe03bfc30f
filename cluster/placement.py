"""How many workers with engines a job gets, what each reserves, and how many dialogues each keeps in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from synuc.config import AnyEngine, BatchEngine, Cluster, OpenAIEngine, VllmEngine
from synuc.problem import Problem

# A dialogue waits for one or two calls at a time, and for none while its answer is parsed. With half as many dialogues
# again as slots, an engine's slots stay full when dialogues end.
DIALOGUES_PER_SLOT = 1.5
SLOTS_PER_PROCESS = 128


class DoesNotFit(Problem):
    """Not even one worker would ever start on this cluster; the message says what to change."""


@dataclass(frozen=True)
class Placement:
    """`workers` actors, each with `cpus` and `gpus` reserved and `dialogues_in_flight` dialogues at once.

    Those follow from the engine's slots and stay the same. What of them fits into an in-process engine's KV cache at
    once is decided by vLLM, which queues the others: it stays busy, but a prefix may leave the cache before the
    dialogue's next call. A lower `cluster.dialogues_in_flight` keeps it there.
    """

    workers: int
    cpus: float
    gpus: float
    dialogues_in_flight: int


def place(engines: Sequence[AnyEngine], cluster: Cluster, nodes: Sequence[Mapping[str, float]]) -> Placement:
    """The placement of a job, each of whose workers has these `engines`, on a cluster of `nodes` with these resources.

    In-process engines get a worker per engine's worth of GPUs (or one on a machine without GPUs); endpoints get one
    process for every `SLOTS_PER_PROCESS` calls in flight, as far as there are CPUs. One CPU is left to the tasks that
    read; driver and memory actor, on the head, reserve none. Batch files are written by one worker, which has all
    dialogues wait at once. `cluster.max_workers` bounds what the nodes would have room for; what a worker reserves
    leaves a CPU to the tasks even if all of so many come to be here.

    Raises:
        DoesNotFit: the engines of one worker want more GPUs than a node has, or several are to write batch files, or
            more workers would only share an endpoint's calls.
    """
    in_process = [engine for engine in engines if isinstance(engine, VllmEngine)]
    endpoints = [engine for engine in engines if isinstance(engine, OpenAIEngine)]
    batches = [engine for engine in engines if isinstance(engine, BatchEngine)]
    if batches and max(cluster.workers or 1, cluster.max_workers or 1) > 1:
        raise DoesNotFit("one worker writes all batch files: leave cluster.workers out, and cluster.max_workers")
    if cluster.max_workers and endpoints and not in_process:
        raise DoesNotFit(
            "workers share an endpoint's calls in flight, so that more of them make it no faster: leave "
            "cluster.max_workers out and raise engine.max_in_flight"
        )
    gpus = _gpus(in_process, nodes)
    if gpus:
        workers = sum(int(node.get("GPU", 0) // gpus) for node in nodes)
    elif in_process:
        workers = 1
    else:
        calls = max((engine.max_in_flight for engine in endpoints), default=1)
        workers = min(-(-calls // SLOTS_PER_PROCESS), max(1, sum(map(_whole_cpus, nodes)) - 1))
    workers = cluster.workers or (1 if batches else min(workers, cluster.max_workers or workers))
    most = cluster.max_workers or workers
    slots = [engine.max_in_flight for engine in in_process]
    slots += [-(-engine.max_in_flight // workers) for engine in endpoints]
    waiting = max((engine.max_in_flight for engine in batches), default=2)
    dialogues = cluster.dialogues_in_flight or max(waiting, int(max(slots, default=1) * DIALOGUES_PER_SLOT))
    return Placement(workers, _cpus(most, gpus, nodes), gpus, dialogues)


def _gpus(engines: Sequence[VllmEngine], nodes: Sequence[Mapping[str, float]]) -> float:
    """What the engines of one worker take together; none where no node has any."""
    largest = max((node.get("GPU", 0) for node in nodes), default=0)
    wanted = float(sum(engine.tensor_parallel_size for engine in engines)) if largest else 0.0
    if wanted > largest:
        raise DoesNotFit(
            f"a worker's engines want {wanted:g} GPUs of one node together and the largest has {largest:g}: lower "
            "tensor_parallel_size, give fewer roles an engine of their own, or add larger nodes"
        )
    return wanted


def _whole_cpus(node: Mapping[str, float]) -> int:
    return int(node.get("CPU", 0))


def _cpus(workers: int, gpus: float, nodes: Sequence[Mapping[str, float]]) -> float:
    """What of a CPU each worker reserves: so much that, however Ray deals them out, a node keeps a whole one.

    Tasks that read want it, and without it a run would wait for ever. Workers that don't find enough whole CPUs share
    them in equal parts: k of them can leave k - 1 free on each node, and no whole one.
    """
    there = [node for node in nodes if _whole_cpus(node)]
    spare = sum(map(_whole_cpus, there)) - len(there)
    if not spare:
        return 1.0 if workers < len(there) else 0.0
    parts = max(1, ceil((workers - len(there) + 1) / spare))
    if gpus:
        parts = max(parts, *(ceil(node.get("GPU", 0) // gpus / _whole_cpus(node)) for node in there))
    return 1 / parts
