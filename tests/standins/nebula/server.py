"""The wire: the client library's own thrift processor over TCP, sessions, and the faults that tests ask for."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nebula3.common import ttypes
from nebula3.fbthrift.protocol.THeaderProtocol import THeaderProtocolFactory
from nebula3.fbthrift.server.TServer import TServer
from nebula3.fbthrift.transport import TSocket, TTransport
from nebula3.graph import GraphService
from nebula3.graph.ttypes import AuthResponse, ExecutionResponse, VerifyClientVersionResp
from standins.nebula.lexer import SESSION, NgqlError
from standins.nebula.reading import Answer
from standins.nebula.running import Catalogue, run
from standins.nebula.values import from_wire, to_wire

BAD_PASSWORD = -1001
TRANSIENT = "Storage Error: RPC failure, probably timeout."


@dataclass(slots=True)
class Faults:
    """Switches that may be turned while the server runs."""

    # Seconds before every answer.
    delay_s: float = 0.0
    # Share of statements that fail with a storage error that a client may retry, before they run.
    failing: float = 0.0
    # Statements that run, but whose answer is lost with their connection.
    lost_answers: int = 0
    # Accept connections and requests, never answer (a half-open peer).
    silent: bool = False
    # Statements containing this text end their connection before they run.
    poison: str | None = None
    # Told of every statement after it ran and before it is answered.
    watch: Callable[[str], None] | None = None
    rng: random.Random = field(default_factory=lambda: random.Random(7))


@dataclass(slots=True)
class _Session:
    user: str
    space: str | None = None


class Server:
    """`with Server() as server:` listens on loopback; `stop` and `start` keep the data and lose the sessions."""

    def __init__(
        self,
        *,
        port: int = 0,
        users: dict[str, str] | None = None,
        delay_s: float = 0.0,
        max_sessions: int = 300,
    ) -> None:
        self.catalogue = Catalogue(delay_s)
        self.faults = Faults()
        self.users = users or {"root": "nebula"}
        self.max_sessions = max_sessions
        self.port = port
        self.authenticated = 0
        self.statements: list[str] = []
        self.recording = True
        self._sessions: dict[int, _Session] = {}
        self._most_sessions = 0
        self._ids = itertools.count(1_000)
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._clients: set[socket.socket] = set()
        self._stopped = threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)

    @property
    def most_sessions(self) -> int:
        return self._most_sessions

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Server:
        self._stopped.clear()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True, name="nebula-standin").start()
        return self

    def stop(self) -> None:
        """As a killed process: no more listening, every connection reset, every session forgotten."""
        self._stopped.set()
        if self._listener is not None:
            # A shutdown wakes the accepting thread; closing alone does not.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.kill_connections()
        self.expire_sessions()

    def kill_connections(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, set()
        for client in clients:
            _reset(client)

    def expire_sessions(self) -> None:
        with self._lock:
            self._sessions.clear()

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopped.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._clients.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True, name="nebula-connection").start()

    def _serve(self, client: socket.socket) -> None:
        transport = TSocket.TSocket()
        transport.setHandle(client)
        processor = GraphService.Processor(_Handler(self, client))
        factory = TTransport.TBufferedTransportFactory()
        protocol = THeaderProtocolFactory()
        try:
            _Loop(processor, None, factory, protocol).handle(transport)
        except OSError:
            pass
        finally:
            with self._lock:
                self._clients.discard(client)
            client.close()

    # ---- what the handler asks for -----------------------------------------------------------------------------------

    def open_session(self, user: str, password: str) -> AuthResponse:
        with self._lock:
            self.authenticated += 1
            if self.users.get(user) != password:
                text = b"Invalid password" if user in self.users else b"User not exist"
                return AuthResponse(error_code=BAD_PASSWORD, error_msg=text)
            if len(self._sessions) >= self.max_sessions:
                text = f"Too many sessions created from 127.0.0.1 by user {user}. the threshold is {self.max_sessions}"
                return AuthResponse(error_code=-1010, error_msg=text.encode())
            session_id = next(self._ids)
            self._sessions[session_id] = _Session(user)
            self._most_sessions = max(self._most_sessions, len(self._sessions))
        return AuthResponse(error_code=0, session_id=session_id, time_zone_offset_seconds=0, time_zone_name=b"UTC")

    def close_session(self, session_id: int) -> None:
        with self._lock:
            self._sessions.pop(session_id, None)

    def execute(self, session_id: int, text: str, params: dict[str, object]) -> ExecutionResponse:
        started = time.monotonic()
        with self._lock:
            session = self._sessions.get(session_id)
            if self.recording:
                self.statements.append(text)
        try:
            self._refuse(session_id)
            answer, space = run(self.catalogue, session.space if session else None, text, params)
        except NgqlError as error:
            return ExecutionResponse(error_code=error.code, latency_in_us=0, error_msg=error.text.encode())
        if session is not None:
            session.space = space
        return _response(answer, space, int((time.monotonic() - started) * 1e6))

    def _refuse(self, session_id: int) -> None:
        # Session 0 is what the client's connection pool pings with.
        if session_id != 0 and session_id not in self._sessions:
            raise NgqlError(SESSION, "Session not existed!")
        if self.faults.failing and self.faults.rng.random() < self.faults.failing:
            raise NgqlError(-1005, TRANSIENT)

    def wait(self, seconds: float) -> None:
        """Delay an answer; cut short when the server stops."""
        self._stopped.wait(seconds)


class _Loop(TServer):
    """One connection's request loop, from the client library."""

    def __init__(self, processor: object, transport: object, factory: object, protocol: object) -> None:
        super().__init__(processor, transport, factory, protocol)


class _Handler(GraphService.Iface):
    def __init__(self, server: Server, client: socket.socket) -> None:
        self._server = server
        self._client = client

    def verifyClientVersion(self, req: object = None) -> VerifyClientVersionResp:
        self._hold()
        return VerifyClientVersionResp(error_code=0)

    def authenticate(self, username: bytes | None = None, password: bytes | None = None) -> AuthResponse:
        self._hold()
        return self._server.open_session(_text(username), _text(password))

    def signout(self, sessionId: int | None = None) -> None:
        self._server.close_session(sessionId or 0)

    def execute(self, sessionId: int | None = None, stmt: bytes | None = None) -> ExecutionResponse:
        return self.executeWithParameter(sessionId, stmt, None)

    def executeWithParameter(
        self,
        sessionId: int | None = None,
        stmt: bytes | None = None,
        parameterMap: dict[bytes, ttypes.Value] | None = None,
    ) -> ExecutionResponse:
        self._hold()
        faults = self._server.faults
        text = _text(stmt)
        if faults.poison is not None and faults.poison in text:
            self._drop()
        params = {_text(name): from_wire(value) for name, value in (parameterMap or {}).items()}
        response = self._server.execute(sessionId or 0, text, params)
        if faults.watch is not None:
            faults.watch(text)
        if faults.lost_answers > 0:
            faults.lost_answers -= 1
            self._drop()
        return response

    def _hold(self) -> None:
        faults = self._server.faults
        if faults.delay_s:
            self._server.wait(faults.delay_s)
        while faults.silent and not self._server._stopped.is_set():
            self._server.wait(0.05)

    def _drop(self) -> None:
        _reset(self._client)
        raise TTransport.TTransportException(TTransport.TTransportException.NOT_OPEN, "dropped by the test")


def _response(answer: Answer, space: str | None, latency: int) -> ExecutionResponse:
    data = None
    if answer.columns:
        rows = [ttypes.Row(values=[to_wire(value) for value in row]) for row in answer.rows]
        data = ttypes.DataSet(column_names=[name.encode() for name in answer.columns], rows=rows)
    return ExecutionResponse(error_code=0, latency_in_us=latency, data=data, space_name=(space or "").encode())


def _text(raw: bytes | str | None) -> str:
    return raw.decode(errors="surrogateescape") if isinstance(raw, bytes) else raw or ""


def _reset(client: socket.socket) -> None:
    try:
        # Linger of zero: the peer sees a reset, as from a killed process.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
