"""The configuration of the service. Secrets are named by environment variables and never stand in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from serving.detection import Mode
from synuc.config import VllmEngine
from synuc.formatting import Retention
from synuc.layers import Section

AdapterName = Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,100}$")]


class Autoscaling(Section):
    """Replicas between `least` and `most`, so that each has about `in_flight` detections at once."""

    least: int = Field(1, ge=0)
    most: int = Field(1, ge=1)
    in_flight: int = Field(32, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least={self.least} is more than most={self.most}")
        return self


class DetectorConfig(Section):
    """The model that detects, and how it is asked."""

    engine: VllmEngine
    adapters: dict[AdapterName, Annotated[Path, AfterValidator(Path.expanduser)]] = Field(
        {}, description="LoRA adapters by name, all on the engine's model"
    )
    default: str = Field("", description="adapter of requests that name none; empty: the model itself")
    prompt: Literal["trained", "zero_shot"] = Field("trained", description="as in evaluation")
    retention: Retention = Field(Retention.PARTIAL, description="as in training")
    mode: Mode = Field("reasoned", description="of requests that name none")
    max_tokens: int = Field(1024, ge=16, description="of a reasoned answer")
    timeout_s: float = Field(60.0, gt=0, description="of one detection, queue included")
    replicas: Autoscaling = Autoscaling()
    queue: int = Field(64, ge=1, description="detections that wait for a replica; more are answered with 503")

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.default and self.default not in self.adapters:
            raise ValueError(f"default={self.default} is none of the adapters: {', '.join(self.adapters) or 'none'}")
        return self


class Upstream(Section):
    """The chat model behind the guard: any OpenAI-compatible server. Requests can't name another."""

    base_url: str
    api_key_env: str = Field(
        "",
        description="environment variable with its key; empty: the client's own goes on, unless api_keys_env is set",
    )
    model: str = Field("", description="asked for whatever the client names; empty: what the client names")
    timeout_s: float = Field(600.0, gt=0, description="without a byte")

    @field_validator("base_url")
    @classmethod
    def _plain(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or {*"@?#"} & set(url):
            raise ValueError(
                "give http(s)://HOST/PATH such as http://127.0.0.1:8080/v1, without query; a key goes into api_key_env"
            )
        return url


class Limits(Section):
    """What a request may hold."""

    body_bytes: int = Field(2 * 2**20, ge=1024)
    messages: int = Field(400, ge=2, description="of one dialogue")
    characters: int = Field(200_000, ge=100, description="of one dialogue")
    dialogues: int = Field(64, ge=1, description="of one call")


class LedgerConfig(Section):
    """The conversations whose constraints are remembered."""

    conversations: int = Field(10_000, ge=0, description="the least recently used is forgotten; 0: none is kept")
    expire_s: float = Field(86_400.0, gt=0, description="without a message")


class ServeConfig(Section):
    """The whole service."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65_535)
    detector: DetectorConfig
    upstream: Upstream | None = Field(None, description="without one there is no guard, only detection")
    policy: Literal["annotate", "clarify", "inject"] = Field("annotate", description="of requests that name none")
    on_error: Literal["allow", "block"] = Field("allow", description="if detection fails: call the upstream, or don't")
    api_keys_env: str = Field("", description="environment variable with the keys, by commas; empty: anybody may ask")
    limits: Limits = Limits()
    ledger: LedgerConfig = LedgerConfig()
    gateways: int = Field(1, ge=1, description="replicas of the gateway")
    log_text: bool = Field(False, description="dialogue text in the log")
    address: str | None = Field(None, description="Ray address; none: RAY_ADDRESS if set, else this machine")
