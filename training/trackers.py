"""The trackers of experiments that a run may also write to, each by a package of its own."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from synuc.problem import Problem

# Any one of a tracker's packages will do; the first is the one to install.
PACKAGES = {"tensorboard": ("tensorboardX", "tensorboard"), "wandb": ("wandb",), "mlflow": ("mlflow",)}


class TrackerMissing(Problem):
    """A tracker without its package; the message says what to install."""


def check_trackers(names: Iterable[str]) -> None:
    """Make sure that the packages of the trackers `names` are installed, before a worker wants them.

    Raises:
        TrackerMissing: one isn't.
    """
    for name in names:
        if not any(map(find_spec, PACKAGES[name])):
            raise TrackerMissing(
                f"record.trackers names {name}, but its package isn't installed: pip install {PACKAGES[name][0]}, or "
                f"take {name} out of record.trackers"
            )
