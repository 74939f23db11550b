"""Graph plane in ladybug databases: a folder per tenant and index version, no server.

The graph holds live rows only, so that a tenant may query it freely; versions, tombstones and dangling edges are in the
ledger beside it. One process at a time writes a tenant; any number read.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import ladybug
import pyarrow as pa

from recall.errors import Forbidden, InvalidRequest
from recall.planes.folders import TenantFolders, Threads, admitted_rows, tombstone_rows
from recall.planes.ladybug_files import STORE, VERSION, Readers, engine_errors, fetch, write_session
from recall.planes.ladybug_ledger import opened
from recall.planes.ladybug_schema import GraphNames, Hop, hop
from recall.planes.ladybug_writing import GraphBatch, ledger_rows, owned_edges
from recall.planes.opening import PlaneContext
from recall.ports import Link, NeighbourQuery, Neighbours, WriteReport
from recall.readonly import bounded_cypher, parameters
from recall.rows import Caller, Json, Ref, Tombstone
from recall.schema import edge_schema, node_schema
from recall.settings import LadybugSettings

_LEDGER = "ledger.sqlite"
# A statement per source is an index look-up (0.1 to 1 ms); one for all of them scans the table (100 to 200 ms at 100k
# nodes), which pays off beyond this many.
_FEW_SOURCES = 128


class LadybugGraph:
    """`GraphStore` on ladybug. Opens nothing before its first use; keeps `settings.open_tenants` databases open."""

    max_writers: int | None = 1

    def __init__(self, settings: LadybugSettings, context: PlaneContext) -> None:
        registry = context.registry
        self._schema = node_schema(registry)
        self._names = GraphNames(registry, self._schema)
        self._buffer_pool = settings.buffer_pool_mb << 20
        self._folders = TenantFolders(STORE, context.data_dir / settings.path, registry.graph_version(), VERSION)
        self._threads = Threads(STORE, settings.threads)
        self._readers = Readers(self._folders, self._buffer_pool, settings.open_tenants)
        self._writing = threading.Lock()

    # ---- writing ----

    def prepare(self, tenant: str) -> None:
        if self._folders.find(tenant) is not None:
            return
        path = self._folders.path(tenant)
        with self._writing, self._folders.writing(path), self._folders.mapped(path):
            if (path / VERSION).exists():
                return
            with opened(path / _LEDGER) as ledger:
                ledger.create()
            with write_session(path, self._buffer_pool) as connection:
                for statement in self._names.ddl():
                    fetch(connection, statement)

    def upsert(self, tenant: str, nodes: pa.Table, edges: pa.Table) -> WriteReport:
        """Write one batch: all of it or, when the process dies, nothing that counts as loaded."""
        if not nodes.num_rows:
            return WriteReport()
        self.prepare(tenant)
        path = self._folders.path(tenant)
        with self._writing, self._folders.writing(path), self._folders.mapped(path):
            return self._write(path, nodes, edges)

    def _write(self, path: Path, nodes: pa.Table, edges: pa.Table) -> WriteReport:
        with opened(path / _LEDGER) as ledger:
            before = ledger.rows(nodes["row_key"].unique().to_pylist())
            fresh, stale = admitted_rows(nodes, {key: row.stamp for key, row in before.items()})
            if not fresh.num_rows:
                return WriteReport(stale=stale)
            rows = ledger_rows(fresh)
            owned = owned_edges(rows, edges)
            risen = [Ref(r.entity, r.id) for r in rows if r.live and not (r.key in before and before[r.key].live)]
            ledger.journal(owned)
            relinking = ledger.book(rows, owned, risen)
            with write_session(path, self._buffer_pool) as connection:
                GraphBatch(connection, self._names).apply(fresh, before, relinking)
            ledger.commit()
        return WriteReport(written=fresh.num_rows, stale=stale)

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport:
        return self.upsert(tenant, tombstone_rows(tenant, tombstones, self._schema), edge_schema().empty_table())

    def hashes(self, tenant: str, keys: Sequence[str]) -> dict[str, str]:
        path = self._folders.find(tenant)
        if path is None:
            return {}
        with self._folders.mapped(path), opened(path / _LEDGER) as ledger:
            return {key: row.hash for key, row in ledger.rows(list(dict.fromkeys(keys))).items()}

    def finish(self, tenant: str) -> None:
        """Every write is a checkpoint already; drop all versions but this and the one before it."""
        path = self._folders.find(tenant)
        if path is not None:
            with self._writing, self._folders.writing(path):
                self._folders.drop_outdated(tenant)

    # ---- reading ----

    async def neighbours(self, query: NeighbourQuery, *, timeout_s: float | None = None) -> Neighbours:
        path = self._folders.path(query.caller.tenant)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return await self._threads.run(str(path), timeout_s, lambda: self._neighbours(query, deadline))

    async def traverse(
        self, caller: Caller, query: str, params: Mapping[str, Json], *, limit: int, timeout_s: float
    ) -> list[dict[str, Json]]:
        """Labels, relations and filterable fields keep their names; `id` is the row's id. Live rows only."""
        if caller.scope is not None:
            raise Forbidden("graph_traverse cannot be confined to a scope: use a credential of the whole tenant")
        bounded = bounded_cypher(query, limit)
        # The engine would take a parameter that nobody gave for a null and find nothing.
        if missing := parameters(query) - params.keys():
            raise InvalidRequest(f"graph query: no value for ${', $'.join(sorted(missing))} in params")
        path = self._folders.path(caller.tenant)
        return await self._threads.run(
            str(path), timeout_s, lambda: self._traverse(caller.tenant, bounded, params, timeout_s)[:limit]
        )

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        address = str(self._folders.path(tenant))
        return await self._threads.run(address, timeout_s, lambda: self._count(tenant))

    async def health(self, *, timeout_s: float | None = None) -> None:
        await self._threads.run(str(self._folders.root), timeout_s, self._folders.check)

    async def close(self) -> None:
        self._threads.close()
        self._readers.close()

    # ---- on the adapter's threads ----

    def _count(self, tenant: str) -> dict[str, int]:
        path = self._folders.find(tenant)
        if path is None:
            return {}
        with self._folders.mapped(path), opened(path / _LEDGER) as ledger:
            return ledger.count()

    def _neighbours(self, query: NeighbourQuery, deadline: float | None) -> Neighbours:
        path = self._folders.loaded(query.caller.tenant)
        found: defaultdict[Ref, set[Link]] = defaultdict(set)
        degree: defaultdict[Ref, int] = defaultdict(int)
        left = None if deadline is None else max(0.001, deadline - time.monotonic())
        with engine_errors(path), self._readers.connection(path, left) as connection:
            for step in dict.fromkeys(query.steps):
                sources = sorted({source for source in query.sources if source.entity == step.source})
                asked = hop(self._names, step, query.where, query.caller.scope)
                for source, ids, total in _reached(connection, asked, sources, query.fanout):
                    found[source].update(Link(source, step.rel, Ref(step.target, i), step.reverse) for i in ids)
                    degree[source] += total
        links = [link for source in sorted(found) for link in sorted(found[source], key=_order)[: query.fanout]]
        return Neighbours(tuple(links), dict(degree), any(total > query.fanout for total in degree.values()))

    def _traverse(self, tenant: str, query: str, params: Mapping[str, Json], timeout_s: float) -> list[dict[str, Json]]:
        path = self._folders.loaded(tenant)
        with engine_errors(path), self._readers.connection(path, timeout_s) as connection:
            try:
                result = connection.execute(query, dict(params))
            except RuntimeError as error:
                if "Interrupted" in str(error) or "Buffer manager" in str(error):
                    raise
                raise InvalidRequest(f"graph query: {error}") from error
            try:
                names = result.get_column_names()
                return [dict(zip(names, map(_json, row), strict=True)) for row in result.get_all()]
            finally:
                result.close()


def _order(link: Link) -> tuple[str, Ref, bool]:
    return link.rel, link.target, link.reverse


def _reached(
    connection: ladybug.Connection, asked: Hop, sources: Sequence[Ref], fanout: int
) -> list[tuple[Ref, list[str], int]]:
    """(source, the first target ids in order, number of targets) of every source that has any."""
    if len(sources) > _FEW_SOURCES:
        ids: defaultdict[str, list[str]] = defaultdict(list)
        for source, target in fetch(connection, asked.pairs(), {**asked.params, "ids": [s.id for s in sources]}):
            ids[source].append(target)
        return [(s, sorted(ids[s.id])[:fanout], len(ids[s.id])) for s in sources if s.id in ids]
    found = []
    statement = asked.targets(fanout + 1)
    for source in sources:
        params = {**asked.params, "id": source.id}
        targets = [row[0] for row in fetch(connection, statement, params)]
        total = len(targets) if len(targets) <= fanout else fetch(connection, asked.degree(), params)[0][0]
        if targets:
            found.append((source, targets[:fanout], total))
    return found


def _json(value: Any) -> Json:
    """A value of the engine as JSON: nodes and relations as their label and fields, times as ISO 8601."""
    if isinstance(value, Mapping):
        shown = {str(name): _json(item) for name, item in value.items() if not str(name).startswith("_")}
        for name in ("_LABEL", "_NODES", "_RELS"):
            if name in value:
                shown[name.lower()] = _json(value[name])
        return shown
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (dt.datetime, dt.date)):
        return value.isoformat()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
