"""One channel at a time, for agents that want the planes raw. Every hit is checked against the source of truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recall.asking import Deadline
from recall.errors import NotFound
from recall.hydration import hydrate
from recall.options import RecallSettings
from recall.ports import Channel, ChannelQuery, RowReader
from recall.registry import Registry
from recall.requests import GetRequest, SearchRequest, SimilarRequest
from recall.results import Candidate, Matched, SearchResult, SimilarHit
from recall.rows import Caller, Ref, Row
from recall.texts import embed_text
from recall.where import parse_where

# Rounds of asking deeper, each four times as deep, when stale hits left room for live ones.
MAX_ROUNDS = 4
DEEPER = 4


class Primitives:
    """`vector_similar`, `search` and `get`. Holds no store and no state between requests."""

    def __init__(
        self, registry: Registry, channels: Mapping[str, Channel], rows: RowReader, options: RecallSettings
    ) -> None:
        self._registry = registry
        self._channels = channels
        self._rows = rows
        self._options = options

    async def vector_similar(self, caller: Caller, request: SimilarRequest) -> tuple[SimilarHit, ...]:
        """The `k` live rows nearest in meaning, best first."""
        query = self._query(caller, request.entity, request.query, request.filters, request.k)
        live = await self._live("vector", query, request.k)
        entity = self._registry.entity(request.entity)
        hits = []
        for candidate, row in live:
            match = candidate.match
            text = embed_text(entity, row.values)[match.start : match.end] if match else ""
            matched = Matched("vector", text, match.chunk) if match and text else None
            hits.append(SimilarHit(candidate.ref.entity, candidate.ref.id, candidate.score, matched))
        return tuple(hits)

    async def search(self, caller: Caller, request: SearchRequest) -> tuple[SearchResult, ...]:
        """Live ranks offset+1 … offset+limit; pages never overlap."""
        wanted = request.offset + request.limit
        query = self._query(caller, request.entity, request.query, request.filters, wanted)
        live = await self._live("search", replace(query, highlight=True), wanted)
        return tuple(
            SearchResult(
                candidate.ref.entity,
                candidate.ref.id,
                rank,
                candidate.score,
                candidate.match.highlights if candidate.match else (),
            )
            for rank, (candidate, _) in enumerate(live, 1)
            if rank > request.offset
        )

    async def get(self, caller: Caller, request: GetRequest) -> Row:
        """The row; NotFound when there is none that this caller may see."""
        self._registry.entity(request.entity)
        timeout_s = self._options.hydrate_timeout_ms / 1000
        found = await self._rows.get_many(caller, request.entity, [request.id], timeout_s=timeout_s)
        if request.id not in found:
            raise NotFound(f"no {request.entity} with id {request.id!r}")
        return found[request.id]

    def _query(
        self, caller: Caller, entity: str, text: str, filters: Mapping[str, object] | None, limit: int
    ) -> ChannelQuery:
        where = parse_where(filters, {entity: self._registry.entity(entity).filter_fields})
        return ChannelQuery(caller, text, (entity,), limit, where)

    async def _live(self, channel: str, query: ChannelQuery, wanted: int) -> list[tuple[Candidate, Row]]:
        """The first `wanted` candidates with a live row that passes the filter; asks deeper while others hide them."""
        deadline = Deadline(self._options.timeout_ms / 1000)
        rows: dict[Ref, Row] = {}
        live: list[tuple[Candidate, Row]] = []
        for _ in range(MAX_ROUNDS):
            timeout_s = min(self._options.channel_timeout_ms / 1000, deadline.left())
            answer = await self._channels[channel].search(replace(query, timeout_s=timeout_s))
            unread = [candidate.ref for candidate in answer.candidates if candidate.ref not in rows]
            hydrated = await hydrate(self._rows, query.caller, unread, query.where, deadline.left())
            for failure in hydrated.failures.values():
                raise failure
            rows |= hydrated.rows
            live = [(one, rows[one.ref]) for one in answer.candidates if one.ref in rows][:wanted]
            if len(live) == wanted or answer.exhausted:
                break
            query = replace(query, limit=query.limit * DEEPER)
        return live
