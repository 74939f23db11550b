"""The tool table over MCP: stdio for one local caller, streamable HTTP for callers with a credential.

Owns schemas and error results; which tools exist and what they do is `recall.tools`. Imports no Ray.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from deployments.bodies import check_nesting
from deployments.problems import code_of, error_body, status_of
from deployments.telemetry import Observation, Observe, log_line
from recall.errors import NotFound, RecallError
from recall.rows import Caller
from recall.tools import TOOLS, Toolbox, call_tool

if TYPE_CHECKING:
    from deployments.auth import Gate
    from deployments.ingress import Admission

log = logging.getLogger("ray.serve")

INSTRUCTIONS = (
    "Recall answers questions from this tenant's own data. Call `recall` with a question, a token budget and the "
    "entity types to look in; read `warnings` before concluding that nothing is missing."
)

Context = ServerRequestContext[Any, Any]


def make_server(toolbox: Toolbox, who: Callable[[Context], tuple[Caller, str]], observe: Observe) -> Server[Any]:
    """An MCP server over `toolbox`; `who` gives the caller and the request id of one call."""

    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_described(name) for name in TOOLS])

    async def run(context: Context, params: CallToolRequestParams) -> CallToolResult:
        caller, request_id = who(context)
        started = time.perf_counter()
        answer: dict[str, Any] | None = None
        code, status = "ok", 200
        try:
            answer = await _call(toolbox, caller, params, request_id)
            result = _answer(answer)
        except RecallError as error:
            code, status = code_of(error), status_of(error)
            result = _failed(code, error.message, request_id)
        except Exception:
            log.exception("request_id=%s tool=%s code=internal_error", request_id, params.name)
            code, status = "internal_error", 500
            result = _failed(code, "unforeseen failure; the log has it under this request id", request_id)
        ms = (time.perf_counter() - started) * 1000
        tool = params.name if params.name in TOOLS else "unknown"
        observe(Observation(request_id, "mcp", tool, caller.tenant, code, status, ms, answer))
        return result

    return Server(
        "recall", version=version("ray-recall"), instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=run
    )


async def _call(toolbox: Toolbox, caller: Caller, params: CallToolRequestParams, request_id: str) -> dict[str, Any]:
    if params.name not in TOOLS:
        raise NotFound(f"unknown tool {params.name[:80]!r}; known: {', '.join(TOOLS)}")
    arguments = params.arguments or {}
    check_nesting(arguments)
    return await call_tool(toolbox, params.name, caller, arguments, request_id=request_id)


def _described(name: str) -> Tool:
    tool = TOOLS[name]
    return Tool(
        name=name,
        description=tool.description,
        input_schema=tool.request.model_json_schema(),
        annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    )


def _answer(answer: dict[str, Any]) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=_text(answer))], structured_content=answer)


def _failed(code: str, message: str, request_id: str) -> CallToolResult:
    body = json.loads(_text(error_body(code, message, request_id)))
    return CallToolResult(content=[TextContent(text=_text(body))], structured_content=body, is_error=True)


def _text(value: dict[str, Any]) -> str:
    """Compact JSON that every transport can encode: a lone surrogate that a caller sent becomes `?`."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()


async def serve_stdio(toolbox: Toolbox, caller: Caller) -> None:
    """Answer one MCP client on stdin and stdout until it closes them. Every call counts as `caller`'s."""
    server = make_server(toolbox, lambda _: (caller, uuid.uuid4().hex), log_line)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


class McpEndpoint:
    """MCP over HTTP as an ASGI application: stateless, JSON answers, the tenant from the credential as everywhere."""

    def __init__(
        self, toolbox: Toolbox, gate: Gate, admission: Admission, observe: Observe, hosts: tuple[str, ...]
    ) -> None:
        self._gate = gate
        self._admission = admission
        self._sessions = StreamableHTTPSessionManager(
            make_server(toolbox, _who, observe),
            json_response=True,
            stateless=True,
            security_settings=TransportSecuritySettings(
                allowed_hosts=list(hosts),
                allowed_origins=[f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")],
            ),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Must surround every call; can be entered once."""
        async with self._sessions.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Unauthorized and RequestProblem before MCP sees anything."""
        caller = self._gate.caller(scope)
        with self._admission.slot():
            body = await Request(scope, receive).body()
            scope.setdefault("state", {})["caller"] = caller
            await self._sessions.handle_request(scope, _replay(body, receive), send)


def _who(context: Context) -> tuple[Caller, str]:
    assert context.request is not None, "the HTTP transport hands its request down"
    state = context.request.state
    return state.caller, state.request_id


def _replay(body: bytes, receive: Receive) -> Receive:
    """`body` once, then whatever comes after it."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed
