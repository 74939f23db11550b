"""The graph plane in NebulaGraph: asynchronous reads over an own thread pool, synchronous idempotent writes.

Vertex ids are store keys, so a walk cannot leave its tenant; `dedicated` isolation gives each tenant a space, which is
what `traverse` needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from recall.errors import Forbidden, IndexMissing, InvalidRequest, TransientStoreError
from recall.keys import store_key
from recall.planes.nebula_cypher import translate
from recall.planes.nebula_pool import Sessions, Work
from recall.planes.nebula_reading import NeighbourReader
from recall.planes.nebula_schema import Schemas
from recall.planes.nebula_session import STORE, Deadline, Refused
from recall.planes.nebula_text import quoted, text
from recall.planes.nebula_writing import EdgeKey, NodeRecord, NodeWriter, edge_key, newest, read_stored
from recall.planes.opening import PlaneContext
from recall.ports import NeighbourQuery, Neighbours, WriteReport
from recall.rows import Caller, Json, Tombstone
from recall.settings import NebulaSettings

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class NebulaGraph:
    """`GraphStore` on a NebulaGraph cluster. Nothing is contacted before the first use."""

    # Any number may write as long as no two write the same rows at once, which partitioning by key sees to.
    max_writers: int | None = None

    def __init__(self, settings: NebulaSettings, context: PlaneContext) -> None:
        self._settings = settings
        self._registry = context.registry
        self._sessions = Sessions(settings)
        self._schemas = Schemas(settings, context.registry, self._sessions)
        self._writer = NodeWriter(settings, context.registry, self._sessions.address)
        self._reader = NeighbourReader(context.registry, settings.read_rows)
        self._threads = ThreadPoolExecutor(settings.pool_size, thread_name_prefix="nebula")

    # ---- writing -----------------------------------------------------------------------------------------------------

    def prepare(self, tenant: str) -> None:
        self._named(lambda: self._schemas.prepare(tenant))

    def upsert(self, tenant: str, nodes: pa.Table, edges: pa.Table) -> WriteReport:
        """Replace rows and their edges. Safe to repeat: a write that stopped half-way is completed by the next."""
        key_of = cache(lambda entity, row_id: store_key(tenant, entity, row_id))
        owned: dict[tuple[str, int], set[EdgeKey]] = {}
        for edge in edges.to_pylist():
            source = key_of(edge["source_entity"], edge["source_id"])
            target = key_of(edge["target_entity"], edge["target_id"])
            key = edge_key(edge["rel"], edge["owner"], source, target)
            owned.setdefault((edge["owner"], edge["version"]), set()).add(key)
        records = (
            NodeRecord(
                row["row_key"],
                row["entity"],
                row["id"],
                row["scope"],
                row["version"],
                row["hash"],
                row["live"],
                row,
                frozenset(owned.get((row["row_key"], row["version"]), ())),
            )
            for row in nodes.to_pylist()
        )
        return self._write(tenant, newest(records))

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport:
        return self._write(
            tenant,
            newest(
                NodeRecord(
                    store_key(tenant, t.ref.entity, t.ref.id),
                    self._registry.entity(t.ref.entity).name,
                    t.ref.id,
                    None,
                    t.version,
                    "",
                    False,
                )
                for t in tombstones
            ),
        )

    def hashes(self, tenant: str, keys: Sequence[str]) -> dict[str, str]:
        if not keys:
            return {}
        try:
            work = self._work(tenant, self._settings.timeout_ms)
            stored = read_stored(work, list(dict.fromkeys(keys)), self._settings.batch_rows, owned=False)
        except Refused as refused:
            if refused.space_missing:
                return {}
            raise refused.as_store_error(self._sessions.address) from None
        return {key: found.hash for key, found in stored.items()}

    def finish(self, tenant: str) -> None:
        """Every write is visible at once."""

    def _write(self, tenant: str, records: Sequence[NodeRecord]) -> WriteReport:
        return self._writer.write(lambda: self._work(tenant, self._settings.write_timeout_ms), tenant, records)

    # ---- reading -----------------------------------------------------------------------------------------------------

    async def neighbours(self, query: NeighbourQuery, *, timeout_s: float | None = None) -> Neighbours:
        def read(work: Work) -> Neighbours:
            self._check_loaded(work, query.caller.tenant)
            return self._reader.read(work, query)

        return await self._read(query.caller.tenant, read, timeout_s)

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        def read(work: Work) -> dict[str, int]:
            if not self._schemas.known(work, tenant):
                return {}
            counts = {}
            for name in self._registry.entities:
                rows = work.execute(self._count_statement(name, tenant))
                if rows and rows[0][0]:
                    counts[name] = int(rows[0][0])
            return counts

        return await self._read(tenant, read, timeout_s)

    async def health(self, *, timeout_s: float | None = None) -> None:
        await self._read(None, lambda work: work.execute("YIELD 1 AS ok"), timeout_s)

    async def traverse(
        self, caller: Caller, query: str, params: Mapping[str, Json], *, limit: int, timeout_s: float
    ) -> list[dict[str, Json]]:
        """Portable openCypher (MATCH …) or nGQL (GO, FETCH, LOOKUP, FIND, GET SUBGRAPH) in the tenant's own space."""
        if not self._schemas.dedicated:
            raise Forbidden(
                "graph_traverse needs a space of the tenant's own, because a shared one cannot be confined: "
                "set planes.graph.isolation to dedicated and run `recall backfill`"
            )
        translated = translate(query, params, self._registry, caller, limit)

        def read(work: Work) -> list[dict[str, Json]]:
            self._check_loaded(work, caller.tenant)
            try:
                found = work.execute_named(translated.text, translated.params)
            except Refused as refused:
                raise InvalidRequest(f"the graph query was refused: {refused.text}") from None
            names = translated.names or found.names
            # A column to sort by that was not asked for comes after those that were.
            return [
                {name: value for name, value in zip(names, row, strict=True) if not name.startswith("\0")}
                for row in found.rows[:limit]
            ]

        return await self._read(caller.tenant, read, timeout_s)

    async def close(self) -> None:
        """Sign out every session; a second call does nothing."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._sessions.close)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check_loaded(self, work: Work, tenant: str) -> None:
        if not self._schemas.known(work, tenant):
            raise IndexMissing(
                STORE,
                self._sessions.address,
                f"tenant {tenant!r} was never loaded: run `recall backfill --tenant {tenant}`",
            )

    def _count_statement(self, entity: str, tenant: str) -> str:
        if self._schemas.dedicated:
            return f"MATCH (n:{quoted(entity)}) RETURN count(n) AS n"
        tag = quoted(entity)
        return (
            f"LOOKUP ON {tag} WHERE {tag}.{quoted('tenant')} == {text(tenant)} YIELD id(vertex) AS k "
            "| YIELD count(*) AS n"
        )

    async def _read(self, tenant: str | None, read: Callable[[Work], T], timeout_s: float | None) -> T:
        seconds = self._settings.timeout_ms / 1000 if timeout_s is None else timeout_s
        if seconds <= 0:
            raise self._late("the deadline passed before the query began")
        space = None if tenant is None else self._schemas.space(tenant)
        work = Work(self._sessions, space, Deadline(seconds))
        future = asyncio.get_running_loop().run_in_executor(self._threads, lambda: self._named(lambda: read(work)))
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            raise self._late(f"no answer within {seconds:.3g} s") from None

    def _named(self, work: Callable[[], T]) -> T:
        """`work`, with a server's refusal turned into the error of this store."""
        try:
            return work()
        except Refused as refused:
            raise refused.as_store_error(self._sessions.address) from None

    def _work(self, tenant: str, timeout_ms: int) -> Work:
        return Work(self._sessions, self._schemas.space(tenant), Deadline(timeout_ms / 1000))

    def _late(self, detail: str) -> TransientStoreError:
        return TransientStoreError(STORE, self._sessions.address, f"{detail}; try again, or allow more time")
