"""Tools called on a server: errors keep the server's code; a server that is no Recall is recognised."""

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from recall.cli import app
from recall.commands.remote import Refused, call_server

Answer = Callable[[str, dict[str, str], bytes], tuple[int, bytes]]


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Answer]]]:
    """A server whose behaviour a test sets under "answer"."""
    behaviour: dict[str, Answer] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, reply = behaviour["answer"](self.path, dict(self.headers.items()), body)
            self.send_response(status)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", behaviour
    http.shutdown()
    thread.join()
    http.server_close()


def test_the_tool_is_the_path_and_the_token_a_bearer(server: tuple[str, dict[str, Answer]]) -> None:
    url, behaviour = server
    seen: list[tuple[str, str | None, object]] = []

    def answer(path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        sent = {name.lower(): value for name, value in headers.items()}
        seen.append((path, sent.get("authorization"), json.loads(body)))
        return 200, b'{"hits": []}'

    behaviour["answer"] = answer
    assert call_server(url + "/", "search", {"query": "x"}, token="t0k", timeout_s=5) == {"hits": []}
    assert seen == [("/v1/search", "Bearer t0k", {"query": "x"})]


def test_a_refusal_keeps_the_servers_code(
    server: tuple[str, dict[str, Answer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, behaviour = server
    behaviour["answer"] = lambda *_: (401, b'{"error": {"code": "unauthorized", "message": "unknown token"}}')
    monkeypatch.setenv("TOKEN", "wrong")
    asked = ["tool", "get", "--entity", "a", "--id", "1", "--url", url, "--token-env", "TOKEN"]
    answer = CliRunner().invoke(app, asked)
    assert (answer.exit_code, answer.stderr) == (1, "error: unauthorized: unknown token\n")


@pytest.mark.parametrize("reply", [(200, b"<html>"), (500, b"[]"), (404, b'{"detail": "no"}')])
def test_a_server_that_is_no_recall_is_said_to_be_none(
    server: tuple[str, dict[str, Answer]], reply: tuple[int, bytes]
) -> None:
    url, behaviour = server
    behaviour["answer"] = lambda *_: reply
    with pytest.raises(Refused, match="not a Recall server") as caught:
        call_server(url, "search", {}, token=None, timeout_s=5)
    assert caught.value.reason == "server_error"


def test_no_server_at_all_is_an_error_that_says_what_to_start() -> None:
    with pytest.raises(Refused, match="recall serve") as caught:
        call_server("http://127.0.0.1:1", "search", {}, token=None, timeout_s=5)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.reason, str(copy)) == ("server_unreachable", str(caught.value))


def test_a_missing_token_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    asked = ["tool", "get", "--entity", "a", "--id", "1", "--url", "http://127.0.0.1:1", "--token-env", "NO_SUCH_TOKEN"]
    answer = CliRunner().invoke(app, asked)
    assert answer.exit_code == 1
    assert "NO_SUCH_TOKEN" in answer.stderr
