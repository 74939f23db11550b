"""The search plane in tantivy: the conformance suite, and what only an embedded store has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from standins.killed import kill_after

from recall.errors import TerminalStoreError, TransientStoreError
from recall.planes.conformance.corpus import parsed
from recall.planes.conformance.data import DIM, Record, conformance_registry, document_table, item
from recall.planes.conformance.durability import DurableConformance
from recall.planes.conformance.search import SearchConformance
from recall.planes.conformance.suite import Opener
from recall.planes.folders import LOCK
from recall.planes.opening import ModelId, PlaneContext
from recall.planes.tantivy import TantivySearch
from recall.ports import SearchQuery
from recall.rows import Caller, Ref
from recall.settings import TantivySettings
from recall.where import matches

LONG = "x" * 70_000


def open_tantivy(context: PlaneContext) -> TantivySearch:
    return TantivySearch(TantivySettings(), context)


@pytest.fixture(scope="module")
def opener() -> Opener:
    return open_tantivy


class TestTantivy(SearchConformance, DurableConformance):
    pass


@pytest.fixture
def context(tmp_path: Path) -> PlaneContext:
    return PlaneContext(conformance_registry(), ModelId("conformance", DIM), tmp_path)


def load(store: TantivySearch, context: PlaneContext, tenant: str, records: list[Record]) -> None:
    store.prepare(tenant)
    store.upsert(tenant, document_table(context.registry, tenant, records))
    store.finish(tenant)


def ids(store: TantivySearch, tenant: str, raw: Mapping[str, object] | None = None, **query: int) -> list[str]:
    where = parsed(raw, conformance_registry(), ["item"]) if raw else None
    asked = replace(SearchQuery(Caller(tenant), ("item",), "common", 100, where=where), **query)
    return [hit.ref.id for hit in asyncio.run(store.search(asked))]


@pytest.mark.parametrize(
    "raw",
    [
        {"title": LONG},
        {"title": {"ne": LONG}},
        {"title": {"in": [LONG, "short"]}},
        {"title": {"notin": [LONG, "short"]}},
        {"title": {"gt": "x" * 69_999}},
        {"title": {"lte": LONG}},
        {"title": {"like": "x%y"}},
        {"title": {"ilike": "%XY"}},
        {"title": {"isnull": False}},
        {"title": {"isnull": True}},
    ],
    ids=lambda raw: str(raw)[:22],
)
async def test_filters_are_exact_on_values_too_long_for_a_term(context: PlaneContext, raw: dict[str, object]) -> None:
    store = open_tantivy(context)
    values = [LONG, f"{LONG}y", "x" * 5000, "系" * 3000, "short", "xy", None]
    records = [item(f"r{i}", title=value) for i, value in enumerate(values)]
    await asyncio.to_thread(load, store, context, "t", records)
    where = parsed(raw, context.registry, ["item"])
    hits = await store.search(SearchQuery(Caller("t"), ("item",), "common", 100, where=where))
    assert {hit.ref for hit in hits} == {record.ref for record in records if matches(where, record.values)}
    await store.close()


def test_deep_pages_of_a_long_tie_are_disjoint_and_complete(context: PlaneContext) -> None:
    store = open_tantivy(context)
    load(store, context, "t", [item(f"r{i:04d}") for i in range(500)])
    pages = [ids(store, "t", limit=40, offset=at) for at in range(0, 520, 40)]
    assert [row_id for page in pages for row_id in page] == [f"r{i:04d}" for i in range(500)]


def test_a_second_writer_is_told_where_the_first_one_is(context: PlaneContext) -> None:
    store = open_tantivy(context)
    load(store, context, "t", [item("a")])
    (folder,) = (context.data_dir / "search" / "t").iterdir()
    with store._folders.writing(folder), pytest.raises(TransientStoreError, match="another process") as refusal:
        open_tantivy(context).upsert("t", document_table(context.registry, "t", [item("b")]))
    assert refusal.value.address == str(folder)
    assert ids(store, "t") == ["a"]
    load(open_tantivy(context), context, "t", [item("b")])
    assert ids(store, "t") == ["a", "b"]


def test_the_lock_file_of_a_dead_writer_holds_nobody_up(context: PlaneContext) -> None:
    store = open_tantivy(context)
    load(store, context, "t", [item("a")])
    (folder,) = (context.data_dir / "search" / "t").iterdir()
    assert (folder / LOCK).exists()
    load(open_tantivy(context), context, "t", [item("b")])
    assert ids(store, "t") == ["a", "b"]


def _write_forever(context: PlaneContext, pipe: Connection) -> None:
    store = open_tantivy(context)
    store.prepare("t")
    for batch in range(10_000):
        records = [item(f"{batch}-{i}", text=f"common words {i}") for i in range(50)]
        store.upsert("t", document_table(context.registry, "t", records))
        pipe.send(batch)


def test_a_writer_killed_in_the_middle_of_a_batch_leaves_whole_batches(context: PlaneContext) -> None:
    acknowledged = kill_after(5, _write_forever, context)
    store = open_tantivy(context)
    count = asyncio.run(store.count("t"))["item"]
    assert count % 50 == 0
    assert count >= 50 * (acknowledged + 1)
    load(store, context, "t", [item("after")])
    assert asyncio.run(store.count("t"))["item"] == count + 1


def test_more_tenants_than_may_be_open_are_all_answered(context: PlaneContext) -> None:
    store = TantivySearch(TantivySettings(open_tenants=1), context)
    for tenant in ("a", "b", "c"):
        load(store, context, tenant, [item(f"of-{tenant}")])
    for _ in range(2):
        assert [ids(store, tenant) for tenant in ("a", "b", "c")] == [["of-a"], ["of-b"], ["of-c"]]


def test_finish_keeps_this_version_and_the_one_before_it(context: PlaneContext) -> None:
    store = open_tantivy(context)
    load(store, context, "t", [item("a")])
    (current,) = (context.data_dir / "search" / "t").iterdir()
    for age, name in enumerate(("previous", "older", "oldest")):
        folder = current.parent / name
        folder.mkdir()
        (folder / "meta.json").write_text("{}")
        os.utime(folder / "meta.json", (1_000_000 - age, 1_000_000 - age))
    store.finish("t")
    assert {folder.name for folder in current.parent.iterdir()} == {current.name, "previous"}
    assert ids(store, "t") == ["a"]


def test_a_broken_index_is_named_with_its_folder(context: PlaneContext) -> None:
    store = open_tantivy(context)
    load(store, context, "t", [item("a")])
    (folder,) = (context.data_dir / "search" / "t").iterdir()
    (folder / "meta.json").write_text("not json")
    with pytest.raises(TerminalStoreError) as failure:
        ids(open_tantivy(context), "t")
    assert failure.value.address == str(folder)


def test_a_file_in_place_of_the_folder_is_a_store_error(context: PlaneContext, tmp_path: Path) -> None:
    (tmp_path / "search").write_text("a file where a folder should be")
    with pytest.raises(TransientStoreError):
        open_tantivy(context).prepare("t")


def test_the_scores_of_one_text_do_not_depend_on_its_segment(context: PlaneContext) -> None:
    store = open_tantivy(context)
    text = "valve gasket pump crane lever " * 3
    for part in range(3):
        load(store, context, "t", [item(f"r{part}{i}", text=text) for i in range(7)])
    query = SearchQuery(Caller("t"), ("item",), "lever pump valve crane gasket", 50)
    hits = asyncio.run(store.search(query))
    assert len({hit.score for hit in hits}) == 1
    assert [hit.ref for hit in hits] == sorted(Ref("item", f"r{part}{i}") for part in range(3) for i in range(7))
