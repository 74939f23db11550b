"""HTTP without Serve: every tool, the one error shape, credentials, limits, and that no body makes a 500."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import corpus
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from deployments.auth import Gate
from deployments.ingress import Admission, Front, IngressLimits, make_api
from deployments.telemetry import Observation
from recall.channels import GraphChannel, SearchChannel, VectorChannel
from recall.errors import AllChannelsFailed, ChannelError, DeadlineExceeded, RecallError, TransientStoreError
from recall.models import LocalEncoder, open_embedder
from recall.ports import ChannelQuery
from recall.results import ChannelAnswer, DegradedCode
from recall.rows import Caller
from recall.settings import load_registry
from recall.tools import TOOLS, Toolbox

TOKENS = {"acme-token": Caller("acme"), "globex-token": Caller("globex")}
ACME = {"Authorization": "Bearer acme-token"}
BODIES: Mapping[str, dict[str, Any]] = {
    "recall": {"query": "pump", "budget": 500, "entities": ["asset"]},
    "recall_fused": {"query": "pump"},
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


class Swap:
    """A channel that behaves until a test gives it something else to do."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.error: Exception | None = None
        self.delay_s = 0.0

    async def search(self, query: ChannelQuery) -> ChannelAnswer:
        await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        answer: ChannelAnswer = await self._channel.search(query)
        return answer

    async def walk(self, query: ChannelQuery) -> Any:
        return await self._channel.walk(query)

    async def traverse(self, *args: Any, **kwargs: Any) -> Any:
        return await self._channel.traverse(*args, **kwargs)


class House:
    """The API over memory planes with two tenants, and what a test may turn."""

    def __init__(self, folder: Path) -> None:
        chosen = corpus.settings(folder, "memory")
        planes = corpus.open_loaded(chosen, "acme", "globex")
        registry = load_registry(chosen)
        encoder = LocalEncoder(open_embedder(chosen.embedder))
        self.vector = Swap(VectorChannel(planes.vector, encoder))
        self.search = Swap(SearchChannel(planes.search))
        self.graph = Swap(GraphChannel(planes.graph, registry, chosen.recall.graph))
        channels = {"vector": self.vector, "search": self.search, "graph": self.graph}
        self.toolbox = Toolbox(registry, channels, planes.rows, chosen.recall)
        self.admission = Admission(IngressLimits())
        self.checks: dict[str, RecallError | None] = {"vector": None, "rows": None}
        self.seen: list[Observation] = []

    async def readiness(self) -> Mapping[str, RecallError | None]:
        return self.checks

    def client(self, loopback: str | None = None) -> TestClient:
        gate = Gate(TOKENS, loopback)
        front = Front(self.toolbox, gate, self.admission, self.readiness, self.seen.append)
        return TestClient(make_api(front), base_url="http://localhost:8000", client=("127.0.0.1", 7))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("house"))


@pytest.fixture
def house(built: House) -> House:
    for swap in (built.vector, built.search, built.graph):
        swap.error, swap.delay_s = None, 0.0
    built.admission.limits = IngressLimits()
    built.checks = {"vector": None, "rows": None}
    built.seen.clear()
    return built


@pytest.fixture(scope="module")
def running(built: House) -> Iterator[TestClient]:
    with built.client() as client:
        yield client


@pytest.fixture
def client(house: House, running: TestClient) -> TestClient:
    return running


def error_of(response: Any, status: int) -> dict[str, str]:
    """The error of `response`, which must have the one shape."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "request_id"}
    assert body["error"]["request_id"] == response.headers["x-request-id"]
    return dict(body["error"])


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_digest_tools_say_that_nothing_is_distilled(client: TestClient) -> None:
    for name, body in DIGEST_BODIES.items():
        response = client.post(f"/v1/{name}", json=body, headers=ACME)
        assert response.status_code == 404, (name, response.text)
        assert response.json()["error"]["code"] == "not_found"


def test_every_tool_answers_over_http(client: TestClient) -> None:
    assert set(BODIES) | set(DIGEST_BODIES) == set(TOOLS)
    answers = {}
    for name, body in BODIES.items():
        if name == "graph_traverse":
            continue
        response = client.post(f"/v1/{name}", json=body, headers=ACME)
        assert response.status_code == 200, response.text
        answers[name] = response.json()
    pack = answers["recall"]
    assert {item["id"] for item in pack["items"]} >= {"a1", "a3", "s1"}
    assert pack["tokens"] <= 500
    assert answers["search"]["hits"][0]["id"] in {"a1", "a3", "a5"}
    assert answers["get"]["row"]["name"] == "water pump acme"
    assert answers["recall_fused"]["memories"][0]["id"] == "m1"


def test_traverse_is_forbidden_where_the_store_cannot_confine_it(client: TestClient) -> None:
    response = client.post("/v1/graph_traverse", json=BODIES["graph_traverse"], headers=ACME)
    assert response.status_code in (200, 403)
    if response.status_code == 403:
        assert error_of(response, 403)["code"] == "forbidden"


def test_tenants_never_see_each_other(client: TestClient) -> None:
    for tenant in ("acme", "globex"):
        other = {"acme": "globex", "globex": "acme"}[tenant]
        headers = {"Authorization": f"Bearer {tenant}-token"}
        for name, body in BODIES.items():
            text = client.post(f"/v1/{name}", json=body, headers=headers).text
            assert other not in text


def test_tenant_is_never_taken_from_body_query_or_header(client: TestClient) -> None:
    body = BODIES["get"]
    assert "tenant" in error_of(client.post("/v1/get", json={**body, "tenant": "globex"}, headers=ACME), 422)["message"]
    response = client.post("/v1/get?tenant=globex", json=body, headers={**ACME, "X-Tenant": "globex"})
    assert response.json()["row"]["name"] == "water pump acme"


def test_request_id_is_echoed_or_made(client: TestClient) -> None:
    sent = client.post("/v1/recall", json=BODIES["recall"], headers={**ACME, "X-Request-ID": "trace-7"})
    assert sent.headers.get_list("x-request-id") == ["trace-7"]
    assert sent.json()["request_id"] == "trace-7"
    made = client.post("/v1/recall", json=BODIES["recall"], headers=ACME)
    assert re.fullmatch(r"[0-9a-f]{32}", made.headers["x-request-id"])
    for evil in ("a" * 129, "two words", "<script>"):
        response = client.get("/healthz", headers={"X-Request-ID": evil})
        assert re.fullmatch(r"[0-9a-f]{32}", response.headers["x-request-id"])


def test_one_observation_a_request_without_its_text(client: TestClient, house: House) -> None:
    client.post("/v1/recall", json=BODIES["recall"], headers=ACME)
    client.post("/v1/recall", json={"query": ""}, headers=ACME)
    client.post("/v1/get", json=BODIES["get"])
    assert [(one.tool, one.tenant, one.code, one.status) for one in house.seen] == [
        ("recall", "acme", "ok", 200),
        ("recall", "acme", "invalid_request", 422),
        ("get", None, "unauthorized", 401),
    ]


# ---- health ----------------------------------------------------------------------------------------------------------


def test_health_and_readiness(client: TestClient, house: House) -> None:
    assert client.get("/healthz").json() == {"status": "up"}
    assert client.get("/readyz").json() == {"status": "ready", "checks": {"vector": "ok", "rows": "ok"}}
    house.checks["vector"] = TransientStoreError("vector (LanceDB)", "/secret/path", "gone")
    error = error_of(client.get("/readyz"), 503)
    assert error["code"] == "not_ready"
    assert error["message"] == "vector: store_unavailable"


def test_openapi_shows_requests_and_answers(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    for name, tool in TOOLS.items():
        operation = schema["paths"][f"/v1/{name}"]["post"]
        asked = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        answered = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        assert asked.endswith(f"/{tool.request.__name__}")
        assert answered.endswith(f"/{tool.result.__name__}")
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)))
    assert references <= set(schema["components"]["schemas"])
    assert "budget" in schema["components"]["schemas"]["RecallRequest"]["properties"]


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_no_credential_is_401_before_anything_is_read(client: TestClient) -> None:
    for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic YTpi"}):
        response = client.post("/v1/recall", content=b"{", headers=headers)
        assert error_of(response, 401)["code"] == "unauthorized"
        assert response.headers["www-authenticate"].startswith("Bearer")


def test_loopback_tenant_needs_no_token(house: House) -> None:
    with house.client("acme") as client:
        headers = {"Content-Type": "application/json"}
        assert client.post("/v1/get", json=BODIES["get"]).json()["row"]["name"] == "water pump acme"
        forwarded = client.post("/v1/get", json=BODIES["get"], headers={**headers, "X-Forwarded-For": "127.0.0.1"})
        assert error_of(forwarded, 401)["code"] == "unauthorized"
        rebound = client.post("/v1/get", json=BODIES["get"], headers={**headers, "Host": "evil.example"})
        assert error_of(rebound, 401)["code"] == "unauthorized"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing", "/v1/recall/", "/v1/recall/x", "/nope", "/v2/recall"])
def test_unknown_path_is_404(client: TestClient, path: str) -> None:
    assert error_of(client.post(path, json={}, headers=ACME), 404)["code"] == "not_found"


def test_wrong_method_is_405_with_allow(client: TestClient) -> None:
    for method, path in (("GET", "/v1/recall"), ("PUT", "/v1/get"), ("DELETE", "/v1/search"), ("GET", "/mcp")):
        response = client.request(method, path, headers=ACME)
        assert error_of(response, 405)["code"] == "method_not_allowed"
        assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("raw", [b"", b"{", b"not json", b'{"query": NaN}', b"\xff", b"[" * 50_000])
def test_malformed_json_is_400(client: TestClient, raw: bytes) -> None:
    headers = {**ACME, "Content-Type": "application/json"}
    assert error_of(client.post("/v1/recall", content=raw, headers=headers), 400)["code"] == "invalid_json"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
def test_wrong_content_type_is_415(client: TestClient, kind: str | None) -> None:
    headers = {**ACME, **({} if kind is None else {"Content-Type": kind})}
    response = client.post("/v1/recall", content=b"{}", headers=headers)
    assert error_of(response, 415)["code"] == "unsupported_media_type"


def test_charset_of_the_content_type_may_be_said(client: TestClient) -> None:
    headers = {**ACME, "Content-Type": "application/json; charset=UTF-8"}
    assert client.post("/v1/get", content=json.dumps(BODIES["get"]), headers=headers).status_code == 200


def test_body_beyond_the_limit_is_413(client: TestClient, house: House) -> None:
    house.admission.limits = IngressLimits(max_body_bytes=2000)
    body = {**BODIES["recall"], "query": "x" * 3000}
    assert error_of(client.post("/v1/recall", json=body, headers=ACME), 413)["code"] == "body_too_large"
    chunks = iter([b'{"query": "', b"x" * 1500, b"y" * 1500, b'"}'])
    headers = {**ACME, "Content-Type": "application/json"}
    assert error_of(client.post("/v1/recall", content=chunks, headers=headers), 413)["code"] == "body_too_large"
    assert error_of(client.post("/mcp", json=body, headers=ACME), 413)["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("recall", {"surprise": 1}, "surprise"),
        ("recall", {"budget": 0}, "budget"),
        ("recall", {"budget": "500"}, "budget"),
        ("recall", {"query": "  "}, "query"),
        ("recall", {"k": 0}, "k"),
        ("recall", {"channels": {"vector": -1}}, "channels"),
        ("recall", {"channels": {"oracle": 1}}, "oracle"),
        ("recall", {"entities": ["nothing"]}, "nothing"),
        ("recall", {"filters": {"colour": "red"}}, "colour"),
        ("recall", {"filters": {"cost": {"gte": "10"}}}, "cost"),
        ("search", {"offset": -1}, "offset"),
        ("get", {"id": ""}, "id"),
        ("recall_fused", {"graph_boost": 1e999}, "graph_boost"),
    ],
)
def test_wrong_field_is_422_and_named(client: TestClient, name: str, change: dict[str, Any], named: str) -> None:
    raw = json.dumps({**BODIES[name], **change}).replace("Infinity", "1e999")
    response = client.post(f"/v1/{name}", content=raw, headers={**ACME, "Content-Type": "application/json"})
    assert named in error_of(response, 422)["message"]


@pytest.mark.parametrize("body", [[], "text", 7, None, True, [{"query": "x"}]])
def test_body_that_is_no_object_is_422(client: TestClient, body: object) -> None:
    for name in TOOLS:
        headers = {**ACME, "Content-Type": "application/json"}
        error_of(client.post(f"/v1/{name}", content=json.dumps(body), headers=headers), 422)


def test_missing_row_is_404(client: TestClient) -> None:
    response = client.post("/v1/get", json={"entity": "asset", "id": "nope"}, headers=ACME)
    assert error_of(response, 404)["code"] == "not_found"


def test_nothing_indexed_is_404_with_what_to_do(house: House) -> None:
    with house.client("nobody") as client:
        error = error_of(client.post("/v1/recall", json=BODIES["recall"]), 404)
        assert error["code"] == "index_missing"
        assert "recall backfill" in error["message"]


def test_failed_channel_degrades_the_answer(client: TestClient, house: House) -> None:
    house.search.error = ChannelError("search", DegradedCode.CHANNEL_OVERLOADED, "queue full")
    pack = client.post("/v1/recall", json=BODIES["recall"], headers=ACME).json()
    assert pack["items"]
    assert [(one["channel"], one["code"]) for one in pack["degraded"]] == [("search", "channel_overloaded")]


def test_overloaded_channel_of_a_single_channel_tool_is_503_with_retry_after(client: TestClient, house: House) -> None:
    house.search.error = ChannelError("search", DegradedCode.CHANNEL_OVERLOADED, "queue full")
    response = client.post("/v1/search", json=BODIES["search"], headers=ACME)
    assert error_of(response, 503)["code"] == "channel_overloaded"
    assert int(response.headers["retry-after"]) >= 1


def test_all_channels_failed_is_503_with_retry_after(client: TestClient, house: House) -> None:
    for swap in (house.vector, house.search):
        swap.error = TransientStoreError("plane", "path", "gone")
    response = client.post("/v1/recall", json=BODIES["recall"], headers=ACME)
    assert error_of(response, 503)["code"] == AllChannelsFailed.code
    assert int(response.headers["retry-after"]) >= 1


def test_deadline_is_504(client: TestClient, house: House) -> None:
    house.search.error = DeadlineExceeded("too late")
    response = client.post("/v1/search", json=BODIES["search"], headers=ACME)
    assert error_of(response, 504)["code"] == "deadline_exceeded"
    house.search.error = ChannelError("search", DegradedCode.CHANNEL_TIMEOUT, "3.0 s")
    response = client.post("/v1/search", json=BODIES["search"], headers=ACME)
    assert error_of(response, 504)["code"] == "channel_timeout"


def test_unforeseen_failure_is_500_in_the_same_shape_without_its_text(client: TestClient, house: House) -> None:
    house.search.error = ZeroDivisionError("secret detail")
    response = client.post("/v1/search", json=BODIES["search"], headers=ACME)
    error = error_of(response, 500)
    assert error["code"] == "internal_error"
    assert "secret" not in response.text


def test_more_requests_than_allowed_are_429_with_retry_after(client: TestClient, house: House) -> None:
    house.admission.limits = IngressLimits(max_requests=1)
    with house.admission.slot():
        for path in ("/v1/recall", "/mcp"):
            response = client.post(path, json=BODIES["recall"], headers=ACME)
            assert error_of(response, 429)["code"] == "too_many_requests"
            assert int(response.headers["retry-after"]) >= 1
    assert client.post("/v1/recall", json=BODIES["recall"], headers=ACME).status_code == 200


# ---- bad input of every kind -----------------------------------------------------------------------------------------

awkward = st.sampled_from(
    [
        "",
        " ",
        "\0",
        "\ud800",
        "A OR (B AND",
        'foo-bar:("',
        "<|endoftext|>",
        "😀",
        "認証",
        "x" * 5000,
        "a|b",
        "'",
        '"',
        "\\",
    ]
)
leaves = (
    awkward
    | st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
junk = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.just("or"), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def bad_bodies(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A body that is right but for one or more fields replaced, added or left out."""
    name = draw(st.sampled_from(sorted(BODIES)))
    fields = sorted(TOOLS[name].request.model_fields)
    body = dict(BODIES[name])
    for field in draw(st.lists(st.sampled_from(fields), max_size=3)):
        body[field] = draw(junk)
    if draw(st.booleans()):
        body.pop(draw(st.sampled_from(sorted(body))))
    return name, body


@hypothesis_settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bad_bodies())
def test_no_body_makes_a_500(client: TestClient, sent: tuple[str, dict[str, Any]]) -> None:
    name, body = sent
    raw = json.dumps(body)
    response = client.post(f"/v1/{name}", content=raw, headers={**ACME, "Content-Type": "application/json"})
    assert response.status_code < 500, (raw, response.text)
    if response.status_code != 200:
        error_of(response, response.status_code)


@pytest.mark.parametrize(
    "query", ["   x   ", "😀🎉", "the of and", "word " * 5000, "A OR (B AND", 'foo-bar:("', "<|endoftext|>", "\ud83d"]
)
def test_awkward_queries_have_defined_answers(client: TestClient, query: str) -> None:
    for name in ("recall", "recall_fused", "search", "vector_similar"):
        raw = json.dumps({**BODIES[name], "query": query})
        response = client.post(f"/v1/{name}", content=raw, headers={**ACME, "Content-Type": "application/json"})
        assert response.status_code == 200, response.text
