"""Vector plane in a Milvus server: a collection per index version, all tenants in one or one for each.

Reads are asynchronous and confined to the tenant inside the server; what the server's expressions cannot say (infix
and case-blind LIKE) is resolved exactly by reading the column first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pymilvus import MilvusClient

from recall.digest.nodes import DIGEST
from recall.errors import IndexMissing, ModelMismatch, TransientStoreError
from recall.keys import check_tenant, chunk_key, store_key
from recall.planes.chunks import check_query_vector, tombstone_table
from recall.planes.likes import matching_values
from recall.planes.milvus_filters import expression, flag, one_of, unresolved
from recall.planes.milvus_schema import Marker, MilvusLayout, confined
from recall.planes.milvus_session import STORE, MilvusSession
from recall.planes.milvus_writing import MilvusWriter, read_marker
from recall.planes.opening import PlaneContext
from recall.ports import VectorHit, VectorQuery, WriteReport
from recall.rows import Caller, Ref, Tombstone
from recall.settings import MilvusSettings
from recall.where import Condition, Where

T = TypeVar("T")
_HIT_FIELDS = ["entity", "id", "ordinal", "start", "end", "version"]
_TIE_MARGIN = 16
# The largest page of a server.
_MAX_PAGE = 16_384
_KEYS_PER_READ = 1_000
_VALUES_PER_READ = 5_000
# Servers compute one and the same vector to slightly different cosines before and after it is indexed.
_DIGITS = 6


class MilvusVectors:
    """`VectorStore` on Milvus. Connects on first use; its asynchronous client belongs to the loop that reads."""

    max_writers: int | None = None

    def __init__(self, settings: MilvusSettings, context: PlaneContext) -> None:
        self._settings = settings
        self._context = context
        self._layout = MilvusLayout(settings, context)
        self._session = MilvusSession(settings)
        self._writer = MilvusWriter(settings, context, self._layout, self._session)
        self._finished: set[str] = set()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="milvus")

    # ---- writing ----

    def prepare(self, tenant: str) -> None:
        self._writer.prepare(check_tenant(tenant))

    def upsert(self, tenant: str, table: pa.Table) -> WriteReport:
        """Write chunk records; rows with a zero, NaN or missing vector come back as permanent failures."""
        return self._writer.write(check_tenant(tenant), table)

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport:
        return self._writer.write(check_tenant(tenant), tombstone_table(tenant, tombstones, self._writer.schema))

    def hashes(self, tenant: str, keys: Sequence[str]) -> dict[str, str]:
        return self._writer.hashes(check_tenant(tenant), keys)

    def finish(self, tenant: str) -> None:
        self._writer.finish(check_tenant(tenant))

    # ---- reading ----

    async def search(self, query: VectorQuery, *, timeout_s: float | None = None) -> list[VectorHit]:
        return await self._within(timeout_s, self._search(query))

    async def get(
        self, caller: Caller, refs: Sequence[Ref], *, timeout_s: float | None = None
    ) -> dict[Ref, np.ndarray]:
        return await self._within(timeout_s, self._get(caller, refs))

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        return await self._within(timeout_s, self._count(tenant))

    async def health(self, *, timeout_s: float | None = None) -> None:
        timeout = self._settings.read_timeout_s
        await self._within(timeout_s, self._session.ask("", lambda client: client.list_collections(timeout=timeout)))

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        await self._session.close()

    # ---- reads ----

    async def _search(self, query: VectorQuery) -> list[VectorHit]:
        collection = await self._resolve(query.caller.tenant)
        check_query_vector(query.vector, self._context.model, f"{STORE} at {self._session.address}")
        if not query.entities or query.limit < 1:
            return []
        base = f"{confined(query.caller.tenant, query.caller.scope)} and {one_of('entity', query.entities)}"
        where = await self._where(collection, base, query.where)
        limit = min(query.limit, _MAX_PAGE)
        wanted = min(limit + _TIE_MARGIN, _MAX_PAGE)
        hits = await self._nearest(collection, where, query.vector, wanted)
        while len(hits) == wanted < _MAX_PAGE and hits[-1].score == hits[limit - 1].score:
            wanted = min(wanted * 4, _MAX_PAGE)
            hits = await self._nearest(collection, where, query.vector, wanted)
        return hits[:limit]

    async def _nearest(self, collection: str, where: str, vector: np.ndarray, wanted: int) -> list[VectorHit]:
        """The `wanted` nearest chunks in the port's order; all that match when they are fewer."""
        found = await self._session.ask(
            collection,
            lambda client: client.search(
                collection,
                data=[vector.astype(np.float32).tolist()],
                anns_field="vector",
                filter=where,
                limit=wanted,
                output_fields=_HIT_FIELDS,
                search_params=self._layout.search_params(wanted),
                consistency_level=self._settings.consistency,
                timeout=self._settings.read_timeout_s,
            ),
        )
        hits = [_hit(float(hit["distance"]), hit["entity"]) for hit in found[0]]
        if len(hits) < wanted and self._settings.index.kind != "FLAT":
            hits = await self._exact(collection, where, vector, hits)
        return sorted(hits, key=lambda hit: (-hit.score, hit.ref, hit.ordinal))

    async def _exact(self, collection: str, where: str, vector: np.ndarray, hits: list[VectorHit]) -> list[VectorHit]:
        """A graph index may miss matches of a narrow filter; few rows match then, so they are all read and scored."""
        rows = await self._query(collection, where, ["count(*)"])
        count = int(rows[0]["count(*)"])
        if not len(hits) < count <= _MAX_PAGE:
            return hits
        rows = await self._query(collection, where, [*_HIT_FIELDS, "vector"], limit=_MAX_PAGE)
        return [_hit(float(np.asarray(row["vector"], np.float32) @ vector), row) for row in rows]

    async def _get(self, caller: Caller, refs: Sequence[Ref]) -> dict[Ref, np.ndarray]:
        collection = await self._resolve(caller.tenant)
        base = confined(caller.tenant, caller.scope)
        keys = [store_key(caller.tenant, ref.entity, ref.id) for ref in refs]
        firsts = await self._by_key(collection, base, [chunk_key(key, 0) for key in keys], ["row_key", "chunks"])
        every = [chunk_key(row["row_key"], ordinal) for row in firsts for ordinal in range(row["chunks"])]
        chunks: dict[Ref, list[tuple[int, list[float]]]] = {}
        for row in await self._by_key(collection, base, every, ["entity", "id", "ordinal", "vector"]):
            chunks.setdefault(Ref(row["entity"], row["id"]), []).append((row["ordinal"], row["vector"]))
        return {
            ref: np.asarray([vector for _, vector in sorted(found, key=lambda pair: pair[0])], np.float32)
            for ref, found in chunks.items()
        }

    async def _by_key(self, collection: str, base: str, keys: Sequence[str], fields: list[str]) -> list[dict[str, Any]]:
        parts = [keys[first : first + _KEYS_PER_READ] for first in range(0, len(keys), _KEYS_PER_READ)]
        wheres = [f"{base} and {one_of('key', part)}" for part in parts]
        return [row for where in wheres for row in await self._query(collection, where, fields)]

    async def _count(self, tenant: str) -> dict[str, int]:
        check_tenant(tenant)
        try:
            collection = await self._resolve(tenant)
        except IndexMissing:
            return {}
        entities = sorted({*self._context.registry.entities, DIGEST})
        base = f"{confined(tenant, None)} and ordinal == 0"
        wheres = [f"{base} and {one_of('entity', [entity])}" for entity in entities]
        answers = await asyncio.gather(*(self._query(collection, where, ["count(*)"]) for where in wheres))
        counts = {entity: int(rows[0]["count(*)"]) for entity, rows in zip(entities, answers, strict=True)}
        return {entity: count for entity, count in counts.items() if count}

    async def _where(self, collection: str, base: str, where: Where | None) -> str:
        if where is None:
            return base
        resolved = {
            condition: matching_values(condition, await self._values(collection, base, condition))
            for condition in unresolved(where)
        }
        return f"{base} and {expression(where, resolved)}"

    async def _values(self, collection: str, base: str, condition: Condition) -> set[str]:
        """Distinct values of the condition's column among the records of `base`."""
        column = condition.column
        where = f"{base} and {flag(column)} == true"

        def read(client: MilvusClient) -> set[str]:
            pages = client.query_iterator(
                collection,
                batch_size=_VALUES_PER_READ,
                filter=where,
                output_fields=[column],
                consistency_level=self._settings.consistency,
                timeout=self._settings.read_timeout_s,
            )
            found: set[str] = set()
            while page := pages.next():
                found.update(row[column] for row in page)
            pages.close()
            return found

        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: self._session.call(read))

    async def _query(self, collection: str, where: str, fields: list[str], **arguments: Any) -> list[dict[str, Any]]:
        return await self._session.ask(
            collection,
            lambda client: client.query(
                collection,
                filter=where,
                output_fields=fields,
                consistency_level=self._settings.consistency,
                timeout=self._settings.read_timeout_s,
                **arguments,
            ),
        )

    # ---- which collection answers ----

    async def _resolve(self, tenant: str) -> str:
        """The collection that answers for the tenant: its own once finished, else the last finished of the same model.

        Raises IndexMissing when there is none, ModelMismatch when only another model's could answer.
        """
        own = self._layout.collection(check_tenant(tenant))
        if f"{own}/{tenant}" in self._finished:
            return own
        marker = await self._marker(own, tenant)
        if marker is not None and marker.finished:
            self._finished.add(f"{own}/{tenant}")
            return own
        others = await self._others(own, tenant)
        for other, name in others:
            if other.model == self._context.model:
                return name
        if others:
            where = f"{STORE} at {self._session.address}"
            raise ModelMismatch(str(self._context.model), str(others[0][0].model), where)
        if marker is None:
            detail = f"no index of tenant {tenant!r}; run `recall backfill`"
            raise IndexMissing(STORE, self._session.address, detail)
        return own

    async def _others(self, own: str, tenant: str) -> list[tuple[Marker, str]]:
        """Other collections in which the tenant is finished, the latest first."""
        names = await self._session.ask(own, lambda client: client.list_collections())
        others = [name for name in names if name != own and self._layout.is_version(name, tenant)]
        markers = [(await self._marker(name, tenant), name) for name in sorted(others)]
        finished = [(marker, name) for marker, name in markers if marker is not None and marker.finished]
        return sorted(finished, key=lambda pair: -pair[0].since)

    async def _marker(self, collection: str, tenant: str) -> Marker | None:
        wanted = one_of("key", [self._layout.marker_key(tenant)])
        try:
            return read_marker(await self._query(collection, wanted, ["id", "hash", "version"]))
        except IndexMissing:
            return None

    async def _within(self, timeout_s: float | None, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except TimeoutError:
            detail = f"no answer within {timeout_s:g} s; is the server up, and not overloaded?"
            raise TransientStoreError(STORE, self._session.address, detail) from None


def _hit(score: float, row: dict[str, Any]) -> VectorHit:
    rounded = round(min(1.0, max(-1.0, score)), _DIGITS)
    return VectorHit(Ref(row["entity"], row["id"]), rounded, row["ordinal"], row["start"], row["end"], row["version"])
