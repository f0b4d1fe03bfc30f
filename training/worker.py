"""What every training worker does around TRL's trainer: arguments, checkpoints through Ray, metrics, the result.

Runs inside a process that Ray Train started, with torch's process group set up. A worker that is lost is replaced
and the group goes on from the last checkpoint; what another try can't mend (a NaN loss, a full disk) ends the run.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed

from synuc.folder import write_whole
from synuc.problem import Problem
from training.adapter import name_base
from training.backbone import BASE_FILE, base_facts
from training.card import card, public_name
from training.config import TrainConfig
from training.data import Examples
from training.folder import TrainFolder, add_lines


class TrainingStopped(Problem):
    """Training can't go on; the message says why and what to do. The last good checkpoint is kept."""


def first_rank() -> bool:
    """Whether this is the worker that writes."""
    return int(ray.train.get_context().get_world_rank()) == 0


def accumulation(config: TrainConfig, sequences: int, world: int) -> int:
    """Micro batches per optimizer step, of `sequences` in all.

    Raises:
        TrainingStopped: they can't be dealt out evenly.
    """
    each = config.optimizer.micro_batch_size * world
    if sequences % each:
        raise TrainingStopped(
            f"{sequences} sequences a step can't be dealt out evenly to {world} workers with "
            f"optimizer.micro_batch_size={config.optimizer.micro_batch_size}; make optimizer.batch_size fit"
        )
    return sequences // each


def world_size() -> int:
    """How many workers the run has."""
    return int(ray.train.get_context().get_world_size())


def arguments(config: TrainConfig, scratch: Path, sequences: int, examples: int, world: int) -> dict[str, Any]:
    """TRL's arguments that SFT and GRPO share, for steps of `sequences` out of `examples` per epoch."""
    optimizer, gpu = config.optimizer, torch.cuda.is_available()
    steps = optimizer.max_steps or math.ceil(math.ceil(examples / sequences) * optimizer.epochs)
    return {
        "output_dir": str(scratch),
        "per_device_train_batch_size": optimizer.micro_batch_size,
        "gradient_accumulation_steps": accumulation(config, sequences, world),
        "learning_rate": optimizer.learning_rate,
        "num_train_epochs": optimizer.epochs,
        "max_steps": optimizer.max_steps or -1,
        "lr_scheduler_type": optimizer.schedule,
        "warmup_steps": math.ceil(optimizer.warmup * steps),
        "weight_decay": optimizer.weight_decay,
        "max_grad_norm": optimizer.max_grad_norm,
        "gradient_checkpointing": optimizer.gradient_checkpointing,
        "seed": config.seed,
        "data_seed": config.seed,
        "bf16": gpu,
        "use_cpu": not gpu,
        "ddp_backend": ("nccl" if gpu else "gloo") if world > 1 else None,
        "ddp_find_unused_parameters": False,  # else one worker searches the graph for them at every step
        "deepspeed": deepspeed(config.cluster.zero, gpu),
        "logging_steps": config.record.log_every,
        "logging_nan_inf_filter": False,
        "logging_first_step": True,
        "save_steps": config.record.save_every,
        "save_total_limit": 1,
        "report_to": list(config.record.trackers),
        "disable_tqdm": True,
        "log_level": "error",
        "include_num_input_tokens_seen": "non_padding",
    }


def deepspeed(stage: int, gpu: bool) -> dict[str, Any] | None:
    """DeepSpeed's configuration for a ZeRO stage; the batch sizes and the optimizer are the trainer's."""
    if not stage:
        return None
    return {
        "bf16": {"enabled": gpu},
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": gpu,
            "stage3_gather_16bit_weights_on_model_save": stage == 3,
        },
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
    }


class RayCheckpoints(TrainerCallback):
    """Hands every checkpoint to Ray: from each worker what only it has (random state, optimizer shards)."""

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = Path(args.output_dir or "") / f"checkpoint-{state.global_step}"
        checkpoint = Checkpoint.from_directory(folder) if folder.is_dir() else None
        ray.train.report({"step": state.global_step}, checkpoint=checkpoint)


class Metrics(TrainerCallback):
    """Writes metrics.jsonl, and stops training where a loss or gradient is no number."""

    def __init__(self, folder: TrainFolder) -> None:
        self.folder = folder
        self.seen = 0.0
        self.at = time.monotonic()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if first_rank():
            self.folder.forget_after(state.global_step)
        self.seen, self.at = float(state.num_input_tokens_seen), time.monotonic()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        logs = dict(logs or {})
        if "loss" not in logs:  # the summary at the end
            return
        for name in ("loss", "grad_norm"):
            if not math.isfinite(float(logs.get(name) or 0.0)):
                raise TrainingStopped(
                    f"the {name.replace('_', ' ')} at step {state.global_step} is {logs[name]}; the checkpoints before "
                    "it are kept. Lower optimizer.learning_rate or optimizer.max_grad_norm in a new --run"
                )
        if not first_rank():
            return
        now, tokens = time.monotonic(), float(state.num_input_tokens_seen)
        row = {
            "step": state.global_step,
            "steps": state.max_steps,
            "time": time.time(),
            **{name: value for name, value in logs.items() if isinstance(value, (int, float))},
            "tokens_per_second": (tokens - self.seen) / max(now - self.at, 1e-9),
        }
        self.seen, self.at = tokens, now
        add_lines(self.folder.metrics, [row])


@contextmanager
def giving_up(folder: TrainFolder) -> Iterator[None]:
    """Leaves word for the driver, and for workers started again, where another try can't help.

    Raises:
        TrainingStopped: out of memory, or a full disk; or a worker before this one gave up. Other Problems pass.
    """
    if folder.given_up.exists():
        raise TrainingStopped(folder.given_up.read_text("utf-8"))
    try:
        yield
    except Exception as error:
        problem = error if isinstance(error, Problem) else _unmendable(error)
        if problem is None:
            raise
        with suppress(OSError):  # on a full disk; the other tries then end in the same way
            folder.given_up.write_text(str(problem), "utf-8")
        raise problem from error


def _unmendable(error: Exception) -> TrainingStopped | None:
    text = str(error)
    first = (text.splitlines() or [type(error).__name__])[0][:200]
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text:
        return TrainingStopped(
            f"out of memory ({first}); lower optimizer.micro_batch_size or data.max_tokens, or set "
            "optimizer.gradient_checkpointing=true or cluster.zero=2"
        )
    # torch and safetensors raise errors of their own.
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or any(sign in text for sign in ("No space left", "os error 28", "PytorchStreamWriter failed writing")):
        return TrainingStopped(
            f"the disk is full ({first}); the last good checkpoint is kept: make room and give the same command"
        )
    return None


def run(
    folder: TrainFolder, config: TrainConfig, stage: str, examples: Examples, build: Callable[[Path], Trainer]
) -> None:
    """Train to the end, from the last checkpoint if there is one, and publish the adapter.

    `build` makes the trainer with a scratch folder of this worker; `stage` and what is known of the `examples` go into
    the model card.
    """
    if first_rank():
        folder.refused.unlink(missing_ok=True)
        add_lines(folder.refused, ({"id": id, "tokens": n} for id, n in examples.too_long.items()))
    facts = {
        "stage": stage,
        "examples": len(examples.rows),
        "left out": len(examples.too_long),
        "data": folder.method["data"]["fingerprint"],
        "workers": world_size(),
    }
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder.path / "tensorboard")
    with tempfile.TemporaryDirectory(prefix="synuc-train-") as name:
        scratch = Path(name)
        set_seed(config.seed)  # a new adapter's weights are drawn before the trainer sets it
        trainer = build(scratch)
        trainer.add_callback(RayCheckpoints())
        trainer.add_callback(Metrics(folder))
        checkpoint = ray.train.get_checkpoint()
        with checkpoint.as_directory() if checkpoint else nullcontext(None) as resumed:
            trainer.train(resume_from_checkpoint=resumed)
        publish(folder, trainer, scratch / "adapter", facts)


def publish(folder: TrainFolder, trainer: Trainer, scratch: Path, facts: Mapping[str, Any]) -> None:
    """Put the adapter, the tokenizer and the model card into the run's folder, whole or not at all."""
    trainer.save_model(str(scratch))
    if not first_rank() or folder.adapter.exists():  # the latter: a worker was lost after the first had published
        return
    assert trainer.processing_class is not None
    assert trainer.model is not None
    trainer.processing_class.save_pretrained(str(scratch))
    (scratch / "training_args.bin").unlink(missing_ok=True)
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    (scratch / BASE_FILE).write_text(json.dumps(base_facts(model.get_base_model())), "utf-8")
    if (base := folder.backbone().model) == "embedded":  # PEFT wrote its place in this machine's cache
        name_base(scratch, public_name(base))
    write_whole(folder.facts, json.dumps(facts, indent=2))
    (scratch / "README.md").write_text(card(folder), "utf-8")
    hidden = folder.path / ".adapter"
    shutil.rmtree(hidden, ignore_errors=True)
    shutil.copytree(scratch, hidden)
    hidden.rename(folder.adapter)
