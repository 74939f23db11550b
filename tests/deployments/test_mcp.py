"""The tools as a real MCP client sees them: both transports, both eras of the protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import corpus
import httpx2
import pytest
from fastapi import FastAPI
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from deployments.auth import Gate
from deployments.ingress import Front, make_api
from recall.channels import GraphChannel, SearchChannel, VectorChannel
from recall.models import LocalEncoder, open_embedder
from recall.rows import Caller
from recall.settings import load_registry
from recall.tools import TOOLS, Toolbox

TOKENS = {"acme-token": Caller("acme"), "globex-token": Caller("globex")}
URL = "http://localhost:8000/mcp"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
JSON_HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def toolbox(tmp_path_factory: pytest.TempPathFactory) -> Toolbox:
    chosen = corpus.settings(tmp_path_factory.mktemp("mcp"), "memory")
    planes = corpus.open_loaded(chosen, "acme", "globex")
    registry = load_registry(chosen)
    channels = {
        "vector": VectorChannel(planes.vector, LocalEncoder(open_embedder(chosen.embedder))),
        "search": SearchChannel(planes.search),
        "graph": GraphChannel(planes.graph, registry, chosen.recall.graph),
    }
    return Toolbox(registry, channels, planes.rows, chosen.recall)


@asynccontextmanager
async def running(toolbox: Toolbox, loopback: str | None = None) -> AsyncIterator[FastAPI]:
    api = make_api(Front(toolbox, Gate(TOKENS, loopback)))
    async with api.router.lifespan_context(api):
        yield api


@asynccontextmanager
async def http_client(api: FastAPI, token: str | None) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=api), headers=headers) as client:
        yield client


@asynccontextmanager
async def over_http(toolbox: Toolbox, token: str, mode: str) -> AsyncIterator[Client]:
    async with (
        running(toolbox) as api,
        http_client(api, token) as http,
        Client(streamable_http_client(URL, http_client=http), mode=mode) as client,
    ):
        yield client


@asynccontextmanager
async def over_stdio(folder: Path, mode: str) -> AsyncIterator[Client]:
    room = Path(__file__).parent
    path = f"{room}:{room.parents[1]}"
    arguments = [str(room / "stdio_server.py"), str(folder)]
    server = StdioServerParameters(command=sys.executable, args=arguments, env={"PYTHONPATH": path})
    async with Client(server, mode=mode, read_timeout_seconds=60) as client:
        yield client


async def exercise(client: Client) -> None:
    """What every transport must do."""
    listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == list(TOOLS)
    for tool in listed:
        assert tool.input_schema == TOOLS[tool.name].request.model_json_schema()
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
    found = await client.call_tool("recall", {"query": "pump", "budget": 400, "entities": ["asset"]})
    assert not found.is_error
    assert found.structured_content["tokens"] <= 400
    assert "water pump acme" in json.dumps(found.structured_content)
    assert json.loads(found.content[0].text) == found.structured_content
    assert "globex" not in found.content[0].text
    for name, arguments, code in (
        ("recall", {"query": "pump", "budget": 0, "entities": ["asset"]}, "invalid_request"),
        ("recall", {"query": "pump", "budget": 9, "entities": ["asset"], "tenant": "globex"}, "invalid_request"),
        ("recall", {}, "invalid_request"),
        ("get", {"entity": "asset", "id": "nope"}, "not_found"),
        ("no_such_tool", {}, "not_found"),
    ):
        bad = await client.call_tool(name, arguments)
        assert bad.is_error, name
        assert bad.structured_content["error"]["code"] == code
        assert bad.structured_content["error"]["message"] in bad.content[0].text


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_tools_over_http(toolbox: Toolbox, mode: str) -> None:
    async with over_http(toolbox, "acme-token", mode) as client:
        await exercise(client)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_tools_over_stdio(tmp_path: Path, mode: str) -> None:
    async with over_stdio(tmp_path, mode) as client:
        await exercise(client)


async def test_token_decides_the_tenant(toolbox: Toolbox) -> None:
    async with over_http(toolbox, "globex-token", "auto") as client:
        row = await client.call_tool("get", {"entity": "asset", "id": "a1"})
        assert row.structured_content["row"]["name"] == "water pump globex"


async def post(api: FastAPI, body: Any, token: str | None = "acme-token", **headers: str) -> httpx2.Response:
    async with http_client(api, token) as client:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await client.post(URL, content=content, headers={**JSON_HEADERS, **headers})


async def test_no_credential_is_401(toolbox: Toolbox) -> None:
    async with running(toolbox) as api:
        for token in (None, "wrong"):
            response = await post(api, INITIALIZE, token)
            assert response.status_code == 401
            assert response.headers["www-authenticate"].startswith("Bearer")
            assert response.json()["error"]["code"] == "unauthorized"


async def test_local_client_needs_no_token(toolbox: Toolbox) -> None:
    async with running(toolbox, "acme") as api:
        response = await post(api, INITIALIZE, None)
        assert response.json()["result"]["serverInfo"]["name"] == "recall"


async def test_rebound_host_and_foreign_origin_are_refused(toolbox: Toolbox) -> None:
    async with running(toolbox, "acme") as api:
        assert (await post(api, INITIALIZE, Host="evil.example")).status_code == 421
        assert (await post(api, INITIALIZE, Origin="https://evil.example")).status_code == 403
        # Without a token the loopback rule refuses them first.
        assert (await post(api, INITIALIZE, None, Host="evil.example")).status_code == 401
        assert (await post(api, INITIALIZE, None, Origin="https://evil.example")).status_code == 401


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"7", b"null", b'{"jsonrpc": "2.0"}', b"[" * 10_000, b"\xff", b'{"a": NaN}']
)
async def test_bad_messages_are_the_clients_fault(toolbox: Toolbox, body: bytes) -> None:
    async with running(toolbox) as api:
        for version in ({}, {"MCP-Protocol-Version": "2026-07-28"}):
            response = await post(api, body, **version)
            assert 400 <= response.status_code < 500


async def test_only_post_is_served(toolbox: Toolbox) -> None:
    async with running(toolbox) as api, http_client(api, "acme-token") as client:
        for method in ("GET", "DELETE", "PUT"):
            response = await client.request(method, URL, headers=JSON_HEADERS)
            assert response.status_code == 405
            assert response.headers["allow"] == "POST"
