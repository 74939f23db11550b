"""A small OpenAI-compatible server on the loopback interface that answers as a script says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# A status and a JSON body, headers beside them; None breaks the connection without an answer.
Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]] | None


@dataclass
class Completions:
    """What was asked, and the address to ask at. `answer` is called with the body and the number of its request."""

    answer: Callable[[dict[str, Any], int], Answer]
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    busiest: int = 0
    _now: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, body: dict[str, Any], key: str | None) -> int:
        with self._guard:
            self.bodies.append(body)
            self.keys.append(key)
            self._now += 1
            self.busiest = max(self.busiest, self._now)
            return len(self.bodies)

    def leave(self) -> None:
        with self._guard:
            self._now -= 1


def chat(text: str | None, finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]}


@contextmanager
def serving(answer: Callable[[dict[str, Any], int], Answer]) -> Iterator[Completions]:
    """A server with this script, closed afterwards."""
    asked = Completions(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            body["path"] = self.path
            number = asked.enter(body, self.headers.get("authorization"))
            try:
                found = asked.answer(body, number)
            finally:
                asked.leave()
            if found is None:
                self.close_connection = True
                return
            status, content, *headers = found
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in (headers[0] if headers else {}).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    asked.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
