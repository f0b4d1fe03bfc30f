"""How an evaluation runs: the engines that a command names, and the cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from actors.vllm_adapters import read_adapter
from eval.bench import Fields
from synuc.config import Cluster, EngineConfig, OpenAIEngine, VllmEngine
from synuc.formatting import Retention
from synuc.layers import ConfigError, Section, compose

ENDPOINT = re.compile(r"(?P<model>\S+)@(?P<url>https?://\S+)")


class Settings(Section):
    """What the evaluations share; `--set` names these keys."""

    engine: dict[str, Any] = Field({}, description="fields over those of the evaluated model's engine")
    judge: dict[str, Any] = Field({}, description="fields over those of the judge's engine")
    fields: Fields = Field(Fields(), description="names of a benchmark's fields, if they aren't the documented ones")
    retention: Retention = Field(Retention.PARTIAL, description="as in training")
    temperature: float = Field(0.01, ge=0, le=2, description="of the evaluated model (paper, section 5.4)")
    max_tokens: int = Field(2048, ge=16, description="of one of its answers")
    parse_attempts: int = Field(3, ge=1, description="times a judge is asked before its answer counts as unparseable")
    seed: int = Field(0, description="tells runs of the same evaluation apart, and decides what is drawn")
    group: str = Field("", description="runs of one group, e.g. adapters of five seeds, become one row of a report")
    cluster: Cluster = Cluster()


class EngineOf(BaseModel):
    """The `engine` of a configuration, whatever else that holds."""

    engine: EngineConfig = Field(description="the model to ask; configs/endpoint.yaml shows one")


def engine_of(name: str, fields: dict[str, Any], adapter: Path | None = None) -> VllmEngine | OpenAIEngine:
    """The engine that a command's `--model` or `--judge` means, with `fields` over it.

    `name` is a YAML file with an `engine`, `MODEL@URL` for an OpenAI-compatible endpoint, or else a model for vLLM:
    a folder, a name of the Hugging Face hub, or `embedded`.

    Raises:
        ConfigError: with what would do.
    """
    like_endpoint = ("@" in name or "://" in name) and not ENDPOINT.fullmatch(name) and not Path(name).exists()
    if like_endpoint or not name.strip():
        raise ConfigError(
            f"{name!r} names no model: write MODEL@http://HOST:PORT/v1 for an endpoint, or a folder, a name of the "
            "Hugging Face hub, `embedded`, or a YAML file with an `engine`"
        )
    files: list[str] = []
    layer: dict[str, Any] = {}
    if name.endswith((".yaml", ".yml")):
        files.append(name)
    elif match := ENDPOINT.fullmatch(name):
        layer = {"kind": "openai", "model": match["model"], "base_url": match["url"]}
    else:
        layer = {"kind": "vllm", "model": name}
    engine = compose(EngineOf, files, over={name: {"engine": {**layer, **fields}}}).engine
    if adapter is None:
        return engine
    if not isinstance(engine, VllmEngine):
        raise ConfigError(
            f"--adapter {adapter}: an endpoint serves adapters under names of their own; name one as MODEL"
        )
    return engine.model_copy(update={"adapter": str(adapter.resolve())})


class EvalRun(Section):
    """One evaluation: the command that was given, and what it came to."""

    command: tuple[str, ...]
    settings: Settings
    engines: dict[str, EngineConfig] = Field(description="by role: `model`, `judge`, or a role of the method")
    judged: tuple[str, ...] = Field((), description="names of the runs whose answers it asks a judge about")

    def threads(self) -> str:
        """Threads of an engine on CPUs; Ray would give each process as many as CPUs it reserves, which is one."""
        return os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count())

    def distinct(self) -> list[VllmEngine | OpenAIEngine]:
        """The different engines that the roles use."""
        engines: list[VllmEngine | OpenAIEngine] = []
        for engine in self.engines.values():
            if engine not in engines:
                engines.append(engine)
        return engines

    def engines_snapshot(self) -> dict[str, Any]:
        """What of the engines may not change while an evaluation is continued, by role."""
        return {role: _identity(engine) for role, engine in self.engines.items()}


def _identity(engine: VllmEngine | OpenAIEngine) -> dict[str, Any]:
    """What decides an engine's answers, besides the settings of a protocol."""
    if isinstance(engine, OpenAIEngine):
        endpoint = {"kind": engine.kind, "model": engine.model, "base_url": engine.base_url}
        # Whether a model thinks first may stand there.
        return endpoint | ({"extra_body": engine.extra_body} if engine.extra_body else {})
    identity: dict[str, Any] = {"kind": engine.kind, "model": engine.model, "adapter": engine.adapter}
    if engine.adapter:
        identity["adapter_weights"] = read_adapter(Path(engine.adapter), "engine.adapter").version
    return identity


def load_settings(files: Sequence[Path], overrides: Sequence[str]) -> Settings:
    """The settings of an evaluation. Raises ConfigError as `synuc.layers.compose` does."""
    return compose(Settings, files, overrides)
