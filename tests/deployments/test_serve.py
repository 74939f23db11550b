"""A real Serve application over embedded planes: answers, failures, recovery, overload, tenants, MCP, shutdown."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import bent
import corpus
import httpx
import httpx2
import pytest
import ray
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from ray import serve

from deployments.app import Ingress
from deployments.channels import VectorChannel
from deployments.serving import deploy, read_serve_file, serving
from recall.errors import ConfigError
from recall.settings import Settings, load_registry
from recall.tools import TOOLS

pytestmark = [pytest.mark.serve, pytest.mark.timeout(180)]

ROOM = Path(__file__).parent
ACME = {"Authorization": "Bearer acme-token"}
GLOBEX = {"Authorization": "Bearer globex-token"}
PUMP = {"query": "pump", "budget": 500, "entities": ["asset"]}
BODIES: dict[str, dict[str, Any]] = {
    "recall": PUMP,
    "recall_fused": {"query": "pump", "hops": 1},
    "vector_similar": {"entity": "asset", "query": "pump"},
    "search": {"entity": "asset", "query": "pump"},
    "graph_traverse": {"query": "MATCH (a:asset) RETURN a.id AS id"},
    "get": {"entity": "asset", "id": "a1"},
}
# Nothing in this corpus is distilled; trees of digests are asked in tests/pipelines/test_digest_tools.py.
DIGEST_BODIES: dict[str, dict[str, Any]] = {
    "map": {},
    "digest": {"node_id": "digest:2:tenant"},
    "resolve": {"hash": "0" * 64},
}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Embedded planes with two tenants; a loopback caller without a token is nobody."""
    settings = corpus.settings(tmp_path_factory.mktemp("service"))
    settings = settings.model_copy(update={"auth": settings.auth.model_copy(update={"loopback_tenant": None})})
    asyncio.run(corpus.open_loaded(settings, "acme", "globex").close())
    return settings


@pytest.fixture(scope="module")
def service(chosen: Settings) -> Iterator[str]:
    """Base URL of the running service."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECALL_TOKENS", json.dumps({"acme-token": "acme", "globex-token": {"tenant": "globex"}}))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        # Replicas unpickle what this room defines.
        patch.setenv("PYTHONPATH", f"{ROOM}:{ROOM.parents[1]}")
        with serving(chosen, port=0) as url:
            bend(chosen)
            yield url


def shared_parts() -> dict[str, Any]:
    names = {"embedder": "QueryEmbedder", "vector": "VectorChannel", "graph": "GraphChannel", "rows": "Rows"}
    names["search"] = "SearchChannel"
    return {part: serve.get_deployment_handle(name, "recall") for part, name in names.items()}


def bend(chosen: Settings) -> None:
    """A second application under /bent: the same, but for its search channel and tighter bounds."""
    small = {"ray_actor_options": {"num_cpus": 0.1}, "graceful_shutdown_timeout_s": 1}
    search = bent.BentSearch.options(name="SearchChannel", max_ongoing_requests=4, max_queued_requests=1, **small)
    options = {**read_serve_file().numbers["Ingress"], **small, "user_config": {"max_requests": 12}}
    parts = {**shared_parts(), "search": search.bind()}
    deploy(Ingress.options(**options).bind(chosen, load_registry(chosen), parts), "bent", "/bent")


@pytest.fixture
def http(service: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service, headers=ACME, timeout=60) as client:
        yield client


def eventually(condition: Callable[[], bool], within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.1)


def error_of(response: httpx.Response, status: int) -> dict[str, str]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"code", "message", "request_id"}
    assert response.headers.get_list("x-request-id") == [error["request_id"]]
    return dict(error)


def test_every_part_is_ready(http: httpx.Client) -> None:
    response = http.get("/readyz")
    assert response.status_code == 200, response.text
    assert set(response.json()["checks"]) == {"embedder", "vector", "search", "graph", "rows"}
    assert http.get("/healthz").json() == {"status": "up"}


def test_digest_tools_say_that_nothing_is_distilled(http: httpx.Client) -> None:
    for name, body in DIGEST_BODIES.items():
        response = http.post(f"/v1/{name}", json=body)
        assert response.status_code == 404, (name, response.text)
        assert response.json()["error"]["code"] == "not_found"


def test_every_tool_answers(http: httpx.Client) -> None:
    assert set(BODIES) | set(DIGEST_BODIES) == set(TOOLS)
    answers = {}
    for name, body in BODIES.items():
        response = http.post(f"/v1/{name}", json=body, headers={"X-Request-ID": f"try-{name}"})
        assert response.status_code == 200, (name, response.text)
        assert response.headers.get_list("x-request-id") == [f"try-{name}"]
        answers[name] = response.json()
    pack = answers["recall"]
    assert pack["degraded"] == []
    assert {item["id"] for item in pack["items"]} >= {"a1", "a3", "a5", "s1"}
    assert {name for item in pack["items"] for name in item["source"]} == {"vector", "search", "graph"}
    assert pack["request_id"] == "try-recall"
    assert answers["recall_fused"]["memories"][0]["id"] == "m1"
    assert sorted(row["id"] for row in answers["graph_traverse"]["rows"]) == [f"a{at}" for at in range(6)]
    assert answers["get"]["row"]["name"] == "water pump acme"


def test_tenants_never_see_each_other(http: httpx.Client) -> None:
    for headers, other in ((ACME, "globex"), (GLOBEX, "acme")):
        for name, body in BODIES.items():
            response = http.post(f"/v1/{name}", json=body, headers=headers)
            assert response.status_code == 200
            assert other not in response.text


def test_bad_requests_have_one_shape(http: httpx.Client) -> None:
    assert error_of(http.post("/v1/recall", json=PUMP, headers={"Authorization": ""}), 401)["code"] == "unauthorized"
    assert error_of(http.post("/v1/nothing", json={}), 404)["code"] == "not_found"
    assert error_of(http.get("/v1/recall"), 405)["code"] == "method_not_allowed"
    json_headers = {"Content-Type": "application/json"}
    assert error_of(http.post("/v1/recall", content=b"{", headers=json_headers), 400)["code"] == "invalid_json"
    assert error_of(http.post("/v1/recall", content=b"{}"), 415)["code"] == "unsupported_media_type"
    assert "colour" in error_of(http.post("/v1/recall", json={**PUMP, "filters": {"colour": 1}}), 422)["message"]
    assert "tenant" in error_of(http.post("/v1/recall", json={**PUMP, "tenant": "globex"}), 422)["message"]
    assert error_of(http.post("/v1/recall", json={**PUMP, "query": "x" * 3_000_000}), 413)["code"] == "body_too_large"
    write = {"query": "MATCH (a) DELETE a"}
    assert error_of(http.post("/v1/graph_traverse", json=write), 403)["code"] == "forbidden"


def test_slow_channel_meets_the_deadline_and_is_cancelled(http: httpx.Client) -> None:
    search = serve.get_deployment_handle("SearchChannel", "bent")
    before = search.seen.remote().result()
    started = time.monotonic()
    response = http.post("/bent/v1/recall", json={**PUMP, "query": "slow pump", "timeout_ms": 1500})
    took = time.monotonic() - started
    assert response.status_code == 200, response.text
    assert [(one["channel"], one["code"]) for one in response.json()["degraded"]] == [("search", "channel_timeout")]
    assert response.json()["items"]
    assert took < 4

    def cancelled() -> bool:
        now: dict[str, int] = search.seen.remote().result()
        return {name: now[name] - before[name] for name in now} == {"started": 1, "cancelled": 1}

    eventually(cancelled, 10)


def test_disconnected_client_stops_the_work(http: httpx.Client) -> None:
    search = serve.get_deployment_handle("SearchChannel", "bent")
    before = search.seen.remote().result()["cancelled"]
    with pytest.raises(httpx.ReadTimeout):
        http.post("/bent/v1/recall", json={**PUMP, "query": "slow", "timeout_ms": 60_000}, timeout=1)
    eventually(lambda: search.seen.remote().result()["cancelled"] == before + 1, 10)


def together(http: httpx.Client, count: int, path: str, body: dict[str, Any]) -> list[httpx.Response]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: http.post(path, json=body), range(count)))


def test_overloaded_channel_degrades_and_a_lone_one_says_when_to_return(http: httpx.Client) -> None:
    packs = together(http, 10, "/bent/v1/recall", {**PUMP, "query": "busy pump"})
    assert {one.status_code for one in packs} == {200}
    codes = [one["code"] for pack in packs for one in pack.json()["degraded"]]
    assert "channel_overloaded" in codes
    assert len(codes) < len(packs), "some were served in full"
    answers = together(http, 10, "/bent/v1/search", {"entity": "asset", "query": "busy pump"})
    refused = [one for one in answers if one.status_code != 200]
    assert refused
    for response in refused:
        assert error_of(response, 503)["code"] == "channel_overloaded"
        assert int(response.headers["retry-after"]) >= 1


def test_overloaded_ingress_answers_429(http: httpx.Client) -> None:
    answers = together(http, 20, "/bent/v1/recall", {**PUMP, "query": "slow", "timeout_ms": 2000})
    refused = [one for one in answers if one.status_code != 200]
    assert refused
    for response in refused:
        assert error_of(response, 429)["code"] == "too_many_requests"
        assert int(response.headers["retry-after"]) >= 1


async def over_mcp(url: str, mode: str) -> None:
    async with (
        httpx2.AsyncClient(headers=ACME, timeout=60) as connection,
        Client(streamable_http_client(f"{url}/mcp", http_client=connection), mode=mode) as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == list(TOOLS)
        found = await client.call_tool("recall", PUMP)
        assert not found.is_error
        assert "water pump acme" in found.content[0].text
        assert "globex" not in found.content[0].text
        bad = await client.call_tool("recall", {**PUMP, "budget": 0})
        assert bad.is_error
        assert bad.structured_content["error"]["code"] == "invalid_request"
        unknown = await client.call_tool("drop_everything", {})
        assert unknown.is_error


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_mcp_client_works_over_http(service: str, mode: str) -> None:
    asyncio.run(over_mcp(service, mode))


def test_mcp_needs_a_credential(http: httpx.Client) -> None:
    assert error_of(http.post("/mcp", json={}, headers={"Authorization": "Bearer no"}), 401)["code"] == "unauthorized"


def test_requests_are_counted(http: httpx.Client) -> None:
    http.post("/v1/recall", json=PUMP)
    node = ray.nodes()[0]
    exporter = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"

    def exported() -> bool:
        text = httpx.get(exporter, timeout=10).text
        names = ("recall_requests", "recall_request_ms", "recall_channel_ms", "recall_degraded")
        return all(name in text for name in names) and 'tool="recall"' in text

    eventually(exported, 40)


def test_other_query_model_is_refused_at_start_naming_both(service: str, chosen: Settings) -> None:
    other = Settings.model_validate({**chosen.model_dump(), "embedder": {"kind": "hash", "dim": 32}})
    small = {"ray_actor_options": {"num_cpus": 0.1}}
    embedder = serve.get_deployment_handle("QueryEmbedder", "recall")
    vector = VectorChannel.options(**small).bind(other, load_registry(other), embedder)
    parts = {**shared_parts(), "vector": vector}
    try:
        with pytest.raises(ConfigError, match="does not match index model") as caught:
            deploy(Ingress.options(**small).bind(other, load_registry(other), parts), "other", "/other")
        assert "(32 dimensions)" in str(caught.value)
        assert "(64 dimensions)" in str(caught.value)
    finally:
        serve.delete("other", _blocking=False)


def test_replica_asks_its_store_for_health_and_closes_it_at_the_end(service: str, tmp_path: Path) -> None:
    options = {"ray_actor_options": {"num_cpus": 0.1}, "graceful_shutdown_wait_loop_s": 0.1}
    handle = serve.run(bent.NotedReplica.options(**options).bind(tmp_path), name="noted", route_prefix=None)
    handle.health.remote(0.5).result(timeout_s=30)
    assert [path.name for path in tmp_path.iterdir()] == ["health within 0.5"]
    serve.delete("noted")
    eventually((tmp_path / "closed").exists)


def replicas_of(deployment: str) -> list[Any]:
    prefix = f"SERVE_REPLICA::recall#{deployment}#"
    named = ray.util.list_named_actors(all_namespaces=True)
    return [ray.get_actor(**one) for one in named if one["name"].startswith(prefix)]


def test_killed_vector_replica_degrades_and_comes_back(http: httpx.Client) -> None:
    for replica in replicas_of("VectorChannel"):
        ray.kill(replica)
    first = http.post("/v1/recall", json={**PUMP, "timeout_ms": 2000})
    assert first.status_code == 200, first.text
    assert first.json()["items"]
    assert {one["channel"] for one in first.json()["degraded"]} == {"vector"}
    assert {one["code"] for one in first.json()["degraded"]} <= {"channel_failed", "channel_timeout"}
    eventually(lambda: http.post("/v1/recall", json=PUMP).json()["degraded"] == [])
    eventually(lambda: http.get("/readyz").status_code == 200)
