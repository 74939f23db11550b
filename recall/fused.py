"""`recall_fused`, mode `compat`: the published vector + graph ranking over memories, reproduced exactly.

pool = nearest rows; seed = the best of them; reached = rows that a walk over outgoing edges from the seed finds;
fused_score = max(cos, 0) / max(best pool cos, 1e-9) + graph_boost · weight. asyncio only; sees channels and rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from recall.asking import Deadline, ask, ask_channel, warnings
from recall.channels import idf
from recall.hydration import hydrate
from recall.options import RecallSettings
from recall.ports import Channel, ChannelQuery, GraphWalker, RowReader
from recall.registry import Entity, Registry
from recall.requests import FusedRequest
from recall.results import (
    Candidate,
    Contribution,
    Degraded,
    DegradedCode,
    Explain,
    FusedAnswer,
    Memory,
    PathStep,
    Walk,
    WalkedNode,
)
from recall.rows import Caller, Json, Ref, Row
from recall.texts import embed_text
from recall.timeline import timeline
from recall.where import Where, parse_where

MIN_POOL, MAX_POOL = 64, 1000
# Relation by which a memory and a hub (a row of another entity) are connected; idf applies to these links only.
MENTIONS = "mentions"


@dataclass(frozen=True, slots=True)
class _Question:
    caller: Caller
    request: FusedRequest
    entity: Entity
    where: Where | None
    deadline: Deadline


@dataclass(slots=True)
class _Reach:
    """What the walk found: nodes at their least hop in visiting order, and how it was cut or failed."""

    nodes: dict[Ref, WalkedNode] = field(default_factory=dict)
    population: Mapping[str, int] = field(default_factory=dict)
    truncated: bool = False
    degraded: tuple[Degraded, ...] = ()


class FusedRecall:
    """Answers `recall_fused`. Holds no store and no state between requests."""

    def __init__(
        self, registry: Registry, channels: Mapping[str, Channel], rows: RowReader, options: RecallSettings
    ) -> None:
        self._registry = registry
        self._channels = channels
        self._rows = rows
        self._options = options

    async def recall(self, caller: Caller, request: FusedRequest) -> FusedAnswer:
        """Memories, most relevant first. A blank query finds nothing; a failing graph is reported, not raised."""
        entity = self._registry.entity(request.entity)
        where = parse_where(request.where, {entity.name: entity.filter_fields})
        if not request.query.strip():
            return _answer(request, [], _Reach())
        question = _Question(caller, request, entity, where, Deadline(self._options.timeout_ms / 1000))
        pool, rows = await self._pool(question)
        reach = await self._reach(question, pool[0].ref, rows) if pool else _Reach()
        ranked = _rank(question, pool, reach, rows)
        return _answer(request, ranked[: request.limit], reach)

    async def _pool(self, question: _Question) -> tuple[list[Candidate], dict[Ref, Row]]:
        """The best `depth` hits that are live and pass the filter, fetched deeper while filtered rows hide others."""
        depth = min(MAX_POOL, max(MIN_POOL, 8 * question.request.limit))
        fetch = depth
        while True:
            query = ChannelQuery(
                question.caller, question.request.query, (question.entity.name,), fetch, question.where
            )
            asked = await ask_channel("vector", self._channels["vector"], query, self._timeout(question))
            if asked.answer is None:
                assert asked.error is not None
                raise asked.error
            found = asked.answer.candidates
            rows = await self._live(question, [candidate.ref for candidate in found])
            pool = [candidate for candidate in found if candidate.ref in rows]
            if len(pool) >= depth or asked.answer.exhausted or fetch >= MAX_POOL:
                return pool[:depth], rows
            fetch = min(MAX_POOL, fetch * 4)

    async def _live(self, question: _Question, refs: Sequence[Ref]) -> dict[Ref, Row]:
        timeout_s = min(self._options.hydrate_timeout_ms / 1000, question.deadline.left())
        hydrated = await hydrate(self._rows, question.caller, refs, question.where, timeout_s)
        for failure in hydrated.failures.values():
            raise failure
        return {ref: row for ref, row in hydrated.rows.items() if _passes(question.request.filter, row)}

    async def _reach(self, question: _Question, seed: Ref, rows: dict[Ref, Row]) -> _Reach:
        """Walk hop by hop from `seed`, adding live rows of the entity to `rows`.

        One hop at a time, because metadata filters are only known on hydrated rows, and a walk must not pass through
        a row that fails them (unless `filter_scope` is `result`).
        """
        request, reach = question.request, _Reach()
        paths: dict[Ref, tuple[PathStep, ...]] = {seed: (PathStep("", False, seed),)}
        frontier: tuple[Ref, ...] = (seed,)
        hops = request.hops if request.graph_boost != 0 and "graph" in self._channels else 0
        for hop in range(1, hops + 1):
            if not frontier or len(reach.nodes) >= self._options.graph.max_nodes:
                break
            step = await self._step(question, frontier, reach)
            fresh = [node for node in step.nodes if node.ref not in paths]
            rows |= await self._live(question, [n.ref for n in fresh if self._is_memory(n, question)])
            following: list[Ref] = []
            for node in fresh:
                paths[node.ref] = (*paths[node.path[0].ref], *node.path[1:])
                reach.nodes[node.ref] = WalkedNode(node.ref, hop, node.via, paths[node.ref])
                if node.ref in rows or not self._is_memory(node, question) or request.filter_scope == "result":
                    following.append(node.ref)
            frontier = tuple(following)
        return reach

    async def _step(self, question: _Question, frontier: tuple[Ref, ...], reach: _Reach) -> Walk:
        graph = cast(GraphWalker, self._channels["graph"])
        query = ChannelQuery(
            question.caller,
            question.request.query,
            (question.entity.name,),
            self._options.graph.max_nodes,
            seeds=frontier,
        )
        asked = await ask("graph", lambda left: graph.walk(query), self._timeout(question))
        if asked.answer is None:
            reach.degraded = (asked.degraded,) if asked.degraded else ()
            return Walk()
        reach.population = asked.answer.population or reach.population
        if asked.answer.truncated:
            reach.truncated = True
            reach.degraded = (Degraded("graph", DegradedCode.GRAPH_TRUNCATED, "width limit reached"),)
        return asked.answer

    def _is_memory(self, node: WalkedNode, question: _Question) -> bool:
        return node.ref.entity == question.entity.name

    def _timeout(self, question: _Question) -> float:
        return min(self._options.channel_timeout_ms / 1000, question.deadline.left())


def _passes(wanted: Mapping[str, Json] | None, row: Row) -> bool:
    """Exact, type-strict match of metadata; a missing key never matches."""
    if not wanted:
        return True
    metadata = _metadata(row)
    return all(name in metadata and _same(metadata[name], value) for name, value in wanted.items())


def _same(left: Json, right: Json) -> bool:
    return type(left) is type(right) and left == right


def _metadata(row: Row) -> Mapping[str, Json]:
    """The row's `metadata` object where it has one, else all its columns."""
    metadata = row.values.get("metadata", row.values)
    return metadata if isinstance(metadata, Mapping) else {}


def _rank(question: _Question, pool: Sequence[Candidate], reach: _Reach, rows: Mapping[Ref, Row]) -> list[Memory]:
    """The published formula; stable order by fused score, ties by pool order, then by walk order."""
    request = question.request
    best = max((candidate.score for candidate in pool), default=0.0)
    cosines = {candidate.ref: candidate.score for candidate in pool}
    reached = [node for node in reach.nodes.values() if node.ref in rows and node.ref.entity == question.entity.name]
    nodes = {node.ref: node for node in reached}
    memories = []
    for ref in dict.fromkeys([*cosines, *nodes]):
        vector = max(cosines.get(ref, 0.0), 0.0) / max(best, 1e-9)
        node = nodes.get(ref)
        graph = request.graph_boost * _weight(node, question.entity.name, reach.population) if node else 0.0
        memories.append(
            Memory(
                id=ref.id,
                content=embed_text(question.entity, rows[ref].values),
                metadata=_metadata(rows[ref]),
                score=cosines.get(ref, 0.0),
                fused_score=vector + graph,
                channels=tuple(["graph"] * (node is not None) + ["vector"] * (ref in cosines)),
                hop=node.hop if node else None,
                path=node.path if node else (),
                explain=_explain(pool, ref, vector, graph, node) if request.explain else None,
            )
        )
    return sorted(memories, key=lambda memory: -memory.fused_score)


def _weight(node: WalkedNode, entity: str, population: Mapping[str, int]) -> float:
    """1 for a row reached by a direct link, else the largest idf of a hub whose `mentions` link reached it."""
    if any(via.source.entity == entity for via in node.via):
        return 1.0
    hubs = [idf(via.degree, population.get(entity, 0)) for via in node.via if via.rel == MENTIONS]
    return max(hubs, default=0.0)


def _explain(pool: Sequence[Candidate], ref: Ref, vector: float, graph: float, node: WalkedNode | None) -> Explain:
    rank = next((candidate.rank for candidate in pool if candidate.ref == ref), 0)
    shares = [Contribution("graph", node.hop, graph, graph)] if node else []
    if rank:
        shares.append(Contribution("vector", rank, vector, vector))
    return Explain(tuple(shares), node.path if node else ())


def _answer(request: FusedRequest, memories: list[Memory], reach: _Reach) -> FusedAnswer:
    answer = FusedAnswer(
        memories=tuple(memories),
        truncated=reach.truncated,
        warnings=warnings(reach.degraded),
        degraded=reach.degraded,
    )
    if request.date_field is None:
        return answer
    dated = timeline([(memory.content, memory.metadata.get(request.date_field)) for memory in memories])
    return replace(answer, undated=dated.undated, dated_context=dated.dated_context, now=dated.now)
