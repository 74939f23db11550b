"""Connections to one OpenSearch cluster: a synchronous client for writing, an asynchronous one per event loop to read.

The only place where what the client raises becomes a StoreError. Knows no index.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from opensearchpy import AsyncOpenSearch, OpenSearch
from opensearchpy.exceptions import (
    ConnectionError as NoConnection,
)
from opensearchpy.exceptions import (
    ConnectionTimeout,
    ImproperlyConfigured,
    SerializationError,
    SSLError,
    TransportError,
)

from recall.errors import IndexMissing, StoreError, TerminalStoreError, TransientStoreError
from recall.planes.clients import Clients
from recall.settings import OpenSearchSettings

STORE = "search plane (OpenSearch)"
T = TypeVar("T")
_TIMED_OUT, _TOO_MANY = 408, 429
_UNBOUND_S = 86_400
_REASON = 400


class OpenSearchSession:
    """Lazy clients of `settings.hosts`. Safe in any number of threads and event loops."""

    def __init__(self, settings: OpenSearchSettings) -> None:
        self._settings = settings
        self.address = ",".join(map(_shown, settings.hosts))
        self._clients = Clients(self._writer, self._reader, STORE, self.address)

    def call(self, work: Callable[[OpenSearch], T]) -> T:
        """`work` with the synchronous client."""
        with self._errors():
            return work(self._clients.writer())

    async def ask(self, work: Callable[[AsyncOpenSearch], Awaitable[T]]) -> T:
        """`work` with this loop's asynchronous client, which sets no time limit of its own."""
        with self._errors():
            return await work(self._clients.reader())

    async def within(self, timeout_s: float | None, work: Awaitable[T]) -> T:
        """`work`, cut off after `timeout_s` (None: the configured time-out)."""
        limit = self._settings.timeout_ms / 1000 if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit):
                return await work
        except TimeoutError:
            detail = f"no answer within {limit:.3g} s: is the cluster up and not overloaded? Else allow more time"
            raise TransientStoreError(STORE, self.address, detail) from None

    async def close(self) -> None:
        await self._clients.close()

    def error(self, status: object, detail: str) -> StoreError:
        """The error for an HTTP status, or for what the client says instead of one."""
        shown = " ".join(detail.split())[:_REASON]
        if status in (401, 403):
            advice = "check planes.search.user, password_env and the user's rights"
            return TerminalStoreError(STORE, self.address, f"refused ({status}): {shown}; {advice}")
        if status == 404 and ("index_not_found" in detail or "no such index" in detail):
            return IndexMissing(STORE, self.address, f"{shown}; run `recall backfill`")
        if status in (_TIMED_OUT, _TOO_MANY) or (isinstance(status, int) and status >= 500):
            return TransientStoreError(STORE, self.address, f"overloaded or not ready ({status}): {shown}; try again")
        return TerminalStoreError(STORE, self.address, f"refused ({status}): {shown}")

    def mapped(self, error: TransportError) -> StoreError:
        cause = error.info
        if isinstance(error, SSLError) or isinstance(cause, ssl.SSLError) or hasattr(cause, "certificate_error"):
            advice = "check planes.search.ca_certs and verify_certs, and that the hosts speak TLS"
            return TerminalStoreError(STORE, self.address, f"TLS failed ({str(cause)[:_REASON]}); {advice}")
        if isinstance(error, ConnectionTimeout):
            return TransientStoreError(STORE, self.address, f"no answer in time ({cause}): is the cluster overloaded?")
        if isinstance(error, NoConnection):
            detail = f"no connection ({str(cause)[:_REASON]}): start the cluster, or correct planes.search.hosts"
            return TransientStoreError(STORE, self.address, detail)
        return self.error(error.status_code, _reason(error))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TransportError as error:
            raise self.mapped(error) from error
        except SerializationError as error:
            # What answered is no OpenSearch, or broke off in the middle.
            raise TransientStoreError(STORE, self.address, f"not an answer of OpenSearch: {error}"[:_REASON]) from error
        except ImproperlyConfigured as error:
            raise TerminalStoreError(STORE, self.address, f"{error}; check planes.search") from error

    def _writer(self) -> OpenSearch:
        limit = self._settings.write_timeout_ms / 1000
        return OpenSearch(**self._arguments(), timeout=limit, pool_maxsize=4)

    def _reader(self) -> AsyncOpenSearch:
        return AsyncOpenSearch(**self._arguments(), timeout=_UNBOUND_S, maxsize=self._settings.pool_size)

    def _arguments(self) -> dict[str, Any]:
        # The client logs every failed call; here each one becomes an error with a name.
        logging.getLogger("opensearch").setLevel(logging.CRITICAL)
        settings = self._settings
        arguments: dict[str, Any] = {"hosts": list(settings.hosts)}
        if settings.user is not None:
            arguments["http_auth"] = (settings.user, settings.password())
        if any(host.startswith("https:") for host in settings.hosts):
            arguments |= {"verify_certs": settings.verify_certs, "ssl_show_warn": False}
            arguments["ca_certs"] = settings.ca_certs
        return arguments


def _reason(error: TransportError) -> str:
    """The server's own words, with the type of its error."""
    info = error.info
    inner = info.get("error") if isinstance(info, dict) else None
    if not isinstance(inner, dict):
        return f"{error.error} {inner or info or ''}"
    causes = inner.get("root_cause") or [inner]
    return "; ".join(dict.fromkeys(f"{cause.get('type')}: {cause.get('reason')}" for cause in [inner, *causes]))


def _shown(host: str) -> str:
    """`host` without anything secret."""
    parts = urlsplit(host)
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 9200)}"
