"""An HTTP proxy on the loopback interface that may change what the server says. Knows nothing of the server."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# (method, path, request body, status, answer) → (status, answer)
Rewrite = Callable[[str, str, bytes, int, bytes], tuple[int, bytes]]


@contextmanager
def rewriting_proxy(target: int, rewrite: Rewrite) -> Iterator[str]:
    """URL of a proxy in front of the port `target`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server = http.client.HTTPConnection("127.0.0.1", target, timeout=60)
            kept = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
            try:
                server.request(self.command, self.path, body, kept)
                answer = server.getresponse()
                status, content, kind = answer.status, answer.read(), answer.getheader("Content-Type")
            finally:
                server.close()
            status, content = rewrite(self.command, self.path, body, status, content)
            self.send_response(status)
            self.send_header("Content-Type", kind or "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _forward

        def log_message(self, *_: object) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
