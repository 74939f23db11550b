"""A PostgreSQL server of one's own on the loopback interface: made in a temporary folder, killed and restarted at will.

Debian's package `postgresql` is enough. The server refuses to run as root, so root lends it another user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from servers.availability import CannotStart
from standins.line import free_port

from recall.settings import PostgresSettings

PASSWORD_ENV = "RECALL_TEST_POSTGRES_PASSWORD"
# Of every role that the tests make; scram makes the server ask for it even on the loopback interface.
PASSWORD = "correct horse"
SUPERUSER = "postgres"
DATABASE = "recall"
START_S = 60.0
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "log_min_messages": "fatal",
    "autovacuum_naptime": "10s",
}


class PostgresServer:
    """A cluster in `folder`, its database `recall` and its owner `recall`, who may make schemas there."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._binaries = _binaries()
        self._user = _unprivileged()
        self._data = folder / "data"
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(folder, self._user)

    def make(self) -> None:
        with tempfile.NamedTemporaryFile("w", dir=self._data.parent) as password:
            password.write(PASSWORD)
            password.flush()
            if self._user is not None:
                shutil.chown(password.name, self._user)
            auth = ["-A", "scram-sha-256", "--pwfile", password.name]
            options = ["-U", SUPERUSER, "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", *auth]
            done = self._run([str(self._binaries / "initdb"), "-D", str(self._data), *options])
            if done.returncode:
                raise CannotStart(f"initdb: {done.stderr.decode().strip()}")

    def start(self) -> None:
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self.port), *settings]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._privileges())
        deadline = time.monotonic() + START_S
        while True:
            if self._process.poll() is not None:
                raise CannotStart(f"postgres ended with {self._process.returncode}: {self._log.read_text()[-500:]}")
            try:
                self.superuser("postgres").close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise CannotStart(f"no answer on port {self.port} within {START_S} s") from None
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """SIGKILL for the server and every process of it, as when the machine loses its power."""
        if self._process is None:
            return
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        processes = children.read_text().split() if children.exists() else []
        self._process.kill()
        self._process.wait()
        self._process = None
        for process in processes:
            # Shared memory of the cluster is in use until the last of them is gone.
            while Path(f"/proc/{process}").exists():
                try:
                    os.kill(int(process), 9)
                except ProcessLookupError:
                    break
                time.sleep(0.01)

    def stop(self) -> None:
        if self._process is not None:
            # SIGQUIT: at once, without a checkpoint that nobody needs.
            self._process.send_signal(3)
            self._process.wait(20)
            self._process = None

    def superuser(self, database: str = DATABASE) -> psycopg.Connection:
        """An autocommit connection that may do anything."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=SUPERUSER,
            password=PASSWORD,
            dbname=database,
            autocommit=True,
            connect_timeout=5,
        )

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, capture_output=True, check=False, timeout=START_S, **self._privileges())

    def _privileges(self) -> dict[str, object]:
        own = {"cwd": str(self._data.parent), "env": {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}}
        return own if self._user is None else {**own, "user": self._user, "group": self._user, "extra_groups": []}


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server with an empty database. Raises CannotStart."""
    # Not below pytest's own temporary folder, which is closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="recall-postgres-"))
    try:
        server = PostgresServer(folder)
        server.make()
        server.start()
        try:
            _fill(server)
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill(server: PostgresServer) -> None:
    with server.superuser("postgres") as connection:
        connection.execute(f"CREATE ROLE recall LOGIN PASSWORD '{PASSWORD}'")
        connection.execute(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
        connection.execute(f"CREATE DATABASE {DATABASE} OWNER recall")


def _binaries() -> Path:
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if installed:
        return installed[-1].parent
    if found := shutil.which("initdb"):
        return Path(found).parent
    raise CannotStart("no PostgreSQL: apt-get install postgresql, or name a server in RECALL_TEST_POSTGRES_DSN")


def _unprivileged() -> str | None:
    """Whom root lends the server to; None: it runs as whoever runs the tests."""
    if os.geteuid() != 0:
        return None
    known = {user.pw_name for user in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


def postgres_settings(port: int, **options: object) -> PostgresSettings:
    """Settings for the owner of the database and a schema that no other test uses."""
    own = {"db_schema": f"t{uuid4().hex[:8]}", "password_env": PASSWORD_ENV, "database": DATABASE, "port": port}
    return PostgresSettings.model_validate({"kind": "postgres", **own, **options})
