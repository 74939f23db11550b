"""The ledger beside a ladybug graph: versions, hashes and every declared edge, dangling ones included, in SQLite.

The graph itself holds live rows and the edges between them, and is derived from this. A batch is journalled here, then
applied to the graph, then booked; what a killed process left between the two is undone by the next batch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from recall.planes.folders import Stamp
from recall.rows import Ref

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rows (
    key TEXT PRIMARY KEY, entity TEXT NOT NULL, id TEXT NOT NULL,
    version INTEGER NOT NULL, hash TEXT NOT NULL, live INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS rows_ref ON rows (entity, id);
CREATE INDEX IF NOT EXISTS rows_live ON rows (live, entity);
CREATE TABLE IF NOT EXISTS edges (
    owner TEXT NOT NULL, rel TEXT NOT NULL, source_entity TEXT NOT NULL, source_id TEXT NOT NULL,
    target_entity TEXT NOT NULL, target_id TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS edges_owner ON edges (owner);
CREATE INDEX IF NOT EXISTS edges_source ON edges (source_entity, source_id);
CREATE INDEX IF NOT EXISTS edges_target ON edges (target_entity, target_id);
CREATE TABLE IF NOT EXISTS journal (
    owner TEXT NOT NULL, rel TEXT NOT NULL, source_entity TEXT NOT NULL, source_id TEXT NOT NULL,
    target_entity TEXT NOT NULL, target_id TEXT NOT NULL
);
"""
_TEMPORARY = """
CREATE TEMP TABLE IF NOT EXISTS touched (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TEMP TABLE IF NOT EXISTS risen (entity TEXT, id TEXT, PRIMARY KEY (entity, id)) WITHOUT ROWID;
DELETE FROM touched;
DELETE FROM risen;
"""
# CROSS JOIN keeps the order: from the few rows of the batch to their edges, never the other way round.
_LINKABLE = """
WITH wanted AS (
    SELECT e.* FROM touched CROSS JOIN edges e ON e.owner = touched.key
    UNION SELECT e.* FROM risen CROSS JOIN edges e ON e.source_entity = risen.entity AND e.source_id = risen.id
    UNION SELECT e.* FROM risen CROSS JOIN edges e ON e.target_entity = risen.entity AND e.target_id = risen.id
)
SELECT wanted.* FROM wanted
CROSS JOIN rows s ON s.entity = source_entity AND s.id = source_id AND s.live
CROSS JOIN rows t ON t.entity = target_entity AND t.id = target_id AND t.live
"""
_UNLINKED = """
SELECT owner, rel, source_entity, source_id FROM touched CROSS JOIN edges ON owner = touched.key
UNION SELECT owner, rel, source_entity, source_id FROM journal
"""
_CACHE_KB = 65_536
_TIMEOUT_S = 30.0
_KEYS_PER_READ = 500


class LedgerEdge(NamedTuple):
    """A declared edge and the row key of its owner."""

    owner: str
    rel: str
    source_entity: str
    source_id: str
    target_entity: str
    target_id: str


class LedgerRow(NamedTuple):
    """What the ledger knows of a row."""

    key: str
    entity: str
    id: str
    version: int
    hash: str
    live: bool

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.version, not self.live and not self.hash)


@dataclass(frozen=True, slots=True)
class Relinking:
    """Edges to take out of the graph (by owner, relation and source), then edges to put in. Both ends are live."""

    unlink: list[tuple[str, str, str, str]]
    link: list[LedgerEdge]


@contextmanager
def opened(path: Path) -> Iterator[Ledger]:
    """The ledger at `path`; what was not committed is undone at the end."""
    connection = sqlite3.connect(path, timeout=_TIMEOUT_S, isolation_level=None)
    try:
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        yield Ledger(connection)
    finally:
        connection.close()


class Ledger:
    """One connection. The writer's methods expect that no other process writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def create(self) -> None:
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.executescript(_SCHEMA)

    def rows(self, keys: Sequence[str]) -> dict[str, LedgerRow]:
        found: dict[str, LedgerRow] = {}
        for first in range(0, len(keys), _KEYS_PER_READ):
            part = keys[first : first + _KEYS_PER_READ]
            marks = ",".join("?" * len(part))
            asked = f"SELECT key, entity, id, version, hash, live FROM rows WHERE key IN ({marks})"  # noqa: S608
            for key, entity, row_id, version, digest, live in self._connection.execute(asked, part):
                found[key] = LedgerRow(key, entity, row_id, version, digest, bool(live))
        return found

    def count(self) -> dict[str, int]:
        """Live rows by entity."""
        return dict(self._connection.execute("SELECT entity, count(*) FROM rows WHERE live GROUP BY entity"))

    def journal(self, edges: Iterable[LedgerEdge]) -> None:
        """Remember, durably, which edges are about to enter the graph."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?)", edges)
        self._connection.execute("COMMIT")

    def book(self, rows: Sequence[LedgerRow], edges: Iterable[LedgerEdge], risen: Iterable[Ref]) -> Relinking:
        """Replace `rows` and the edges they own, uncommitted; what the graph has to do about edges.

        `risen` are the rows that are live now and were not before.
        """
        run = self._connection
        run.executescript(_TEMPORARY)
        run.execute("BEGIN IMMEDIATE")
        run.executemany("INSERT OR IGNORE INTO touched VALUES (?)", ((row.key,) for row in rows))
        run.execute("INSERT OR IGNORE INTO touched SELECT owner FROM journal")
        run.executemany("INSERT OR IGNORE INTO risen VALUES (?, ?)", risen)
        unlink = run.execute(_UNLINKED).fetchall()
        run.executemany("DELETE FROM edges WHERE owner = ?", ((row.key,) for row in rows))
        run.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?, ?)", sorted(rows))
        run.executemany("INSERT INTO edges VALUES (?, ?, ?, ?, ?, ?)", edges)
        return Relinking(unlink, [LedgerEdge(*edge) for edge in run.execute(_LINKABLE)])

    def commit(self) -> None:
        """The graph holds what was booked."""
        self._connection.execute("DELETE FROM journal")
        self._connection.execute("COMMIT")
