"""One session with graphd, and what can go wrong in it.

Built on the client library's thrift stack below its `Connection`, which cannot follow a deadline: it has one time-out
for everything, and when that passes it connects again before it says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nebula3.common import ttypes
from nebula3.fbthrift.protocol.THeaderProtocol import THeaderProtocol
from nebula3.fbthrift.Thrift import TException
from nebula3.fbthrift.transport.THeaderTransport import THeaderTransport
from nebula3.fbthrift.transport.TSocket import TSocket
from nebula3.fbthrift.transport.TTransport import TBufferedTransport
from nebula3.graph import GraphService
from nebula3.graph.ttypes import VerifyClientVersionReq

from recall.errors import StoreError, TerminalStoreError, TransientStoreError
from recall.planes.nebula_text import Scalar
from recall.planes.nebula_values import from_wire, plain_text, to_wire
from recall.settings import NebulaSettings

STORE = "graph (nebula)"
_LOST_SESSION = (ttypes.ErrorCode.E_SESSION_INVALID, ttypes.ErrorCode.E_SESSION_TIMEOUT)
_BUSY = (
    ttypes.ErrorCode.E_TOO_MANY_CONNECTIONS,
    ttypes.ErrorCode.E_GRAPH_MEMORY_EXCEEDED,
    ttypes.ErrorCode.E_PARTIAL_SUCCEEDED,
)
# Storage errors that pass: repeated with back-off, every statement of the adapter being idempotent.
_PASSING = (
    "RPC failure",
    "Not the leader of",
    "Leader changed",
    "leader has changed",
    "More than one request trying to",
    "Write write conflict",
    "Raft buffer is full",
    "Write stalled",
    "Memory exceeded",
)
# What graphd says about a definition that its cache, or storaged's, has not seen yet.
_SPREADING = (
    "SpaceNotFound",
    "Space not found",
    "Space was not chosen",
    "No schema found for",
    "Unknown column",
    "not found in space",
    "There is no index to use",
    "Part not found",
    "TagNotFound",
    "EdgeNotFound",
    "Tag not existed",
    "Edge not existed",
)

Row = tuple[Any, ...]


class Deadline:
    """End of a call on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()


class Refused(Exception):
    """The server answered a statement with an error."""

    def __init__(self, code: int, text: str, statement: str) -> None:
        super().__init__(code, text, statement)
        self.code = code
        self.text = text
        self.statement = statement

    @property
    def passing(self) -> bool:
        return self.code in _BUSY or any(part in self.text for part in _PASSING)

    @property
    def spreading(self) -> bool:
        return any(part in self.text for part in _SPREADING)

    @property
    def space_missing(self) -> bool:
        return "SpaceNotFound" in self.text or "Space not found" in self.text

    def as_store_error(self, address: str) -> StoreError:
        shown = self.statement if len(self.statement) <= 160 else f"{self.statement[:160]}…"
        detail = f"{self.text} (code {self.code}) for: {shown}"
        if self.passing:
            return TransientStoreError(STORE, address, f"{detail}; try again")
        if self.spreading:
            return TransientStoreError(
                STORE,
                address,
                f"{detail}; the schema has not spread yet, or was dropped: try again, or prepare the tenant",
            )
        if self.code == ttypes.ErrorCode.E_BAD_PERMISSION:
            return TerminalStoreError(STORE, address, f"{detail}; grant the configured user a role on the space")
        return TerminalStoreError(STORE, address, detail)


class Lost(Exception):
    """The connection or the session is gone; the statement may or may not have run."""


@dataclass(frozen=True, slots=True)
class Result:
    names: tuple[str, ...]
    rows: list[Row]


class Session:
    """One authenticated connection. `space` is the one in use."""

    def __init__(self, address: str, settings: NebulaSettings, deadline: Deadline) -> None:
        self.address = address
        self.space: str | None = None
        host, _, port = address.rpartition(":")
        self._socket = TSocket(host.strip("[]"), int(port))
        self._limit(min(settings.connect_timeout_ms / 1000, deadline.left))
        transport = THeaderTransport(TBufferedTransport(self._socket))
        self._client = GraphService.Client(THeaderProtocol(transport))
        self._id = 0
        try:
            transport.open()
            self._limit(deadline.left)
            self._verify()
            self._sign_in(settings)
        except BaseException:
            self._socket.close()
            raise

    def execute(self, text: str, params: Mapping[str, Scalar | list[str]], deadline: Deadline) -> Result:
        """Result of the last statement in `text`. Raises Refused, or Lost (the session must not be used again)."""
        self._limit(deadline.left)
        wire = {key.encode(): to_wire(value) for key, value in params.items()}
        try:
            response = self._client.executeWithParameter(self._id, text.encode(), wire)
        except (TException, OSError, EOFError) as error:
            raise Lost(f"{type(error).__name__}: {error}") from None
        if response.error_code in _LOST_SESSION:
            raise Lost(f"the session is no longer valid: {plain_text(response.error_msg)}")
        if response.error_code != 0:
            raise Refused(response.error_code, plain_text(response.error_msg), text)
        self.space = plain_text(response.space_name) or self.space
        if response.data is None:
            return Result((), [])
        rows = [tuple(from_wire(value) for value in row.values) for row in response.data.rows]
        return Result(tuple(plain_text(name) for name in response.data.column_names), rows)

    def close(self) -> None:
        """Sign out (one-way) and close; errors do not matter any more."""
        with suppress(TException, OSError):
            self._limit(1.0)
            self._client.signout(self._id)
        self.drop()

    def drop(self) -> None:
        """Close without a word: for a peer that may not listen."""
        with suppress(TException, OSError):
            self._socket.close()

    def _limit(self, seconds: float) -> None:
        self._socket.setTimeout(max(1.0, seconds * 1000))

    def _verify(self) -> None:
        answer = self._client.verifyClientVersion(VerifyClientVersionReq())
        if answer.error_code != 0:
            said = plain_text(answer.error_msg)
            detail = f"the server refuses this client version ({said}): install a matching nebula3-python"
            raise TerminalStoreError(STORE, self.address, detail)

    def _sign_in(self, settings: NebulaSettings) -> None:
        answer = self._client.authenticate(settings.user.encode(), settings.password().encode())
        said = plain_text(answer.error_msg)
        if "Too many sessions" in said or answer.error_code in _BUSY:
            detail = f"{said}; lower pool_size, or raise max_sessions_per_ip_per_user on the server"
            raise TransientStoreError(STORE, self.address, detail)
        if answer.error_code != 0:
            where = f"the variable {settings.password_env}" if settings.password_env else "the default password"
            detail = f"user {settings.user!r} was refused ({said}): check `user` and {where}"
            raise TerminalStoreError(STORE, self.address, detail)
        self._id = answer.session_id
