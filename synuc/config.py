"""The configuration of a synthesis run, its engines and its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from synuc.layers import Section, compose
from synuc.types import Label, Role


class Price(Section):
    """Money per million tokens, in any one currency."""

    prompt: float = 0.0
    cached_prompt: float = 0.0
    completion: float = 0.0


class VllmEngine(Section):
    """vLLM inside the worker's process. `model`: a local folder, a hub name, or `embedded` (SmolLM2-135M-Instruct)."""

    kind: Literal["vllm"]
    model: str
    adapter: str | None = Field(None, description="folder of a LoRA adapter on top of `model`")
    max_adapters: int = Field(0, ge=0, description="adapters by name, besides, that can be loaded while it runs")
    max_adapter_rank: int = Field(16, ge=1, le=512, description="of those adapters")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto: bfloat16 where the hardware computes in it, else float32"
    )
    max_model_len: int = Field(8192, ge=256, description="tokens of prompt and answer together")
    max_in_flight: int = Field(64, ge=1, description="sequences decoded at once (vLLM's max_num_seqs)")
    tensor_parallel_size: int = Field(1, ge=1)
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    cpu_kv_cache_gib: int = Field(2, ge=1, description="memory of the KV cache on CPUs")
    enforce_eager: bool = Field(False, description="skip torch.compile: starts faster, runs slower on GPUs")
    per_request_seed: bool = Field(
        False,
        description="sampling seeds per call; kills vLLM's CPU backend on chunked prefills, so off by default",
    )
    price: Price = Price()


class OpenAIRequests(Section):
    """What both engines that speak OpenAI's API say of their requests."""

    model: str
    api_key_env: str = Field("OPENAI_API_KEY", description="environment variable that holds the key")
    structured: Literal["json_schema", "json_object", "none"] = Field(
        "json_schema",
        description="how the endpoint constrains decoding; the other two put the schema into the prompt",
    )
    per_request_seed: bool = True
    extra_body: dict[str, Any] = Field({}, description="fields added to every request, e.g. to turn thinking off")
    price: Price = Price()


class OpenAIEngine(OpenAIRequests):
    """Any OpenAI-compatible chat endpoint."""

    kind: Literal["openai"]
    base_url: str = "https://api.openai.com/v1"
    max_in_flight: int = Field(64, ge=1, description="calls in flight over all workers of the run")
    timeout_s: float = Field(120.0, gt=0, description="of one call")
    give_up_after_s: float = Field(120.0, ge=0, description="how long one call is retried while the endpoint fails")


class BatchEngine(OpenAIRequests):
    """Files of requests in the shape of OpenAI's Batch API, uploaded to an endpoint or left for somebody to answer."""

    kind: Literal["batch"]
    base_url: str | None = Field(
        None, description="endpoint with /files and /batches; none: the files are left in `folder`, answers come there"
    )
    folder: Path | None = Field(None, description="where the files are; none: in the run's folder, under `batches`")
    token_limit: Literal["max_completion_tokens", "max_tokens"] = Field(
        "max_completion_tokens", description="what the bound on an answer's tokens is called there"
    )
    max_in_flight: int = Field(50_000, ge=1, description="dialogues at work at once")
    max_requests: int = Field(50_000, ge=1, description="in one file")
    max_bytes: int = Field(200_000_000, ge=1, description="of one file")
    settle_s: float = Field(5.0, gt=0, description="a file is written when so long nothing was asked or answered")
    poll_s: float = Field(30.0, gt=0, description="between looks for answers")
    tries: int = Field(3, ge=1, description="times a request is sent that comes back without an answer")


def is_place(model: str) -> bool:
    """Whether a model is named by a folder, not by its name on a hub."""
    return model.startswith(("/", "./", "../", "~"))


EngineConfig = Annotated[VllmEngine | OpenAIEngine, Field(discriminator="kind")]
"""An engine that answers at once."""

AnyEngine = Annotated[VllmEngine | OpenAIEngine | BatchEngine, Field(discriminator="kind")]


class Seeds(Section):
    """Which dialogues a run starts from."""

    paths: tuple[str, ...] = Field((), description="files, folders, globs, `hf:NAME`, or `sharegpt-sample`")
    format: Literal["auto", "wildchat", "lmsys", "sharegpt", "messages"] = "auto"
    limit: int | None = Field(None, ge=1, description="take the first so many that pass the filters")
    languages: tuple[str, ...] = Field(("en", "zh"), description="ISO 639-1; empty: all")
    min_user_turns: int = Field(2, ge=2, description="ND needs a history before the last message")
    max_user_turns: int = Field(17, ge=2)
    min_chars: int = Field(0, ge=0)
    max_chars: int = Field(40_000, ge=1, description="of the whole dialogue")


ProgramName = Literal["synuc", "contrastive", "baize", "multiturninstruct", "refed", "coninstruct", "designer"]
Pooling = Literal["last", "mean"]
EMBEDDED = "embedded"


class Method(Section):
    """Everything that decides what a sample looks like (paper, section 4.1)."""

    labels: tuple[Label, ...] = Field((Label.ND, Label.ER, Label.IC), min_length=1)
    alpha: float = Field(0.10, ge=0, le=1, description="share of eligible dialogues that also give an ND sample")
    tau: int = Field(80, ge=0, le=100, description="least confidence q of an accepted sample")
    k: int = Field(3, ge=1, description="trajectories kept in R+ and in R- of a schema")
    update_threshold: int = Field(10, ge=1, description="trajectories in a schema's buffer that trigger an update")
    program: ProgramName = Field(
        "synuc", description="what makes the samples: this method, it in triplets, or a baseline"
    )
    retrieval: Literal["llm", "bm25", "dense"] = Field("llm", description="how anchor and schema are matched")
    embedding_model: str = Field(
        "Qwen/Qwen3-Embedding-0.6B", description="of dense retrieval: a folder, a hub name, or `embedded` (MiniLM-L6)"
    )
    embedding_pooling: Pooling = Field("last", description="how that model makes one vector of many")
    seed: int = Field(0, description="randomness of routing and sampling")
    generator_temperature: float = Field(0.7, ge=0, le=2)
    verifier_temperature: float = Field(0.0, ge=0, le=2)
    task_filter: bool = Field(True, description="ablation: off sends every dialogue to ER and IC")
    memory: bool = Field(True, description="ablation: off generates the pair directly, without schemas and repository")
    trajectory_update: bool = Field(True, description="ablation: off keeps the repositories empty")
    confidence_filter: bool = Field(True, description="ablation: off accepts whatever the confidence")
    constraint_verifier: bool = Field(True, description="ablation: off checks the final sample with one direct call")
    parse_attempts: int = Field(3, ge=1, description="times a call is asked before its answer counts as unparseable")

    @property
    def remembers(self) -> bool:
        """Whether trajectories of implicit conflicts are recorded, and shown to later ones."""
        return self.program == "synuc" and Label.IC in self.labels and self.memory and self.trajectory_update

    @model_validator(mode="after")
    def _embedded_pools_its_mean(self) -> Method:
        if self.retrieval == "dense" and self.embedding_model == EMBEDDED and self.embedding_pooling != "mean":
            raise ValueError("the embedded model (MiniLM-L6) pools its mean: set method.embedding_pooling=mean")
        return self

    @model_validator(mode="after")
    def _triplets_need_a_conflict(self) -> Method:
        if self.program == "contrastive" and not (self.memory and Label.IC in self.labels):
            raise ValueError(
                "contrastive synthesis makes the other labels around an implicit conflict, by schemas: "
                "leave method.memory on and IC in method.labels, or take method.program=synuc"
            )
        return self


class Cluster(Section):
    """Where and how wide a run is."""

    address: str | None = Field(None, description="Ray address; none: RAY_ADDRESS if set, else this machine")
    workers: int | None = Field(None, ge=1, description="synthesis actors; none: as many as the resources allow")
    max_workers: int | None = Field(
        None,
        ge=1,
        description="so many may a synthesis come to have while there is work, and GPUs (else CPUs) for them, as nodes "
        "join; `workers`, or what its start finds, is the least; none: no more than that",
    )
    dialogues_in_flight: int | None = Field(
        None, ge=1, description="per worker; none: one and a half for each of the engine's slots (max_in_flight)"
    )
    lease_s: float = Field(600.0, gt=0, description="how long a worker may take for one memory update")

    @model_validator(mode="after")
    def _least_is_not_most(self) -> Cluster:
        if self.workers and self.max_workers and self.workers > self.max_workers:
            raise ValueError(f"max_workers={self.max_workers} is less than workers={self.workers}")
        return self


class Budget(Section):
    """What a run may spend, over all its starts. At the bound no dialogue is begun any more; it may be raised later."""

    usd: float | None = Field(None, gt=0, description="money, by the engines' prices and in their currency")
    tokens: int | None = Field(None, gt=0, description="tokens of prompts, cached ones too, and of answers")

    @property
    def bounded(self) -> bool:
        """Whether there is any bound."""
        return self.usd is not None or self.tokens is not None


class Reviews(Section):
    """What people said of a run's samples."""

    review: str = Field(description="export of a spot check, or its project's folder")
    run: str | None = Field(None, description="folder of the synthesis run that it was about; none: as its lines say")


class RunConfig(Section):
    """One synthesis run."""

    seeds: Seeds = Seeds()
    engine: AnyEngine = Field(description="say which one, e.g. --config configs/local.yaml")
    roles: dict[Role, AnyEngine] = Field({}, description="roles that use another engine than `engine`")
    method: Method = Method()
    cluster: Cluster = Cluster()
    budget: Budget = Budget()
    memory_from: tuple[Reviews, ...] = Field((), description="reviews whose verdicts the memory begins with")

    @field_validator("memory_from")
    @classmethod
    def _there_is_a_memory(cls, reviews: tuple[Reviews, ...], info: ValidationInfo) -> tuple[Reviews, ...]:
        method = info.data.get("method")
        if reviews and method and not method.remembers:
            raise ValueError("this method has no memory of implicit conflicts that reviews could go into")
        return reviews

    def engine_of(self, role: Role) -> AnyEngine:
        return self.roles.get(role, self.engine)

    def engines(self) -> list[AnyEngine]:
        """The different engines that the roles use."""
        distinct: list[AnyEngine] = []
        for role in get_args(Role):
            if (engine := self.engine_of(role)) not in distinct:
                distinct.append(engine)
        return distinct


METHOD_FIELDS_OF_ENGINE = ("kind", "model", "adapter")


def method_snapshot(config: RunConfig, prompts_version: str, reviewed: str = "") -> dict[str, Any]:
    """What may not change while a run is continued: seeds, method, the roles' models, the prompts.

    `reviewed` is the fingerprint of what the memory begins with, empty if that is nothing.
    """
    engines = {role: config.engine_of(role).model_dump() for role in get_args(Role)}
    return {
        "seeds": config.seeds.model_dump(mode="json"),
        "method": config.method.model_dump(mode="json"),
        "engines": {
            role: {key: engine.get(key) for key in METHOD_FIELDS_OF_ENGINE} for role, engine in engines.items()
        },
        "prompts": prompts_version,
        **({"reviewed": reviewed} if reviewed else {}),
    }


def load(files: Sequence[str | Path], overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a synthesis run. Raises ConfigError as `synuc.layers.compose` does."""
    return compose(RunConfig, files, overrides)


def load_seeds(files: Sequence[str | Path], overrides: Sequence[str] = ()) -> Seeds:
    """Only the `seeds` of a configuration, for which no engine is needed. Raises ConfigError like `load`."""
    return compose(Seeds, files, overrides, section="seeds")
