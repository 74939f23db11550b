"""The graph plane: batched neighbours, fan-out, edges that belong to rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from recall.errors import Forbidden, InvalidRequest
from recall.planes.conformance.corpus import parsed
from recall.planes.conformance.data import AWKWARD_IDS, Edge, Record, edge_table, item, node_table
from recall.planes.conformance.filtering import FilterConformance
from recall.planes.conformance.suite import Loop
from recall.planes.conformance.writing import ALL, WriterConformance
from recall.planes.opening import PlaneContext
from recall.ports import GraphStore, Link, NeighbourQuery, Neighbours, WriteReport
from recall.registry import Step
from recall.rows import Caller, Ref, Tombstone
from recall.where import Where

HUB = Ref("place", "hub")
AT = Step("item", "AT", "place", reverse=False)
AT_BACK = Step("place", "AT", "item", reverse=True)
HAS = Step("item", "HAS", "item", reverse=False)
HAS_BACK = Step("item", "HAS", "item", reverse=True)
IN = Step("place", "IN", "place", reverse=False)
IN_BACK = Step("place", "IN", "place", reverse=True)
NEAR = Step("item", "NEAR", "place", reverse=False)
_TO_HUB = {"item": "AT", "place": "IN"}


class GraphConformance(WriterConformance, FilterConformance):
    # Whether the store has a query language that it can confine to a tenant.
    traversable: ClassVar[bool] = True

    def write(self, store: GraphStore, context: PlaneContext, tenant: str, records: Sequence[Record]) -> WriteReport:
        """Every record is linked to the hub, and to one of its own scope; their neighbours are what `find` finds."""
        store.prepare(tenant)
        scopes = sorted({record.scope for record in records if record.scope is not None})
        self.put(store, context, tenant, [Record(_hub(None)), *(Record(_hub(scope), scope=scope) for scope in scopes)])
        return self.put(store, context, tenant, [_linked(record) for record in records])

    def put(self, store: GraphStore, context: PlaneContext, tenant: str, records: Sequence[Record]) -> WriteReport:
        store.prepare(tenant)
        report = store.upsert(tenant, node_table(context.registry, tenant, records), edge_table(tenant, records))
        store.finish(tenant)
        return report

    async def find(
        self,
        store: GraphStore,
        caller: Caller,
        entities: tuple[str, ...] = ("item",),
        where: Where | None = None,
        *,
        limit: int = ALL,
        timeout_s: float | None = None,
    ) -> list[Ref]:
        steps = {"item": AT_BACK, "place": IN_BACK}
        query = NeighbourQuery(caller, (_hub(caller.scope),), tuple(steps[name] for name in entities), limit, where)
        return [link.target for link in (await store.neighbours(query, timeout_s=timeout_s)).links]

    def walk(
        self, run: Loop, store: GraphStore, tenant: str, sources: Sequence[str], *steps: Step, **options: Any
    ) -> Neighbours:
        options = {"fanout": 100, **options}
        refs = tuple(Ref(steps[0].source, source) for source in sources)
        return run(store.neighbours(NeighbourQuery(Caller(tenant), refs, steps, **options)))

    def test_one_hop_from_many_sources_over_many_relations(
        self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str
    ) -> None:
        rows = [_node("a", ("AT", "hub"), ("HAS", "b"), ("HAS", "c")), _node("b", ("HAS", "c")), _node("c")]
        self.put(store, context, tenant, [*rows, Record(HUB), _node("alone")])
        found = self.walk(run, store, tenant, ["c", "b", "a", "alone", "no such"], AT, HAS, NEAR)
        a, b, c = (Ref("item", name) for name in "abc")
        assert found.links == (
            Link(a, "AT", HUB, False),
            Link(a, "HAS", b, False),
            Link(a, "HAS", c, False),
            Link(b, "HAS", c, False),
        )
        assert {ref: n for ref, n in found.degree.items() if n} == {a: 3, b: 1}
        assert not found.truncated

    def test_edges_are_followed_backwards_only_when_asked(
        self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str
    ) -> None:
        self.put(store, context, tenant, [_node("a", ("HAS", "b"), ("AT", "hub")), _node("b"), Record(HUB)])
        a, b = Ref("item", "a"), Ref("item", "b")
        assert self.walk(run, store, tenant, ["b"], HAS).links == ()
        assert self.walk(run, store, tenant, ["b"], HAS_BACK).links == (Link(b, "HAS", a, True),)
        assert self.walk(run, store, tenant, ["hub"], AT_BACK).links == (Link(HUB, "AT", a, True),)
        both = self.walk(run, store, tenant, ["a", "b"], HAS, HAS_BACK)
        assert set(both.links) == {Link(a, "HAS", b, False), Link(b, "HAS", a, True)}

    def test_awkward_ids_are_walked_from_and_to(
        self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str
    ) -> None:
        ring = [*AWKWARD_IDS[1:], AWKWARD_IDS[0]]
        pairs = list(zip(AWKWARD_IDS, ring, strict=True))
        self.put(store, context, tenant, [_node(source, ("HAS", target)) for source, target in pairs])
        found = self.walk(run, store, tenant, AWKWARD_IDS, HAS)
        assert sorted((link.source.id, link.target.id) for link in found.links) == sorted(pairs)
        back = self.walk(run, store, tenant, AWKWARD_IDS, HAS_BACK)
        assert sorted((link.target.id, link.source.id) for link in back.links) == sorted(pairs)

    def test_fanout_cuts_each_source_and_says_so(
        self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str
    ) -> None:
        wide = _node("wide", *(("HAS", f"t{i:02d}") for i in range(20)))
        slim = _node("slim", ("HAS", "t00"), ("HAS", "t19"))
        self.put(store, context, tenant, [wide, slim, *(_node(f"t{i:02d}") for i in range(20))])
        found = self.walk(run, store, tenant, ["wide", "slim"], HAS, fanout=3)
        targets = [(link.source.id, link.target.id) for link in found.links]
        assert targets == [("slim", "t00"), ("slim", "t19"), ("wide", "t00"), ("wide", "t01"), ("wide", "t02")]
        assert found.truncated
        assert found.degree == {Ref("item", "wide"): 20, Ref("item", "slim"): 2}
        exact = self.walk(run, store, tenant, ["wide"], HAS, fanout=20)
        assert (len(exact.links), exact.truncated) == (20, False)

    def test_a_filter_applies_before_the_fanout(
        self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str
    ) -> None:
        wide = _node("wide", *(("HAS", f"t{i:02d}") for i in range(50)))
        targets = [item(f"t{i:02d}", status="open" if i == 49 else "closed") for i in range(50)]
        self.put(store, context, tenant, [wide, *targets])
        where = parsed({"status": "open"}, context.registry, ["item"])
        found = self.walk(run, store, tenant, ["wide"], HAS, fanout=3, where=where)
        assert [link.target.id for link in found.links] == ["t49"]
        assert (found.degree[Ref("item", "wide")], found.truncated) == (1, False)

    def test_a_hub_with_ten_thousand_neighbours_answers_within_its_deadline(
        self, run: Loop, store: GraphStore, crowded: tuple[str, str]
    ) -> None:
        query = NeighbourQuery(Caller(crowded[1]), (HUB,), (AT_BACK,), fanout=64)
        found = run(store.neighbours(query, timeout_s=15))
        assert [link.target.id for link in found.links] == [f"c{i:05d}" for i in range(64)]
        assert found.truncated
        assert found.degree[HUB] == 10_001

    def test_a_dangling_edge_is_followed_once_its_target_is_live(
        self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str
    ) -> None:
        self.put(store, context, tenant, [_node("a", ("HAS", "later"))])
        before = self.walk(run, store, tenant, ["a"], HAS)
        assert (before.links, before.degree.get(Ref("item", "a"), 0)) == ((), 0)
        assert run(store.count(tenant)) == {"item": 1}
        self.put(store, context, tenant, [_node("later")])
        assert len(self.walk(run, store, tenant, ["a"], HAS).links) == 1
        store.delete(tenant, [Tombstone(Ref("item", "later"), 2)])
        store.finish(tenant)
        assert self.walk(run, store, tenant, ["a"], HAS).links == ()
        self.put(store, context, tenant, [_node("later", version=3)])
        assert len(self.walk(run, store, tenant, ["a"], HAS).links) == 1

    def test_edges_are_replaced_with_their_owner(
        self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str
    ) -> None:
        targets = [_node("b"), _node("c"), _node("d")]
        self.put(store, context, tenant, [_node("a", ("HAS", "b"), ("HAS", "c")), *targets])
        self.put(store, context, tenant, [_node("a", ("HAS", "d"), version=3)])
        stale = _node("a", ("HAS", "b"), ("HAS", "c"), version=2)
        assert self.put(store, context, tenant, [stale]) == WriteReport(stale=1)
        assert [link.target.id for link in self.walk(run, store, tenant, ["a"], HAS).links] == ["d"]
        # Rewriting a target leaves the edges of others that end there.
        self.put(store, context, tenant, [_node("d", version=2)])
        assert [link.target.id for link in self.walk(run, store, tenant, ["a"], HAS).links] == ["d"]

    def test_a_deleted_row_and_its_edges_leave_every_walk(
        self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str
    ) -> None:
        self.put(store, context, tenant, [_node("a", ("HAS", "b")), _node("b", ("HAS", "c")), _node("c")])
        store.delete(tenant, [Tombstone(Ref("item", "b"), 2)])
        store.finish(tenant)
        assert self.walk(run, store, tenant, ["a", "b", "c"], HAS, HAS_BACK).links == ()
        self.put(store, context, tenant, [_node("b", version=3)])
        found = self.walk(run, store, tenant, ["a", "b"], HAS)
        assert [(link.source.id, link.target.id) for link in found.links] == [("a", "b")]

    def test_rows_of_an_edge_table_own_edges_between_others(
        self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str
    ) -> None:
        self.put(store, context, tenant, [_node("a"), Record(HUB), _link("l1", "a"), _link("l2", "a")])
        edge = Link(Ref("item", "a"), "NEAR", HUB, False)
        found = self.walk(run, store, tenant, ["a"], NEAR)
        assert (found.links, found.degree) == ((edge,), {edge.source: 1})
        for row_id, links in (("l1", (edge,)), ("l2", ())):
            store.delete(tenant, [Tombstone(Ref("link", row_id), 2)])
            store.finish(tenant)
            assert self.walk(run, store, tenant, ["a"], NEAR).links == links

    def test_an_edge_declared_twice_is_one_link(
        self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str
    ) -> None:
        self.put(store, context, tenant, [_node("a", ("HAS", "b"), ("HAS", "b")), _node("b")])
        found = self.walk(run, store, tenant, ["a", "a"], HAS)
        assert (len(found.links), found.degree) == (1, {Ref("item", "a"): 1})

    def test_a_scope_is_never_left(self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str) -> None:
        rows = [_node("a", ("HAS", "mine"), ("HAS", "theirs"), scope="x"), _node("mine", scope="x")]
        theirs = _node("theirs", ("HAS", "mine"), scope="y")
        self.put(store, context, tenant, [*rows, theirs])
        sources = (Ref("item", "a"), Ref("item", "theirs"))
        found = run(store.neighbours(NeighbourQuery(Caller(tenant, "x"), sources, (HAS,), 10)))
        assert [(link.source.id, link.target.id) for link in found.links] == [("a", "mine")]

    def test_equal_ids_and_shared_names_never_join_two_tenants(
        self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str
    ) -> None:
        other = f"{tenant}-b"
        self.put(store, context, tenant, [_node("same", ("AT", "hub")), _node("mine", ("AT", "hub")), Record(HUB)])
        self.put(store, context, other, [_node("same", ("AT", "hub")), _node("theirs", ("AT", "hub")), Record(HUB)])
        for owner, ids in ((tenant, ["mine", "same"]), (other, ["same", "theirs"])):
            found = self.walk(run, store, owner, ["hub"], AT_BACK)
            assert [link.target.id for link in found.links] == ids
        store.delete(other, [Tombstone(HUB, 2)])
        store.finish(other)
        assert len(self.walk(run, store, tenant, ["hub"], AT_BACK).links) == 2

    def test_traverse_answers_from_the_tenants_own_live_graph(
        self, run: Loop, store: GraphStore, context: PlaneContext, tenant: str
    ) -> None:
        if not self.traversable:
            with pytest.raises(Forbidden):
                run(store.traverse(Caller(tenant), "MATCH (n:item) RETURN n.id", {}, limit=5, timeout_s=5))
            return
        other = f"{tenant}-b"
        self.put(store, context, tenant, [_node(n, ("AT", "hub")) for n in ("it's", "b", "c", "gone")] + [Record(HUB)])
        self.put(store, context, other, [_node("it's", ("AT", "elsewhere")), Record(Ref("place", "elsewhere"))])
        store.delete(tenant, [Tombstone(Ref("item", "gone"), 2)])
        store.finish(tenant)
        hop = "MATCH (n:item {id: $id})-[:AT]->(m:place) RETURN m.id AS id"
        for owner, place in ((tenant, "hub"), (other, "elsewhere")):
            rows = run(store.traverse(Caller(owner), hop, {"id": "it's"}, limit=10, timeout_s=10))
            assert rows == [{"id": place}]
        everything = "MATCH (n:item) RETURN n.id AS id ORDER BY id"
        rows = run(store.traverse(Caller(tenant), everything, {}, limit=10, timeout_s=10))
        assert [row["id"] for row in rows] == ["b", "c", "it's"]
        assert len(run(store.traverse(Caller(tenant), everything, {}, limit=2, timeout_s=10))) == 2
        with pytest.raises(InvalidRequest):
            run(store.traverse(Caller(tenant), "MATCH (n:item RETURN", {}, limit=2, timeout_s=10))


def _node(row_id: str, *edges: tuple[str, str], version: int = 1, scope: str | None = None) -> Record:
    targets = {"HAS": "item", "AT": "place"}
    owned = tuple(Edge(rel, Ref(targets[rel], target)) for rel, target in edges)
    return Record(Ref("item", row_id), version, scope=scope, edges=owned)


def _link(row_id: str, source: str) -> Record:
    return Record(Ref("link", row_id), edges=(Edge("NEAR", HUB, Ref("item", source)),))


def _hub(scope: str | None) -> Ref:
    return HUB if scope is None else Ref("place", f"hub of {scope}")


def _linked(record: Record) -> Record:
    hubs = {_hub(None), _hub(record.scope)}
    edges = tuple(Edge(_TO_HUB[record.ref.entity], hub) for hub in sorted(hubs))
    return replace(record, hash=record.content_hash, edges=edges)
