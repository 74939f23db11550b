"""The graph plane in memory: adjacency by relation, edges counted by the rows that declare them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from recall.errors import Forbidden
from recall.keys import store_key
from recall.planes.memory_records import MemoryPlane, Record, newest, read_record, visible
from recall.planes.opening import PlaneContext
from recall.ports import Link, NeighbourQuery, Neighbours, WriteReport
from recall.registry import Step
from recall.rows import Caller, Json, Ref, Tombstone

if TYPE_CHECKING:
    import pyarrow as pa

# Source, relation, target.
Triple = tuple[Ref, str, Ref]


class MemoryGraph(MemoryPlane[frozenset[Triple]]):
    def __init__(self, context: PlaneContext) -> None:
        super().__init__(context, "graph (memory)")
        self._adjacency: dict[str, _Adjacency] = {}

    def upsert(self, tenant: str, nodes: pa.Table, edges: pa.Table) -> WriteReport:
        owned: dict[tuple[str, int], set[Triple]] = {}
        for edge in edges.to_pylist():
            source, target = (
                Ref(edge["source_entity"], edge["source_id"]),
                Ref(edge["target_entity"], edge["target_id"]),
            )
            owned.setdefault((edge["owner"], edge["version"]), set()).add((source, edge["rel"], target))
        return self._put(
            tenant,
            newest(
                (
                    row["row_key"],
                    read_record(row, self._registry, frozenset(owned.get((row["row_key"], row["version"]), ()))),
                )
                for row in nodes.to_pylist()
            ),
        )

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport:
        return self._put(tenant, self._records.tombs(tenant, tombstones))

    def _put(self, tenant: str, records: dict[str, Record[frozenset[Triple]]]) -> WriteReport:
        fresh, report = self._records.put(tenant, records)
        adjacency = self._adjacency.setdefault(tenant, _Adjacency())
        for key in fresh:
            record = records[key]
            adjacency.replace(key, record.content if record.live and record.content else frozenset())
        return report

    async def neighbours(self, query: NeighbourQuery, *, timeout_s: float | None = None) -> Neighbours:
        self._records.check_deadline(timeout_s)
        stored = self._records.loaded(query.caller.tenant)
        adjacency = self._adjacency.get(query.caller.tenant, _Adjacency())
        links: list[Link] = []
        degree: dict[Ref, int] = {}
        for source in sorted(set(query.sources)):
            if not self._within(stored, query.caller, source):
                continue
            found = sorted(self._links(stored, adjacency, query, source), key=lambda n: (n.rel, n.target, n.reverse))
            degree[source] = len(found)
            links += found[: query.fanout]
        truncated = any(count > query.fanout for count in degree.values())
        return Neighbours(tuple(links), degree, truncated)

    def _links(
        self,
        stored: Mapping[str, Record[frozenset[Triple]]],
        adjacency: _Adjacency,
        query: NeighbourQuery,
        source: Ref,
    ) -> Iterator[Link]:
        for step in dict.fromkeys(query.steps):
            if step.source != source.entity:
                continue
            for target in adjacency.targets(source, step):
                record = stored.get(store_key(query.caller.tenant, target.entity, target.id))
                if record is not None and record.live and visible(record, query.caller, query.where):
                    yield Link(source, step.rel, target, step.reverse)

    @staticmethod
    def _within(stored: Mapping[str, Record[frozenset[Triple]]], caller: Caller, ref: Ref) -> bool:
        record = stored.get(store_key(caller.tenant, ref.entity, ref.id))
        return record is not None and record.live and visible(record, caller, None)

    async def traverse(
        self, caller: Caller, query: str, params: Mapping[str, Json], *, limit: int, timeout_s: float
    ) -> list[dict[str, Json]]:
        raise Forbidden("graph_traverse needs a graph store with a query language: the memory plane has none")


class _Adjacency:
    """Edges in both directions, each with the number of rows that declare it."""

    def __init__(self) -> None:
        self._owned: dict[str, frozenset[Triple]] = {}
        self._forward: dict[tuple[Ref, str, str], Counter[Ref]] = {}
        self._backward: dict[tuple[Ref, str, str], Counter[Ref]] = {}

    def replace(self, owner: str, edges: frozenset[Triple]) -> None:
        for edge in self._owned.pop(owner, frozenset()):
            self._add(edge, -1)
        for edge in edges:
            self._add(edge, 1)
        if edges:
            self._owned[owner] = edges

    def targets(self, ref: Ref, step: Step) -> list[Ref]:
        index = self._backward if step.reverse else self._forward
        counts = index.get((ref, step.rel, step.target), Counter())
        return [target for target, owners in counts.items() if owners > 0]

    def _add(self, edge: Triple, by: int) -> None:
        source, rel, target = edge
        self._forward.setdefault((source, rel, target.entity), Counter())[target] += by
        self._backward.setdefault((target, rel, source.entity), Counter())[source] += by
