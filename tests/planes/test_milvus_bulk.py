"""Milvus: first loads by the server's import of Parquet files, on the real server with authentication switched on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError
from pymilvus import MilvusClient
from servers.availability import unavailable
from standins.milvus import ROOT_TOKEN, CannotStart, lite_server, real_server

from pipelines.lanes import Lane
from pipelines.load import load
from pipelines.runs import LOADED, Stage
from recall.errors import StoreError, TerminalStoreError, TransientStoreError
from recall.planes.conformance.data import AWKWARD_IDS, Record, axis, conformance_registry, item, vector_table
from recall.planes.milvus import MilvusVectors
from recall.planes.milvus_bulk import MilvusBulk
from recall.planes.opening import ModelId, PlaneContext
from recall.ports import VectorQuery
from recall.rows import Caller, Ref
from recall.settings import MilvusSettings, Settings

TENANT = "acme"
TOKEN = "TEST_MILVUS_TOKEN"


class Place:
    """One set of collections on the server, with the folder that import files go through."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port, self.folder, self.prefix = port, folder, f"t{uuid4().hex[:8]}"
        self.opened: list[MilvusVectors | MilvusBulk] = []

    def settings(self, **bulk: object) -> MilvusSettings:
        return MilvusSettings.model_validate(self.raw(**bulk))

    def raw(self, **bulk: object) -> dict[str, object]:
        bulk = {"from_rows": 1, "uri": str(self.folder), "poll_s": 0.2, "timeout_s": 120, **bulk}
        place = {"kind": "milvus", "uri": f"http://127.0.0.1:{self.port}", "collection": self.prefix}
        return {**place, "token_env": TOKEN, "index": {"kind": "FLAT"}, "read_timeout_s": 20, "bulk": bulk}

    def store(self) -> MilvusVectors:
        store = MilvusVectors(self.settings(), context())
        self.opened.append(store)
        return store

    def bulk(self, **bulk: object) -> MilvusBulk:
        writer = MilvusBulk(self.settings(**bulk), context())
        self.opened.append(writer)
        return writer

    def files(self) -> list[Path]:
        return list(self.folder.rglob("*.parquet"))

    def import_again(self, file: Path) -> None:
        client = MilvusClient(f"http://127.0.0.1:{self.port}", token=ROOT_TOKEN)
        client._get_connection().do_bulk_insert(file.parts[-3], "", [str(file)])
        client.close()

    def contents(self, tenant: str = TENANT) -> dict[str, dict[str, Any]]:
        """Every record of the tenant by key, markers left out; fails for a key that is there twice."""
        client = MilvusClient(f"http://127.0.0.1:{self.port}", token=ROOT_TOKEN)
        (collection,) = (name for name in client.list_collections() if name.startswith(self.prefix))
        where = f'tenant == "{tenant}" and entity != ""'
        rows = client.query(collection, filter=where, output_fields=["*"], limit=10_000, consistency_level="Strong")
        client.close()
        found = {row["key"]: dict(row) for row in rows}
        assert len(found) == len(rows)
        return found


def context() -> PlaneContext:
    return PlaneContext(conformance_registry(), ModelId("model-a", 16), Path())


def table(*records: Record, tenant: str = TENANT) -> pa.Table:
    return vector_table(conformance_registry(), tenant, list(records))


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    server = real_server(tmp_path_factory.mktemp("milvus"), secured=True)
    try:
        port = server.__enter__()
    except CannotStart as reason:
        unavailable(f"Milvus cannot be started: {reason}")
    yield port
    server.__exit__(None, None, None)


@pytest.fixture
async def new_place(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(TOKEN, ROOT_TOKEN)
    places: list[Place] = []

    def new() -> Place:
        places.append(Place(port, tmp_path / f"imports{len(places)}"))
        return places[-1]

    yield new
    for place in places:
        for opened in place.opened:
            await opened.close()


@pytest.fixture
def place(new_place: Callable[[], Place]) -> Place:
    return new_place()


def unread() -> Iterator[pa.Table]:
    pytest.fail("a part was read")
    yield


def records() -> list[Record]:
    awkward = [item(row_id, title=f"of {row_id}", amount=-(2**63)) for row_id in AWKWARD_IDS]
    chunked = Record(Ref("item", "chunked"), vectors=np.stack([axis(1), axis(2), axis(3)]), scope="")
    buried = Record(Ref("item", "buried"), 7, live=False, hash="")
    whole = item("whole", title="系" * 40_000, cost=1.5, active=True, due="2026-01-02", seen="2026-01-02T03:04:05Z")
    return [*awkward, chunked, buried, whole, Record(Ref("place", "p"), scope="north")]


@pytest.mark.server
async def test_a_first_load_is_imported_as_upserts_would_have_written_it_and_never_again(
    new_place: Callable[[], Place],
) -> None:
    imported, upserted = new_place(), new_place()
    whole = table(*records())
    store = upserted.store()
    store.prepare(TENANT)
    expected = store.upsert(TENANT, whole)
    store = imported.store()
    for tenant in (TENANT, "other"):
        store.prepare(tenant)
    # What another tenant of the collection has changes nothing.
    store.upsert("other", table(item("a"), item("b"), tenant="other"))
    parts = [whole.slice(0, 10), whole.slice(10)]
    assert imported.bulk(file_rows=10).bulk_load(TENANT, parts) == expected
    assert imported.bulk().bulk_load(TENANT, unread()) is None
    store.finish(TENANT)
    found, wanted = imported.contents(), upserted.contents()
    assert set(found) == set(wanted)
    for key, row in wanted.items():
        np.testing.assert_allclose(found[key].pop("vector"), row.pop("vector"), atol=1e-6)
        assert found[key] == row
    hits = await store.search(VectorQuery(Caller(TENANT), ("item",), axis(2), 1), timeout_s=20)
    assert (hits[0].ref.id, hits[0].ordinal) == ("chunked", 1)
    assert imported.files() == []
    # Later writes replace what was imported.
    assert store.upsert(TENANT, table(item("chunked", 2))).written == 1
    assert await store.count(TENANT) == {"item": len(AWKWARD_IDS) + 2, "place": 1}
    assert len(imported.contents()) == len(wanted) - 2


@pytest.mark.server
def test_a_killed_load_is_never_imported_twice(place: Place) -> None:
    place.store().prepare(TENANT)
    first = [item(f"r{i}") for i in range(500)]

    def parts() -> Iterator[pa.Table]:
        yield table(*first)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.bulk(file_rows=1).bulk_load(TENANT, parts())
    assert place.bulk().bulk_load(TENANT, unread()) is None
    assert {row["id"] for row in place.contents().values()} == {record.ref.id for record in first}
    assert place.files() == []


@pytest.mark.server
def test_a_file_that_came_in_twice_is_noticed_and_taken_out(place: Place) -> None:
    place.store().prepare(TENANT)

    def parts() -> Iterator[pa.Table]:
        yield table(item("a"), item("b"))
        # As when the answer to the first call was lost, and the client called again.
        (file,) = place.files()
        place.import_again(file)

    with pytest.raises(TransientStoreError, match=r"4 chunks came of 2.*imported twice.*run again"):
        place.bulk(file_rows=1).bulk_load(TENANT, parts())
    assert place.contents() == {}


@pytest.mark.server
def test_an_import_job_that_fails_is_named_with_its_reason(place: Place) -> None:
    place.store().prepare(TENANT)
    pattern = rf"127.0.0.1:{place.port}.* import job \d+ of /nowhere/.*\.parquet failed: .*no such file"
    with pytest.raises(TerminalStoreError, match=pattern):
        place.bulk(server_path="/nowhere").bulk_load(TENANT, [table(item("a"))])
    assert place.contents() == {}


@pytest.mark.server
def test_a_load_ends_at_its_deadline(place: Place) -> None:
    place.store().prepare(TENANT)
    started = time.monotonic()
    with pytest.raises(TransientStoreError, match=r"import jobs still running: \d+ .*bulk.timeout_s = 0.01"):
        place.bulk(timeout_s=0.01, poll_s=0.01).bulk_load(TENANT, [table(item("a"))])
    assert time.monotonic() - started < 10


@pytest.mark.server
def test_a_place_that_cannot_be_written_is_named(place: Place, tmp_path: Path) -> None:
    place.store().prepare(TENANT)
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(TerminalStoreError, match=rf"{occupied}.*planes\.vector\.bulk\.uri"):
        place.bulk(uri=str(occupied)).bulk_load(TENANT, [table(item("a"))])


@pytest.mark.server
def test_the_load_stage_imports_what_was_staged_and_reports_as_for_upserts(place: Place, tmp_path: Path) -> None:
    raw = {"data_dir": str(tmp_path / "data"), "planes": {"vector": place.raw(from_rows=6, file_rows=1)}}
    settings = Settings.model_validate(raw | {"embedder": {"kind": "hash", "dim": 16}})
    lane = Lane("vector", TENANT, settings, conformance_registry())
    stage = Stage.of(lane, "run")
    stage.begin(lane)
    zero = Record(Ref("item", "zero"), vectors=np.zeros((1, 16), np.float32))
    # A task that was repeated over another layout of blocks stages rows again, of whatever version they have by then.
    stage.folder.put_table("part-1.parquet", table(item("a", 2), item("b"), zero))
    stage.folder.put_table("part-2.parquet", table(item("a", 1), item("b", 3), item("c")))
    steps: list[tuple[int, int]] = []
    loaded = load(lane, stage, lambda done, total: steps.append((done, total)))
    assert (loaded.written, loaded.stale, steps[-1]) == (4, 1, (6, 6))
    assert [(failure.entity, failure.id) for failure in loaded.failures] == [("item", "zero")]
    assert LOADED in stage.folder.names()
    assert {row["id"]: row["version"] for row in place.contents().values()} == {"a": 2, "b": 3, "c": 1}


@pytest.mark.server
@pytest.mark.parametrize("token", ["root:wrong", "nobody:Milvus", ""])
async def test_wrong_credentials_are_refused_at_once_naming_the_setting(
    place: Place, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv(TOKEN, token)
    store = place.store()
    started = time.monotonic()
    with pytest.raises(TerminalStoreError, match=rf"127.0.0.1:{place.port}.*token_env") as caught:
        store.prepare(TENANT)
    assert "wrong" not in str(caught.value)
    with pytest.raises(TerminalStoreError, match="token_env"):
        await store.health(timeout_s=10)
    with pytest.raises(TerminalStoreError, match="token_env"):
        await store.search(VectorQuery(Caller(TENANT), ("item",), axis(1), 1), timeout_s=10)
    assert time.monotonic() - started < 20


@pytest.mark.server
def test_a_server_without_imports_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "")
    try:
        with lite_server(tmp_path / "lite") as port:
            place = Place(port, tmp_path)
            place.store().prepare(TENANT)
            with pytest.raises(StoreError, match=rf"127.0.0.1:{port}.*no import of files.*from_rows"):
                place.bulk().bulk_load(TENANT, [table(item("a"))])
    except CannotStart as reason:
        unavailable(f"Milvus Lite cannot be started: {reason}")


@pytest.mark.parametrize(
    "bulk", [{"from_rows": 5}, {"uri": "s3://key:secret@bucket/prefix"}, {"uri": "relative"}, {"from_rows": 0}]
)
def test_settings_that_cannot_work_are_refused(bulk: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        MilvusSettings.model_validate({"kind": "milvus", "bulk": bulk})


def test_imports_are_off_by_default() -> None:
    assert MilvusSettings(kind="milvus").bulk.from_rows is None
