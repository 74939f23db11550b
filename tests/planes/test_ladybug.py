"""The graph plane in ladybug: the conformance suite, and what only an embedded store has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from standins.killed import kill_after

from recall.errors import Forbidden, IndexMissing, InvalidRequest, TransientStoreError
from recall.keys import store_key
from recall.planes import ladybug as ladybug_plane
from recall.planes.conformance.corpus import corpus, parsed
from recall.planes.conformance.data import DIM, Edge, Record, conformance_registry, edge_table, item, node_table
from recall.planes.conformance.durability import DurableConformance
from recall.planes.conformance.graph import GraphConformance
from recall.planes.conformance.suite import Opener
from recall.planes.ladybug import LadybugGraph
from recall.planes.ladybug_ledger import Ledger
from recall.planes.ladybug_writing import GraphBatch
from recall.planes.opening import ModelId, PlaneContext
from recall.ports import NeighbourQuery, Neighbours, WriteReport
from recall.registry import Registry, Step
from recall.rows import Caller, Ref, Tombstone
from recall.settings import LadybugSettings

HAS = Step("item", "HAS", "item", reverse=False)
HAS_BACK = Step("item", "HAS", "item", reverse=True)
LINKS = "MATCH (a:item)-[:HAS]->(b:item) RETURN a.id AS source, b.id AS target ORDER BY source, target"


def open_ladybug(context: PlaneContext) -> LadybugGraph:
    return LadybugGraph(LadybugSettings(), context)


@pytest.fixture(scope="module")
def opener() -> Opener:
    return open_ladybug


class TestLadybug(GraphConformance, DurableConformance):
    pass


@pytest.fixture
def context(tmp_path: Path) -> PlaneContext:
    return PlaneContext(conformance_registry(), ModelId("conformance", DIM), tmp_path)


def node(row_id: str, *targets: str, version: int = 1) -> Record:
    return Record(Ref("item", row_id), version, edges=tuple(Edge("HAS", Ref("item", target)) for target in targets))


def put(store: LadybugGraph, context: PlaneContext, records: Sequence[Record], tenant: str = "t") -> WriteReport:
    store.prepare(tenant)
    report = store.upsert(tenant, node_table(context.registry, tenant, records), edge_table(tenant, records))
    store.finish(tenant)
    return report


def traverse(
    store: LadybugGraph, query: str, *, limit: int = 100, timeout_s: float = 20, **params: object
) -> list[object]:
    rows = asyncio.run(store.traverse(Caller("t"), query, params, limit=limit, timeout_s=timeout_s))  # type: ignore[arg-type]
    return [tuple(row.values()) for row in rows]


def walk(store: LadybugGraph, ids: Sequence[str], *steps: Step, fanout: int = 50) -> Neighbours:
    query = NeighbourQuery(Caller("t"), tuple(Ref("item", row_id) for row_id in ids), steps, fanout)
    return asyncio.run(store.neighbours(query))


# ---- one writer ----------------------------------------------------------------------------------------------------


def test_a_second_writer_is_told_where_the_first_one_is(context: PlaneContext) -> None:
    store = open_ladybug(context)
    put(store, context, [node("a")])
    (folder,) = (context.data_dir / "graph" / "t").iterdir()
    with store._folders.writing(folder), pytest.raises(TransientStoreError, match="another process") as refusal:
        put(open_ladybug(context), context, [node("b")])
    assert refusal.value.address == str(folder)
    put(open_ladybug(context), context, [node("b", "a")])
    assert traverse(store, LINKS) == [("b", "a")]


def _write_forever(context: PlaneContext, pipe: Connection) -> None:
    store = open_ladybug(context)
    for batch in range(10_000):
        put(store, context, [node(f"{batch}-{i}", f"{batch}-{i + 1}", f"{batch - 1}-{i}") for i in range(30)])
        pipe.send(batch)


def test_a_writer_killed_in_the_middle_of_a_batch_is_repaired_by_loading_again(context: PlaneContext) -> None:
    acknowledged = kill_after(4, _write_forever, context)
    store = open_ladybug(context)
    count = asyncio.run(store.count("t"))["item"]
    assert count % 30 == 0
    assert count >= 30 * (acknowledged + 1)
    # What was in flight when the process died is written again, as a resumed load does.
    for batch in range(acknowledged + 2):
        put(store, context, [node(f"{batch}-{i}", f"{batch}-{i + 1}", f"{batch - 1}-{i}") for i in range(30)])
    batches = acknowledged + 2
    assert asyncio.run(store.count("t"))["item"] == 30 * batches
    assert len(traverse(store, LINKS, limit=10_000)) == 29 * batches + 30 * (batches - 1)


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize(("where", "method"), [(GraphBatch, "apply"), (Ledger, "commit")])
@pytest.mark.parametrize("again", [2, 3])
def test_a_batch_cut_off_half_way_counts_as_not_loaded_and_leaves_nothing_behind(
    context: PlaneContext, monkeypatch: pytest.MonkeyPatch, where: type, method: str, again: int
) -> None:
    store = open_ladybug(context)
    put(store, context, [node("a", "b"), node("b"), node("c"), node("d", "new")])

    def die(*_: object) -> None:
        raise Killed

    batch = [node("a", "c", "new", version=2), node("new", "a")]
    with monkeypatch.context() as patch:
        patch.setattr(where, method, die)
        with pytest.raises(Killed):
            put(store, context, batch)
    key = {name: store_key("t", "item", name) for name in ("a", "new")}
    assert store.hashes("t", list(key.values())) == {key["a"]: node("a", "b").content_hash}

    after = open_ladybug(context)
    if again == 2:
        assert put(after, context, batch) == WriteReport(written=2)
        expected = [("a", "c"), ("a", "new"), ("d", "new"), ("new", "a")]
    else:
        # The source moved on before the load was repeated.
        assert put(after, context, [node("a", "b", version=3), node("new", version=3)]) == WriteReport(written=2)
        expected = [("a", "b"), ("d", "new")]
    assert traverse(after, LINKS) == expected
    assert asyncio.run(after.count("t")) == {"item": 5}


def test_a_cut_off_batch_of_others_does_not_take_edges_away(
    context: PlaneContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_ladybug(context)
    put(store, context, [node("a", "b"), node("b"), node("c")])

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", die)
        with pytest.raises(Killed):
            put(store, context, [node("a", "b", "c", version=2)])
    # The next batch knows nothing of `a`; its edges are again those of the version that counts as loaded.
    put(open_ladybug(context), context, [node("c", "b", version=2)])
    assert traverse(store, LINKS) == [("a", "b"), ("c", "b")]


# ---- walking -------------------------------------------------------------------------------------------------------


def test_many_sources_at_once_give_the_same_as_few(context: PlaneContext, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_ladybug(context)
    rows = [
        Record(
            r.ref,
            values=r.values,
            scope=r.scope,
            edges=tuple(Edge("HAS", Ref("item", f"i{(7 * n + k) % 500:05d}")) for k in range(n % 6)),
        )
        for n, r in enumerate(corpus(500))
    ]
    put(store, context, rows)
    sources = tuple(row.ref for row in rows if row.ref.entity == "item")
    where = parsed({"or": [{"status": "open"}, {"amount": {"lt": 50}}]}, context.registry, ["item"])
    answers = []
    for few in (0, 10_000):
        monkeypatch.setattr(ladybug_plane, "_FEW_SOURCES", few)
        for scope in (None, "s1"):
            query = NeighbourQuery(Caller("t", scope), sources, (HAS, HAS_BACK), 3, where)
            answers.append(asyncio.run(store.neighbours(query)))
    assert answers[:2] == answers[2:]
    assert len(answers[0].links) > len(answers[1].links) > 0


def test_hundreds_of_different_queries_do_not_fill_the_buffer_pool(context: PlaneContext) -> None:
    store = LadybugGraph(LadybugSettings(buffer_pool_mb=32), context)
    put(store, context, [node(f"n{i}", "hub") for i in range(3000)] + [node("hub")])
    for number in range(60):
        where = parsed(
            {"or": [{"amount": {"isnull": True}}, *([{"amount": number}] * (number % 7 + 1))]}, context.registry
        )
        query = NeighbourQuery(Caller("t"), (Ref("item", "hub"),), (HAS_BACK,), 2000 + number, where)
        assert asyncio.run(store.neighbours(query)).degree == {Ref("item", "hub"): 3000}


# ---- traverse ------------------------------------------------------------------------------------------------------


def test_traverse_shows_nodes_as_fields_and_numbers_as_numbers(context: PlaneContext) -> None:
    store = open_ladybug(context)
    put(store, context, [item("a", status="open", amount=3, cost=1.5, active=True, due="2026-01-02"), node("b", "a")])
    shown = traverse(store, "MATCH (n:item {id: $id}) RETURN n, sum(n.amount) AS s, n.cost, n.due", id="a")
    ((fields, *values),) = shown
    assert fields["_label"] == "item"
    assert {name: fields[name] for name in ("id", "status", "amount", "active")} == {
        "id": "a",
        "status": "open",
        "amount": 3,
        "active": True,
    }
    assert values == [3, 1.5, "2026-01-02"]
    ((path,),) = traverse(store, "MATCH p = (:item {id: 'b'})-[:HAS*1..2]->(:item) RETURN p")
    assert [step["id"] for step in path["_nodes"]] == ["b", "a"]


def test_traverse_refuses_writes_scopes_and_strangers(context: PlaneContext) -> None:
    store = open_ladybug(context)
    put(store, context, [node("a")])
    for query in ("MATCH (n:item) DELETE n", "CALL show_tables() RETURN *", "MATCH (n) SET n.status = 'x' RETURN n"):
        with pytest.raises(Forbidden):
            traverse(store, query)
    with pytest.raises(Forbidden, match="scope"):
        asyncio.run(store.traverse(Caller("t", "s"), "MATCH (n:item) RETURN n.id", {}, limit=1, timeout_s=5))
    with pytest.raises(IndexMissing):
        asyncio.run(store.traverse(Caller("nobody"), "MATCH (n:item) RETURN n.id", {}, limit=1, timeout_s=5))
    assert traverse(store, "MATCH (n:item) RETURN n.id") == [("a",)]


def test_traverse_says_what_the_engine_says_about_a_wrong_query(context: PlaneContext) -> None:
    store = open_ladybug(context)
    put(store, context, [node("a")])
    with pytest.raises(InvalidRequest, match="nosuch"):
        traverse(store, "MATCH (n:nosuch) RETURN n.id")
    with pytest.raises(InvalidRequest, match="id_missing"):
        traverse(store, "MATCH (n:item {id: $id_missing}) RETURN n.id")
    assert traverse(store, "MATCH (n:item) RETURN n.id") == [("a",)]


def test_traverse_ends_at_its_time_limit(context: PlaneContext) -> None:
    store = open_ladybug(context)
    put(store, context, [item(f"n{i}", amount=i) for i in range(3000)])
    with pytest.raises(TransientStoreError, match=r"no answer|longer"):
        traverse(
            store,
            "MATCH (a:item), (b:item), (c:item) WHERE a.amount + b.amount = c.amount * 7 RETURN count(*)",
            timeout_s=0.3,
        )
    assert len(traverse(store, "MATCH (n:item) RETURN n.id", limit=5)) == 5


# ---- names ---------------------------------------------------------------------------------------------------------


def test_fields_and_relations_whose_names_clash_for_the_engine_are_kept_apart(tmp_path: Path) -> None:
    columns = {
        "id": {"type": "string", "filterable": True},
        "Status": {"type": "string", "filterable": True},
        "status": {"type": "int", "filterable": True},
        "order": {"type": "string", "filterable": True},
        "match": "strings",
    }
    edges = [
        {"field": "match", "rel": "thing", "target": "thing"},
        {"field": "match", "rel": "Match", "target": "thing"},
    ]
    registry = Registry.parse({"entities": {"thing": {"columns": columns, "edges": edges}}})
    context = PlaneContext(registry, ModelId("conformance", DIM), tmp_path)
    store = open_ladybug(context)
    values = {"id": "a", "Status": "open", "status": 7, "order": "first"}
    linked = (Edge("thing", Ref("thing", "b")), Edge("Match", Ref("thing", "b")))
    put(store, context, [Record(Ref("thing", "a"), values=values, edges=linked), Record(Ref("thing", "b"))])
    source = (Ref("thing", "b"),)
    steps = (Step("thing", "thing", "thing", reverse=True), Step("thing", "Match", "thing", reverse=True))
    for raw in ({"Status": "open"}, {"status": 7}, {"order": "first"}, {"id": "a"}):
        where = parsed(raw, registry, ["thing"])
        found = asyncio.run(store.neighbours(NeighbourQuery(Caller("t"), source, steps, 5, where)))
        assert [(link.rel, link.target.id) for link in found.links] == [("Match", "a"), ("thing", "a")]
    assert traverse(store, "MATCH (n:thing {id: 'a'})-[:Match]->(m:thing) RETURN m.id, n.`order`") == [("b", "first")]


def test_more_tenants_than_may_be_open_are_all_answered(context: PlaneContext) -> None:
    store = LadybugGraph(LadybugSettings(open_tenants=1), context)
    for tenant in ("a", "b", "c"):
        put(store, context, [node("x", f"of-{tenant}"), node(f"of-{tenant}")], tenant)
    for _ in range(2):
        for tenant in ("a", "b", "c"):
            query = NeighbourQuery(Caller(tenant), (Ref("item", "x"),), (HAS,), 5)
            (link,) = asyncio.run(store.neighbours(query)).links
            assert link.target.id == f"of-{tenant}"


def test_a_tombstone_takes_the_edges_of_an_edge_table_row_along(context: PlaneContext) -> None:
    store = open_ladybug(context)
    link = Record(Ref("link", "l"), edges=(Edge("NEAR", Ref("place", "p"), Ref("item", "a")),))
    put(store, context, [node("a"), Record(Ref("place", "p")), link])
    near = "MATCH (a:item)-[:NEAR]->(p:place) RETURN a.id, p.id"
    assert traverse(store, near) == [("a", "p")]
    store.delete("t", [Tombstone(link.ref, 2)])
    assert traverse(store, near) == []
