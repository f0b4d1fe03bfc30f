"""Where actors live that write to the run's folder: on the driver's node, which has it."""

from __future__ import annotations

from typing import Any

import ray


def beside_driver(node_id: str) -> dict[str, Any]:
    """Ray's options of such an actor: it reserves nothing, and Ray starts it again and repeats its calls for ever."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    return {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": strategy}
