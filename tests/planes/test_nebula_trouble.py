"""NebulaGraph in trouble: killed, slow, silent, full, signed out. Nothing acknowledged is lost, nothing outlives its
deadline, and every error says which store, which address, what to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from standins.nebula import Server

from recall.errors import ConfigError, IndexMissing, StoreError, TerminalStoreError, TransientStoreError
from recall.planes.conformance.data import Edge, Record, conformance_registry, edge_table, node_table
from recall.planes.nebula import NebulaGraph
from recall.planes.opening import ModelId, PlaneContext
from recall.ports import NeighbourQuery, Neighbours, WriteReport
from recall.registry import Registry, Step
from recall.rows import Caller, Ref, Tombstone
from recall.settings import NebulaSettings

TENANT = "acme"
HAS = Step("item", "HAS", "item", reverse=False)
NEAR = Step("item", "NEAR", "place", reverse=False)

Opener = Callable[..., NebulaGraph]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def context(tmp_path: Path) -> PlaneContext:
    return PlaneContext(conformance_registry(), ModelId("none", 2), tmp_path)


@pytest.fixture
def graph(server: Server, context: PlaneContext) -> Iterator[Opener]:
    """Opens stores on the stand-in; closes them afterwards."""
    opened: list[NebulaGraph] = []

    def open_graph(**options: object) -> NebulaGraph:
        raw = {"kind": "nebula", "addresses": [server.address], "heartbeat_s": 0, "schema_wait_s": 5, **options}
        opened.append(NebulaGraph(NebulaSettings.model_validate(raw), context))
        return opened[-1]

    yield open_graph
    for store in opened:
        asyncio.run(store.close())


def put(store: NebulaGraph, records: Sequence[Record], tenant: str = TENANT) -> WriteReport:
    store.prepare(tenant)
    return store.upsert(tenant, node_table(conformance_registry(), tenant, records), edge_table(tenant, records))


def chain(size: int, version: int = 1) -> list[Record]:
    """Items r0 → r1 → …, the last one without an edge."""
    return [
        Record(
            Ref("item", f"r{i}"),
            version,
            edges=(Edge("HAS", Ref("item", f"r{i + 1}")),) if i + 1 < size else (),
        )
        for i in range(size)
    ]


async def targets(store: NebulaGraph, *sources: str, step: Step = HAS, timeout_s: float | None = None) -> list[str]:
    found: Neighbours = await store.neighbours(
        NeighbourQuery(Caller(TENANT), tuple(Ref("item", source) for source in sources), (step,), 1000),
        timeout_s=timeout_s,
    )
    return [link.target.id for link in found.links]


def seconds(work: Callable[[], Any]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def test_a_server_killed_in_the_middle_of_a_load_costs_nothing_acknowledged(server: Server, graph: Opener) -> None:
    store = graph(batch_rows=50, retries=1)
    store.prepare(TENANT)
    records = chain(1000)
    inserted: list[str] = []

    def kill(statement: str) -> None:
        inserted.extend([statement] if statement.startswith("INSERT VERTEX") else [])
        if len(inserted) == 9:
            server.stop()

    server.faults.watch = kill
    report = put(store, records)
    server.faults.watch = None
    assert report.written == 400
    assert len(report.failures) == 1000 - report.written
    assert all(failure.transient for failure in report.failures)
    server.start()
    acknowledged = [record.ref.id for record in records[: report.written]]
    # The ninth batch was written as well, but nobody was told so.
    assert {f"r{i}" for i in range(1, report.written)} <= set(asyncio.run(targets(store, *acknowledged)))
    assert put(store, records) == WriteReport(written=1000)
    assert len(asyncio.run(targets(store, *(record.ref.id for record in records)))) == 999
    assert asyncio.run(store.count(TENANT)) == {"item": 1000}


def test_a_load_that_stopped_between_edges_and_rows_is_completed_by_the_next(server: Server, graph: Opener) -> None:
    store = graph(retries=0)
    put(store, [Record(Ref("place", "hub"))])
    linked = Record(Ref("link", "l1"), edges=(Edge("NEAR", Ref("place", "hub"), Ref("item", "r0")),))
    server.faults.poison = "INSERT VERTEX `item`"
    interrupted = put(store, [*chain(3), linked])
    assert interrupted.written == 0
    assert all(failure.transient for failure in interrupted.failures)
    # Nothing half-written is visible, or taken for done.
    assert asyncio.run(targets(store, "r0", "r1")) == []
    keys = [str(row["row_key"]) for row in node_table(conformance_registry(), TENANT, chain(3)).to_pylist()]
    assert store.hashes(TENANT, keys) == {}
    server.faults.poison = None
    # The row changed meanwhile: what the interrupted write left of its first version has to go.
    assert put(store, [*chain(2, version=2), Record(Ref("item", "r2"), 2), Record(linked.ref, 2)]).written == 4
    assert asyncio.run(targets(store, "r0", "r1", "r2")) == ["r1"]
    assert asyncio.run(targets(store, "r0", step=NEAR)) == []


def test_an_edge_of_an_edge_table_that_was_half_written_goes_with_its_owner(server: Server, graph: Opener) -> None:
    store = graph(retries=0)
    put(store, [Record(Ref("place", "hub")), Record(Ref("item", "r0"))])
    linked = Record(Ref("link", "l1"), edges=(Edge("NEAR", Ref("place", "hub"), Ref("item", "r0")),))

    def lose_the_row(statement: str) -> None:
        if "INSERT EDGE `NEAR`" in statement:
            server.faults.poison = "INSERT VERTEX `link`"

    # The list of owned edges is written, then the edge; the last statement, with the hash, is lost.
    server.faults.watch = lose_the_row
    assert [failure.transient for failure in put(store, [linked]).failures] == [True]
    server.faults.poison = server.faults.watch = None
    assert asyncio.run(targets(store, "r0", step=NEAR)) == ["hub"]
    store.delete(TENANT, [Tombstone(linked.ref, 2)])
    assert asyncio.run(targets(store, "r0", step=NEAR)) == []


def test_a_server_killed_in_the_middle_of_a_query_and_restarted_is_found_again(server: Server, graph: Opener) -> None:
    store = graph()
    put(store, chain(3))

    async def query() -> list[str]:
        server.faults.delay_s = 0.5
        running = asyncio.create_task(targets(store, "r0", timeout_s=5))
        await asyncio.sleep(0.1)
        server.stop()
        server.faults.delay_s = 0
        server.start()
        return await running

    assert asyncio.run(query()) == ["r1"]


@pytest.mark.parametrize("silent", [False, True], ids=["slow", "half-open"])
def test_a_slow_or_silent_server_never_outlives_the_deadline(server: Server, graph: Opener, silent: bool) -> None:
    store = graph(timeout_ms=300, write_timeout_ms=300, retries=3)
    put(store, chain(2))
    server.faults.silent = silent
    server.faults.delay_s = 0 if silent else 2.0
    started = time.monotonic()
    for attempt in (
        targets(store, "r0", timeout_s=0.3),
        store.count(TENANT, timeout_s=0.3),
        store.health(timeout_s=0.3),
    ):
        with pytest.raises(TransientStoreError, match=server.address):
            asyncio.run(attempt)
    report = put(store, chain(2))
    assert time.monotonic() - started < 2.0
    assert report.written == 0
    assert all(failure.transient for failure in report.failures)
    server.faults.silent, server.faults.delay_s = False, 0
    assert asyncio.run(targets(store, "r0")) == ["r1"]


def test_a_session_that_expired_is_replaced_unnoticed(server: Server, graph: Opener) -> None:
    store = graph(pool_size=1)
    put(store, chain(2))
    server.expire_sessions()
    assert asyncio.run(targets(store, "r0")) == ["r1"]
    server.kill_connections()
    assert asyncio.run(targets(store, "r0")) == ["r1"]
    assert server.authenticated == 3


def test_an_answer_that_was_lost_is_asked_for_again_and_changes_nothing(server: Server, graph: Opener) -> None:
    store = graph()
    put(store, chain(3))
    server.faults.lost_answers = 1
    assert put(store, chain(3, version=2)) == WriteReport(written=3)
    assert asyncio.run(targets(store, "r0", "r1", "r2")) == ["r1", "r2"]
    assert asyncio.run(store.count(TENANT)) == {"item": 3}


def test_storage_trouble_that_passes_is_retried(server: Server, graph: Opener) -> None:
    store = graph(batch_rows=20, retries=10)
    store.prepare(TENANT)
    server.faults.failing = 0.3
    assert put(store, chain(100)) == WriteReport(written=100)
    assert len(asyncio.run(targets(store, *(f"r{i}" for i in range(100))))) == 99


def test_storage_trouble_that_stays_is_reported_as_transient(server: Server, graph: Opener) -> None:
    store = graph(retries=2)
    put(store, chain(2))
    server.faults.failing = 1.0
    report = put(store, chain(2, version=2))
    assert [failure.transient for failure in report.failures] == [True, True]
    assert server.address in report.failures[0].reason
    with pytest.raises(TransientStoreError, match="try again"):
        asyncio.run(targets(store, "r0"))


def test_one_record_that_the_server_refuses_does_not_stop_the_others(
    server: Server, graph: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = graph(batch_rows=16)
    store.prepare(TENANT)
    good = chain(40)
    # A vertex id that is too long stands for anything that the server will never take.
    table = node_table(conformance_registry(), TENANT, good).to_pylist()
    bad = table[17]["row_key"] + "x"
    table[17]["row_key"] = bad
    nodes = node_table(conformance_registry(), TENANT, []).from_pylist(
        table, schema=node_table(conformance_registry(), TENANT, []).schema
    )
    report = store.upsert(TENANT, nodes, edge_table(TENANT, []))
    assert (report.written, [failure.key for failure in report.failures]) == (39, [bad])
    assert not report.failures[0].transient
    assert "VID" in report.failures[0].reason


@pytest.mark.parametrize(
    ("options", "message"),
    [({"user": "nobody"}, "User not exist"), ({"password_env": "RECALL_TEST_WRONG"}, "RECALL_TEST_WRONG")],
)
def test_wrong_credentials_say_what_to_check_and_leak_no_session(
    server: Server,
    graph: Opener,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
    message: str,
) -> None:
    monkeypatch.setenv("RECALL_TEST_WRONG", "not it")
    store = graph(pool_size=2, **options)
    for _ in range(5):
        with pytest.raises(TerminalStoreError, match=message) as caught:
            asyncio.run(store.health())
        assert server.address in str(caught.value)
    assert server.open_sessions == 0


def test_a_password_variable_that_is_not_set_is_named(graph: Opener) -> None:
    with pytest.raises(ConfigError, match="RECALL_TEST_UNSET"):
        asyncio.run(graph(password_env="RECALL_TEST_UNSET").health())


def test_64_recalls_at_once_share_a_few_sessions(server: Server, graph: Opener) -> None:
    store = graph(pool_size=4)
    put(store, chain(65))

    async def recalls() -> list[list[str]]:
        return await asyncio.gather(*(targets(store, f"r{i}", timeout_s=20) for i in range(64)))

    for _ in range(3):
        assert asyncio.run(recalls()) == [[f"r{i + 1}"] for i in range(64)]
    assert server.authenticated <= 4
    assert server.most_sessions <= 4


def test_a_thousand_recalls_sign_in_once(server: Server, graph: Opener) -> None:
    store = graph(pool_size=1)
    put(store, chain(2))

    async def recalls() -> None:
        for _ in range(1000):
            await targets(store, "r0")

    asyncio.run(recalls())
    assert server.authenticated == 1


def test_sessions_are_given_back_when_the_store_closes(server: Server, graph: Opener) -> None:
    store = graph()
    put(store, chain(2))
    assert server.open_sessions > 0
    asyncio.run(store.close())
    _eventually(lambda: server.open_sessions == 0)


def _eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_server_without_free_sessions_is_named_with_the_way_out(server: Server, graph: Opener) -> None:
    server.max_sessions = 2
    stores = [graph(pool_size=1) for _ in range(3)]
    for store in stores[:2]:
        asyncio.run(store.health())
    with pytest.raises(TransientStoreError, match="lower pool_size"):
        asyncio.run(stores[2].health())
    asyncio.run(stores[0].close())
    _eventually(lambda: server.open_sessions == 1)
    asyncio.run(stores[2].health())


def test_another_address_takes_over(server: Server, graph: Opener) -> None:
    with Server() as gone:
        dead = gone.address
    store = graph(addresses=[dead, server.address], pool_size=3)
    put(store, chain(2))
    for _ in range(4):
        assert asyncio.run(targets(store, "r0")) == ["r1"]


def test_a_schema_that_spreads_late_is_waited_for(context: PlaneContext) -> None:
    with Server(delay_s=0.4) as server:
        settings = NebulaSettings(kind="nebula", addresses=(server.address,), heartbeat_s=0.4, schema_wait_s=10)
        store = NebulaGraph(settings, context)
        assert put(store, chain(5)) == WriteReport(written=5)
        assert asyncio.run(targets(store, "r0")) == ["r1"]
        # Rows that are written before every host knows the index would be missing here.
        assert asyncio.run(store.count(TENANT)) == {"item": 5}
        asyncio.run(store.close())


def test_a_schema_that_never_spreads_ends_the_wait(context: PlaneContext) -> None:
    with Server(delay_s=60) as server:
        settings = NebulaSettings(kind="nebula", addresses=(server.address,), heartbeat_s=0, schema_wait_s=0.3)
        store = NebulaGraph(settings, context)
        with pytest.raises(TransientStoreError, match="schema_wait_s"):
            store.prepare(TENANT)
        with pytest.raises(IndexMissing, match=TENANT):
            asyncio.run(targets(store, "r0"))
        asyncio.run(store.close())


def test_a_tag_with_other_columns_is_refused_with_both_sides_named(server: Server, graph: Opener) -> None:
    store = graph()
    store.prepare(TENANT)
    (space,) = server.catalogue.spaces.values()
    del space.tags["item"].props["s_title"]
    with pytest.raises(TerminalStoreError, match=r"TAG item .*s_title string"):
        graph().prepare(TENANT)


def test_a_relation_called_like_an_entity_is_refused_at_once(server: Server, tmp_path: Path) -> None:
    raw = {
        "entities": {
            "owner": {"columns": {"boss": "string"}, "edges": [{"field": "boss", "rel": "owner", "target": "owner"}]}
        }
    }
    settings = NebulaSettings(kind="nebula", addresses=(server.address,))
    with pytest.raises(ConfigError, match="rename owner"):
        NebulaGraph(settings, PlaneContext(Registry.parse(raw), ModelId("none", 2), tmp_path))


def test_every_error_names_store_and_address(server: Server, graph: Opener) -> None:
    store = graph(retries=0)
    server.stop()
    for attempt in (lambda: asyncio.run(store.health()), lambda: store.prepare(TENANT)):
        with pytest.raises(StoreError) as caught:
            attempt()
        assert str(caught.value).startswith(f"graph (nebula) at {server.address}: ")
        assert "check that graphd is running" in str(caught.value)


def test_a_value_beyond_the_statement_limit_goes_as_a_parameter(graph: Opener) -> None:
    store = graph()
    long = "長" * 2_000_000
    assert put(store, [Record(Ref("item", "r0"), values={"title": long}), *chain(3)[1:]]) == WriteReport(written=3)
    assert asyncio.run(store.count(TENANT)) == {"item": 3}
