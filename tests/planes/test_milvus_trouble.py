"""Milvus: index versions behind an alias, isolation, a server that is killed, a line that stalls, wrong settings."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from pymilvus import MilvusClient
from servers.availability import unavailable
from standins.line import Line, free_port
from standins.milvus import CannotStart, MortalLite

from recall.errors import ConfigError, IndexMissing, InvalidRequest, ModelMismatch, StoreError, TransientStoreError
from recall.keys import chunk_key, store_key
from recall.planes.conformance.data import Record, axis, conformance_registry, item, unit_vector, vector_table
from recall.planes.milvus import MilvusVectors
from recall.planes.opening import ModelId, PlaneContext
from recall.ports import VectorQuery, WriteReport
from recall.registry import Registry
from recall.rows import Caller, Ref
from recall.schema import vector_schema
from recall.settings import MilvusSettings

pytestmark = pytest.mark.server
MODEL = ModelId("model-a", 16)
TENANT = "acme"

Open = Callable[..., MilvusVectors]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalLite]:
    try:
        server = MortalLite(tmp_path_factory.mktemp("lite"))
        server.start()
    except CannotStart as reason:
        unavailable(f"Milvus Lite cannot be started: {reason}")
    yield server
    server.kill()


@pytest.fixture
def prefix() -> str:
    return f"t{uuid4().hex[:8]}"


@pytest.fixture
async def store_on(server: MortalLite, prefix: str, tmp_path: Path) -> Iterator[Open]:  # type: ignore[misc]
    opened: list[MilvusVectors] = []

    def open_store(registry: Registry | None = None, model: ModelId = MODEL, **options: object) -> MilvusVectors:
        raw = {"kind": "milvus", "uri": f"http://127.0.0.1:{server.port}", "collection": prefix, **options}
        settings = MilvusSettings.model_validate({"index": {"kind": "FLAT"}, **raw})
        opened.append(MilvusVectors(settings, PlaneContext(registry or conformance_registry(), model, tmp_path)))
        return opened[-1]

    yield open_store
    for store in opened:
        await store.close()


@pytest.fixture
def client(server: MortalLite) -> Iterator[MilvusClient]:
    client = MilvusClient(f"http://127.0.0.1:{server.port}")
    yield client
    client.close()


def write(store: MilvusVectors, records: list[Record], tenant: str = TENANT) -> WriteReport:
    return store.upsert(tenant, vector_table(conformance_registry(), tenant, records))


def load(store: MilvusVectors, *names: str, tenant: str = TENANT) -> None:
    store.prepare(tenant)
    write(store, [item(name) for name in names], tenant)
    store.finish(tenant)


async def ids(store: MilvusVectors, tenant: str = TENANT, entity: str = "item") -> list[str]:
    hits = await store.search(VectorQuery(Caller(tenant), (entity,), unit_vector("q"), 1000), timeout_s=30)
    return sorted(hit.ref.id for hit in hits)


def note_registry(chunk_tokens: int) -> Registry:
    note = {"columns": {"text": "string"}, "embed": {"fields": ["text"], "chunk_tokens": chunk_tokens}}
    return Registry.parse({"entities": {"note": note}})


def note(registry: Registry, row_id: str) -> pa.Table:
    key = store_key(TENANT, "note", row_id)
    row: dict[str, object] = dict.fromkeys(vector_schema(registry, 16).names)
    row |= {"key": chunk_key(key, 0), "row_key": key, "entity": "note", "id": row_id, "version": 1, "hash": "h"}
    row |= {"live": True, "ordinal": 0, "start": 0, "end": 1, "vector": unit_vector(row_id)}
    return pa.Table.from_pylist([row], schema=vector_schema(registry, 16))


# ---- versions and isolation ----


@pytest.mark.parametrize("isolation", ["shared", "dedicated"])
async def test_an_old_index_answers_until_the_new_one_is_finished_and_the_alias_follows(
    store_on: Open, client: MilvusClient, prefix: str, isolation: str
) -> None:
    registries = [note_registry(size) for size in (64, 65, 66)]
    first, second, third = (store_on(registry, isolation=isolation) for registry in registries)
    first.upsert(TENANT, note(registries[0], "one"))
    first.finish(TENANT)
    second.upsert(TENANT, note(registries[1], "two"))
    assert second.hashes(TENANT, [store_key(TENANT, "note", "one")]) == {}
    assert await ids(first, entity="note") == await ids(second, entity="note") == ["one"]
    second.finish(TENANT)
    assert await ids(second, entity="note") == ["two"]
    assert await ids(first, entity="note") == ["one"]
    third.upsert(TENANT, note(registries[2], "three"))
    third.finish(TENANT)
    names = [name for name in client.list_collections() if name.startswith(prefix)]
    # Of a tenant's own collections the last two stay; a shared one may still serve others.
    assert len(names) == (2 if isolation == "dedicated" else 3)
    aliases = [client.list_aliases(name)["aliases"] for name in names]
    assert sorted(map(len, aliases)) == [0] * (len(names) - 1) + [1]
    assert await ids(second, entity="note") == ["two"]
    assert await ids(third, entity="note") == ["three"]


async def test_tenants_of_one_collection_are_loaded_one_by_one(store_on: Open) -> None:
    registries = [note_registry(size) for size in (64, 65)]
    old, new = (store_on(registry) for registry in registries)
    for tenant in ("a", "b"):
        old.upsert(tenant, note(registries[0], f"old-{tenant}"))
        old.finish(tenant)
    new.upsert("a", note(registries[1], "new-a"))
    new.finish("a")
    assert await ids(new, "a", "note") == ["new-a"]
    assert await ids(new, "b", "note") == ["old-b"]
    with pytest.raises(IndexMissing, match="'c'"):
        await ids(new, "c", "note")


async def test_dedicated_tenants_whose_ids_look_alike_do_not_meet(store_on: Open) -> None:
    store = store_on(isolation="dedicated")
    tenants = ["a-b", "a_b", "A-b", "x" * 64]
    for tenant in tenants:
        load(store, f"of {tenant}", tenant=tenant)
    for tenant in tenants:
        assert await ids(store, tenant) == [f"of {tenant}"]
        assert await store.count(tenant) == {"item": 1}


async def test_a_query_model_other_than_the_index_s_is_refused_naming_both(store_on: Open) -> None:
    load(store_on(), "a")
    other = store_on(model=ModelId("model-b", 8))
    with pytest.raises(ModelMismatch, match=r"model-b \(8 dimensions\).*model-a \(16 dimensions\)"):
        await other.search(VectorQuery(Caller(TENANT), ("item",), np.ones(8, np.float32), 5))
    same_size = store_on(model=ModelId("model-c", 16))
    same_size.prepare(TENANT)
    with pytest.raises(ModelMismatch, match=r"model-c .*model-a "):
        await ids(same_size)


async def test_bad_vectors_are_failures_and_bad_queries_are_refused(store_on: Open) -> None:
    store = store_on()
    zero = Record(Ref("item", "zero"), vectors=np.stack([axis(1), np.zeros(16, np.float32)]))
    report = write(store, [item("good"), zero])
    assert (report.written, len(report.failures), report.failures[0].transient) == (1, 1, False)
    with pytest.raises(InvalidRequest, match="query vector"):
        await store.search(VectorQuery(Caller(TENANT), ("item",), np.zeros(16, np.float32), 5))


async def test_hits_missing_from_a_graph_index_are_scored_exactly(store_on: Open) -> None:
    store = store_on(index={"kind": "HNSW"})
    store.prepare(TENANT)
    records = [Record(Ref("item", f"r{i:04d}"), scope="rare" if i % 100 == 0 else "rest") for i in range(2000)]
    write(store, records)
    store.finish(TENANT)
    hits = await store.search(VectorQuery(Caller(TENANT, "rare"), ("item",), unit_vector("q"), 50))
    exact = {record.ref: float(unit_vector(repr(record.ref)) @ unit_vector("q")) for record in records[::100]}
    assert [hit.ref for hit in hits] == sorted(exact, key=lambda ref: (-exact[ref], ref))


async def test_long_values_and_many_chunks_pass(store_on: Open) -> None:
    store = store_on(batch_rows=100)
    long = Record(Ref("item", "long"), vectors=np.stack([unit_vector(str(i)) for i in range(1200)]), hash="long")
    load(store)
    assert write(store, [long, item("wide", title="系" * 40_000)]).written == 2
    store.finish(TENANT)
    found = await store.get(Caller(TENANT), [Ref("item", "long")])
    np.testing.assert_allclose(found[Ref("item", "long")], long.vectors, atol=1e-6)
    assert write(store, [item("long", 2)]).written == 1
    assert len(await ids(store)) == 2


# ---- trouble ----


async def test_a_row_that_was_cut_off_does_not_count_as_stored(store_on: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_on(batch_rows=2)
    load(store, "whole")
    call = store._writer._call

    def cut_off(method: str, collection: str, **arguments: Any) -> object:
        if method == "upsert" and any(row["ordinal"] == 4 for row in arguments["data"]):
            raise TransientStoreError("vector plane (Milvus)", "here", "cut off")
        return call(method, collection, **arguments)

    long = Record(Ref("item", "long"), vectors=np.stack([unit_vector(str(i)) for i in range(5)]), hash="new")
    keys = [store_key(TENANT, "item", row_id) for row_id in ("whole", "long")]
    with monkeypatch.context() as patched:
        patched.setattr(store._writer, "_call", cut_off)
        with pytest.raises(TransientStoreError, match="cut off"):
            write(store, [long])
    assert store.hashes(TENANT, keys).keys() == {keys[0]}
    assert write(store, [long]).written == 1
    assert store.hashes(TENANT, keys)[keys[1]] == "new"


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[MortalLite]:
    try:
        server = MortalLite(tmp_path / "lite")
        server.start()
    except CannotStart as reason:
        unavailable(f"Milvus Lite cannot be started: {reason}")
    yield server
    server.kill()


async def test_a_server_killed_in_the_middle_of_a_load_loses_nothing_acknowledged(
    doomed: MortalLite, tmp_path: Path
) -> None:
    server = doomed
    raw = {"kind": "milvus", "uri": f"http://127.0.0.1:{server.port}", "index": {"kind": "FLAT"}, "write_timeout_s": 5}
    store = MilvusVectors(MilvusSettings.model_validate(raw), PlaneContext(conformance_registry(), MODEL, tmp_path))
    store.prepare(TENANT)
    acknowledged: list[int] = []
    enough = threading.Event()

    def load_until_it_fails() -> StoreError:
        for batch in range(10_000):
            try:
                write(store, [item(f"b{batch}-{i}") for i in range(50)])
            except StoreError as error:
                return error
            acknowledged.append(batch)
            if len(acknowledged) == 5:
                enough.set()
        raise AssertionError("the server was never killed")

    loading = asyncio.get_running_loop().run_in_executor(None, load_until_it_fails)
    assert await asyncio.get_running_loop().run_in_executor(None, enough.wait, 60)
    server.kill()
    error = await loading
    assert isinstance(error, TransientStoreError), error
    assert f"127.0.0.1:{server.port}" in str(error)
    started = time.monotonic()
    with pytest.raises(TransientStoreError):
        await store.search(VectorQuery(Caller(TENANT), ("item",), axis(0), 5), timeout_s=3)
    assert time.monotonic() - started < 6
    server.start()
    found = set(await ids(store))
    assert {f"b{batch}-{i}" for batch in acknowledged for i in range(50)} <= found
    batches = max(acknowledged) + 2
    for batch in range(batches):
        write(store, [item(f"b{batch}-{i}") for i in range(50)])
    store.finish(TENANT)
    assert await store.count(TENANT) == {"item": batches * 50}
    await store.close()


async def test_a_line_that_stalls_costs_no_more_than_the_deadline(server: MortalLite, prefix: str) -> None:
    line = Line(server.port)
    raw = {"kind": "milvus", "uri": f"http://127.0.0.1:{line.port}", "collection": prefix, "index": {"kind": "FLAT"}}
    store = MilvusVectors(MilvusSettings.model_validate(raw), PlaneContext(conformance_registry(), MODEL, Path()))
    load(store, "a")
    assert await ids(store) == ["a"]
    with line.stalled():
        started = time.monotonic()
        with pytest.raises(TransientStoreError, match=r"0\.5 s"):
            await store.search(VectorQuery(Caller(TENANT), ("item",), axis(0), 5), timeout_s=0.5)
        assert time.monotonic() - started < 2
    assert await ids(store) == ["a"]
    await store.close()
    line.cut()


async def test_a_server_that_was_never_there_is_named(tmp_path: Path) -> None:
    port = free_port()
    raw = {"kind": "milvus", "uri": f"http://user:secret@127.0.0.1:{port}", "read_timeout_s": 1}
    store = MilvusVectors(MilvusSettings.model_validate(raw), PlaneContext(conformance_registry(), MODEL, tmp_path))
    with pytest.raises(TransientStoreError, match=f"127.0.0.1:{port}") as caught:
        await store.health(timeout_s=5)
    assert "secret" not in str(caught.value)
    with pytest.raises(TransientStoreError, match=f"127.0.0.1:{port}"):
        store.prepare(TENANT)
    await store.close()


def test_a_token_is_read_from_the_variable_that_settings_name() -> None:
    settings = MilvusSettings.model_validate({"kind": "milvus", "token_env": "MILVUS_TOKEN"})
    assert settings.token({"MILVUS_TOKEN": "root:Milvus"}) == "root:Milvus"
    assert MilvusSettings(kind="milvus").token({}) == ""
    with pytest.raises(ConfigError, match="MILVUS_TOKEN"):
        settings.token({})


async def test_a_tenant_is_never_part_of_an_expression(store_on: Open) -> None:
    store = store_on()
    for tenant in ('x" or true or "', "", "a b"):
        with pytest.raises(InvalidRequest, match="tenant id"):
            await store.count(tenant)
        with pytest.raises(InvalidRequest, match="tenant id"):
            await ids(store, tenant)
        with pytest.raises(InvalidRequest, match="tenant id"):
            store.prepare(tenant)
