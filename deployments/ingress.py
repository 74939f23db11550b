"""HTTP over a Toolbox: one route per tool, health, readiness, and one shape for every error.

Knows no Serve and no store: `make_api` runs in a Serve replica, in a test or in any ASGI server alike.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.auth import Gate
from deployments.bodies import limited, read_json
from deployments.mcp import McpEndpoint
from deployments.openapi import describe
from deployments.problems import Json, RequestProblem, code_of, plain_problem, problem
from deployments.telemetry import Observation, Observe, log_line
from recall.entities import Strict
from recall.errors import RecallError
from recall.rows import Caller
from recall.settings import AuthSettings
from recall.tools import TOOLS, Toolbox, call_tool

log = logging.getLogger("ray.serve")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CODES = {404: "not_found", 405: "method_not_allowed"}

# Part (deployment or store) → None when it answers, else what it raised.
Readiness = Callable[[], Awaitable[Mapping[str, RecallError | None]]]


class IngressLimits(Strict):
    """Bounds of one ingress process; `user_config` of the Ingress deployment."""

    max_body_bytes: int = Field(2 * 1024 * 1024, ge=1024)
    max_requests: int = Field(64, ge=1)


class Admission:
    """Requests in flight in this process. Beyond the bound a caller is told to come back, instead of queueing."""

    def __init__(self, limits: IngressLimits) -> None:
        self.limits = limits
        self._running = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        if self._running >= self.limits.max_requests:
            raise RequestProblem(429, "too_many_requests", f"{self._running} requests are in flight; try again")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


async def always_ready() -> Mapping[str, RecallError | None]:
    return {}


@dataclass(frozen=True, slots=True)
class Front:
    """What HTTP and MCP need to answer: the tools, who may ask, how much at once, and who watches."""

    toolbox: Toolbox
    gate: Gate
    admission: Admission = field(default_factory=lambda: Admission(IngressLimits()))
    readiness: Readiness = always_ready
    observe: Observe = log_line
    # False behind Serve's proxy, which makes and echoes X-Request-ID itself.
    echo_request_id: bool = True
    mcp_hosts: tuple[str, ...] = AuthSettings().mcp_hosts


def make_api(front: Front) -> FastAPI:
    """The whole HTTP application. Its lifespan must run: it owns the MCP session manager."""
    mcp = McpEndpoint(front.toolbox, front.gate, front.admission, front.observe, front.mcp_hosts)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with mcp.running():
            yield

    api = FastAPI(
        title="Recall",
        version=version("ray-recall"),
        description="Budget-fitted context packs from vectors, full text and graph.",
        lifespan=lifespan,
        redirect_slashes=False,
        default_response_class=Json,
        exception_handlers={
            HTTPException: _no_such_route,
            RecallError: _recall_error,
        },
    )
    for name, tool in TOOLS.items():
        api.add_api_route(
            f"/v1/{name}",
            _tool_route(front, name),
            methods=["POST"],
            operation_id=name,
            summary=tool.description,
            tags=["tools"],
        )
    _health_routes(api, front)
    api.router.routes.append(Route("/mcp", mcp, methods=["POST"], include_in_schema=False))
    describe(api)
    api.add_middleware(Frame, front=front)
    return api


def _tool_route(front: Front, name: str) -> Callable[[Request], Awaitable[Response]]:
    async def tool(request: Request) -> Response:
        return await _answer(front, name, request)

    return tool


async def _answer(front: Front, name: str, request: Request) -> Response:
    """Authenticate, read, run the tool, and report; the border where nothing but a response leaves."""
    started = time.perf_counter()
    request_id: str = request.state.request_id
    caller: Caller | None = None
    answer: dict[str, Any] | None = None
    code = "ok"
    try:
        caller = front.gate.caller(request.scope)
        with front.admission.slot():
            body = await read_json(request)
            answer = await call_tool(front.toolbox, name, caller, body, request_id=request_id)
        response = Json(answer)
    except RecallError as error:
        response, code = problem(error, request_id), code_of(error)
    except Exception:
        log.exception("request_id=%s tool=%s code=internal_error", request_id, name)
        code = "internal_error"
        response = plain_problem(500, code, "unforeseen failure; the log has it under this request id", request_id)
    ms = (time.perf_counter() - started) * 1000
    tenant = caller.tenant if caller else None
    front.observe(Observation(request_id, "http", name, tenant, code, response.status_code, ms, answer))
    return response


def _health_routes(api: FastAPI, front: Front) -> None:
    @api.get("/healthz", tags=["health"], summary="This process is up.")
    async def healthz() -> Response:
        return Json({"status": "up"})

    @api.get("/readyz", tags=["health"], summary="Every deployment and store answers.")
    async def readyz(request: Request) -> Response:
        checks = await front.readiness()
        failed = {name: error for name, error in checks.items() if error is not None}
        if not failed:
            return Json({"status": "ready", "checks": dict.fromkeys(checks, "ok")})
        for name, error in failed.items():
            log.warning("request_id=%s check=%s code=%s detail=%s", request.state.request_id, name, error.code, error)
        # Addresses stay in the log: this path asks nobody for a credential.
        message = "; ".join(f"{name}: {code_of(error)}" for name, error in sorted(failed.items()))
        return problem(RequestProblem(503, "not_ready", message), request.state.request_id)


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "http_error")
    message = f"{request.method} {request.url.path}: {error.detail}"
    return plain_problem(error.status_code, code, message, request.state.request_id, error.headers)


async def _recall_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RecallError)
    return problem(error, request.state.request_id)


class Frame:
    """Outermost ASGI layer: gives every request its id, echoes it, and bounds the body."""

    def __init__(self, app: ASGIApp, front: Front) -> None:
        self._app = app
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent, request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id.encode())]}
            await send(message)

        stamp = self._front.echo_request_id or request_id != sent
        receive = limited(receive, self._front.admission.limits.max_body_bytes)
        await self._app(scope, receive, stamped if stamp else send)


def _request_id(scope: Scope) -> tuple[str, str]:
    """The caller's X-Request-ID, and the id of the request: the same when it is harmless, else a new one."""
    sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    return sent, sent if _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex
