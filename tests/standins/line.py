"""A TCP line to a server that a test can cut and mend. Knows nothing of what goes over it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Line:
    """Listens on `port` of the loopback interface and forwards to `target`, until it is cut."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._sockets: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._listener: socket.socket | None = None
        self._flows = threading.Event()
        self._flows.set()
        self._delay_s = 0.0
        self._connections = 0
        self.mend()

    @property
    def connections(self) -> int:
        """How many are open now."""
        return self._connections

    def mend(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Refuse new connections and reset the open ones."""
        with self._guard:
            ends, self._sockets = [self._listener, *self._sockets], set()
            self._listener = None
        for end in ends:
            if end is not None:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        self.cut()
        try:
            yield
        finally:
            self.mend()

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Connections stay open, and nothing comes through: the half-open kind of outage."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    @contextlib.contextmanager
    def delayed(self, seconds: float) -> Iterator[None]:
        """Everything that is sent, either way, arrives so much later."""
        self._delay_s = seconds
        try:
            yield
        finally:
            self._delay_s = 0.0

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                if self._listener is not listener:
                    return
                continue
            far.settimeout(None)
            with self._guard:
                self._sockets |= {near, far}
                self._connections += 1
            threading.Thread(target=self._pump, args=(near, far), daemon=True).start()
            threading.Thread(target=self._answer, args=(far, near), daemon=True).start()

    def _answer(self, source: socket.socket, sink: socket.socket) -> None:
        self._pump(source, sink)
        with self._guard:
            self._connections -= 1

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._flows.wait()
                time.sleep(self._delay_s)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
