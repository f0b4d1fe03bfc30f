"""The configuration of a training run. Defaults are the paper's (section 5.1) where it gives a number."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from synuc.config import OpenAIEngine
from synuc.layers import Section
from synuc.rewards import ALPHA, BETA


class Backbone(Section):
    """The model that becomes a detector."""

    model: str = Field(description="a local folder, a hub name, or `embedded` (SmolLM2-135M-Instruct)")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="of the frozen weights; auto: bfloat16 where the hardware computes in it, else float32. LoRA "
        "weights are float32 in any case",
    )
    template: dict[str, Any] = Field({}, description="arguments of the chat template, e.g. {enable_thinking: false}")


class Lora(Section):
    """The adapter."""

    rank: int = Field(8, ge=1)
    alpha: int = Field(16, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: str | tuple[str, ...] = Field("all-linear", description="module names, or all-linear")


class Data(Section):
    """Which exported samples are learned from."""

    path: Path | None = Field(None, description="the export folder of a synthesis run; --data sets it")
    max_tokens: int = Field(8192, ge=64, description="longer examples are left out, and named in refused.jsonl")
    languages: tuple[str, ...] = Field((), description="ISO 639-1; empty: all")
    limit: int | None = Field(None, ge=1, description="only the first so many")


class Optimizer(Section):
    """AdamW. `batch_size` counts examples (GRPO: prompts) of one optimizer step over all workers."""

    learning_rate: float = Field(gt=0)
    epochs: float = Field(gt=0)
    max_steps: int | None = Field(None, ge=1, description="end earlier, after so many steps")
    batch_size: int = Field(16, ge=1)
    micro_batch_size: int = Field(1, ge=1, description="sequences that a worker puts through the model at once")
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "cosine"
    warmup: float = Field(0.05, ge=0, lt=1, description="share of the steps")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    gradient_checkpointing: bool = Field(False, description="less memory, a third slower")


class Cluster(Section):
    """Where and how wide training is. It may change while a run is continued, save for `zero`."""

    address: str | None = Field(None, description="Ray address; none: RAY_ADDRESS if set, else this machine")
    workers: int = Field(1, ge=1)
    gpus_per_worker: float | None = Field(None, ge=0, description="none: one where the cluster has GPUs")
    cpus_per_worker: int | None = Field(None, ge=1, description="none: an even share of the cluster's")
    zero: Literal[0, 2, 3] = Field(0, description="stage of DeepSpeed ZeRO; 0: plain data parallelism")
    max_failures: int = Field(3, ge=0, description="lost workers after which a run ends with an error")


class Record(Section):
    """What a run leaves behind on its way."""

    log_every: int = Field(1, ge=1, description="steps between two lines of metrics.jsonl")
    save_every: int = Field(50, ge=1, description="steps between two checkpoints")
    keep: int = Field(2, ge=1, description="checkpoints kept")
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ("tensorboard",)

    @model_validator(mode="after")
    def _loss_is_seen_before_it_is_saved(self) -> Record:
        if self.save_every % self.log_every:
            raise ValueError("save_every must be a multiple of log_every, so that no checkpoint holds an unseen loss")
        return self


class TrainConfig(Section):
    """What SFT and GRPO share."""

    lora: Lora = Lora()
    data: Data = Data()
    optimizer: Optimizer
    cluster: Cluster = Cluster()
    record: Record = Record()
    seed: int = 0


class SftConfig(TrainConfig):
    """LoRA SFT on UC-Data-SFT, with the loss on the answer only."""

    backbone: Backbone = Field(description="say which one, e.g. --backbone configs/backbones/smollm2-135m.yaml")


class Rollout(Section):
    """How answers are sampled."""

    generations: int = Field(4, ge=2, description="answers per prompt")
    temperature: float = Field(0.8, gt=0)
    max_tokens: int = Field(1024, ge=8, description="of an answer; also the constant that dr_grpo divides by")
    engine: Literal["auto", "generate", "vllm_lora", "vllm_colocate", "vllm_server"] = Field(
        "auto",
        description="vllm_lora: a vLLM of each worker's own that gets the LoRA weights of each step, also on CPUs; "
        "vllm_colocate, vllm_server: TRL's, on GPUs; auto: vllm_colocate on GPUs, transformers' generate on CPUs",
    )
    server: str = Field("http://127.0.0.1:8000", description="address of `trl vllm-serve`, for vllm_server")
    gpu_memory_utilization: float = Field(0.3, gt=0, le=1, description="share of a GPU for vLLM, beside the training")


Strategy = Literal["lexical", "embedding", "judge"]
Pooling = Literal["last", "mean"]


class Reward(Section):
    """R = R_label + alpha R_fmt + 1[R_fmt = R_label = 1] beta R_attr (paper, equation 8)."""

    alpha: float = Field(ALPHA, ge=0)
    beta: float = Field(BETA, ge=0, description="0: without the constraint-attribution term")
    matching: Strategy = Field("lexical", description="how two wordings of a constraint are held equal")
    threshold: float | None = Field(None, ge=0, le=1, description="least similarity; none: the strategy's own")
    embedding_model: str = "Qwen/Qwen3-Embedding-0.6B"
    pooling: Pooling = Field("last", description="how that model makes one vector of many")
    judge: OpenAIEngine | None = Field(None, description="the endpoint that judges, as an engine of synuc/config.py")

    @model_validator(mode="after")
    def _judge_is_named(self) -> Reward:
        if self.matching == "judge" and self.judge is None:
            raise ValueError("matching by a judge needs reward.judge, e.g. {kind: openai, base_url: ..., model: ...}")
        return self


class GrpoConfig(TrainConfig):
    """DR-GRPO on UC-Data-GRPO, from an SFT run's adapter. The backbone is that run's."""

    start: Path | None = Field(None, description="the SFT run; --from sets it")
    merge: bool = Field(False, description="merge the SFT adapter and train a new one, instead of going on with it")
    rollout: Rollout = Rollout()
    reward: Reward = Reward()

    @model_validator(mode="after")
    def _each_worker_has_all_weights(self) -> GrpoConfig:
        if self.rollout.engine == "vllm_lora" and self.cluster.zero == 3:
            raise ValueError("rollout.engine=vllm_lora needs all LoRA weights in each worker: cluster.zero 0 or 2")
        return self


class Layers(Section):
    """A stage's configuration, as `synuc train` takes it."""

    files: tuple[Path, ...] = Field((), description="YAML files, later ones over earlier ones (`--config`)")
    set: tuple[str, ...] = Field((), description="`key=value` over the files (`--set`)")


class HeldOut(Section):
    """Held-out samples that every stage's adapter answers."""

    path: Path = Field(description="the export folder of a synthesis run; uc-data-grpo.parquet is read")
    limit: int | None = Field(None, ge=1, description="only the first so many")


Stage = Literal["sft", "grpo"]
Name = Annotated[str, Field(pattern=r"^[\w.+-]+$", description="part of file names")]


class SweepConfig(Section):
    """Backbones, data sets and seeds, each with each. Paths are relative to the working directory."""

    run: Path | None = Field(None, description="folder of the sweep; --run sets it")
    backbones: tuple[Path, ...] = Field(min_length=1, description="YAML files, e.g. configs/backbones/qwen3.5-4b.yaml")
    data: dict[Name, Path] = Field(min_length=1, description="names of data sets and their export folders")
    seeds: tuple[int, ...] = Field(min_length=1, description="one run of every backbone on every data set for each")
    stages: tuple[Stage, ...] = Field(("sft", "grpo"), description="[sft] or [sft, grpo]")
    sft: Layers = Layers()
    grpo: Layers = Layers()
    test: HeldOut | None = Field(None, description="none: the table shows figures of the training only")
    answer_tokens: int = Field(1024, ge=8, description="longest answer to a test sample")
    concurrent: int = Field(1, ge=1, description="cells at a time; each gets its share of the cluster's CPUs")

    @model_validator(mode="after")
    def _makes_sense(self) -> SweepConfig:
        if self.stages not in (("sft",), ("sft", "grpo")):
            raise ValueError("stages is [sft] or [sft, grpo]: GRPO goes on from the SFT adapter")
        for what, values in (("backbones", [b.stem for b in self.backbones]), ("seeds", [*map(str, self.seeds)])):
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"{what} has {', '.join(twice)} twice")
        return self
