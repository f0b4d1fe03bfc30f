"""What steps that run side by side reserve on the cluster, so that together they never want more than there is.

A step takes what its configuration says: a synthesis or an evaluation the workers that its job would place, all GPUs
where `cluster.workers` is none; a training its workers. Resources are counted over the whole cluster: where what is
free lies scattered over nodes, workers may still wait for Ray to find them a place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cluster.placement import DoesNotFit, Placement, place
from eval.config import engine_of
from experiments.plan import Asked, Judged, Step
from synuc.config import RunConfig
from training.config import TrainConfig

Node = Mapping[str, float]
"""What a node has by Ray's names of resources."""


@dataclass(frozen=True)
class Share:
    """CPUs and GPUs of the cluster."""

    cpus: float = 0.0
    gpus: float = 0.0


def total(nodes: Iterable[Node]) -> Share:
    """What there is."""
    there = list(nodes)
    return Share(sum(node.get("CPU", 0) for node in there), sum(node.get("GPU", 0) for node in there))


def share(step: Step, nodes: Sequence[Node], cpus: float) -> Share:
    """What a step reserves on these nodes; `cpus` is the part of their CPUs that a training may take if it says none.

    A step that no cluster like this can carry out reserves nothing: its job says what is wrong.
    """
    settings, gpu = step.settings, 1.0 if total(nodes).gpus else 0.0
    try:
        match settings:
            case RunConfig():
                # One CPU more is for the tasks that read.
                return _placed(place(settings.engines(), settings.cluster, nodes), 1.0)
            case Asked(model=model, settings=asked):
                return _placed(place([engine_of(model, asked.engine)], asked.cluster, nodes))
            case Judged(judge=model, settings=asked):
                return _placed(place([engine_of(model, asked.judge)], asked.cluster, nodes))
            case TrainConfig():
                from training.sweep import share_of  # it imports Ray

                cluster = share_of(settings, cpus).cluster
                gpus = gpu if cluster.gpus_per_worker is None else cluster.gpus_per_worker
                return Share(cluster.workers * float(cluster.cpus_per_worker or 0), cluster.workers * gpus)
    except DoesNotFit:
        return Share()
    if step.kind == "states":  # one process, and so on one node
        largest = max(node.get("CPU", 0) for node in nodes if node.get("GPU", 0) >= gpu)
        return Share(max(1, int(min(cpus, largest))), gpu)
    return Share()


def fits(wanted: Share, taken: Sequence[Share], there: Share) -> bool:
    """Whether a step can begin beside those that run. One that is too large for the cluster waits until it is alone."""
    others = Share(sum(share.cpus for share in taken), sum(share.gpus for share in taken))
    if others == Share():
        return True
    pairs = ((wanted.cpus, others.cpus, there.cpus), (wanted.gpus, others.gpus, there.gpus))
    return all(want == 0 or want + other <= has + 1e-6 for want, other, has in pairs)


def _placed(placement: Placement, more: float = 0.0) -> Share:
    return Share(placement.workers * placement.cpus + more, placement.workers * placement.gpus)
