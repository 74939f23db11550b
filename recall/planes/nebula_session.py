"""Sessions with graphd: opened on demand, never shared between threads, replaced once when lost.

Built on the client library's thrift stack, not on its pools: those cannot follow a deadline, reconnect inside a
time-out, and fail instead of waiting when every session is in use.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from nebula3.common import ttypes
from nebula3.fbthrift.protocol.THeaderProtocol import THeaderProtocol
from nebula3.fbthrift.Thrift import TApplicationException, TException
from nebula3.fbthrift.transport.THeaderTransport import THeaderTransport
from nebula3.fbthrift.transport.TSocket import TSocket
from nebula3.fbthrift.transport.TTransport import TBufferedTransport
from nebula3.graph import GraphService
from nebula3.graph.ttypes import VerifyClientVersionReq

from recall.errors import StoreError, TerminalStoreError, TransientStoreError
from recall.planes.nebula_text import Scalar
from recall.settings import NebulaSettings

STORE = "graph (nebula)"
_LOST_SESSION = (ttypes.ErrorCode.E_SESSION_INVALID, ttypes.ErrorCode.E_SESSION_TIMEOUT)
_BUSY = (ttypes.ErrorCode.E_TOO_MANY_CONNECTIONS, ttypes.ErrorCode.E_GRAPH_MEMORY_EXCEEDED)
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
T = TypeVar("T")


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
        wire = {key.encode(): _to_wire(value) for key, value in params.items()}
        try:
            response = self._client.executeWithParameter(self._id, text.encode(), wire)
        except (TException, TApplicationException, OSError, EOFError) as error:
            raise Lost(f"{type(error).__name__}: {error}") from None
        if response.error_code in _LOST_SESSION:
            raise Lost(f"the session is no longer valid: {_text(response.error_msg)}")
        if response.error_code != 0:
            raise Refused(response.error_code, _text(response.error_msg), text)
        self.space = _text(response.space_name) or self.space
        if response.data is None:
            return Result((), [])
        rows = [tuple(_from_wire(value) for value in row.values) for row in response.data.rows]
        return Result(tuple(_text(name) for name in response.data.column_names), rows)

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
            detail = (
                f"the server refuses this client version: {_text(answer.error_msg)}; install a matching nebula3-python"
            )
            raise TerminalStoreError(STORE, self.address, detail)

    def _sign_in(self, settings: NebulaSettings) -> None:
        answer = self._client.authenticate(settings.user.encode(), settings.password().encode())
        said = _text(answer.error_msg)
        if "Too many sessions" in said or answer.error_code in _BUSY:
            detail = f"{said}; lower pool_size, or raise max_sessions_per_ip_per_user on the server"
            raise TransientStoreError(STORE, self.address, detail)
        if answer.error_code != 0:
            where = f"the variable {settings.password_env}" if settings.password_env else "the default password"
            detail = f"user {settings.user!r} was refused ({said}): check `user` and {where}"
            raise TerminalStoreError(STORE, self.address, detail)
        self._id = answer.session_id


@dataclass(frozen=True, slots=True)
class Work:
    """What a piece of work gets to talk to the server with: one session at a time, a space, a deadline."""

    sessions: Sessions
    space: str | None
    deadline: Deadline

    def execute(self, text: str, params: Mapping[str, Scalar | list[str]] | None = None) -> list[Row]:
        """Rows of `text` run in the space. Raises Refused for an error that is none of passing trouble, StoreError."""
        return self.sessions.execute(self, text, params or {}).rows

    def execute_named(self, text: str, params: Mapping[str, Scalar | list[str]]) -> Result:
        """`execute`, with the names of the columns."""
        return self.sessions.execute(self, text, params)


class Sessions:
    """At most `pool_size` sessions with whichever of the addresses answer."""

    def __init__(self, settings: NebulaSettings) -> None:
        self._settings = settings
        self._idle: list[Session] = []
        self._free = threading.BoundedSemaphore(settings.pool_size)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._turn = itertools.count()
        self.address = ",".join(settings.addresses)

    def execute(self, work: Work, text: str, params: Mapping[str, Scalar | list[str]]) -> Result:
        fresh = False
        tries = 0
        while True:
            try:
                return self._once(work, text, params, fresh=fresh)
            except Lost as lost:
                if work.deadline.left <= 0:
                    raise self._transient(f"no answer before the deadline ({lost}); try again") from None
                if fresh:
                    raise self._transient(
                        f"the connection was lost twice: {lost}; check that graphd is running"
                    ) from None
                fresh = True
            except Refused as refused:
                if not refused.passing or tries >= self._settings.retries:
                    raise
                pause = 0.05 * 2**tries
                if pause >= work.deadline.left or self._closed.wait(pause):
                    raise
                tries += 1

    def close(self) -> None:
        """Sign out what is idle. A session in use is closed when its work ends."""
        self._closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def _once(self, work: Work, text: str, params: Mapping[str, Scalar | list[str]], *, fresh: bool) -> Result:
        if not self._free.acquire(timeout=max(0.0, work.deadline.left)):
            raise self._transient(f"all {self._settings.pool_size} sessions stayed busy until the deadline")
        session: Session | None = None
        try:
            if work.deadline.left <= 0:
                raise self._transient("the deadline passed before the statement was sent; try again")
            session = self._take(work.space, fresh=fresh) or self._open(work.deadline)
            if work.space is not None and session.space != work.space:
                session.execute(f"USE `{work.space}`", {}, work.deadline)
                session.space = work.space
            result = session.execute(text, params, work.deadline)
        except Refused:
            self._give_back(session)
            raise
        except Lost:
            self._forget(session)
            raise
        else:
            self._give_back(session)
            return result
        finally:
            self._free.release()

    def _take(self, space: str | None, *, fresh: bool) -> Session | None:
        """The idle session used last, preferably one that is in the space already."""
        if fresh:
            return None
        with self._lock:
            for position in range(len(self._idle) - 1, -1, -1):
                if self._idle[position].space == space:
                    return self._idle.pop(position)
            return self._idle.pop() if self._idle else None

    def _open(self, deadline: Deadline) -> Session:
        count = len(self._settings.addresses)
        first = next(self._turn)
        trouble: list[str] = []
        for offset in range(count):
            address = self._settings.addresses[(first + offset) % count]
            if deadline.left <= 0:
                break
            try:
                return Session(address, self._settings, deadline)
            except (TException, TApplicationException, OSError, EOFError) as error:
                trouble.append(f"{address}: {error}")
        raise self._transient(
            f"no server answers ({'; '.join(trouble) or 'no time left'}): check that graphd is running"
        )

    def _give_back(self, session: Session | None) -> None:
        if session is None:
            return
        with self._lock:
            if not self._closed.is_set():
                self._idle.append(session)
                return
        session.close()

    def _forget(self, session: Session | None) -> None:
        """Drop a broken session, and the idle ones of its address: they most likely died with it."""
        if session is None:
            return
        session.drop()
        with self._lock:
            dead = [one for one in self._idle if one.address == session.address]
            self._idle = [one for one in self._idle if one.address != session.address]
        for one in dead:
            one.drop()

    def _transient(self, detail: str) -> TransientStoreError:
        return TransientStoreError(STORE, self.address, detail)


def until_spread(attempt: Callable[[], T], wait_s: float, pause_s: float, address: str) -> T:
    """Repeat `attempt` while the server answers that it does not know a new definition yet."""
    deadline = Deadline(wait_s)
    while True:
        try:
            return attempt()
        except Refused as refused:
            if not (refused.spreading or refused.passing):
                raise
            if deadline.left < pause_s:
                detail = f"{refused.text}: the definition did not spread within {wait_s:.0f} s; raise schema_wait_s"
                raise TransientStoreError(STORE, address, detail) from None
        time.sleep(pause_s)


def _to_wire(value: Scalar | Sequence[str]) -> ttypes.Value:
    if value is None:
        return ttypes.Value(nVal=ttypes.NullType.__NULL__)
    if isinstance(value, bool):
        return ttypes.Value(bVal=value)
    if isinstance(value, int):
        return ttypes.Value(iVal=value)
    if isinstance(value, float):
        return ttypes.Value(fVal=value)
    if isinstance(value, str):
        return ttypes.Value(sVal=value.encode())
    return ttypes.Value(lVal=ttypes.NList(values=[_to_wire(item) for item in value]))


def _from_wire(value: ttypes.Value) -> Any:
    """JSON-ready; a vertex is its properties, an edge its type, ends and properties, a path its vertices and types."""
    kind = value.getType()
    if kind == ttypes.Value.SVAL:
        return _text(value.value)
    if kind in (ttypes.Value.BVAL, ttypes.Value.IVAL, ttypes.Value.FVAL):
        return value.value
    if kind == ttypes.Value.LVAL:
        return [_from_wire(item) for item in value.value.values]
    if kind == ttypes.Value.MVAL:
        return {_text(key): _from_wire(item) for key, item in value.value.kvs.items()}
    if kind == ttypes.Value.VVAL:
        return _vertex(value.value)
    if kind == ttypes.Value.EVAL:
        edge = value.value
        ends = (edge.src, edge.dst) if edge.type >= 0 else (edge.dst, edge.src)
        src, dst = (_from_wire(end) for end in ends)
        return {"type": _text(edge.name), "src": src, "dst": dst, "properties": _props(edge.props)}
    if kind == ttypes.Value.PVAL:
        steps = value.value.steps
        nodes = [_vertex(value.value.src), *(_vertex(step.dst) for step in steps)]
        return {"nodes": nodes, "types": [_text(step.name) for step in steps]}
    # Nulls of every kind, and the temporal and geographic types, which no column of ours has.
    return None


def _vertex(vertex: ttypes.Vertex) -> dict[str, Any]:
    tags = {_text(tag.name): _props(tag.props) for tag in vertex.tags}
    return {"vid": _from_wire(vertex.vid), "tags": tags}


def _props(props: Mapping[bytes, ttypes.Value] | None) -> dict[str, Any]:
    return {_text(key): _from_wire(item) for key, item in (props or {}).items()}


def _text(raw: bytes | str | None) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw or ""
