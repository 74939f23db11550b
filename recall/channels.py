"""The three channels: each turns one plane into ranked, distinct candidates. No fusion, no hydration, no policy."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from recall.model_ports import QueryEncoder
from recall.options import GraphLimits
from recall.ports import ChannelQuery, GraphStore, SearchQuery, SearchStore, VectorHit, VectorQuery, VectorStore
from recall.registry import Registry
from recall.results import Candidate, ChannelAnswer, Match, Via, Walk
from recall.rows import Caller, Json, Ref
from recall.walk import walk

# Chunks fetched at most for one query, however many chunks the best rows have.
MAX_CHUNKS = 10_000
# How long a tenant's row counts, which only weigh idf, may be reused.
COUNTS_TTL_S = 30.0


class Remaining:
    """Time left of one channel call, shared by its successive store calls."""

    def __init__(self, timeout_s: float | None) -> None:
        self._end = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.001, self._end - asyncio.get_running_loop().time())


class VectorChannel:
    """Rows nearest in meaning. A row counts once, with its best chunk."""

    def __init__(self, store: VectorStore, encoder: QueryEncoder) -> None:
        self._store = store
        self._encoder = encoder

    async def search(self, query: ChannelQuery) -> ChannelAnswer:
        """At most `query.limit` rows by cosine of their best chunk; fetches deeper while chunks hide rows."""
        remaining = Remaining(query.timeout_s)
        vector = await self._encoder.encode(query.text, timeout_s=remaining())
        fetch = query.limit
        while True:
            question = VectorQuery(query.caller, query.entities, vector, fetch, query.where)
            hits = await self._store.search(question, timeout_s=remaining())
            rows = _best_chunks(hits)
            exhausted = len(hits) < fetch
            if exhausted or len(rows) >= query.limit or fetch >= MAX_CHUNKS:
                break
            fetch = min(fetch * 4, MAX_CHUNKS)
        candidates = tuple(
            Candidate(hit.ref, rank, hit.score, Match(hit.ordinal, hit.start, hit.end))
            for rank, hit in enumerate(rows[: query.limit], 1)
        )
        return ChannelAnswer(candidates, exhausted=exhausted and len(rows) <= query.limit)


def _best_chunks(hits: Sequence[VectorHit]) -> list[VectorHit]:
    best: dict[Ref, VectorHit] = {}
    for hit in hits:
        best.setdefault(hit.ref, hit)
    return list(best.values())


class SearchChannel:
    """Rows that share words with the query, by BM25."""

    def __init__(self, store: SearchStore) -> None:
        self._store = store

    async def search(self, query: ChannelQuery) -> ChannelAnswer:
        """Ranks offset+1 … offset+limit."""
        question = SearchQuery(
            query.caller, query.entities, query.text, query.limit, query.offset, query.where, query.highlight
        )
        hits = await self._store.search(question, timeout_s=query.timeout_s)
        candidates = tuple(
            Candidate(hit.ref, rank, hit.score, Match(highlights=hit.highlights) if hit.highlights else None)
            for rank, hit in enumerate(hits, query.offset + 1)
        )
        return ChannelAnswer(candidates, exhausted=len(hits) < query.limit)


class GraphChannel:
    """Rows linked to the seeds, nearest first; a rare connection counts more than a hub."""

    def __init__(self, store: GraphStore, registry: Registry, limits: GraphLimits) -> None:
        self._store = store
        self._registry = registry
        self._limits = limits
        self._counts: dict[str, tuple[float, Mapping[str, int]]] = {}

    async def search(self, query: ChannelQuery) -> ChannelAnswer:
        """Order: hop, seed rank, relation weight (idf of the connecting node's degree) desc, ref.

        A candidate's score is its relation weight · 0.5^(hop-1), in [0, 1].
        """
        found = await self.walk(query)
        seed_rank = {seed: position for position, seed in enumerate(query.seeds)}
        population = sum(found.population.values())
        asked = frozenset(query.entities)
        ranked = sorted(
            (node.hop, seed_rank[node.path[0].ref], -relation_weight(node.via, population), node.ref, node)
            for node in found.nodes
            if node.passes and self._returnable(node.ref, asked)
        )
        candidates = tuple(
            Candidate(ref, rank, -weight * 0.5 ** (hop - 1), path=node.path)
            for rank, (hop, _, weight, ref, node) in enumerate(ranked[: query.limit], 1)
        )
        return ChannelAnswer(candidates, found.truncated, exhausted=len(ranked) <= query.limit)

    async def walk(self, query: ChannelQuery) -> Walk:
        """The bare walk, with row counts by entity for idf weights."""
        found = await walk(self._store, self._registry, query, self._limits)
        counts = await self._population(query) if found.nodes else {}
        return Walk(found.nodes, found.truncated, counts)

    async def traverse(
        self, caller: Caller, query: str, params: Mapping[str, Json], *, limit: int, timeout_s: float
    ) -> list[dict[str, Json]]:
        """Run a query that passed the read-only guard; the store confines it to the tenant."""
        return await self._store.traverse(caller, query, params, limit=limit, timeout_s=timeout_s)

    async def _population(self, query: ChannelQuery) -> Mapping[str, int]:
        now = asyncio.get_running_loop().time()
        tenant = query.caller.tenant
        known = self._counts.get(tenant)
        if known is None or known[0] < now:
            known = (now + COUNTS_TTL_S, await self._store.count(tenant, timeout_s=query.timeout_s))
            self._counts[tenant] = known
        return known[1]

    def _returnable(self, ref: Ref, asked: frozenset[str]) -> bool:
        return ref.entity in asked or not self._registry.entity(ref.entity).spec.bridge


def idf(degree: int, population: int) -> float:
    """ln(n/degree) / ln(n) clamped to [0, 1]: 1 for a node with one link, 0 for one linked with everything."""
    if population <= 1:
        return 1.0
    return min(1.0, max(0.0, math.log(population / max(degree, 1)) / math.log(population)))


def relation_weight(via: Sequence[Via], population: int) -> float:
    """The best idf among the nodes that a row was reached from."""
    return max(idf(link.degree, population) for link in via)
