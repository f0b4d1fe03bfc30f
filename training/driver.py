"""Starts training on Ray Train, shows its progress, and says in one message why it ended if it didn't finish."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import train
from ray.train.torch import TorchTrainer
from rich.console import Console

from cluster.connect import connected
from synuc.folder import RunError
from synuc.problem import Problem
from synuc.progress import meanwhile
from training.backbone import folder_of
from training.config import Backbone, Cluster, GrpoConfig, SftConfig, TrainConfig
from training.data import data_fingerprint
from training.folder import TrainFolder
from training.progress import Progress
from training.trackers import check_trackers

ON_CPUS = {
    "DS_ACCELERATOR": "cpu",
    # Ray trains in a thread, whose memory glibc gives back and fetches anew at every layer: that costs a third of the
    # speed. With these it keeps what it has.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 * 1024**3),
}


class _Trainer(TorchTrainer):
    """Ray's trainer, during which Ctrl-C is what it is everywhere in Python."""

    def _register_sigint_handler(self, controller: Any) -> None:
        # Ray's handler makes of Ctrl-C an end with exit code 0, and stays when the training is over.
        pass


class TrainingFailed(Problem):
    """Training ended without a result; the message says why and what to do."""


def train_sft(config: SftConfig, run: Path, console: Console) -> None:
    """Train an adapter with SFT into `run`, or go on with it.

    Raises:
        Problem: with what to do; the checkpoints so far are kept.
    """
    from training.sft import sft_worker

    config = config.model_copy(update={"backbone": _absolute(config.backbone)})
    _train(config, run, sft_snapshot(config), sft_worker, {}, console)


def train_grpo(config: GrpoConfig, run: Path, console: Console) -> None:
    """Train an SFT run's adapter on with DR-GRPO into `run`, or go on with it. Raises as `train_sft` does."""
    from training.grpo import grpo_worker

    if config.start is None:
        raise RunError("no SFT run to start from: give --from RUN")
    start = TrainFolder.finished(config.start)
    job = {"backbone": start.backbone().model_dump(mode="json"), "adapter": str(start.adapter)}
    _train(config, run, grpo_snapshot(config, start), grpo_worker, job, console)


def sft_snapshot(config: SftConfig) -> dict[str, Any]:
    """What may not change while an SFT run is continued. Raises DataError."""
    return _snapshot(config, "sft") | {"backbone": _absolute(config.backbone).model_dump(mode="json")}


def grpo_snapshot(config: GrpoConfig, start: TrainFolder) -> dict[str, Any]:
    """What may not change while a GRPO run from the SFT run `start` is continued. Raises DataError."""
    backbone = start.backbone().model_dump(mode="json")
    return _snapshot(config, "grpo") | {"backbone": backbone, "start": start.method["fingerprint"]}


def _absolute(backbone: Backbone) -> Backbone:
    """A backbone in a folder of this checkout, named so that workers elsewhere find it."""
    folder = Path(backbone.model).expanduser()
    return backbone.model_copy(update={"model": str(folder.resolve())}) if folder.is_dir() else backbone


def _snapshot(config: TrainConfig, kind: str) -> dict[str, Any]:
    """What may not change while a run is continued: all but where it runs and what it writes on its way."""
    settings = config.model_dump(
        mode="json", exclude={"cluster": True, "record": True, "start": True, "data": {"path"}}
    )
    settings["data"]["fingerprint"] = data_fingerprint(config.data, kind)
    return {"stage": kind, **settings, "zero": config.cluster.zero}


def _train(
    config: TrainConfig,
    run: Path,
    snapshot: Mapping[str, Any],
    worker: Callable[[dict[str, Any]], None],
    job: Mapping[str, Any],
    console: Console,
) -> None:
    folder = TrainFolder(run)
    with folder.locked():
        folder.begin(config, snapshot)
        if folder.adapter.exists():
            console.print(f"Nothing left to do: {folder.adapter} is there.")
            return
        for old in (folder.given_up, folder.error):
            old.unlink(missing_ok=True)
        check_trackers(config.record.trackers)
        folder_of(snapshot["backbone"]["model"])  # made usable once, before workers ask for it
        with connected(config.cluster.address):
            data = config.model_dump(mode="json")
            data["data"]["path"] = str(Path(data["data"]["path"]).resolve())
            each = resources_per_worker(config.cluster)
            trainer = _Trainer(
                worker,
                train_loop_config={**job, "config": data, "run": str(folder.path)},
                scaling_config=train.ScalingConfig(
                    num_workers=config.cluster.workers, use_gpu="GPU" in each, resources_per_worker=each
                ),
                run_config=_run_config(folder, config, int(each["CPU"]), "GPU" in each),
            )
            _follow(trainer, folder, console)
        console.print(f"{folder.adapter} is ready.", soft_wrap=True, highlight=False)
        if folder.refused.exists() and (refused := folder.refused.read_text("utf-8").splitlines()):
            console.print(f"{len(refused)} examples were too long: {folder.refused}", soft_wrap=True, highlight=False)


def resources_per_worker(cluster: Cluster) -> dict[str, float]:
    """The CPUs, and GPUs if any, of each worker. Raises TrainingFailed where the cluster hasn't so much."""
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    cpus = cluster.cpus_per_worker or max(1, math.floor(there.get("CPU", 1) / cluster.workers))
    gpus = cluster.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if there.get("GPU") else 0.0
    each = {"CPU": float(cpus), **({"GPU": gpus} if gpus else {})}
    for name, amount in each.items():
        if amount * cluster.workers > there.get(name, 0):
            raise TrainingFailed(
                f"cluster.workers={cluster.workers} with {amount:g} {name} each don't fit: the cluster has "
                f"{there.get(name, 0):g} {name}"
            )
    return each


def worker_environment(threads: int) -> dict[str, str]:
    """Environment variables of a process that computes with a model."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }


def _run_config(folder: TrainFolder, config: TrainConfig, threads: int, gpu: bool) -> train.RunConfig:
    # The types are those of Ray Train V1.
    v2: Any = train
    environment = worker_environment(threads) | ({} if gpu else ON_CPUS)
    made: train.RunConfig = v2.RunConfig(
        name=folder.storage.name,
        storage_path=str(folder.path),
        checkpoint_config=train.CheckpointConfig(num_to_keep=config.record.keep),
        failure_config=train.FailureConfig(max_failures=config.cluster.max_failures),
        worker_runtime_env={"env_vars": environment},
        logging_config=v2.LoggingConfig(log_level="ERROR"),
    )
    return made


def _follow(trainer: TorchTrainer, folder: TrainFolder, console: Console) -> None:
    """Run the trainer, and show metrics.jsonl as it grows."""
    with Progress(console) as progress, meanwhile(lambda: progress.show(folder.last_row())):
        try:
            trainer.fit()
        except Exception as failure:
            raise _explained(failure, folder) from None


def _explained(error: BaseException, folder: TrainFolder) -> Problem:
    if folder.given_up.exists():
        return TrainingFailed(folder.given_up.read_text("utf-8"))
    folder.error.write_text(str(error), "utf-8")
    cause = next(iter((getattr(error, "worker_failures", None) or {0: error}).values()))
    cause = getattr(cause, "_base_exc", cause)  # Ray Train puts the whole traceback around it
    if any(sign in str(error) for sign in ("OutOfMemoryError", "memory monitor", "running low on memory")):
        reason = "Ray ended a worker because the machine's memory was full; lower optimizer.micro_batch_size"
    else:
        reason = f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}"
    return TrainingFailed(
        f"training ended: {reason}\nThe whole error is in {folder.error}; the last checkpoint is kept, and the same "
        "command goes on from it."
    )
