"""What the gateway counts for Prometheus, and the line it logs for every request."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.detection import Detection

LOG = logging.getLogger("synuc.requests")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
METHODS = ("GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS")
CLIENT_GONE = 499
"""The status under which a request is counted whose client went away before its answer (as nginx does)."""


class Metrics(Collector):
    """The counters of one app, in a registry of their own.

    `gateway` names the app where there are several, whose counters reach Prometheus by turns from one address: it
    becomes a label of all that they expose, so that nothing is taken for a counter that began anew.
    """

    def __init__(self, gateway: str = "") -> None:
        self._gateway = gateway
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("synuc_requests", "Requests", ["method", "route", "status"], registry=registry)
        self.labels = Counter("synuc_detections", "Detections by label", ["label"], registry=registry)
        self.detection = Histogram(
            "synuc_detection_seconds", "Seconds of a detection", ["mode"], buckets=SECONDS, registry=registry
        )
        self.queued = Histogram(
            "synuc_queued_seconds", "Seconds that a detection waited", buckets=SECONDS, registry=registry
        )
        self.in_progress = Gauge("synuc_detections_in_progress", "Detections waiting or at work", registry=registry)
        self.queue_full = Counter("synuc_queue_full", "Detections refused by a full queue", registry=registry)
        self.first_byte = Histogram(
            "synuc_upstream_first_byte_seconds", "Seconds to the upstream's answer", buckets=SECONDS, registry=registry
        )
        self.tokens = Counter("synuc_tokens", "Tokens of detections", ["kind"], registry=registry)

    def detected(self, detection: Detection, seconds: float) -> None:
        """Count a detection that took `seconds` as the gateway sees it."""
        self.labels.labels(detection.label).inc()
        self.detection.labels(detection.mode).observe(seconds)
        self.queued.observe(detection.queued)
        self.tokens.labels("prompt").inc(detection.prompt_tokens)
        self.tokens.labels("completion").inc(detection.completion_tokens)

    def exposition(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client asks of a registry."""
        for metric in self.registry.collect():
            if self._gateway:
                metric.samples = [
                    sample._replace(labels={**sample.labels, "gateway": self._gateway}) for sample in metric.samples
                ]
            yield metric


@dataclass
class Record:
    """What a route tells about its request: it goes into the log line. Routes find it in `scope["record"]`.

    `owner`, a hash of the key that asks (empty where anybody may), is for the routes and stays out of the log.
    """

    owner: str = ""
    labels: list[str] = field(default_factory=list)
    policy: str = ""
    conversation_id: str = ""
    follow_ups: list[str] = field(default_factory=list)


class Recorder:
    """ASGI middleware that counts every request and logs it as one line of JSON, without text unless `log_text`."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log_text: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._log_text = log_text
        if not LOG.handlers:
            LOG.addHandler(logging.StreamHandler())
            LOG.setLevel(logging.INFO)
            LOG.propagate = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        record = scope["record"] = Record()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            status = CLIENT_GONE
            raise
        finally:
            self._write(scope, record, status, time.perf_counter() - started)

    def _write(self, scope: Scope, record: Record, status: int, seconds: float) -> None:
        # Some servers pass on methods that clients make up.
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = _route(scope)
        self._metrics.requests.labels(method, route, status).inc()
        line = {"method": method, "route": route, "status": status, "seconds": round(seconds, 4)}
        if record.labels:
            line["label"] = ",".join(record.labels)
        if record.policy:
            line["policy"] = record.policy
        if record.conversation_id:
            line["conversation"] = hashlib.sha256(record.conversation_id.encode()).hexdigest()[:16]
        if self._log_text and record.follow_ups:
            line["follow_ups"] = record.follow_ups
        LOG.info(json.dumps(line))


def _route(scope: Scope) -> str:
    """The route's template, so that neither ids nor made-up paths become labels."""
    if "route" in scope:
        return str(scope["route"].path)
    return next((under for under in ("/page", "/docs") if scope["path"].startswith(f"{under}/")), "unknown")
