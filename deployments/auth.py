"""Who asks: a bearer token, or a caller on the loopback interface. Never the body, the query or another header."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping

from starlette.datastructures import Headers
from starlette.types import Scope

from recall.errors import Unauthorized
from recall.rows import Caller

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_ORIGIN = re.compile(rf"https?://{_HOST.pattern}", re.IGNORECASE)
# A proxy in front hides the caller's address, so that "loopback" would mean the proxy.
_FORWARDED = frozenset({"forwarded", "via", "x-real-ip", "true-client-ip", "cf-connecting-ip", "x-client-ip"})


class Gate:
    """Turns a request's credential into a Caller. Tokens are kept as digests and compared in constant time."""

    def __init__(self, tokens: Mapping[str, Caller], loopback_tenant: str | None) -> None:
        self._tokens = tuple((_digest(token), caller) for token, caller in tokens.items())
        self._loopback = None if loopback_tenant is None else Caller(loopback_tenant)

    def caller(self, scope: Scope) -> Caller:
        """The caller of an ASGI request; Unauthorized says what is missing, never which tokens exist."""
        headers = Headers(scope=scope)
        presented = headers.getlist("authorization")
        if presented:
            return self._bearer(presented)
        if self._loopback is not None and _is_local(scope, headers):
            return self._loopback
        raise Unauthorized("send `Authorization: Bearer <token>`")

    def _bearer(self, presented: list[str]) -> Caller:
        scheme, _, token = presented[0].strip().partition(" ")
        if len(presented) > 1 or scheme.lower() != "bearer" or not token.strip():
            raise Unauthorized("the Authorization header must be one `Bearer <token>`")
        digest = _digest(token.strip())
        found: Caller | None = None
        # No early exit: the time says nothing about which token came close.
        for known, caller in self._tokens:
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise Unauthorized("unknown token")
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _is_local(scope: Scope, headers: Headers) -> bool:
    hosts = headers.getlist("host")
    return (
        _is_loopback_address(scope.get("client"))
        and len(hosts) == 1
        and _HOST.fullmatch(hosts[0]) is not None
        and not _forwarded(headers.keys())
        # A page of another site, open in a browser on this machine, is not a local caller.
        and all(_ORIGIN.fullmatch(origin) for origin in headers.getlist("origin"))
    )


def _is_loopback_address(client: tuple[str, int] | None) -> bool:
    if not client:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _forwarded(names: Iterable[str]) -> bool:
    return any(name in _FORWARDED or name.startswith("x-forwarded") for name in names)
