"""Who asks and where: one tool call, in this process or on a server. Decides nothing about how answers look."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from recall.commands.invocation import Invocation
from recall.commands.remote import call_server
from recall.errors import ConfigError, InvalidRequest

ANSWER_TIMEOUT_S = 60.0
_PANEL = "Who asks, and where"

Scope = Annotated[str | None, typer.Option("--scope", help="Only rows of this scope.", rich_help_panel=_PANEL)]
Url = Annotated[
    str | None,
    typer.Option("--url", help="Ask this server instead of the local stores.", rich_help_panel=_PANEL),
]
TokenEnv = Annotated[
    str | None,
    typer.Option("--token-env", help="Variable that holds the bearer token for --url.", rich_help_panel=_PANEL),
]


@dataclass(frozen=True, slots=True)
class Asker:
    """The caller of a tool. With a `url` the server decides the tenant, by the token."""

    tenant: str
    scope: str | None = None
    url: str | None = None
    token_env: str | None = None


def call(invocation: Invocation, tool: str, body: object, asker: Asker) -> dict[str, Any]:
    """The JSON-ready answer of `tool`. Raises RecallError."""
    if asker.url is None:
        return asyncio.run(_call_local(invocation, tool, body, asker))
    return call_server(asker.url, tool, body, token=_token(asker.token_env), timeout_s=ANSWER_TIMEOUT_S)


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable)
    if not token:
        raise ConfigError(f"--token-env {variable}: that environment variable is not set")
    return token


async def _call_local(invocation: Invocation, tool: str, body: object, asker: Asker) -> dict[str, Any]:
    from recall.keys import check_tenant
    from recall.local import open_local
    from recall.rows import Caller
    from recall.tools import call_tool

    caller = Caller(check_tenant(asker.tenant), asker.scope)
    local = open_local(invocation.settings)
    try:
        return await call_tool(local.toolbox, tool, caller, body)
    finally:
        await local.close()


def json_option(name: str, text: str | None) -> Any:
    """The value of an option that takes JSON; None when it was not given."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{name} takes JSON: {error}; got {text!r}") from None
