"""What each kind of step does: the jobs of the other folders, with their results in the step's folder.

RUN/steps/KIND-HASH/step.json      what it is named by
                    done.json      its result is whole
                    failed.json    why the last try ended without
                    ...            what its job writes; of an evaluation metrics.json holds the figures
"""

from __future__ import annotations

import json
import shutil
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.plan import Asked, Judged, Kind, Step, plain
from experiments.reserving import share
from synuc.folder import write_whole
from synuc.problem import Problem


class StepFolder:
    """A step's folder. Steps are written by one process, each by one thread of it."""

    def __init__(self, run: Path, name: str) -> None:
        self.path = run.resolve() / "steps" / name
        self.result = self.path / "done.json"
        self.failure = self.path / "failed.json"

    @property
    def done(self) -> bool:
        return self.result.exists()

    def begin(self, step: Step) -> None:
        """Say what the step is, and forget how an earlier try ended."""
        self.failure.unlink(missing_ok=True)
        told = {
            "kind": step.kind,
            "identity": step.identity,
            "after": [before.name for before in step.after],
            "settings": plain(step.settings),
        }
        write_whole(self.path / "step.json", json.dumps(told, indent=2, ensure_ascii=False))

    def end(self, seconds: float) -> None:
        """Say that the result is whole."""
        write_whole(self.result, json.dumps({"seconds": seconds, "ended": time.time()}))

    def fail(self, error: Exception) -> None:
        """Keep why the step ended without a result, with the traceback where nobody foresaw it."""
        trace = "" if isinstance(error, Problem) else "".join(traceback.format_exception(error))
        failure = {"message": told(error), "trace": trace}
        write_whole(self.failure, json.dumps(failure, indent=2, ensure_ascii=False))

    def why(self) -> str | None:
        """The message of a step that failed."""
        return str(json.loads(self.failure.read_text("utf-8"))["message"]) if self.failure.exists() else None

    def metrics(self) -> dict[str, Any]:
        """The figures of an evaluation that is done."""
        data: dict[str, Any] = json.loads((self.path / "metrics.json").read_text("utf-8"))
        return data

    def write_metrics(self, metrics: dict[str, Any]) -> None:
        write_whole(self.path / "metrics.json", json.dumps(metrics, indent=2, ensure_ascii=False))


def told(error: Exception) -> str:
    """What is said of an error: the message of a problem; of others the type, too, and no more than a few lines."""
    if isinstance(error, Problem):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@dataclass(frozen=True)
class Here:
    """Where steps are carried out: the run's folder, where they may speak, and the CPUs that one of them may take."""

    run: Path
    console: Console
    cpus: float

    def of(self, step: Step) -> Path:
        return StepFolder(self.run, step.name).path


Do = Callable[[Step, Here], None]
"""Carries out a step, from where it stands, into its folder. The steps before it are done."""

_exporting = threading.Lock()


def perform(step: Step, here: Here) -> None:
    """Carry out a step inside Ray.

    Raises:
        Problem: with what to do; what was finished is kept, and the same step goes on.
    """
    does: dict[Kind, Do] = {
        "synthesize": _synthesize,
        "export": _export,
        "sft": _train,
        "grpo": _train,
        "uc": _classify,
        "states": _states,
        "pairwise": _compare,
        "quality": _quality,
    }
    does[step.kind](step, here)


def _synthesize(step: Step, here: Here) -> None:
    from pipelines.synthesize import synthesize

    synthesize(step.settings, here.of(step), here.console)


def _export(step: Step, here: Here) -> None:
    from pipelines.export import export
    from pipelines.run_folder import RunFolder

    (data,) = step.after
    target = here.of(step) / "export"
    shutil.rmtree(target, ignore_errors=True)
    # An export is made in the folder of its run, where another retention would write over it.
    with _exporting:
        for line in export(RunFolder.existing(here.of(data)), step.settings):
            here.console.print(line, soft_wrap=True, highlight=False, markup=False)
        (here.of(data) / "export").rename(target)


def _train(step: Step, here: Here) -> None:
    from training.config import GrpoConfig, SftConfig
    from training.driver import train_grpo, train_sft
    from training.sweep import share_of

    config: SftConfig | GrpoConfig = share_of(step.settings, here.cpus)
    data = config.data.model_copy(update={"path": here.of(step.after[0]) / "export"})
    config = config.model_copy(update={"data": data})
    if isinstance(config, GrpoConfig):
        train_grpo(config.model_copy(update={"start": here.of(step.after[1])}), here.of(step), here.console)
    else:
        train_sft(config, here.of(step), here.console)


def _classify(step: Step, here: Here) -> None:
    from eval import jobs
    from training.folder import TrainFolder

    asked: Asked = step.settings
    model, adapter = asked.model, None
    if step.after:
        trained = TrainFolder.finished(here.of(step.after[0]))
        model, adapter = trained.backbone().model, trained.adapter
    given = ["--model", model, *(["--adapter", str(adapter)] if adapter else [])]
    given += [part for path in asked.bench for part in ("--bench", path)]
    job = jobs.Job(["synuc", "eval", "uc", *given], asked.settings, here.of(step), here.console)
    jobs.uc(job, model, adapter, asked.bench, "auto", "reasoned")


def _states(step: Step, here: Here) -> None:
    """Compute in a process that has the GPU and the CPUs that are reserved for it, and ends with them."""
    import ray
    from ray.exceptions import RayTaskError

    from cluster.connect import nodes
    from training.driver import worker_environment

    own = share(step, nodes(), here.cpus)
    environment = {"env_vars": worker_environment(int(own.cpus))}
    task = ray.remote(max_calls=1)(_silhouette).options(num_cpus=own.cpus, num_gpus=own.gpus, runtime_env=environment)
    try:
        metrics = ray.get(task.remote(here.of(step.after[0]), step.settings.seed))
    except RayTaskError as error:
        raise error.cause from None
    StepFolder(here.run, step.name).write_metrics(metrics)


def _silhouette(run: Path, seed: int) -> dict[str, Any]:
    """The figures of the decision states of a classification, which they are added to."""
    from eval import states
    from eval.folder import EvalFolder
    from training.answers import detector
    from training.config import Backbone

    def load(model: str, adapter: str | None) -> tuple[Any, Any]:
        backbone = Backbone(model=model, template={"enable_thinking": False})
        return detector(backbone, Path(adapter) if adapter else None)

    return states.figures(states.states(EvalFolder.existing(run, "uc"), load), seed)


def _compare(step: Step, here: Here) -> None:
    from eval import jobs

    judged: Judged = step.settings
    first, second = (here.of(before) for before in step.after)
    words = ["synuc", "eval", "pairwise", str(first), str(second), "--judge", judged.judge, "--orders", "random"]
    job = jobs.Job(words, judged.settings, here.of(step), here.console)
    jobs.pairwise(job, first, second, judged.judge, "random", None)


def _quality(step: Step, here: Here) -> None:
    from pipelines.quality.figures import quality
    from pipelines.run_folder import RunFolder

    StepFolder(here.run, step.name).write_metrics(quality(RunFolder.existing(here.of(step.after[0]))))
