"""Ladybug database files: one writer for the length of a session, read-only handles that follow its commits.

Every session ends with a new `version` file; a reader that sees another one than it opened with opens the database
again. A `gate` keeps readers from opening files that a session is just changing. Knows no schema.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ladybug

from recall.errors import StoreError, TerminalStoreError, TransientStoreError
from recall.planes.folders import TenantFolders

STORE = "graph (ladybug)"
GRAPH = "graph.lbug"
VERSION = "version"
_GATE = "gate.lock"
# The engine reserves this much address space per open database; its default of 8 TiB lets only a few be open.
_ADDRESS_SPACE = 1 << 36
_QUERY_THREADS = 2
# A checkpoint holds every group of edges that the session touched: 20,000 rewritten rows with 40,000 edges in a graph
# of 200,000 need more than 128 MB and less than 512.
_WRITER_POOLS = 4
_OPENING_PATIENCE_S = 30.0
_POLL_S = 0.005


@contextmanager
def engine_errors(path: Path) -> Iterator[None]:
    """What ladybug raises, as StoreError with the folder it happened in."""
    try:
        yield
    except RuntimeError as error:
        raise _mapped(path, str(error)) from error


def _mapped(path: Path, text: str) -> StoreError:
    if "Interrupted" in text:
        return TransientStoreError(STORE, str(path), "the query took longer than its time; allow more or ask for less")
    if "Buffer manager" in text:
        return TransientStoreError(STORE, str(path), f"{text} Raise buffer_pool_mb or ask for less")
    return TerminalStoreError(STORE, str(path), text)


def fetch(connection: ladybug.Connection, statement: str, params: Mapping[str, Any] | None = None) -> list[list[Any]]:
    """All rows of one statement. The result is closed at once, because it holds on to the buffer pool."""
    result = connection.execute(statement, dict(params or {}))
    try:
        rows: list[list[Any]] = result.get_all()
    finally:
        result.close()
    return rows


@contextmanager
def write_session(folder: Path, buffer_pool: int) -> Iterator[ladybug.Connection]:
    """A read-write connection in one transaction, committed and checkpointed at the end, rolled back on an error.

    The caller holds the tenant's writer lock: the engine itself lets a second writer in the same process corrupt the
    files.
    """
    with _gate(folder, fcntl.LOCK_EX), engine_errors(folder):
        database = _open(folder, buffer_pool * _WRITER_POOLS, read_only=False)
        connection = ladybug.Connection(database)
        try:
            connection.execute("BEGIN TRANSACTION").close()
            yield connection
            connection.execute("COMMIT").close()
        except BaseException:
            # The engine has rolled back already when it was a statement that failed.
            with suppress(RuntimeError):
                connection.execute("ROLLBACK").close()
            raise
        finally:
            connection.close()
            _checkpointed(database)
        bump(folder)


def _checkpointed(database: ladybug.Database) -> None:
    try:
        with ladybug.Connection(database) as connection:
            connection.execute("CHECKPOINT").close()
    finally:
        database.close()


def bump(folder: Path) -> None:
    """Tell readers to open the database again."""
    fresh = folder / f"{VERSION}.{os.getpid()}"
    fresh.write_text(uuid.uuid4().hex)
    fresh.replace(folder / VERSION)


def _open(folder: Path, buffer_pool: int, *, read_only: bool) -> ladybug.Database:
    return ladybug.Database(
        str(folder / GRAPH),
        buffer_pool_size=buffer_pool,
        max_num_threads=_QUERY_THREADS,
        max_db_size=_ADDRESS_SPACE,
        read_only=read_only,
        # A checkpoint needs the memory that the connection's statements still hold: it waits until the session ends.
        auto_checkpoint=False,
    )


@contextmanager
def _gate(folder: Path, mode: int, patience_s: float = _OPENING_PATIENCE_S) -> Iterator[None]:
    handle = os.open(folder / _GATE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + patience_s
        while not _locked(handle, mode):
            if time.monotonic() >= deadline:
                raise TransientStoreError(STORE, str(folder), "it is being written; try again")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


def _locked(handle: int, mode: int) -> bool:
    try:
        fcntl.flock(handle, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(eq=False, slots=True)
class _Handle:
    """A read-only database; closed when retired and no longer used."""

    database: ladybug.Database
    version: str
    users: int = 0
    retired: bool = False


class Readers:
    """Read-only handles of this process, the least recently used closed first."""

    def __init__(self, folders: TenantFolders, buffer_pool: int, size: int) -> None:
        self._folders = folders
        self._buffer_pool = buffer_pool
        self._size = size
        self._handles: OrderedDict[Path, _Handle] = OrderedDict()
        self._guard = threading.Lock()

    @contextmanager
    def connection(self, folder: Path, timeout_s: float | None) -> Iterator[ladybug.Connection]:
        """A connection to the graph as of its last session; queries on it end after `timeout_s`.

        A connection keeps every statement it ever ran, with the memory of its last result, so each call has its own.
        """
        handle = self._acquired(folder)
        connection = ladybug.Connection(handle.database)
        try:
            connection.set_query_timeout(0 if timeout_s is None else max(1, int(timeout_s * 1000)))
            yield connection
        finally:
            connection.close()
            with self._guard:
                handle.users -= 1
                if handle.retired and not handle.users:
                    handle.database.close()

    def close(self) -> None:
        with self._guard:
            for folder in list(self._handles):
                self._retire(folder)

    def _acquired(self, folder: Path) -> _Handle:
        """The newest handle that can be had, counted as in use. Opening happens outside the lock."""
        with self._folders.mapped(folder):
            version = (folder / VERSION).read_text()
            with self._guard:
                known = self._handles.get(folder)
                if known is not None and known.version == version:
                    return self._used(folder, known)
            opened = self._reopened(folder, waiting=known is None)
        with self._guard:
            if opened is not None:
                self._retire(folder)
                self._handles[folder] = opened
            handle = self._handles.get(folder)
            if handle is None:
                raise TransientStoreError(STORE, str(folder), "it was closed while it was being opened; try again")
            return self._used(folder, handle)

    def _used(self, folder: Path, handle: _Handle) -> _Handle:
        handle.users += 1
        if folder in self._handles:
            self._handles.move_to_end(folder)
        while len(self._handles) > self._size:
            self._retire(next(iter(self._handles)))
        return handle

    def _reopened(self, folder: Path, *, waiting: bool) -> _Handle | None:
        """A handle of the newest version; None when a session is under way and there is an older one to go on with."""
        try:
            with _gate(folder, fcntl.LOCK_SH, _OPENING_PATIENCE_S if waiting else 0.0):
                version = (folder / VERSION).read_text()
                return _Handle(self._recovered(folder), version)
        except TransientStoreError:
            if waiting:
                raise
            return None

    def _recovered(self, folder: Path) -> ladybug.Database:
        """The database, after undoing what a killed writer left half done."""
        try:
            return _open(folder, self._buffer_pool, read_only=True)
        except RuntimeError as error:
            if "recovery is pending" not in str(error):
                raise
        with self._folders.writing(folder):
            _open(folder, self._buffer_pool * _WRITER_POOLS, read_only=False).close()
        return _open(folder, self._buffer_pool, read_only=True)

    def _retire(self, folder: Path) -> None:
        handle = self._handles.pop(folder, None)
        if handle is not None:
            handle.retired = True
            if not handle.users:
                handle.database.close()
