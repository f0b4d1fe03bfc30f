"""The service's HTTP face: detection, the guard, conversations, the page, and what operators need."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Header, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Discriminator, Field, Tag, ValidationError
from starlette.exceptions import HTTPException

from serving.access import Access, CancelWhenGone, Refused, error_body, keys_of
from serving.config import ServeConfig
from serving.detection import Detect, Detection, Mode
from serving.guard import Judge, LedgerClient, Policy, guarded
from serving.ledger import ID_CHARS, Conversation, LedgerDown
from serving.litellm import litellm_router
from serving.metrics import Metrics, Record, Recorder
from serving.upstream import UpstreamClient, upstream_of
from synuc.types import Frozen

PAGE = Path(__file__).parent / "page"
SHARED = Path(__file__).parents[1] / "synuc" / "page"
"""What the page of the review app has too: Preact, and its templates."""

ConversationId = Annotated[str, Field(min_length=1, max_length=ID_CHARS)]


class DetectOne(Frozen):
    """A dialogue in OpenAI's form: the last message is the user's follow-up, the one that is judged."""

    messages: list[dict[str, Any]]
    mode: Mode | None = None
    adapter: str | None = None
    conversation_id: ConversationId | None = None


class DetectMany(Frozen):
    """Dialogues in one call, each as in `DetectOne`; a bad one doesn't spoil the others."""

    dialogues: list[Any]


class ErrorDetail(Frozen):
    """What is wrong and what to do; `code` is for programs."""

    message: str
    type: str
    code: str


class Failed(Frozen):
    """An error as OpenAI's API words it."""

    error: ErrorDetail


class Detections(Frozen):
    """In the order of the dialogues: the detection of each, or why there is none."""

    detections: list[Detection | Failed]


def _kind(body: Any) -> str:
    return "many" if isinstance(body, dict) and "dialogues" in body else "one"


DetectBody = Annotated[Annotated[DetectOne, Tag("one")] | Annotated[DetectMany, Tag("many")], Discriminator(_kind)]


def create_app(
    config: ServeConfig, detect: Detect, ledger: LedgerClient, ready: Callable[[], Awaitable[bool]]
) -> FastAPI:
    """The whole gateway. `ready` says whether a detector answers.

    Raises:
        Problem: a key that the configuration names is not in the environment.
    """
    keys = keys_of(config)
    metrics = Metrics(uuid.uuid4().hex[:8] if config.gateways > 1 else "")
    upstream = upstream_of(config, metrics)
    judge = Judge(config, detect, ledger, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if upstream is not None:
            await upstream.open()
        yield
        if upstream is not None:
            await upstream.close()

    # Its documentation page takes nothing from elsewhere.
    app = FastAPIOffline(
        title="SynUC",
        description="Detects implicit conflicts: follow-ups that contradict what the same user required earlier.",
        lifespan=lifespan,
        redoc_url=None,
        static_url="/docs/files",
    )
    # Only for the documentation: `Access` looks at the key before the body is read.
    documented = [Security(HTTPBearer(auto_error=False))] if keys else []
    for router in (_detection(judge), _guard(judge, upstream), litellm_router(judge), _metrics(metrics)):
        app.include_router(router, dependencies=documented)
    app.include_router(_open(ready))
    app.mount("/page/shared", StaticFiles(directory=SHARED))
    app.mount("/page", StaticFiles(directory=PAGE))
    for error, handler in ((HTTPException, _refuse), (RequestValidationError, _refuse_fields), (Exception, _crash)):
        app.add_exception_handler(error, handler)
    # The last one added is the outermost.
    app.add_middleware(Access, keys=keys, body_bytes=config.limits.body_bytes)
    app.add_middleware(Recorder, metrics=metrics, log_text=config.log_text)
    app.add_middleware(CancelWhenGone)
    return app


def _detection(judge: Judge) -> APIRouter:
    router = APIRouter(tags=["detection"])
    errors: dict[int | str, dict[str, Any]] = {status: {"model": Failed} for status in (400, 404, 413, 422, 503)}

    async def one(body: DetectOne, record: Record) -> Detection:
        return await judge.judge(
            body.messages, record, mode=body.mode, adapter=body.adapter, conversation_id=body.conversation_id
        )

    async def one_of_many(body: Any, record: Record) -> Detection | Refused:
        try:
            return await one(DetectOne.model_validate(body), record)
        except ValidationError as error:
            return Refused(422, _explained(error.errors()[0]), "invalid_request")
        except Refused as refused:
            return refused

    @router.post("/v1/detect", responses=errors)
    async def detect(body: DetectBody, request: Request) -> Detection | Detections:
        """Whether a follow-up revises or contradicts what the same user required earlier."""
        record: Record = request.scope["record"]
        if isinstance(body, DetectOne):
            return await one(body, record)
        most = judge.config.limits.dialogues
        if len(body.dialogues) > most:
            message = f"{len(body.dialogues):,} dialogues, a call may have {most:,}: send several calls"
            raise Refused(413, message, "too_many_dialogues")
        found = await asyncio.gather(*(one_of_many(dialogue, record) for dialogue in body.dialogues))
        return Detections(
            detections=[Failed.model_validate(each.body) if isinstance(each, Refused) else each for each in found]
        )

    @router.get("/v1/conversations/{id}", responses={404: {"model": Failed}})
    async def conversation(id: str, request: Request) -> Conversation:
        """What the user still wants in a conversation, as far as the detector knows. Other keys don't see it."""
        record: Record = request.scope["record"]
        record.conversation_id = id
        try:
            known = await judge.ledger.get(record.owner, id)
        except LedgerDown:
            raise Refused(503, "the ledger of conversations doesn't answer; try again", "ledger_down", 5) from None
        if known is None:
            message = "no such conversation, or none that is still remembered: name it as conversation_id when you ask"
            raise Refused(404, message, "unknown_conversation")
        return known

    return router


def _guard(judge: Judge, upstream: UpstreamClient | None) -> APIRouter:
    router = APIRouter(tags=["guard"])

    def behind() -> UpstreamClient:
        if upstream is None:
            message = "no chat model stands behind this service: set upstream.base_url in its configuration"
            raise Refused(404, message, "no_upstream")
        return upstream

    @router.post("/v1/chat/completions")
    async def chat(
        request: Request,
        body: Annotated[dict[str, Any], Body()],
        policy: Annotated[Policy | None, Header(alias="x-synuc-policy")] = None,
        conversation: Annotated[ConversationId | None, Header(alias="x-synuc-conversation")] = None,
    ) -> Response:
        """OpenAI's chat completions, with the follow-up judged before the model answers."""
        record: Record = request.scope["record"]
        record.policy = policy or judge.config.policy
        named = body.pop("conversation_id", None)
        if named is not None and not (isinstance(named, str) and 0 < len(named) <= ID_CHARS):
            raise Refused(422, f"conversation_id: a text of 1 to {ID_CHARS} characters is needed", "invalid_request")
        return await guarded(
            judge,
            behind(),
            body,
            request.headers,
            record,
            policy=policy or judge.config.policy,
            conversation_id=conversation or named,
        )

    @router.get("/v1/models")
    async def models(request: Request) -> Response:
        """The models of the upstream."""
        return await behind().models(request.headers)

    return router


def _metrics(metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["operation"])

    @router.get("/metrics", response_class=PlainTextResponse)
    async def exposition() -> Response:
        """Counters and latencies for Prometheus."""
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return router


def _open(ready: Callable[[], Awaitable[bool]]) -> APIRouter:
    """What needs no key."""
    router = APIRouter(tags=["operation"])

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The gateway lives."""
        return {"status": "ok"}

    @router.get("/readyz", responses={503: {"model": Failed}})
    async def readyz() -> dict[str, str]:
        """A detector answers."""
        if not await ready():
            raise Refused(503, "no detector answers yet; try again", "not_ready", 5)
        return {"status": "ready"}

    @router.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        # A page's own policy, which stands in it, can't say this.
        return FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": "frame-ancestors 'none'"})

    return router


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, Refused):
        return JSONResponse(error.body, error.status_code, error.headers)
    message, code = "the body can't be read: send JSON in UTF-8", "invalid_json"
    if error.status_code in (404, 405):
        message, code = f"there is no {request.method} {request.url.path}; /docs lists what there is", "not_found"
    return JSONResponse(error_body(error.status_code, message, code), error.status_code, error.headers)


async def _refuse_fields(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        message = f"the body is no JSON: {first['ctx']['error']} at character {first['loc'][-1]}"
        return JSONResponse(error_body(400, message, "invalid_json"), 400)
    if not _field(first) and "json" not in request.headers.get("content-type", ""):
        message = "the body isn't sent as JSON: add the header Content-Type: application/json"
        return JSONResponse(error_body(415, message, "not_json"), 415)
    return JSONResponse(error_body(422, _explained(first), "invalid_request"), 422)


async def _crash(_: Request, error: Exception) -> Response:
    return JSONResponse(error_body(500, "something went wrong here; the log has the details", "internal_error"), 500)


def _explained(error: Any) -> str:
    """A validation error as `field: what is wrong`."""
    return f"{_field(error) or 'the body'}: {error['msg']}"


def _field(error: Any) -> str:
    """The field that a validation error is about, empty for the whole body."""
    return ".".join(str(part) for part in error["loc"] if part not in ("body", "header", "one", "many"))
