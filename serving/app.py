"""The service as a Serve application: for `synuc serve`, and for `serve deploy` with a file like cluster/serve.yaml."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import LoggingConfig
from rich.console import Console

from actors.vllm_adapters import read_adapter
from actors.vllm_engine import InProcessVllm
from cluster.connect import connected
from serving.access import keys_of
from serving.config import DetectorConfig, ServeConfig
from serving.deployment import Detector, Gateway, Ledgers
from synuc.config import VllmEngine, is_place
from synuc.layers import compose
from synuc.problem import Problem

NAME = "synuc"
REQUESTS = 2048
"""As many requests at once as one gateway, or the ledger, may have: beyond all that detectors and upstreams bear.
As many again may wait for a gateway."""

ONE_LOOP = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}
"""In a gateway's environment: no thread of its own, beside the replica's loop, for what it serves. It never blocks that
loop, and with two threads every request and answer waits for the other one."""

END_S = 30.0
"""Seconds until Serve has ended; its own default."""

QUIET = LoggingConfig(log_level="WARNING", enable_access_log=False)
"""Of Serve itself. The gateway logs its own line for every request."""


def application(config: ServeConfig) -> Application:
    """The three deployments: Detector, Ledgers and Gateway. Needs a running Ray, whose resources it looks at."""
    detector = config.detector.model_copy(update={"engine": _absolute(config.detector)})
    gateways = Gateways.options(
        num_replicas=config.gateways,
        graceful_shutdown_timeout_s=detector.timeout_s,
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": ONE_LOOP}},
    )
    return gateways.bind(
        config.model_copy(update={"detector": detector}),
        Detectors.options(
            **scaling(detector),
            max_ongoing_requests=detector.engine.max_in_flight,
            # Each gateway has a queue of its own.
            max_queued_requests=max(1, detector.queue // config.gateways),
            graceful_shutdown_timeout_s=detector.timeout_s,
            ray_actor_options=resources(detector, _nodes()),
            user_config={"adapters": {name: str(folder.absolute()) for name, folder in detector.adapters.items()}},
        ).bind(detector),
        LedgerReplica.bind(config.ledger),
    )


def build(args: dict[str, Any]) -> Application:
    """The application of a Serve config file: `args` holds the keys of a ServeConfig.

    Host and port stand in that file's http_options, and its keys must be in the environment of the nodes.

    Raises:
        ConfigError: an unknown or ill-typed key.
    """
    return application(compose(ServeConfig, [], over={"args": args}))


def run(config: ServeConfig, console: Console) -> None:
    """Serve until Ctrl-C (or SIGTERM), then finish what was begun, and stop.

    Raises:
        Problem: before or while it starts; the message says what to do.
    """
    check(config)
    config = config.model_copy(update={"port": config.port or _free_port(config.host)})
    with connected(config.address):
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        serve.start(http_options={"host": config.host, "port": config.port}, logging_config=QUIET)
        try:
            with console.status(f"starting {config.detector.engine.model}"):
                start(config)
            for line in addresses(config):
                console.print(line, soft_wrap=True, highlight=False, markup=False)
            with suppress(KeyboardInterrupt):
                while True:
                    signal.pause()
            console.print("Finishing what was begun; Ctrl-C again stops at once.")
        finally:
            stop()


def start(config: ServeConfig) -> None:
    """Put the application on a running Serve; returns when it answers.

    Raises:
        Problem: it doesn't start.
    """
    try:
        serve.run(application(config), name=NAME, route_prefix="/", logging_config=QUIET)
    except RuntimeError as error:
        deployments = serve.status().applications[NAME].deployments.values()
        reports = "\n".join([str(error), *(deployment.message for deployment in deployments)])
        raise Problem(f"the service can't start: {reason(reports)}") from None


def stop() -> None:
    """Take the application away, when it has answered what it was asked; and Serve, unless others use it."""
    with suppress(TimeoutError):
        serve.delete(NAME)
    if not serve.status().applications:
        _end_serve()


def check(config: ServeConfig) -> None:
    """Whether all is there that the service needs, as far as it shows from here.

    Raises:
        Problem: no model, adapter or key, or the port is in use.
    """
    keys_of(config)
    upstream = config.upstream
    if upstream and upstream.api_key_env and not os.environ.get(upstream.api_key_env):
        raise Problem(
            f"no key for the upstream {upstream.base_url}: set the environment variable {upstream.api_key_env}, or "
            "leave upstream.api_key_env empty so that the clients' own keys are passed on"
        )
    if config.port:
        with socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((config.host, config.port))
            except OSError as error:
                raise Problem(
                    f"can't listen on {config.host}:{config.port} ({error.strerror}): stop what is there, or choose "
                    "another one, e.g. --set port=8001"
                ) from None
    for name, folder in config.detector.adapters.items():
        read_adapter(folder, f"detector.adapters.{name}")
    asyncio.run(InProcessVllm(config.detector.engine).check())


def addresses(config: ServeConfig) -> list[str]:
    """What a person wants to know once the service is up."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)
    url = f"http://{host}:{config.port}"
    guard = f"{url}/v1  (an OpenAI client's base_url)" if config.upstream else "none: set upstream.base_url"
    return [
        f"page    {url}/",
        f"detect  {url}/v1/detect",
        f"guard   {guard}",
        f"docs    {url}/docs",
        "Ctrl-C stops it. Its logs are in /tmp/ray/session_latest/logs.",
    ]


def scaling(detector: DetectorConfig) -> dict[str, Any]:
    """Serve's options for the number of detectors. More at once than an engine takes would never be reached."""
    replicas = detector.replicas
    if replicas.least == replicas.most:
        return {"num_replicas": replicas.most}
    target = min(replicas.in_flight, detector.engine.max_in_flight)
    auto = AutoscalingConfig(
        min_replicas=replicas.least, max_replicas=replicas.most, target_ongoing_requests=float(target)
    )
    return {"autoscaling_config": auto}


def resources(detector: DetectorConfig, nodes: list[Mapping[str, float]]) -> dict[str, float]:
    """What a detector reserves on a cluster of such `nodes`: GPUs, or without any a fair share of the CPUs.

    vLLM computes with as many threads as it has CPUs.
    """
    if any(node.get("GPU") for node in nodes):
        return {"num_cpus": 1.0, "num_gpus": float(detector.engine.tensor_parallel_size)}
    cpus = [node.get("CPU", 0.0) for node in nodes]
    return {"num_cpus": max(1.0, min(max(cpus), sum(cpus) // detector.replicas.most))}


def reason(report: str) -> str:
    """What went wrong, out of Serve's report on a failed start: the message under the last traceback."""
    problems = re.findall(r"^\s*[\w.]*(?:Problem|Unavailable|ConfigError): (.+)$", report, re.MULTILINE)
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    return str(problems[-1]) if problems else f"{lines[-1]} (Ray's logs, /tmp/ray/session_latest/logs, say more)"


class _DetectorReplica(Detector):
    """A detector that Serve ends gracefully."""

    async def __del__(self) -> None:
        await self.close()


# They need no CPUs of their own: they wait most of the time, and a small machine has none to spare.
_SMALL: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": REQUESTS}

_PROMPT: dict[str, Any] = {"health_check_period_s": 2, "graceful_shutdown_wait_loop_s": 0.5}
Detectors = serve.deployment(name="Detector", **_PROMPT)(_DetectorReplica)
LedgerReplica = serve.deployment(name="Ledgers", **_SMALL, **_PROMPT)(Ledgers)
Gateways = serve.deployment(name="Gateway", max_queued_requests=REQUESTS, **_SMALL, **_PROMPT)(serve.ingress()(Gateway))


def _nodes() -> list[Mapping[str, float]]:
    """The resources of each node that lives."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _absolute(detector: DetectorConfig) -> VllmEngine:
    """The engine with its folders as the replicas find them, which work in another folder."""
    engine = detector.engine
    places: dict[str, str] = {}
    if is_place(engine.model):
        places["model"] = os.path.abspath(os.path.expanduser(engine.model))
    if engine.adapter:
        places["adapter"] = os.path.abspath(engine.adapter)
    return engine.model_copy(update=places)


def _end_serve() -> None:
    """Ask Serve to end, and wait until it has.

    `serve.shutdown` waits inside a call that the controller's end breaks off: Ray then prints that a task failed.
    """
    controller: Any = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    ray.get(controller.graceful_shutdown.remote(wait=False))
    until = time.monotonic() + END_S
    with suppress(ValueError):  # there is none of that name any more
        while time.monotonic() < until:
            ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
            time.sleep(0.1)


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
