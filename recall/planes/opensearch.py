"""Search plane in an OpenSearch cluster: one index for all tenants or one for each, versioned, behind aliases.

Query text goes through the index's own analysers and is never query syntax; filters are pushed down; the cluster's
total order (score, entity, id) is the ranking.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from recall.errors import IndexMissing, TerminalStoreError, TransientStoreError
from recall.keys import check_tenant
from recall.planes.folders import tombstone_rows
from recall.planes.opening import PlaneContext
from recall.planes.opensearch_analysis import query_text
from recall.planes.opensearch_filters import (
    Lookup,
    Query,
    all_of,
    conditions,
    filter_query,
    is_long,
    needs_long,
    needs_values,
    one_of,
    term,
)
from recall.planes.opensearch_schema import WINDOW, OpenSearchLayout
from recall.planes.opensearch_session import STORE, OpenSearchSession
from recall.planes.opensearch_versions import OpenSearchVersions
from recall.planes.opensearch_writing import OpenSearchWriter
from recall.ports import SearchHit, SearchQuery, WriteReport
from recall.rows import Caller, Ref, Tombstone
from recall.settings import OpenSearchSettings
from recall.where import Condition, Where, matches

T = TypeVar("T")
_ORDER = [{"_score": "desc"}, {"entity": "asc"}, {"id": "asc"}]
_HIGHLIGHT = {
    "pre_tags": ["<em>"],
    "post_tags": ["</em>"],
    "fields": {"text": {"type": "unified", "number_of_fragments": 3, "fragment_size": 160}},
}
_VALUES_PER_PAGE = 5000
# These are large.
_LONG_PER_PAGE = 100
_SNAPSHOT = "1m"
_MAX_ENTITIES = 10_000


class OpenSearchSearch:
    """`SearchStore` on OpenSearch. Connects on first use; its asynchronous client belongs to the loop that reads."""

    max_writers: int | None = None

    def __init__(self, settings: OpenSearchSettings, context: PlaneContext) -> None:
        self._layout = OpenSearchLayout(settings, context.registry)
        self._session = OpenSearchSession(settings)
        self._versions = OpenSearchVersions(self._layout, self._session, settings.refresh_interval)
        self._writer = OpenSearchWriter(settings, self._layout, self._session, self._versions)
        self._shards = settings.shards

    # ---- writing ----

    def prepare(self, tenant: str) -> None:
        self._versions.prepare(check_tenant(tenant))

    def upsert(self, tenant: str, table: pa.Table) -> WriteReport:
        """Write records of `document_schema`. What OpenSearch refuses comes back as failures, record by record."""
        return self._writer.write(check_tenant(tenant), table)

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport:
        return self._writer.write(check_tenant(tenant), tombstone_rows(tenant, tombstones, self._layout.schema))

    def hashes(self, tenant: str, keys: Sequence[str]) -> dict[str, str]:
        return self._writer.hashes(check_tenant(tenant), keys)

    def finish(self, tenant: str) -> None:
        self._versions.finish(check_tenant(tenant))

    # ---- reading ----

    async def search(self, query: SearchQuery, *, timeout_s: float | None = None) -> list[SearchHit]:
        return await self._session.within(timeout_s, self._search(query))

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        return await self._session.within(timeout_s, self._count(check_tenant(tenant)))

    async def health(self, *, timeout_s: float | None = None) -> None:
        await self._session.within(timeout_s, self._health())

    async def close(self) -> None:
        await self._session.close()

    # ---- reads ----

    async def _search(self, query: SearchQuery) -> list[SearchHit]:
        tenant = check_tenant(query.caller.tenant)
        if not query.entities or query.limit < 1:
            return []

        async def ranked(alias: str) -> list[SearchHit]:
            base = _confined(query.caller, query.entities)
            if query.where is not None:
                base = [*base, await self._where(alias, base, query.where)]
            body = _body(query, base)
            if query.offset + query.limit <= WINDOW:
                answer = await self._ask(alias, tenant, body | {"from": query.offset, "size": query.limit})
                return [self._hit(hit) for hit in answer["hits"]["hits"]]
            return await self._deep(alias, tenant, body, query)

        return await self._from_loaded(tenant, query.where, ranked)

    async def _deep(self, alias: str, tenant: str, body: dict[str, Any], query: SearchQuery) -> list[SearchHit]:
        """A page beyond the window: the ranking up to its end, read in order from one snapshot."""
        params = {"keep_alive": _SNAPSHOT, "preference": _preference(tenant)}
        opened = await self._session.ask(lambda client: client.create_pit(index=alias, params=params))
        snapshot, seen, found = opened["pit_id"], 0, list[SearchHit]()
        while seen < query.offset + query.limit:
            size = min(WINDOW, query.offset + query.limit - seen)
            paged = body | {"size": size, "pit": {"id": snapshot, "keep_alive": _SNAPSHOT}}
            answer = await self._ask(None, tenant, paged)
            hits = answer["hits"]["hits"]
            snapshot = answer.get("pit_id", snapshot)
            found += [self._hit(hit) for hit in hits[max(0, query.offset - seen) :]]
            seen += len(hits)
            if len(hits) < size:
                break
            body["search_after"] = hits[-1]["sort"]
        await self._session.ask(lambda client: client.delete_pit(body={"pit_id": [snapshot]}))
        return found

    async def _count(self, tenant: str) -> dict[str, int]:
        entities = {"terms": {"field": "entity", "size": _MAX_ENTITIES}}
        body = {"size": 0, "query": all_of(_confined(Caller(tenant), None)), "aggs": {"entities": entities}}

        async def counted(alias: str) -> dict[str, int]:
            answer = await self._ask(alias, tenant, body)
            return {each["key"]: each["doc_count"] for each in answer["aggregations"]["entities"]["buckets"]}

        try:
            return await self._from_loaded(tenant, None, counted)
        except IndexMissing:
            return {}

    async def _health(self) -> None:
        pattern = f"{self._layout.prefix}-*"
        state = await self._session.ask(lambda client: client.cluster.health(index=pattern))
        if state["status"] == "red":
            raise self._error("some primary shards are missing (status red): see GET _cluster/allocation/explain")

    # ---- which index answers ----

    async def _from_loaded(self, tenant: str, where: Where | None, work: Callable[[str], Awaitable[T]]) -> T:
        """`work` on this version of the tenant's index; while that was never finished, on the one before it."""
        try:
            return await work(self._layout.version_alias(tenant))
        except IndexMissing:
            alias = self._layout.stable_alias(tenant)
        try:
            if where is not None:
                await self._check_columns(alias, where)
            return await work(alias)
        except IndexMissing as missing:
            detail = f"no index of tenant {tenant!r}: run `recall backfill --tenant {tenant}` ({missing.detail})"
            raise IndexMissing(STORE, self._session.address, detail) from None

    async def _check_columns(self, alias: str, where: Where) -> None:
        """Raise IndexMissing when an older index lacks a column, which would silently match nothing."""
        found = await self._session.ask(lambda client: client.indices.get_mapping(index=alias))
        mapped = {column for entry in found.values() for column in entry["mappings"]["properties"]}
        if lacking := sorted({each.column for each in conditions(where)} - mapped):
            detail = f"the index that still answers has no {', '.join(lacking)}"
            raise IndexMissing(STORE, self._session.address, detail)

    # ---- filters that need an answer first ----

    async def _where(self, alias: str, base: list[Query], where: Where) -> Query:
        found: dict[Condition, Lookup] = {}
        for condition in set(conditions(where)):
            values = await self._values(alias, base, condition) if needs_values(condition) else ()
            keys = await self._long(alias, base, condition) if needs_long(condition) else ()
            found[condition] = Lookup(tuple(values), tuple(keys))
        return filter_query(where, found)

    async def _values(self, alias: str, base: list[Query], condition: Condition) -> list[str]:
        """Distinct values of the condition's column that satisfy it."""
        source = {"value": {"terms": {"field": condition.column}}}
        pages: dict[str, Any] = {"size": _VALUES_PER_PAGE, "sources": [source]}
        confined = all_of(base, but=[is_long(condition.column)])
        found: list[str] = []
        while True:
            body = {"size": 0, "query": confined, "aggs": {"values": {"composite": pages}}}
            answer = (await self._ask(alias, None, body))["aggregations"]["values"]
            values = [bucket["key"]["value"] for bucket in answer["buckets"]]
            found += [value for value in values if matches(condition, {condition.field: value})]
            if "after_key" not in answer:
                return found
            pages["after"] = answer["after_key"]

    async def _long(self, alias: str, base: list[Query], condition: Condition) -> list[str]:
        """Keys of the rows whose value is too long to be a term and satisfies the condition; mostly none."""
        body: dict[str, Any] = {
            "size": _LONG_PER_PAGE,
            "query": all_of([*base, is_long(condition.column)]),
            "sort": [{"key": "asc"}],
            "_source": ["key", f"values.{condition.column}"],
        }
        found: list[str] = []
        while True:
            hits = (await self._ask(alias, None, body))["hits"]["hits"]
            for source in (hit["_source"] for hit in hits):
                if matches(condition, {condition.field: source["values"][condition.column]}):
                    found.append(source["key"])
            if len(hits) < _LONG_PER_PAGE:
                return found
            body["search_after"] = hits[-1]["sort"]

    # ---- asking ----

    async def _ask(self, alias: str | None, tenant: str | None, body: dict[str, Any]) -> dict[str, Any]:
        """The whole answer of every shard, or an error. Without `alias` the body names a snapshot."""
        params = {"allow_partial_search_results": "false"}
        if alias is not None and tenant is not None:
            # The same copies for all pages of a tenant: copies count deleted rows differently, and so score.
            params["preference"] = _preference(tenant)
        if self._shards > 1:
            params["search_type"] = "dfs_query_then_fetch"
        answer: dict[str, Any] = await self._session.ask(
            lambda client: client.search(index=alias, body=body, params=params)
        )
        shards = answer.get("_shards", {})
        if answer.get("timed_out") or shards.get("failed") or not shards.get("total"):
            raise self._error(f"an incomplete answer (timed out or without some shards): {shards}; try again")
        return answer

    def _hit(self, hit: dict[str, Any]) -> SearchHit:
        score, entity, row_id = hit["sort"][:3]
        if not isinstance(score, int | float) or not math.isfinite(score) or score < 0:
            detail = f"score {score!r} of {entity} {row_id!r} is no BM25 score: does a search pipeline rewrite answers?"
            raise TerminalStoreError(STORE, self._session.address, detail)
        highlights = tuple(hit.get("highlight", {}).get("text", ()))
        return SearchHit(Ref(entity, row_id), float(score), hit["fields"]["version"][0], highlights)

    def _error(self, detail: str) -> TransientStoreError:
        return TransientStoreError(STORE, self._session.address, detail)


def _confined(caller: Caller, entities: Sequence[str] | None) -> list[Query]:
    """Live rows of the caller, and of `entities`."""
    parts = [term("tenant", caller.tenant), term("live", value=True)]
    if entities is not None:
        parts.append(one_of("entity", sorted(set(entities))))
    if caller.scope is not None:
        parts.append(term("scope", caller.scope))
    return parts


def _body(query: SearchQuery, confined: Sequence[Query]) -> dict[str, Any]:
    words = {"match": {"text": {"query": query_text(query.text)}}}
    body: dict[str, Any] = {
        "query": {"bool": {"must": [words], "filter": list(confined)}},
        "sort": _ORDER,
        "track_total_hits": False,
        "docvalue_fields": ["version"],
        "_source": False,
    }
    return body | ({"highlight": _HIGHLIGHT} if query.highlight else {"stored_fields": "_none_"})


def _preference(tenant: str) -> str:
    return f"recall-{tenant}"
