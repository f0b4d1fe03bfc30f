"""What steps reserve, and which may run side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from eval.config import Settings
from experiments.config import Experiment
from experiments.driver import Crew, run
from experiments.plan import Asked, Judged, Step
from experiments.reserving import Node, Share, fits, share, total
from experiments.steps import Here, StepFolder
from synuc.config import RunConfig
from synuc.formatting import Retention
from training.config import SftConfig

GPUS: list[Node] = [{"CPU": 16, "GPU": 4}, {"CPU": 16, "GPU": 4}, {"CPU": 64}]
LOCAL = {"kind": "vllm", "model": "org/strong"}
TRAINING = {"backbone": {"model": "org/small"}, "optimizer": {"learning_rate": 1, "epochs": 1}}
ENDPOINT = {"kind": "openai", "model": "strong", "max_in_flight": 256}


def synthesis(engine: dict[str, Any], **cluster: Any) -> Step:
    return Step("synthesize", {}, (), RunConfig.model_validate({"engine": engine, "cluster": cluster}))


def training(**cluster: Any) -> Step:
    return Step("sft", {}, (), SftConfig.model_validate({**TRAINING, "cluster": cluster}))


def asked(**settings: Any) -> Step:
    return Step("uc", {}, (), Asked("org/small", ("bench.jsonl",), Settings.model_validate(settings)))


@pytest.mark.parametrize(
    ("step", "gpus"),
    [
        (synthesis(LOCAL), 8),
        (synthesis(LOCAL, workers=2), 2),
        (synthesis({**LOCAL, "tensor_parallel_size": 2}, workers=3), 6),
        (synthesis(ENDPOINT), 0),
        (training(), 1),
        (training(workers=4), 4),
        (training(workers=4, gpus_per_worker=0.5), 2),
        (training(gpus_per_worker=0), 0),
        (asked(), 8),
        (asked(cluster={"workers": 1}), 1),
        (Step("pairwise", {}, (), Judged("org/judge", Settings())), 8),
        (Step("states", {}, (), Settings()), 1),
        (Step("export", {}, (), Retention.FULL), 0),
        (Step("quality", {}), 0),
    ],
)
def test_a_step_takes_the_gpus_that_its_configuration_says(step: Step, gpus: float) -> None:
    assert share(step, GPUS, 12).gpus == gpus


@pytest.mark.parametrize("step", [synthesis(LOCAL), training(workers=2), asked(), Step("states", {}, (), Settings())])
def test_without_gpus_it_takes_none(step: Step) -> None:
    assert share(step, [{"CPU": 8}], 8).gpus == 0


def test_it_takes_cpus_likewise() -> None:
    assert share(training(), GPUS, 12.5).cpus == 12
    assert share(training(workers=4), GPUS, 12.5).cpus == 4 * 3
    assert share(training(workers=2, cpus_per_worker=5), GPUS, 12.5).cpus == 10
    # Two processes for 256 calls in flight, and a CPU for the tasks that read.
    assert share(synthesis(ENDPOINT), GPUS, 12).cpus == 2 + 1
    assert share(Step("states", {}, (), Settings()), GPUS, 12.5).cpus == 12
    assert share(Step("states", {}, (), Settings()), GPUS, 96).cpus == 16  # a node with GPUs has no more
    assert share(Step("export", {}, (), Retention.FULL), GPUS, 12) == Share()


def test_what_can_never_be_placed_is_left_to_its_job_to_say() -> None:
    assert share(synthesis({**LOCAL, "tensor_parallel_size": 8}), GPUS, 12) == Share()


SHARES = st.builds(Share, st.integers(0, 12).map(float), st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0, 9.0]))


@given(st.lists(SHARES, max_size=12))
def test_what_runs_is_never_more_than_there_is_unless_it_is_one_step_alone(wanted: list[Share]) -> None:
    there = Share(8, 4)
    waiting, rounds = list(wanted), 0
    while waiting:
        running: list[Share] = []
        for one in list(waiting):
            if fits(one, running, there):
                running.append(one)
                waiting.remove(one)
        assert running  # so that every step runs in the end
        reserving = [one for one in running if one != Share()]
        if len(reserving) > 1:
            assert sum(one.cpus for one in reserving) <= there.cpus or max(one.cpus for one in reserving) > there.cpus
            assert sum(one.gpus for one in reserving) <= there.gpus or max(one.gpus for one in reserving) > there.gpus
        rounds += 1
    assert rounds <= len(wanted)


def test_a_step_too_large_waits_until_it_is_alone_and_none_joins_it_for_the_same() -> None:
    there, large, small = Share(8, 4), Share(1, 8), Share(1, 1)
    assert fits(large, [], there)
    assert not fits(large, [small], there)
    assert not fits(small, [large], there)
    assert fits(Share(2, 0), [large], there)
    assert fits(Share(), [large], there)
    assert fits(Share(8, 1), [Share()], there)


# In a run


class Watching:
    """Steps that take a moment, on a cluster with four GPUs; notes what runs at the same time."""

    nodes: ClassVar[list[Node]] = [{"CPU": 64, "GPU": 4}]

    def __init__(self) -> None:
        self.running: list[Step] = []
        self.seen: list[list[Step]] = []
        self.lock = threading.Lock()

    def do(self, step: Step, here: Here) -> None:
        with self.lock:
            self.running.append(step)
            self.seen.append(list(self.running))
        company = time.monotonic() + 1
        while step.kind == "sft" and len(self.trainings()) < 2 and time.monotonic() < company:
            time.sleep(0.01)
        if step.kind == "quality":
            metrics: dict[str, Any] = {"balance": {"label": {"counts": {}}}, "giveaways": {}}
            StepFolder(here.run, step.name).write_metrics(metrics)
        with self.lock:
            self.running.remove(step)

    def trainings(self) -> list[Step]:
        with self.lock:
            return [step for step in self.running if step.kind == "sft"]

    @contextmanager
    def crew(self, experiment: Experiment) -> Iterator[Crew]:
        yield Crew(self.do, 4, self.nodes)


def test_steps_wait_for_the_gpus_of_others(tmp_path: Path) -> None:
    engines = {name: {"engine": {**LOCAL, "model": f"org/{name}"}} for name in ("one", "other")}
    experiment = Experiment.model_validate(
        {
            "title": "x",
            "reproduces": "nothing",
            "scales": {},
            "variants": {name: {"synthesize": {"settings": engine}} for name, engine in engines.items()},
            "everywhere": {"trainings": ["sft"], "sft": {"settings": {**TRAINING, "cluster": {"workers": 2}}}},
            "seeds": [0, 1, 2],
            "evaluations": ["quality"],
        }
    )
    watching = Watching()
    run(experiment, "x", "toy", tmp_path / "run", Console(quiet=True), watching.crew)
    there = total(watching.nodes)
    taken = [[share(step, watching.nodes, 16) for step in running] for running in watching.seen]
    assert all(sum(one.gpus for one in shares) <= there.gpus for shares in taken)
    assert all(sum(one.cpus for one in shares) <= there.cpus for shares in taken)
    assert max(sum(step.kind == "sft" for step in running) for running in watching.seen) == 2
    assert len(watching.seen) == 2 * (1 + 1 + 3 + 1)
