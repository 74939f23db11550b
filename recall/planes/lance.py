"""Vector plane in LanceDB tables on one machine: a directory per tenant, a table per index version, no server.

Reads run on the adapter's own threads. Writers of one tenant take turns under a file lock, which makes the version
gate exact; readers never wait for them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lancedb.expr import col, lit

from recall.errors import TerminalStoreError, TransientStoreError
from recall.keys import check_tenant, store_key
from recall.planes.chunks import check_query_vector, tombstone_table
from recall.planes.lance_filters import all_of, expression, has_value
from recall.planes.lance_index import STORE, IndexEntry, TenantIndexes, index_to_read, lance_errors
from recall.planes.lance_writing import LanceWriter
from recall.planes.likes import matching_values
from recall.planes.opening import PlaneContext
from recall.ports import VectorHit, VectorQuery, WriteReport
from recall.rows import Caller, Ref, Tombstone
from recall.schema import vector_schema
from recall.settings import LanceDbSettings
from recall.where import Condition

T = TypeVar("T")
# How much of the caller's time is left; None without a deadline.
Left = Callable[[], timedelta | None]
_HIT_COLUMNS = ["entity", "id", "ordinal", "start", "end", "version", "_distance"]
_TIE_MARGIN = 16
# Chunks that may tie at the cut; with more of them the cut among equals is the store's own.
_MAX_TIES = 16_384
# Beyond this many candidates a graph walk costs more than an exact scan.
_MAX_INDEXED = 2_000
_REFS_PER_READ = 1_000


class LanceVectors:
    """`VectorStore` on LanceDB. Opens nothing before its first use; keeps `settings.open_tenants` tenants open."""

    max_writers: int | None = None

    def __init__(self, settings: LanceDbSettings, context: PlaneContext) -> None:
        self._settings = settings
        self._context = context
        self._root = Path(context.data_dir) / settings.path
        self._version = context.registry.vector_version(str(context.model))
        self._schema = vector_schema(context.registry, context.model.dim)
        self._open: OrderedDict[str, TenantIndexes] = OrderedDict()
        self._guard = threading.Lock()
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="lance")
        self._writer = LanceWriter(settings, context)

    # ---- writing ----

    def prepare(self, tenant: str) -> None:
        """Create the tenant's table of this index version; raises ModelMismatch when it holds another model's."""
        self._writer.prepare(self._tenant(tenant))

    def upsert(self, tenant: str, table: pa.Table) -> WriteReport:
        """Write chunk records; rows with a zero, NaN or missing vector come back as permanent failures."""
        return self._writer.write(self._tenant(tenant), table)

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport:
        return self._writer.write(self._tenant(tenant), tombstone_table(tenant, tombstones, self._schema))

    def hashes(self, tenant: str, keys: Sequence[str]) -> dict[str, str]:
        return self._writer.hashes(self._tenant(tenant), keys)

    def finish(self, tenant: str) -> None:
        """Build indexes from `index_from` chunks on, optimise, let this version answer, drop outdated versions."""
        self._writer.finish(self._tenant(tenant))

    # ---- reading ----

    async def search(self, query: VectorQuery, *, timeout_s: float | None = None) -> list[VectorHit]:
        indexes = self._tenant(query.caller.tenant)
        return await self._read(indexes.address, timeout_s, lambda left: self._search(indexes, query, left))

    async def get(
        self, caller: Caller, refs: Sequence[Ref], *, timeout_s: float | None = None
    ) -> dict[Ref, np.ndarray]:
        indexes = self._tenant(caller.tenant)
        return await self._read(indexes.address, timeout_s, lambda left: self._get(indexes, caller, refs, left))

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        indexes = self._tenant(tenant)
        return await self._read(indexes.address, timeout_s, lambda left: self._count(indexes, left))

    async def health(self, *, timeout_s: float | None = None) -> None:
        def probe(_: Left) -> None:
            self._root.mkdir(parents=True, exist_ok=True)
            next(self._root.iterdir(), None)

        await self._read(str(self._root), timeout_s, probe)

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._guard:
            self._open.clear()

    # ---- on the adapter's threads ----

    def _search(self, indexes: TenantIndexes, query: VectorQuery, left: Left) -> list[VectorHit]:
        entry = self._entry(indexes)
        check_query_vector(query.vector, self._context.model, f"{STORE} at {indexes.address}")
        table = indexes.table(entry)
        if not query.entities or query.limit < 1:
            return []
        scan = _Scan(table, self._predicate(table, query, left), query.vector, left)
        if entry.indexed:
            scan.walk_with(self._settings.ef, self._settings.refine_factor)
        wanted = query.limit + _TIE_MARGIN
        found = scan.nearest(wanted)
        while len(found) == wanted and found[-1][0] == found[query.limit - 1][0] and wanted < query.limit + _MAX_TIES:
            wanted = min(wanted * 4, query.limit + _MAX_TIES)
            found = scan.nearest(wanted)
        hits = [_hit(distance, row) for distance, row in found]
        hits.sort(key=lambda hit: (-hit.score, hit.ref, hit.ordinal))
        return hits[: query.limit]

    def _predicate(self, table: Any, query: VectorQuery, left: Left) -> Any:
        columns = set(table.schema.names)
        parts = [col("live") == lit(True), col("entity").isin([lit(name) for name in query.entities])]
        if query.caller.scope is not None:
            parts.append(col("scope") == lit(query.caller.scope))
        confined = all_of(parts)

        def resolve(condition: Condition) -> list[str]:
            scan = table.search().where(confined & has_value(condition.column)).select([condition.column]).limit(None)
            values = pc.unique(scan.to_arrow(timeout=left())[condition.column])
            return matching_values(condition, values.to_pylist())

        return confined if query.where is None else confined & expression(query.where, columns, resolve)

    def _get(self, indexes: TenantIndexes, caller: Caller, refs: Sequence[Ref], left: Left) -> dict[Ref, np.ndarray]:
        table = indexes.table(self._entry(indexes))
        chunks: dict[Ref, list[tuple[int, np.ndarray]]] = {}
        for first in range(0, len(refs), _REFS_PER_READ):
            keys = [lit(store_key(caller.tenant, ref.entity, ref.id)) for ref in refs[first : first + _REFS_PER_READ]]
            confined = (col("live") == lit(True)) & col("row_key").isin(keys)
            if caller.scope is not None:
                confined = confined & (col("scope") == lit(caller.scope))
            scan = table.search().where(confined).select(["entity", "id", "ordinal", "vector"]).limit(None)
            for row in scan.to_arrow(timeout=left()).to_pylist():
                vector = np.asarray(row["vector"], dtype=np.float32)
                chunks.setdefault(Ref(row["entity"], row["id"]), []).append((row["ordinal"], vector))
        return {
            ref: np.stack([vector for _, vector in sorted(found, key=lambda p: p[0])]) for ref, found in chunks.items()
        }

    def _count(self, indexes: TenantIndexes, left: Left) -> dict[str, int]:
        if not indexes.entries:
            return {}
        first = (col("live") == lit(True)) & (col("ordinal") == lit(0))
        found = (
            indexes.table(self._entry(indexes))
            .search()
            .where(first)
            .select(["entity"])
            .limit(None)
            .to_arrow(timeout=left())
        )
        counts = pc.value_counts(found["entity"]).to_pylist()
        return {entry["values"]: entry["counts"] for entry in sorted(counts, key=lambda entry: entry["values"])}

    # ---- shared ----

    def _entry(self, indexes: TenantIndexes) -> IndexEntry:
        return index_to_read(indexes.entries, self._version, self._context.model, indexes.address)

    def _tenant(self, tenant: str) -> TenantIndexes:
        check_tenant(tenant)
        with self._guard:
            indexes = self._open.pop(tenant, None) or TenantIndexes(self._root / tenant)
            self._open[tenant] = indexes
            while len(self._open) > self._settings.open_tenants:
                self._open.popitem(last=False)
            return indexes

    async def _read(self, address: str, timeout_s: float | None, work: Callable[..., T]) -> T:
        """Run `work` on the adapter's threads; it gets a function that tells how much time is left."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        def left() -> timedelta | None:
            return None if deadline is None else timedelta(seconds=max(0.001, deadline - time.monotonic()))

        def mapped() -> T:
            with lance_errors(address):
                return work(left)

        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, mapped)
        except RuntimeError as error:
            raise TerminalStoreError(STORE, address, f"the store is closed ({error})") from None
        try:
            return await asyncio.wait_for(running, timeout_s)
        except TimeoutError:
            detail = f"no answer within {timeout_s:g} s; the disk or the processor is overloaded"
            raise TransientStoreError(STORE, address, detail) from None


class _Scan:
    """Nearest neighbours of one vector under one predicate: exact, unless told that there is an index to walk."""

    def __init__(self, table: Any, predicate: Any, vector: np.ndarray, left: Left) -> None:
        self._table = table
        self._predicate = predicate
        self._vector = np.ascontiguousarray(vector, dtype=np.float32)
        self._left = left
        self._walk: tuple[int, int] | None = None

    def walk_with(self, ef: int, refine_factor: int) -> None:
        self._walk = (ef, refine_factor)

    def nearest(self, wanted: int) -> list[tuple[float, dict[str, Any]]]:
        """The `wanted` nearest chunks as (distance, columns), nearest first; all that match when they are fewer."""
        if self._walk and wanted <= _MAX_INDEXED:
            ef, refine_factor = self._walk
            walk = self._search(wanted).ef(max(ef, 5 * wanted, wanted * refine_factor)).refine_factor(refine_factor)
            found = self._run(walk)
            # A walk may come back short under a narrow filter; then few rows match, and scanning them is cheap.
            if len(found) == wanted:
                return found
        return self._run(self._search(wanted).bypass_vector_index())

    def _search(self, wanted: int) -> Any:
        search = self._table.search(self._vector, vector_column_name="vector").distance_type("cosine")
        return search.where(self._predicate, prefilter=True).select(_HIT_COLUMNS).limit(wanted)

    def _run(self, search: Any) -> list[tuple[float, dict[str, Any]]]:
        rows = search.to_arrow(timeout=self._left()).to_pylist()
        return sorted(((row["_distance"], row) for row in rows), key=lambda pair: pair[0])


def _hit(distance: float, row: dict[str, Any]) -> VectorHit:
    score = min(1.0, max(-1.0, 1.0 - distance))
    return VectorHit(Ref(row["entity"], row["id"]), score, row["ordinal"], row["start"], row["end"], row["version"])
