"""`recall serve` and `recall mcp`: the tools over HTTP, and over stdio for one local agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recall.commands.answers import Scope
from recall.commands.invocation import Invocation, Tenant, command
from recall.errors import ConfigError

if TYPE_CHECKING:
    from recall.settings import Settings


def register(app: typer.Typer) -> None:
    command(app, "serve")(serve)
    command(app, "mcp")(mcp)


def serve(
    invocation: Invocation,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port; 0 takes a free one. Default: 8000.")] = None,
    serve_file: Annotated[
        Path | None,
        typer.Option("--serve-file", help="Serve YAML with replicas and queues. Default: configs/serve.local.yaml."),
    ] = None,
) -> None:
    """Answer over HTTP (POST /v1/<tool>, /mcp) until Ctrl-C."""
    from deployments.serving import DEFAULT_FILE, run

    def ready(url: str) -> None:
        invocation.show({"url": url}, f"serving {url} (Ctrl-C stops)")

    try:
        run(invocation.settings, host, port, serve_file or DEFAULT_FILE, ready)
    except RuntimeError as error:
        raise ConfigError(f"the service did not start: {error}") from error


def mcp(invocation: Invocation, tenant: Tenant = "default", scope: Scope = None) -> None:
    """Answer one MCP client on stdin and stdout, as this tenant. For an agent's own configuration."""
    asyncio.run(_mcp(invocation, tenant, scope))


@contextmanager
def started(settings: Settings, *, port: int | None = None) -> Iterator[str]:
    """A running, quiet service; yields its base URL. Raises ConfigError when a deployment cannot start."""
    from deployments.serving import serving

    # Serve sets its own logger's level when it is imported, so a level set here would not last.
    logging.disable(logging.INFO)
    with ExitStack() as stack:
        stack.callback(logging.disable, logging.NOTSET)
        try:
            url = stack.enter_context(serving(settings, port=port))
        except RuntimeError as error:
            raise ConfigError(f"the service did not start: {error}") from error
        yield url


async def _mcp(invocation: Invocation, tenant: str, scope: str | None) -> None:
    from deployments.mcp import serve_stdio
    from recall.keys import check_tenant
    from recall.local import open_local
    from recall.rows import Caller

    caller = Caller(check_tenant(tenant), scope)
    local = open_local(invocation.settings)
    try:
        await serve_stdio(local.toolbox, caller)
    finally:
        await local.close()
