"""The search plane in memory: BM25 over the terms of `recall.analysis`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from recall.analysis import highlights, index_terms, query_terms
from recall.keys import store_key
from recall.planes.bm25 import TermIndex
from recall.planes.memory_records import MemoryPlane, Record, newest, read_record, visible
from recall.planes.opening import PlaneContext
from recall.ports import SearchHit, SearchQuery, WriteReport
from recall.rows import Tombstone

if TYPE_CHECKING:
    import pyarrow as pa


class MemorySearch(MemoryPlane[str]):
    def __init__(self, context: PlaneContext) -> None:
        super().__init__(context, "search (memory)")
        self._indexes: dict[str, TermIndex] = {}

    def upsert(self, tenant: str, table: pa.Table) -> WriteReport:
        rows = table.to_pylist()
        return self._put(
            tenant, newest((row["row_key"], read_record(row, self._registry, row["text"])) for row in rows)
        )

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport:
        return self._put(tenant, self._records.tombs(tenant, tombstones))

    def _put(self, tenant: str, records: dict[str, Record[str]]) -> WriteReport:
        fresh, report = self._records.put(tenant, records)
        index = self._indexes.setdefault(tenant, TermIndex())
        for key in fresh:
            record = records[key]
            if record.live:
                index.put(key, index_terms(record.content or ""))
            else:
                index.drop(key)
        return report

    async def search(self, query: SearchQuery, *, timeout_s: float | None = None) -> list[SearchHit]:
        self._records.check_deadline(timeout_s)
        tenant = query.caller.tenant
        stored = self._records.loaded(tenant)
        terms = query_terms(query.text)
        scores = self._indexes[tenant].scores(terms) if tenant in self._indexes else {}
        hits = [
            (-score, stored[key].ref)
            for key, score in scores.items()
            if stored[key].ref.entity in query.entities and visible(stored[key], query.caller, query.where)
        ]
        page = sorted(hits)[query.offset : query.offset + query.limit]
        records = [stored[store_key(tenant, ref.entity, ref.id)] for _, ref in page]
        return [
            SearchHit(record.ref, -negative, record.version, self._highlights(record, terms, query))
            for (negative, _), record in zip(page, records, strict=True)
        ]

    def _highlights(self, record: Record[str], terms: Sequence[str], query: SearchQuery) -> tuple[str, ...]:
        return highlights(record.content or "", frozenset(terms)) if query.highlight else ()
