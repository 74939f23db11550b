"""LanceDB vector plane: built indexes, index versions, ties, bad vectors, changed registries."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
import pytest

from recall.errors import IndexMissing, InvalidRequest, ModelMismatch, TransientStoreError
from recall.keys import chunk_key, store_key
from recall.planes.conformance.data import Record, axis, conformance_registry, item, unit_vector, vector_table
from recall.planes.lance import LanceVectors
from recall.planes.lance_index import IndexEntry, after_finish, index_to_read
from recall.planes.opening import ModelId, PlaneContext
from recall.ports import VectorHit, VectorQuery, WriteReport
from recall.registry import Registry
from recall.rows import Caller, Ref
from recall.schema import vector_schema
from recall.settings import LanceDbSettings
from recall.where import parse_where

MODEL = ModelId("model-a", 16)
TENANT = "acme"
NOTE = {"columns": {"kind": {"type": "string", "filterable": True}, "text": "string"}, "embed": {"fields": ["text"]}}


def note_registry(**changes: object) -> Registry:
    return Registry.parse({"entities": {"note": {**NOTE, **changes}}})


def notes(registry: Registry, vectors: np.ndarray, kinds: list[str | None], prefix: str = "n") -> pa.Table:
    size, dim = vectors.shape
    keys = [store_key(TENANT, "note", f"{prefix}{i}") for i in range(size)]
    columns: dict[str, object] = {
        "key": [chunk_key(key, 0) for key in keys],
        "row_key": keys,
        "entity": ["note"] * size,
        "id": [f"{prefix}{i}" for i in range(size)],
        "version": [1] * size,
        "hash": keys,
        "live": [True] * size,
        "s_kind": kinds,
        **{name: [0] * size for name in ("ordinal", "start", "end")},
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), dim),
    }
    schema = vector_schema(registry, dim)
    return pa.table([pa.array(columns.get(f.name, [None] * size), f.type) for f in schema], schema=schema)


def open_store(folder: Path, registry: Registry | None = None, model: ModelId = MODEL, **settings: int) -> LanceVectors:
    return LanceVectors(LanceDbSettings(**settings), PlaneContext(registry or conformance_registry(), model, folder))


def write(store: LanceVectors, records: list[Record], tenant: str = TENANT) -> WriteReport:
    return store.upsert(tenant, vector_table(conformance_registry(), tenant, records))


async def ids(store: LanceVectors, tenant: str = TENANT, entity: str = "item") -> list[str]:
    hits = await store.search(VectorQuery(Caller(tenant), (entity,), unit_vector("q"), 1000))
    return sorted(hit.ref.id for hit in hits)


def unit_rows(seed: int, rows: int, dim: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def table_of(folder: Path) -> lancedb.table.Table:
    directory = folder / "vectors" / TENANT
    (name,) = [path.stem for path in directory.glob("*.lance")]
    return lancedb.connect(directory).open_table(name)


# ---- built indexes ----


async def test_a_built_index_keeps_recall_and_full_fill_at_every_selectivity(tmp_path: Path) -> None:
    size, dim = 4000, 48
    registry, vectors = note_registry(), unit_rows(1, size, dim)
    kinds = ["rare" if i % 200 == 0 else "tenth" if i % 10 == 1 else "half" if i % 2 else None for i in range(size)]
    store = open_store(tmp_path, registry, ModelId("m", dim), index_from=1000)
    for first in range(0, size, 1000):
        store.upsert(TENANT, notes(registry, vectors, kinds).slice(first, 1000))
    store.finish(TENANT)
    built = {index.index_type for index in table_of(tmp_path).list_indices()}
    assert any("Hnsw" in kind or "HNSW" in kind for kind in built), built
    for kind in (None, "half", "tenth", "rare"):
        members = [i for i in range(size) if kind is None or kinds[i] == kind]
        where = parse_where({"kind": kind} if kind else None, {"note": registry.entity("note").filter_fields})
        found = 0
        for query in unit_rows(2, 40, dim):
            hits = await store.search(VectorQuery(Caller(TENANT), ("note",), query, 10, where))
            exact = sorted(members, key=lambda i: -float(vectors[i] @ query))[:10]
            assert len(hits) == 10
            found += len({hit.ref.id for hit in hits} & {f"n{i}" for i in exact})
        assert found / 400 >= 0.95, kind
        wide = await store.search(VectorQuery(Caller(TENANT), ("note",), unit_rows(3, 1, dim)[0], size, where))
        assert len({hit.ref.id for hit in wide}) == len(members)
    await store.close()


async def test_rows_written_after_the_index_was_built_are_found_and_replaced_at_once(tmp_path: Path) -> None:
    registry, vectors = note_registry(), unit_rows(1, 1200, 32)
    store = open_store(tmp_path, registry, ModelId("m", 32), index_from=256, optimize_every=5)
    store.upsert(TENANT, notes(registry, vectors, [None] * 1200))
    store.finish(TENANT)
    for step in range(12):
        fresh = unit_rows(100 + step, 20, 32)
        store.upsert(TENANT, notes(registry, fresh, ["new"] * 20, prefix="n"))
        for place in (0, 19):
            best = (await store.search(VectorQuery(Caller(TENANT), ("note",), fresh[place], 1)))[0]
            assert best.ref.id == f"n{place}"
            assert best.score == pytest.approx(1.0, abs=1e-3)
    assert await store.count(TENANT) == {"note": 1200}
    await store.close()


@pytest.mark.parametrize("index_from", [256, 100_000])
async def test_the_cut_among_many_equal_chunks_goes_by_ref_on_every_path(tmp_path: Path, index_from: int) -> None:
    store = open_store(tmp_path, index_from=index_from)
    equal = [f"e{i:03d}" for i in range(300)]
    other = [item(f"x{i}") for i in range(300)]
    write(store, [*other, *(Record(Ref("item", row_id), vectors=axis(3)[None, :]) for row_id in equal[::-2])])
    store.finish(TENANT)
    write(store, [Record(Ref("item", row_id), vectors=axis(3)[None, :]) for row_id in equal[::2]])
    for limit in (1, 10, 120, 299):
        hits = await store.search(VectorQuery(Caller(TENANT), ("item",), axis(3), limit))
        assert [hit.ref.id for hit in hits] == equal[:limit]
    await store.close()


async def test_reading_goes_on_while_the_store_is_optimised(tmp_path: Path) -> None:
    store = open_store(tmp_path, index_from=256, optimize_every=2)
    write(store, [item(f"r{i}") for i in range(600)])

    def churn() -> None:
        for version in range(2, 10):
            write(store, [item(f"r{i}", version) for i in range(200)])
            store.finish(TENANT)

    churning = asyncio.get_running_loop().run_in_executor(None, churn)
    answers = 0
    while not churning.done() or answers == 0:
        assert len(await ids(store)) == 600
        answers += 1
    await churning
    assert answers > 3
    await store.close()


def test_every_so_many_commits_the_table_is_compacted(tmp_path: Path) -> None:
    store = open_store(tmp_path, optimize_every=10)
    for batch in range(40):
        write(store, [item(f"r{batch}")])
    fragments = table_of(tmp_path).stats()["fragment_stats"]["num_fragments"]
    assert fragments <= 11


# ---- index versions ----


async def test_an_old_index_answers_until_the_new_one_is_finished(tmp_path: Path) -> None:
    older = open_store(tmp_path, note_registry())
    changed = note_registry(embed={"fields": ["text"], "chunk_tokens": 64})
    newer = open_store(tmp_path, changed)
    older.upsert(TENANT, notes(note_registry(), unit_rows(1, 3, 16), [None] * 3, "old"))
    older.finish(TENANT)
    newer.prepare(TENANT)
    newer.upsert(TENANT, notes(changed, unit_rows(1, 2, 16), [None] * 2, "new"))
    assert newer.hashes(TENANT, [store_key(TENANT, "note", "old0")]) == {}
    for store in (older, newer):
        assert await ids(store, entity="note") == ["old0", "old1", "old2"]
    newer.finish(TENANT)
    assert await ids(newer, entity="note") == ["new0", "new1"]
    # Replicas that still run with the old settings keep their index.
    assert await ids(older, entity="note") == ["old0", "old1", "old2"]


async def test_finishing_drops_what_is_older_than_the_previous_index(tmp_path: Path) -> None:
    registries = [note_registry(embed={"fields": ["text"], "chunk_tokens": size}) for size in (64, 65, 66)]
    stores = [open_store(tmp_path, registry) for registry in registries]
    for registry, store in zip(registries, stores, strict=True):
        store.upsert(TENANT, notes(registry, unit_rows(1, 1, 16), [None]))
        store.finish(TENANT)
    assert len(list((tmp_path / "vectors" / TENANT).glob("*.lance"))) == 2
    assert await ids(stores[1], entity="note") == ["n0"]
    assert await ids(stores[2], entity="note") == ["n0"]


async def test_a_query_model_other_than_the_index_s_is_refused_naming_both(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    write(store, [item("a")])
    store.finish(TENANT)
    other = open_store(tmp_path, model=ModelId("model-b", 8))
    with pytest.raises(ModelMismatch, match=r"model-b \(8 dimensions\).*model-a \(16 dimensions\)"):
        await other.search(VectorQuery(Caller(TENANT), ("item",), np.ones(8, np.float32), 5))
    same_size = open_store(tmp_path, model=ModelId("model-c", 16))
    with pytest.raises(ModelMismatch, match=r"model-c .*model-a "):
        await ids(same_size)
    same_size.prepare(TENANT)
    with pytest.raises(ModelMismatch):
        await ids(same_size)
    same_size.finish(TENANT)
    assert await ids(same_size) == []


def _entry(version: str, born: int, finished: int | None = None, model: str = "m") -> IndexEntry:
    return IndexEntry(version, model, 4, born, finished)


def test_the_index_to_read_is_the_own_one_unless_it_is_still_loading() -> None:
    model = ModelId("m", 4)
    loading, done, older = _entry("new", 5), _entry("mid", 3, 4), _entry("old", 1, 2)
    assert index_to_read([loading], "new", model, "x") == loading
    assert index_to_read([loading, done, older], "new", model, "x") == done
    assert index_to_read([loading, done, older], "old", model, "x") == older
    with pytest.raises(IndexMissing, match="nowhere"):
        index_to_read([], "new", model, "nowhere")
    with pytest.raises(IndexMissing, match="never finished"):
        index_to_read([loading], "other", model, "x")
    with pytest.raises(ModelMismatch):
        index_to_read([_entry("old", 1, 2, "another")], "new", model, "x")


def test_finishing_again_after_going_back_keeps_the_index_that_was_left() -> None:
    first, second = _entry("a", 1, 2), _entry("b", 3, 4)
    kept, dropped = after_finish([first, second], "a")
    assert {entry.version: entry.finished for entry in kept} == {"a": 5, "b": 4}
    assert dropped == []
    kept, dropped = after_finish([*kept, _entry("c", 6)], "c")
    assert sorted(entry.version for entry in kept) == ["a", "c"]
    assert [entry.version for entry in dropped] == ["b"]
    assert after_finish(kept, "c") == (sorted(kept, key=lambda entry: -(entry.finished or 0)), [])


# ---- vectors, columns, tenants ----


async def test_vectors_that_no_cosine_can_rank_are_permanent_failures_of_their_rows(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    bad = {
        "zero": np.zeros(16, np.float32),
        "nan": np.full(16, np.nan, np.float32),
        "inf": np.full(16, np.inf, np.float32),
    }
    records = [
        Record(Ref("item", name), vectors=np.stack([axis(1), vector]), hash=name) for name, vector in bad.items()
    ]
    report = write(store, [item("good"), *records])
    assert report.written == 1
    reasons = {failure.key: failure for failure in report.failures}
    assert reasons.keys() == {store_key(TENANT, "item", name) for name in bad}
    assert not any(failure.transient for failure in report.failures)
    assert "zeros" in reasons[store_key(TENANT, "item", "zero")].reason
    assert "NaN" in reasons[store_key(TENANT, "item", "nan")].reason
    assert await ids(store) == ["good"]
    for vector in bad.values():
        with pytest.raises(InvalidRequest, match="query vector"):
            await store.search(VectorQuery(Caller(TENANT), ("item",), vector, 5))


async def test_a_column_that_became_filterable_is_null_until_rows_are_written_again(tmp_path: Path) -> None:
    before = note_registry()
    columns = {**NOTE["columns"], "year": {"type": "int", "filterable": True}}  # type: ignore[dict-item]
    after = note_registry(columns=columns)
    assert before.vector_version(str(MODEL)) == after.vector_version(str(MODEL))
    first = open_store(tmp_path, before)
    first.upsert(TENANT, notes(before, unit_rows(1, 2, 16), ["a", "b"]))
    first.finish(TENANT)
    second = open_store(tmp_path, after)

    async def found(raw: dict[str, object]) -> list[str]:
        where = parse_where(raw, {"note": after.entity("note").filter_fields})
        hits: list[VectorHit] = await second.search(VectorQuery(Caller(TENANT), ("note",), axis(0), 9, where))
        return sorted(hit.ref.id for hit in hits)

    for _ in ("the table lacks the column", "the column was added"):
        assert await found({"year": {"gt": 0}}) == []
        assert await found({"year": {"isnull": True}}) == ["n0", "n1"]
        assert await found({"year": {"isnull": False}}) == []
        assert await found({"or": [{"year": 2020}, {"kind": "b"}]}) == ["n1"]
        second.prepare(TENANT)
    table = notes(after, unit_rows(1, 1, 16), ["a"])
    table = table.set_column(table.schema.get_field_index("i_year"), table.schema.field("i_year"), pa.array([2020]))
    second.upsert(TENANT, table)
    assert await found({"year": 2020}) == ["n0"]
    # A writer that still has the old registry leaves the new column null.
    first.upsert(TENANT, notes(before, unit_rows(1, 1, 16), ["a"]))
    assert await found({"year": 2020}) == []


async def test_more_tenants_than_are_kept_open_all_answer(tmp_path: Path) -> None:
    store = open_store(tmp_path, open_tenants=2)
    tenants = [f"tenant{i}" for i in range(6)]
    for tenant in tenants:
        write(store, [item(f"of-{tenant}")], tenant)
        store.finish(tenant)
    for tenant in [*tenants, *tenants[::-1]]:
        assert await ids(store, tenant) == [f"of-{tenant}"]


async def test_a_tenant_is_never_a_path(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for tenant in ("../x", "a/b", "", ".", "x" * 65):
        with pytest.raises(InvalidRequest, match="tenant id"):
            await store.count(tenant)
        with pytest.raises(InvalidRequest, match="tenant id"):
            store.prepare(tenant)
    assert os.listdir(tmp_path) == []


def test_a_writer_waits_for_the_lock_and_says_who_to_blame(tmp_path: Path) -> None:
    from recall.planes.lance_index import TenantIndexes

    indexes = TenantIndexes(tmp_path / TENANT)
    with indexes.locked(1), pytest.raises(TransientStoreError, match="another writer"), indexes.locked(0.05):
        pass


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    from recall.errors import TerminalStoreError

    store = open_store(tmp_path)
    await store.close()
    with pytest.raises(TerminalStoreError, match="closed"):
        await store.count(TENANT)


async def test_commits_from_outside_the_lock_are_survived(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    write(store, [item(f"r{i}") for i in range(50)])
    registry = conformance_registry()

    def foreign() -> None:
        table = table_of(tmp_path)
        for step in range(15):
            rows = vector_table(registry, TENANT, [item(f"f{step}")])
            table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    running = asyncio.get_running_loop().run_in_executor(None, foreign)
    for version in range(2, 17):
        assert write(store, [item(f"r{i}", version) for i in range(50)]).written == 50
    await running
    rows = table_of(tmp_path).to_arrow().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows) == 65
    assert {row["version"] for row in rows if row["id"].startswith("r")} == {16}
    await store.close()
