"""What is SQLite's own about the source of truth: how a file is opened, and what its errors mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

# Writers of other processes hold the lock for one batch at a time.
BUSY_TIMEOUT_MS = 30_000
_TRANSIENT = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_INTERRUPT", "SQLITE_SCHEMA")
_ADVICE = (
    ("SQLITE_FULL", "free space on the disk that holds the file, then run the same command again"),
    ("SQLITE_IOERR", "check the disk that holds the file, then run the same command again"),
    ("SQLITE_READONLY", "make the file and its folder writable"),
    ("SQLITE_CANTOPEN", "check that the path exists and is writable"),
    ("SQLITE_NOTADB", "the file is not a SQLite database: name another `planes.rows.path`"),
    ("SQLITE_CORRUPT", "the file is damaged: restore it, or move it away and import again"),
)


def sqlite_engine(path: Path, readers: int) -> sa.Engine:
    """An engine on `path` in WAL mode: many readers beside one writer, in any number of processes."""
    # Two connections beyond the reading threads: a writer, and one that a late reader still holds.
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)), pool_size=readers + 2, max_overflow=readers)

    @sa.event.listens_for(engine, "do_connect")
    def make_folder(*_: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)

    @sa.event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _: Any) -> None:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA journal_mode = WAL")

    return engine


def explain_sqlite(error: sa.exc.DBAPIError) -> tuple[bool, str]:
    """Whether repeating may help, and a sentence that says what happened and what to do."""
    name = getattr(error.orig, "sqlite_errorname", "")
    advice = next((text for code, text in _ADVICE if name.startswith(code)), None)
    if name.startswith(_TRANSIENT):
        return True, f"{error.orig}: another process is writing; try again"
    return False, f"{error.orig}: {advice}" if advice else str(error.orig)
