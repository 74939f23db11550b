"""Who a request counts as: tokens, the loopback rule, and everything that must not count."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.auth import Gate
from recall.errors import ConfigError, Unauthorized
from recall.rows import Caller
from recall.settings import AuthSettings, load_tokens

TOKENS = {"token-of-acme": Caller("acme"), "token-of-acme-sales": Caller("acme", "sales")}
LOCAL = ("127.0.0.1", 5000)


def request(
    headers: dict[str, str] | list[tuple[str, str]] | None = None, client: tuple[str, int] | None = LOCAL
) -> dict[str, Any]:
    pairs = list(headers.items()) if isinstance(headers, dict) else headers or []
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs]
    return {"type": "http", "headers": raw, "client": client}


def gate(loopback: str | None = "default") -> Gate:
    return Gate(TOKENS, loopback)


def test_token_names_tenant_and_scope() -> None:
    assert gate().caller(request({"Authorization": "Bearer token-of-acme"})) == Caller("acme")
    assert gate().caller(request({"authorization": "bearer  token-of-acme-sales "})) == Caller("acme", "sales")


def test_token_counts_from_anywhere() -> None:
    remote = request({"Authorization": "Bearer token-of-acme", "Host": "recall.example"}, ("203.0.113.9", 1))
    assert gate(None).caller(remote) == Caller("acme")


@pytest.mark.parametrize(
    "value",
    ["Bearer wrong", "Bearer ", "Bearer", "", "Basic dXNlcjpwYXNz", "token-of-acme", "Bearer token-of-acm\u00e9"],
)
def test_wrong_credential_is_refused_even_on_loopback(value: str) -> None:
    with pytest.raises(Unauthorized):
        gate().caller(request({"Authorization": value, "Host": "localhost"}))


def test_two_credentials_are_refused() -> None:
    pairs = [("authorization", "Bearer token-of-acme"), ("authorization", "Bearer token-of-acme-sales")]
    with pytest.raises(Unauthorized):
        gate().caller(request(pairs))


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]", "[::1]:8000", "LOCALHOST"])
def test_loopback_caller_without_token_is_the_default_tenant(client: str, host: str) -> None:
    assert gate().caller(request({"Host": host}, (client, 1))) == Caller("default")


def test_loopback_rule_is_off_unless_configured() -> None:
    with pytest.raises(Unauthorized):
        gate(None).caller(request({"Host": "localhost"}))


@pytest.mark.parametrize("client", [None, ("10.0.0.5", 1), ("0.0.0.0", 1), ("testclient", 1), ("", 1), ("::2", 1)])
def test_other_addresses_are_not_local(client: tuple[str, int] | None) -> None:
    with pytest.raises(Unauthorized):
        gate().caller(request({"Host": "localhost"}, client))


@pytest.mark.parametrize(
    "host",
    ["recall.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil", "localhost:", "", "127.1"],
)
def test_other_host_headers_are_not_local(host: str) -> None:
    with pytest.raises(Unauthorized):
        gate().caller(request({"Host": host}))


def test_missing_or_double_host_is_not_local() -> None:
    for headers in ([], [("host", "localhost"), ("host", "localhost")]):
        with pytest.raises(Unauthorized):
            gate().caller(request(headers))


@pytest.mark.parametrize(
    "name", ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Anything", "Forwarded", "X-Real-IP", "Via"]
)
def test_forwarded_request_is_not_local(name: str) -> None:
    with pytest.raises(Unauthorized):
        gate().caller(request({"Host": "localhost", name: "127.0.0.1"}))


def test_page_of_another_site_is_not_local() -> None:
    for origin in ("https://evil.example", "null", "http://localhost.evil.example", "http://[::1"):
        with pytest.raises(Unauthorized):
            gate().caller(request({"Host": "localhost:8000", "Origin": origin}))
    assert gate().caller(request({"Host": "localhost:8000", "Origin": "http://localhost:3000"})) == Caller("default")


@pytest.mark.parametrize("name", ["X-Tenant", "Tenant", "X-Recall-Tenant", "X-Scope", "Cookie"])
def test_no_other_header_names_a_tenant(name: str) -> None:
    assert gate().caller(request({"Host": "localhost", name: "acme"})) == Caller("default")


@given(st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_only_known_tokens_open(token: str) -> None:
    if token in TOKENS:
        return
    with pytest.raises(Unauthorized):
        gate().caller(request({"Authorization": f"Bearer {token}", "Host": "localhost"}))


def tokens_from(text: str) -> dict[str, Caller]:
    return load_tokens(AuthSettings(), {"RECALL_TOKENS": text})


def test_token_map_is_read_from_the_environment() -> None:
    raw = {"one": "acme", "two": {"tenant": "acme", "scope": "sales"}, "three": {"tenant": "globex"}}
    assert tokens_from(json.dumps(raw)) == {
        "one": Caller("acme"),
        "two": Caller("acme", "sales"),
        "three": Caller("globex"),
    }
    assert load_tokens(AuthSettings(), {}) == {}
    assert tokens_from("  ") == {}


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"secret-value": "bad tenant!"}',
        '{"secret-value": 7}',
        '{"secret-value": {"tenant": "a", "role": "x"}}',
        '{"secret-value": {"scope": "s"}}',
        '{"secret-value": {"tenant": "a", "scope": ""}}',
        '{"": "acme"}',
        '{"secret-value with space": "acme"}',
    ],
)
def test_wrong_token_map_is_refused_without_showing_a_token(text: str) -> None:
    with pytest.raises(ConfigError, match="RECALL_TOKENS") as caught:
        tokens_from(text)
    assert "secret-value" not in str(caught.value)
