"""Rows and the edges they own, written so that a crash at any point is healed by writing the same rows again.

Edges first, the vertex with its content hash last: until then a new row is invisible and `hashes` does not know it.
What a row owned before is read from its own outgoing edges (rank 0). A row of an edge table is an end of none of its
edges: it keeps a list of them, written ahead of every change. A deleted row leaves a vertex without edges, under
another id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from recall.errors import StoreError, TransientStoreError
from recall.planes.nebula_pool import Work
from recall.planes.nebula_schema import tag_properties
from recall.planes.nebula_session import Refused
from recall.planes.nebula_text import (
    GONE,
    Scalar,
    chunks,
    gone_vid,
    inserts,
    owner_rank,
    quoted,
    text,
    vid_list,
)
from recall.ports import WriteFailure, WriteReport
from recall.registry import Registry
from recall.settings import NebulaSettings


class EdgeKey(NamedTuple):
    """A named tuple and not a dataclass, because a load hashes and sorts several for each row."""

    rel: str
    source: str
    target: str
    rank: int

    @property
    def spelled(self) -> str:
        return f"{text(self.source)}->{text(self.target)}@{self.rank}"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One version of a row as it is to be stored. `values`: filter columns by physical name."""

    key: str
    entity: str
    row_id: str
    scope: str | None
    version: int
    hash: str
    live: bool
    values: Mapping[str, Scalar] = field(default_factory=dict)
    edges: frozenset[EdgeKey] = frozenset()

    @property
    def tombstone(self) -> bool:
        return not self.live and self.hash == ""


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored under a key: the newest of its vertex and its grave."""

    version: int
    hash: str
    live: bool
    owned: frozenset[EdgeKey] = frozenset()
    grave: bool = False

    def outranks(self, record: NodeRecord) -> bool:
        if record.version != self.version:
            return record.version < self.version
        return not self.live and self.hash == "" and not record.tombstone


def newest(records: Iterable[NodeRecord]) -> list[NodeRecord]:
    """One record per key: the highest version, of those the last."""
    best: dict[str, NodeRecord] = {}
    for record in records:
        if record.key not in best or record.version >= best[record.key].version:
            best[record.key] = record
    return list(best.values())


def read_stored(work: Work, keys: Sequence[str], size: int, *, owned: bool) -> dict[str, Stored]:
    """Newest stored version by key; absent keys are left out. `owned`: also the edges that rows of edge tables list."""
    fields = ["version", "hash", *(["owned"] if owned else [])]
    columns = ", ".join(f"properties(vertex).{quoted(name)} AS {name}" for name in fields)
    found: dict[str, Stored] = {}
    for part in chunks(keys, size):
        graves = {gone_vid(key): key for key in part}
        rows = work.execute(f"FETCH PROP ON * {vid_list([*part, *graves])} YIELD id(vertex) AS k, {columns}")
        alive = {
            vid: Stored(version, digest, True, _parse(listed[0] if listed else None))
            for vid, version, digest, *listed in rows
        }
        for grave, key in graves.items():
            vertex, buried = alive.get(key), alive.get(grave)
            if buried is not None and (vertex is None or buried.version >= vertex.version):
                edges = vertex.owned if vertex is not None else frozenset()
                found[key] = Stored(buried.version, buried.hash, False, edges, grave=True)
            elif vertex is not None:
                found[key] = Stored(vertex.version, vertex.hash, True, vertex.owned, grave=buried is not None)
    return found


class NodeWriter:
    """Writes batches of records of one tenant."""

    def __init__(self, settings: NebulaSettings, registry: Registry, address: str) -> None:
        self._settings = settings
        self._registry = registry
        self._address = address
        self._columns = {
            name: tuple(prop.name for prop in tag_properties(entity)) for name, entity in registry.entities.items()
        }
        self._relations = {name: {edge.rel for edge in entity.spec.edges} for name, entity in registry.entities.items()}

    def write(self, begin: Callable[[], Work], tenant: str, records: Sequence[NodeRecord]) -> WriteReport:
        """Store what is not stale; every batch begins its own work, with its own deadline.

        A record that the server refuses for good is a failure of its own. Passing trouble that outlasts the retries
        makes the rest of the records transient failures.
        """
        written = stale = 0
        failures: list[WriteFailure] = []
        waiting = list(reversed(_batches(records, self._settings.batch_rows)))
        while waiting:
            batch = waiting.pop()
            try:
                fresh = self._batch(begin(), tenant, batch)
            except Refused as refused:
                error = refused.as_store_error(self._address)
                if isinstance(error, TransientStoreError):
                    return self._interrupted(error, [batch, *waiting], WriteReport(written, stale, tuple(failures)))
                if len(batch) == 1:
                    failures.append(WriteFailure(batch[0].key, error.detail, transient=False))
                else:
                    waiting += reversed(_batches(batch, (len(batch) + 1) // 2))
            except TransientStoreError as error:
                return self._interrupted(error, [batch, *waiting], WriteReport(written, stale, tuple(failures)))
            else:
                written += fresh
                stale += len(batch) - fresh
        return WriteReport(written, stale, tuple(failures))

    @staticmethod
    def _interrupted(error: StoreError, left: Iterable[Sequence[NodeRecord]], done: WriteReport) -> WriteReport:
        rest = (WriteFailure(record.key, str(error), transient=True) for batch in left for record in batch)
        return WriteReport(done.written, done.stale, (*done.failures, *rest))

    def _batch(self, work: Work, tenant: str, batch: Sequence[NodeRecord]) -> int:
        """Number of records written; the others are stale."""
        owning = any("owned" in self._columns[record.entity] for record in batch)
        stored = read_stored(work, [record.key for record in batch], self._settings.batch_rows, owned=owning)
        fresh = [r for r in batch if r.key not in stored or not stored[r.key].outranks(r)]
        if not fresh:
            return 0
        self._bury(work, [record for record in fresh if not record.live])
        self._replace_edges(work, tenant, fresh, stored)
        live = [record for record in fresh if record.live]
        self._put(work, tenant, live)
        self._remove(work, [record for record in fresh if not record.live])
        revived = [gone_vid(r.key) for r in live if r.key in stored and stored[r.key].grave]
        if revived:
            work.execute(f"DELETE TAG {quoted(GONE)} FROM {vid_list(revived)}")
        return len(fresh)

    def _put(self, work: Work, tenant: str, records: Sequence[NodeRecord]) -> None:
        by_entity: dict[str, list[NodeRecord]] = {}
        for record in records:
            by_entity.setdefault(record.entity, []).append(record)
        for entity, members in by_entity.items():
            columns = self._columns[entity]
            rows = ((text(record.key), self._values(tenant, record, columns)) for record in members)
            self._insert(work, f"INSERT VERTEX {quoted(entity)}({_list(columns)})", rows)

    def _values(self, tenant: str, record: NodeRecord, columns: Sequence[str]) -> list[Scalar]:
        own: dict[str, Scalar] = {
            "tenant": tenant,
            "scope": record.scope,
            "rid": record.row_id,
            "version": record.version,
            "hash": record.hash,
            "owned": _spell(edge for edge in record.edges if edge.source != record.key),
        }
        return [own[name] if name in own else record.values.get(name) for name in columns]

    def _bury(self, work: Work, records: Sequence[NodeRecord]) -> None:
        rows = ((text(gone_vid(record.key)), (record.version, record.hash)) for record in records)
        self._insert(work, f"INSERT VERTEX {quoted(GONE)}({_list(('version', 'hash'))})", rows)

    def _remove(self, work: Work, records: Sequence[NodeRecord]) -> None:
        by_entity: dict[str, list[str]] = {}
        for record in records:
            by_entity.setdefault(record.entity, []).append(record.key)
        for entity, keys in by_entity.items():
            work.execute(f"DELETE TAG {quoted(entity)} FROM {vid_list(keys)}")

    # ---- edges -------------------------------------------------------------------------------------------------------

    def _replace_edges(
        self, work: Work, tenant: str, records: Sequence[NodeRecord], stored: Mapping[str, Stored]
    ) -> None:
        wanted = {edge: record.version for record in records if record.live for edge in record.edges}
        remembered = {edge for record in records if record.key in stored for edge in stored[record.key].owned}
        self._remember(work, tenant, records, stored)
        there = self._own_edges(work, records)
        gone = sorted((there | remembered) - wanted.keys())
        new = sorted(wanted.keys() - there)
        self._delete_edges(work, gone)
        for rel, edges in _by_relation(new).items():
            rows = ((edge.spelled, (wanted[edge],)) for edge in edges)
            self._insert(work, f"INSERT EDGE {quoted(rel)}({_list(('version',))})", rows)

    def _remember(self, work: Work, tenant: str, records: Sequence[NodeRecord], stored: Mapping[str, Stored]) -> None:
        """Write ahead what rows of an edge table own, or are about to: old and new edges, without a content hash."""
        ahead: list[NodeRecord] = []
        for record in records:
            foreign = frozenset(edge for edge in record.edges if edge.source != record.key)
            before = stored[record.key].owned if record.key in stored else frozenset()
            if record.live and foreign != before:
                ahead.append(
                    NodeRecord(
                        record.key,
                        record.entity,
                        record.row_id,
                        record.scope,
                        record.version,
                        "",
                        True,
                        record.values,
                        foreign | before,
                    )
                )
        self._put(work, tenant, ahead)

    def _own_edges(self, work: Work, records: Sequence[NodeRecord]) -> set[EdgeKey]:
        """Edges that leave the records and belong to them."""
        by_entity: dict[str, list[str]] = {}
        for record in records:
            if self._relations[record.entity]:
                by_entity.setdefault(record.entity, []).append(record.key)
        found: set[EdgeKey] = set()
        for entity, keys in by_entity.items():
            over = _list(sorted(self._relations[entity]))
            rows = work.execute(
                f"GO FROM {vid_list(keys)} OVER {over} WHERE rank(edge) == 0 "
                "YIELD type(edge) AS rel, src(edge) AS s, dst(edge) AS d"
            )
            found |= {EdgeKey(rel, source, target, 0) for rel, source, target in rows}
        return found

    def _delete_edges(self, work: Work, edges: Sequence[EdgeKey]) -> None:
        for rel, members in _by_relation(edges).items():
            spelled = [edge.spelled for edge in members]
            for part in chunks(spelled, self._settings.batch_rows):
                work.execute(f"DELETE EDGE {quoted(rel)} {', '.join(part)}")

    def _insert(self, work: Work, head: str, rows: Iterable[tuple[str, Sequence[Scalar]]]) -> None:
        for statement in inserts(head, rows, self._settings.batch_rows, self._settings.batch_bytes):
            work.execute(statement.text, statement.params)


def _batches(records: Sequence[NodeRecord], size: int) -> list[Sequence[NodeRecord]]:
    return [records[start : start + size] for start in range(0, len(records), size)]


def edge_key(rel: str, owner: str, source: str, target: str) -> EdgeKey:
    return EdgeKey(rel, source, target, owner_rank(owner, source))


def _list(names: Iterable[str]) -> str:
    return ",".join(quoted(name) for name in names)


def _by_relation(edges: Iterable[EdgeKey]) -> dict[str, list[EdgeKey]]:
    found: dict[str, list[EdgeKey]] = {}
    for edge in edges:
        found.setdefault(edge.rel, []).append(edge)
    return found


def _spell(edges: Iterable[EdgeKey]) -> str | None:
    lines = [f"{edge.rel} {edge.source} {edge.target} {edge.rank}" for edge in sorted(edges)]
    return "\n".join(lines) or None


def _parse(owned: str | None) -> frozenset[EdgeKey]:
    parts = [line.split(" ") for line in (owned or "").split("\n") if line]
    return frozenset(EdgeKey(rel, source, target, int(rank)) for rel, source, target, rank in parts)
