"""Connections to one Milvus server: a synchronous client for writing, an asynchronous one per event loop for reading.

The only place where what the client raises becomes a StoreError. Knows no schema.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc
from pymilvus import AsyncMilvusClient, MilvusClient
from pymilvus.exceptions import MilvusException

from recall.errors import IndexMissing, TerminalStoreError, TransientStoreError
from recall.planes.clients import Clients
from recall.settings import MilvusSettings

STORE = "vector plane (Milvus)"
T = TypeVar("T")
_NOT_FOUND = 100
_NOT_LOADED = 101
_CANNOT_CONNECT = 2
# Rate limit, and the codes of a node that is starting, busy or out of memory.
_TRANSIENT = frozenset({3, 4, 5, 6, 8, 10, 11})
_DENIED = frozenset({1400, 1401, 1800, 1801, 1802})
_REFUSED = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
_SOFT = frozenset(
    {
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
    }
)


# How long a lost connection may take to come back before the call fails; every call may be repeated.
_RECONNECT_S = 1.5
_ATTEMPTS = 3
_PAUSE_S = 0.1
# The client's own pauses between attempts grow to minutes, long after the server is back.
_CHANNEL = {
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 500,
    "grpc.max_reconnect_backoff_ms": 1000,
    "grpc.use_local_subchannel_pool": 1,
}


class NotLoaded(TransientStoreError):
    """The collection is not in memory, as after a restart of some servers; loading it helps."""


class Unreachable(TransientStoreError):
    """No connection."""


class Unsupported(TerminalStoreError):
    """The server is of a version or kind that does not know the call."""


class MilvusSession:
    """Lazy clients of `settings.uri`. Safe in any number of threads and event loops."""

    def __init__(self, settings: MilvusSettings) -> None:
        self._settings = settings
        parts = urlsplit(settings.uri)
        self.address = f"{parts.hostname}:{parts.port or 19530}/{settings.db}"
        self._clients = Clients(self._writer, self._reader, STORE, self.address)

    def call(self, work: Callable[[MilvusClient], T]) -> T:
        """`work` with the synchronous client; repeated while a lost connection comes back."""
        until = time.monotonic() + _RECONNECT_S
        for attempt in itertools.count(1):
            try:
                with self._errors():
                    return work(self._clients.writer())
            except Unreachable:
                if time.monotonic() > until and attempt >= _ATTEMPTS:
                    raise
                time.sleep(_PAUSE_S)
        raise AssertionError("unreachable")

    async def ask(self, collection: str, work: Callable[[AsyncMilvusClient], Coroutine[Any, Any, T]]) -> T:
        """`work` with this loop's asynchronous client; repeated when the collection had to be loaded first, and while
        a lost connection comes back."""
        until = time.monotonic() + _RECONNECT_S
        for attempt in itertools.count(1):
            try:
                with self._errors():
                    return await work(self._clients.reader())
            except NotLoaded:
                with self._errors():
                    await self._clients.reader().load_collection(collection, timeout=self._settings.write_timeout_s)
                    return await work(self._clients.reader())
            except Unreachable:
                if time.monotonic() > until and attempt >= _ATTEMPTS:
                    raise
                await asyncio.sleep(_PAUSE_S)
        raise AssertionError("unreachable")

    async def close(self) -> None:
        await self._clients.close()

    def _writer(self) -> MilvusClient:
        return MilvusClient(**self._arguments())

    def _reader(self) -> AsyncMilvusClient:
        return AsyncMilvusClient(**self._arguments())

    def _arguments(self) -> dict[str, Any]:
        # The client logs a traceback for every failed call; here each one becomes an error with a name.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        settings = self._settings
        return {
            "uri": settings.uri,
            "token": settings.token(),
            "db_name": settings.db,
            "timeout": settings.read_timeout_s,
            "grpc_options": _CHANNEL,
        }

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except MilvusException as error:
            raise self._mapped(error) from error
        except grpc.RpcError as error:
            code = _status(error)
            if code in _REFUSED:
                raise self._denied(f"the server answered {code}") from error
            if code is grpc.StatusCode.UNIMPLEMENTED:
                raise Unsupported(STORE, self.address, "this kind of server lacks a call that is needed") from error
            if code is None or code is grpc.StatusCode.UNAVAILABLE:
                raise Unreachable(STORE, self.address, f"no connection ({code}); is the server up?") from error
            kind = TransientStoreError if code in _SOFT else TerminalStoreError
            raise kind(STORE, self.address, f"the server answered {code}; is it overloaded?") from error
        except (OSError, TimeoutError) as error:
            raise Unreachable(STORE, self.address, f"no connection ({error}); is the server up?") from error
        except ValueError as error:
            # The client's way of saying that it was closed, or that it cannot encode a request.
            raise TerminalStoreError(STORE, self.address, str(error)[:500]) from error

    def _mapped(self, error: MilvusException) -> Exception:
        detail = " ".join(str(error.message).split())[:500]
        lowered = detail.lower()
        if error.code == _NOT_FOUND or "can't find collection" in lowered:
            return IndexMissing(STORE, self.address, f"{detail}; run `recall backfill`")
        if error.code == _NOT_LOADED or "not loaded" in lowered:
            return NotLoaded(STORE, self.address, detail)
        # A client that is refused while it connects says only that it could not connect.
        if refused := _status(error.__cause__) in _REFUSED:
            detail = f"the server answered {_status(error.__cause__)}"
        if refused or error.code in _DENIED or "auth" in lowered or "permission" in lowered:
            return self._denied(detail)
        if error.code == _CANNOT_CONNECT or "unavailable" in lowered:
            return Unreachable(STORE, self.address, f"{detail}; is the server up?")
        if error.code in _TRANSIENT or error.retriable or "deadline" in lowered:
            return TransientStoreError(STORE, self.address, f"{detail}; is the server overloaded?")
        return TerminalStoreError(STORE, self.address, detail)

    def _denied(self, detail: str) -> TerminalStoreError:
        detail = f"{detail}; check the token that planes.vector.token_env names"
        return TerminalStoreError(STORE, self.address, detail)


def _status(error: BaseException | None) -> grpc.StatusCode | None:
    """What the call that failed was answered; None when it was not."""
    return error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
