"""Milvus servers on the loopback interface: Milvus Lite in server mode, and the real server of the package `milvus`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir

import grpc
from filelock import FileLock
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException
from standins.line import free_port

ROOT = Path(__file__).parents[2]
START_S = 90
# The account that a server begins with.
ROOT_TOKEN = "root:Milvus"
# Runs in the server package's own environment; ends with its standard input, so that no server outlives its test.
_LAUNCH = """
import sys
from milvus import MilvusServer
server = MilvusServer()
server.set_base_dir(sys.argv[1])
server.listen_port = int(sys.argv[2])
server.config.set("common.security.authorizationEnabled", sys.argv[3])
server.start()
print("up", flush=True)
sys.stdin.read()
server.stop()
"""


class CannotStart(Exception):
    """The server cannot be started here; says why."""


@contextmanager
def lite_server(folder: Path) -> Iterator[int]:
    """Milvus Lite; yields its port."""
    port = free_port()
    with _running(lite_command(folder, port), port) as ready:
        yield ready


def lite_command(folder: Path, port: int) -> list[str]:
    program = Path(sys.executable).with_name("milvus-lite")
    if not program.exists():
        raise CannotStart("milvus-lite is not installed: pip install milvus-lite")
    return [str(program), "server", "--data-dir", str(folder), "--host", "127.0.0.1", "--port", str(port)]


class MortalLite:
    """Milvus Lite on one folder and port, to be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._command = lite_command(folder, self.port)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        silent = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=silent, stderr=silent)
        _await(self._process, self.port)

    def kill(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def real_server(folder: Path, *, secured: bool = False) -> Iterator[int]:
    """Milvus 2.3.5 from its own environment (`MILVUS_SERVER_PYTHON`, else build/milvus-venv); yields its port.

    A secured one wants `ROOT_TOKEN`.
    """
    python = Path(os.environ.get("MILVUS_SERVER_PYTHON", ROOT / "build" / "milvus-venv" / "bin" / "python"))
    if not python.exists():
        raise CannotStart(f"no {python}: python3 -m venv build/milvus-venv && pip install milvus==2.3.5 there")
    port = free_port()
    # Two of them on one machine do not get along.
    alone = FileLock(Path(gettempdir()) / "recall-milvus-server.lock")
    command = [str(python), "-c", _LAUNCH, str(folder), str(port), str(secured).lower()]
    with alone, _running(command, port, ROOT_TOKEN if secured else "") as ready:
        yield ready


@contextmanager
def _running(command: Sequence[str], port: int, token: str = "") -> Iterator[int]:
    silent = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=silent, stderr=silent, start_new_session=True)
    try:
        _await(process, port, token)
        yield port
    finally:
        assert process.stdin is not None
        process.stdin.close()
        if "server" in command:
            process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            # The real server is a child of its launcher, and would outlive it.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await(process: subprocess.Popen[bytes], port: int, token: str = "") -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CannotStart(f"{process.args!r:.200} ended with {process.returncode}")
        try:
            # Clients of one address share a connection, so that having one says nothing yet.
            client = MilvusClient(f"http://127.0.0.1:{port}", token=token, timeout=2)
            client.get_server_version(timeout=2)
            client.close()
        except (MilvusException, grpc.RpcError):
            time.sleep(0.1)
        else:
            return
    raise CannotStart(f"no answer on port {port} within {START_S} s")
