"""The configuration of a run: small YAML files that compose, and dotted overrides.

Later files win over earlier ones, key by key, and `--set` wins over all. An unknown or ill-typed key is an error that
names the key, its file and the nearest valid key. Secrets never stand in a config: an engine names the environment
variable that holds its key.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from synuc.problem import Problem
from synuc.types import Label, Role


class ConfigError(Problem):
    """A configuration that can't be used; the message says which key, from where, and what would do."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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


class OpenAIEngine(Section):
    """Any OpenAI-compatible chat endpoint."""

    kind: Literal["openai"]
    model: str
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = Field("OPENAI_API_KEY", description="environment variable that holds the key")
    structured: Literal["json_schema", "json_object", "none"] = Field(
        "json_schema",
        description="how the endpoint constrains decoding; the other two put the schema into the prompt",
    )
    max_in_flight: int = Field(64, ge=1, description="calls in flight over all workers of the run")
    timeout_s: float = Field(120.0, gt=0, description="of one call")
    give_up_after_s: float = Field(120.0, ge=0, description="how long one call is retried while the endpoint fails")
    per_request_seed: bool = True
    extra_body: dict[str, Any] = Field({}, description="fields added to every request, e.g. to turn thinking off")
    price: Price = Price()


EngineConfig = Annotated[VllmEngine | OpenAIEngine, Field(discriminator="kind")]


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


class Method(Section):
    """Everything that decides what a sample looks like (paper, section 4.1)."""

    labels: tuple[Label, ...] = Field((Label.ND, Label.ER, Label.IC), min_length=1)
    alpha: float = Field(0.10, ge=0, le=1, description="share of eligible dialogues that also give an ND sample")
    tau: int = Field(80, ge=0, le=100, description="least confidence q of an accepted sample")
    k: int = Field(3, ge=1, description="trajectories kept in R+ and in R- of a schema")
    update_threshold: int = Field(10, ge=1, description="trajectories in a schema's buffer that trigger an update")
    retrieval: Literal["llm"] = "llm"
    seed: int = Field(0, description="randomness of routing and sampling")
    generator_temperature: float = Field(0.7, ge=0, le=2)
    verifier_temperature: float = Field(0.0, ge=0, le=2)
    task_filter: bool = Field(True, description="ablation: off sends every dialogue to ER and IC")
    memory: bool = Field(True, description="ablation: off generates the pair directly, without schemas and repository")
    trajectory_update: bool = Field(True, description="ablation: off keeps the repositories empty")
    confidence_filter: bool = Field(True, description="ablation: off accepts whatever the confidence")
    constraint_verifier: bool = Field(True, description="ablation: off checks the final sample with one direct call")
    parse_attempts: int = Field(3, ge=1, description="times a call is asked before its answer counts as unparseable")


class Cluster(Section):
    """Where and how wide a run is."""

    address: str | None = Field(None, description="Ray address; none: RAY_ADDRESS if set, else this machine")
    workers: int | None = Field(None, ge=1, description="synthesis actors; none: as many as the resources allow")
    dialogues_in_flight: int | None = Field(None, ge=1, description="per worker; none: enough to fill the engine")
    lease_s: float = Field(600.0, gt=0, description="how long a worker may take for one memory update")


class RunConfig(Section):
    """One synthesis run."""

    seeds: Seeds = Seeds()
    engine: EngineConfig
    roles: dict[Role, EngineConfig] = Field({}, description="roles that use another engine than `engine`")
    method: Method = Method()
    cluster: Cluster = Cluster()

    def engine_of(self, role: Role) -> VllmEngine | OpenAIEngine:
        return self.roles.get(role, self.engine)

    def engines(self) -> list[VllmEngine | OpenAIEngine]:
        """The different engines that the roles use."""
        distinct: list[VllmEngine | OpenAIEngine] = []
        for role in get_args(Role):
            if (engine := self.engine_of(role)) not in distinct:
                distinct.append(engine)
        return distinct


METHOD_FIELDS_OF_ENGINE = ("kind", "model", "adapter")


def method_snapshot(config: RunConfig, prompts_version: str) -> dict[str, Any]:
    """What may not change while a run is continued: seeds, method, the roles' models, the prompts."""
    engines = {role: config.engine_of(role).model_dump() for role in get_args(Role)}
    return {
        "seeds": config.seeds.model_dump(mode="json"),
        "method": config.method.model_dump(mode="json"),
        "engines": {
            role: {key: engine.get(key) for key in METHOD_FIELDS_OF_ENGINE} for role, engine in engines.items()
        },
        "prompts": prompts_version,
    }


def fingerprint(snapshot: Mapping[str, Any]) -> str:
    """Sixteen hex digits over a method snapshot."""
    return hashlib.sha256(json.dumps(snapshot, sort_keys=True).encode()).hexdigest()[:16]


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted fields in which two snapshots differ, as `field: old -> new`."""
    lines = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a} -> {b}")
    return lines


def load(files: Sequence[str | Path], overrides: Sequence[str] = ()) -> RunConfig:
    """The config that `files`, in order, and then `overrides` (`a.b=value`, the value read as YAML) make together.

    Raises:
        ConfigError: with the key, where it came from and what would do.
    """
    merged, came_from = _merged(files, overrides)
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_explain(error, came_from)) from None


def load_seeds(files: Sequence[str | Path], overrides: Sequence[str] = ()) -> Seeds:
    """Only the `seeds` of a configuration, for which no engine is needed. Raises ConfigError like `load`."""
    merged, came_from = _merged(files, overrides)
    try:
        return Seeds.model_validate(merged.get("seeds", {}))
    except ValidationError as error:
        raise ConfigError(_explain(error, came_from, ("seeds",))) from None


def _merged(files: Sequence[str | Path], overrides: Sequence[str]) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """All layers as one mapping, and for every key where its value came from."""
    merged: dict[str, Any] = {}
    came_from: dict[tuple[str, ...], str] = {}
    for file in files:
        _merge(merged, _read(Path(file)), str(file), came_from, ())
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {override}: write it as key=value, e.g. --set method.tau=90")
        try:
            parsed: Any = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"--set {override}: the value can't be read as YAML; put it in quotes") from None
        for part in reversed(key.split(".")):
            parsed = {part: parsed}
        _merge(merged, parsed, f"--set {override}", came_from, ())
    return merged, came_from


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; the shipped ones are in configs/") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: can't be read as YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a config is a mapping of keys, this file holds {type(data).__name__}")
    return data


def _merge(
    into: dict[str, Any],
    new: Mapping[str, Any],
    where: str,
    came_from: dict[tuple[str, ...], str],
    at: tuple[str, ...],
) -> None:
    """Merge `new` into `into` in place. Another `kind` of engine replaces the engine instead of mixing with it."""
    if "kind" in new and into.get("kind") not in (None, new["kind"]):
        into.clear()
        for path in [path for path in came_from if path[: len(at)] == at != path]:
            del came_from[path]
    for key, value in new.items():
        path = (*at, str(key))
        came_from[path] = where
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value, where, came_from, path)
        else:
            into[key] = {} if isinstance(value, dict) else value
            if isinstance(value, dict):
                _merge(into[key], value, where, came_from, path)


def _explain(error: ValidationError, came_from: Mapping[tuple[str, ...], str], prefix: tuple[str, ...] = ()) -> str:
    lines = []
    for item in error.errors():
        path = (*prefix, *_path(item["loc"]))
        where = next((came_from[path[:n]] for n in range(len(path), 0, -1) if path[:n] in came_from), "the config")
        line = f"{where}: {'.'.join(path)}: {item['msg']}"
        if item["type"] == "extra_forbidden":
            near = difflib.get_close_matches(".".join(path), list(_valid_keys(RunConfig)), n=1, cutoff=0.3)
            line = f"{where}: unknown key {'.'.join(path)}" + (f"; did you mean {near[0]}?" if near else "")
        elif item["type"] in ("missing", "union_tag_not_found") and path == ("engine",):
            line = f"{where}: engine: say which one, e.g. --config configs/local.yaml"
        elif "input" in item and not isinstance(item["input"], dict):
            line += f" (got {item['input']!r})"
        lines.append(line)
    return "\n".join(lines)


def _path(location: Sequence[int | str]) -> list[str]:
    """A validation error's location as keys of the file: without the tag of the engine union."""
    parts = [str(part) for part in location]
    tag = {"engine": 1, "roles": 2}.get(parts[0], len(parts))
    return [part for at, part in enumerate(parts) if at != tag or part not in ("vllm", "openai")]


def _valid_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, info in model.model_fields.items():
        key = f"{prefix}{name}"
        yield key
        options = [info.annotation, *get_args(info.annotation)]
        if name == "roles":
            for role in get_args(Role):
                yield from (f"{key}.{role}.{rest}" for rest in {*VllmEngine.model_fields, *OpenAIEngine.model_fields})
            continue
        for option in options:
            if isinstance(option, type) and issubclass(option, BaseModel):
                yield from _valid_keys(option, f"{key}.")
