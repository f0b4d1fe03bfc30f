"""The review app: the interface, the page, and the server that brings them to people."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from rich.console import Console
from starlette.exceptions import HTTPException
from starlette.middleware.base import RequestResponseEndpoint

from review.api import cookie_name, routes
from review.config import ReviewConfig, ReviewError, load_project
from review.database import Database
from review.projects import find
from review.states import Refused
from review.tasks import Faulty

PAGE = Path(__file__).parent / "page"
SHARED = Path(__file__).parents[1] / "synuc" / "page"
"""What the service's page has too: Preact, and its templates."""

STATUS = {"sign_in": 401, "csrf": 403, "role": 403, "unknown": 404, "form": 422, "findings": 422}
"""Of refusals by their code; others are conflicts (409)."""

BODY_BYTES = 1_000_000

HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",  # a page's own policy, which stands in it, can't say this
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def create_app(config: ReviewConfig, database: Database) -> FastAPI:
    """The app of one project.

    Raises:
        ReviewError: the database doesn't hold it.
    """
    with database.reading() as session:
        project = find(session, config).id

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        database.close()

    app = FastAPI(title="SynUC review", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.database, app.state.project, app.state.cookie = database, project, cookie_name(config)
    app.include_router(routes(config, database, project))

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        """The server lives."""
        return {"status": "ok"}

    @app.get("/")
    def page() -> FileResponse:
        """The page."""
        return FileResponse(PAGE / "index.html")

    app.mount("/page/shared", StaticFiles(directory=SHARED))
    app.mount("/page", StaticFiles(directory=PAGE))
    app.add_exception_handler(Refused, _refuse)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)

    @app.middleware("http")
    async def guard(request: Request, call_next: RequestResponseEndpoint) -> Response:
        length = request.headers.get("content-length", "0")
        if "transfer-encoding" in request.headers or not length.isdecimal() or int(length) > BODY_BYTES:
            response = _error(413, "too_large", f"a request has at most {BODY_BYTES:,} bytes, and says how many")
        else:
            response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    return app


def serve(folder: Path, db: str | None, host: str | None, port: int | None, console: Console) -> None:
    """Serve the project of a folder until Ctrl-C (or SIGTERM). Without `host` and `port`, where `place` says.

    Raises:
        Problem: the project, its database or the port can't be used.
    """
    config = load_project(folder, db)
    own_host, own_port = place(config.url)
    host, port = host or own_host, own_port if port is None else port
    listening = _listen(host, port)
    app = create_app(config, Database(config.db))
    shown = f"[{host}]" if ":" in host else host
    console.print(f"review  http://{shown}:{port}/  people open their own links; Ctrl-C stops it", soft_wrap=True)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=10))
    server.run(sockets=[listening])


def place(url: str) -> tuple[str, int]:
    """Where to listen for those who open `url`: right there if it is this machine or an IP address over HTTP, else on
    127.0.0.1:8010, for the proxy that has the name or speaks HTTPS."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return (host, parts.port or 80) if parts.scheme == "http" and _bindable(host) else ("127.0.0.1", 8010)


def _bindable(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _listen(host: str, port: int) -> socket.socket:
    if not 1 <= port <= 65_535:
        raise ReviewError(f"--port {port}: choose one from 1 to 65535")
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        raise ReviewError(
            f"can't listen on {host}:{port} ({error.strerror}): stop what is there, or choose another --host or --port"
        ) from None
    return listening


def _error(status: int, code: str, message: str, **more: object) -> Response:
    return JSONResponse({"error": {"code": code, "message": message, **more}}, status)


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    found = {"findings": [found.model_dump() for found in error.findings]} if isinstance(error, Faulty) else {}
    return _error(STATUS.get(error.code, 409), error.code, str(error), **found)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        return _error(400, "form", "the body is no JSON, or not in UTF-8")
    return _error(error.status_code, "not_found", f"there is no {request.method} {request.url.path}")


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = takewhile(lambda part: "[" not in part, map(str, first["loc"]))  # without pydantic's names of types
    return _error(422, "form", f"{'.'.join(where)}: {first['msg']}")
