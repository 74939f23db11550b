"""SqlRows on SQLite: the suite in full, and what a file of its own can go through."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

import recall.planes.sqlite
from recall.errors import ConfigError, StoreError, TerminalStoreError, TransientStoreError
from recall.planes.conformance.durable_rows import DurableRowsConformance
from recall.planes.conformance.suite import Opener
from recall.planes.leases import FileLeases
from recall.planes.opening import ModelId, PlaneContext
from recall.planes.sql import SqlRows
from recall.planes.sql_gate import gated_insert
from recall.registry import Registry
from recall.rows import Caller, Ref, Row
from recall.settings import SqliteSettings


class TestSqliteRows(DurableRowsConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls) -> Opener:
        return partial(SqlRows.sqlite, SqliteSettings())


def opened(folder: Path, columns: Mapping[str, object], **spec: object) -> SqlRows:
    registry = Registry.parse({"entities": {"note": {"columns": columns, **spec}}})
    return SqlRows.sqlite(SqliteSettings(), PlaneContext(registry, ModelId("none", 2), folder))


def note(row_id: str, version: int = 1, **values: object) -> Row:
    return Row(Ref("note", row_id), version, values)


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[SqlRows]:
    store = opened(tmp_path, {"text": "string"})
    store.prepare()
    yield store
    asyncio.run(store.close())


def read(store: SqlRows, *ids: str) -> dict[str, Row]:
    return asyncio.run(store.get_many(Caller("t"), "note", ids))


def test_opening_touches_no_file(tmp_path: Path) -> None:
    store = opened(tmp_path / "absent", {"text": "string"})
    asyncio.run(store.close())
    assert list(tmp_path.iterdir()) == []


def test_reads_before_the_first_import_are_empty_and_writes_say_what_is_missing(tmp_path: Path) -> None:
    store = opened(tmp_path / "new" / "folder", {"text": "string"})
    assert read(store, "a") == {}
    assert asyncio.run(store.count("t")) == {}
    assert (store.pages("t", "note", 10), store.tenants()) == ([], [])
    with pytest.raises(TerminalStoreError, match=r"rows\.sqlite.*no such table: note"):
        store.upsert("t", [note("a")])
    store.prepare()
    store.upsert("t", [note("a")])
    assert read(store, "a").keys() == {"a"}


def test_a_full_disk_names_the_file_and_the_way_out_and_keeps_what_was_written(tmp_path: Path, rows: SqlRows) -> None:
    rows.upsert("t", [note("before", text="kept")])

    @sa.event.listens_for(rows._database.engine, "checkout")
    def shrink(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")

    with pytest.raises(TerminalStoreError, match=r"rows\.sqlite.*full.*free space") as caught:
        rows.upsert("t", [note(f"r{i}", text="x" * 10_000) for i in range(100)])
    assert str(tmp_path) in str(caught.value)
    assert asyncio.run(rows.count("t")) == {"note": 1}
    sa.event.remove(rows._database.engine, "checkout", shrink)
    with sqlite3.connect(tmp_path / "rows.sqlite") as healed:
        assert healed.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    healed.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.sqlite").write_bytes(b"not a database, " * 100)
    store = opened(tmp_path, {"text": "string"})
    with pytest.raises(TerminalStoreError, match="not a SQLite database"):
        asyncio.run(store.health())


def test_a_path_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = opened(tmp_path / "file" / "below", {"text": "string"})
    with pytest.raises(TerminalStoreError, match="make the folder writable"):
        store.prepare()
    with pytest.raises(TerminalStoreError, match="make the folder writable"), store.lease("t", "import"):
        pytest.fail("a lease without a file")


def test_a_writer_that_waits_too_long_fails_transiently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: SqlRows
) -> None:
    monkeypatch.setattr(recall.planes.sqlite, "BUSY_TIMEOUT_MS", 20)
    impatient = opened(tmp_path, {"text": "string"})
    blocker = sqlite3.connect(tmp_path / "rows.sqlite", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(TransientStoreError, match="another process is writing"):
        impatient.upsert("t", [note("a")])
    assert read(impatient, "a") == {}
    blocker.execute("ROLLBACK")
    blocker.close()
    assert impatient.upsert("t", [note("a")]).written == 1


def test_a_new_column_is_added_and_a_dropped_one_is_left_alone(tmp_path: Path, rows: SqlRows) -> None:
    rows.upsert("t", [note("a", text="old")])
    wider = opened(tmp_path, {"cost": "float", "day": "date", "more": {"type": "json", "column": "odd % name"}})
    wider.prepare()
    assert read(wider, "a")["a"].values == {"id": "a", "cost": None, "day": None, "more": None}
    values = {"id": "b", "cost": 1.5, "day": "2026-01-02", "more": {"k": [1]}}
    wider.upsert("t", [note("b", **values)])
    assert read(wider, "b")["b"].values == values
    assert read(rows, "a")["a"].values["text"] == "old"


@pytest.mark.parametrize(("before", "after"), [("string", "int"), ("int", "bool"), ("date", "datetime")])
def test_a_column_that_changes_its_type_is_refused(tmp_path: Path, before: str, after: str) -> None:
    opened(tmp_path, {"value": before}).prepare()
    opened(tmp_path, {"value": before}).prepare()
    with pytest.raises(ConfigError, match=r"'value'.*'note'"):
        opened(tmp_path, {"value": after}).prepare()


def test_a_table_of_somebody_else_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "rows.sqlite") as other:
        other.execute("CREATE TABLE note (id TEXT, text TEXT)")
    other.close()
    with pytest.raises(ConfigError, match=r"'note' exists without the column 'tenant'"):
        opened(tmp_path, {"text": "string"}).prepare()


def test_names_that_a_database_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two columns called"):
        opened(tmp_path, {"text": "string", "Text": "string"})
    with pytest.raises(ConfigError, match="both name the table"):
        opened(tmp_path, {"text": "string"}, table="Memory")


def test_an_entity_may_name_its_own_columns(tmp_path: Path) -> None:
    columns = {"code": "string", "rev": "int", "group": {"type": "string", "column": "order"}, "owner": "string"}
    store = opened(tmp_path, columns, table="select", key="code", version="rev", tenant="company", scope="owner")
    store.prepare()
    row = Row(Ref("note", "n1"), 7, {"code": "n1", "rev": 7, "group": "g", "owner": "me"}, "me")
    store.upsert("t", [row])
    assert read(store, "n1") == {"n1": row}
    with sqlite3.connect(tmp_path / "rows.sqlite") as raw:
        assert raw.execute('SELECT company, code, "order" FROM "select"').fetchall() == [("t", "n1", "g")]
    raw.close()


def test_an_integer_key_refuses_other_ids_row_by_row(tmp_path: Path) -> None:
    store = opened(tmp_path, {"id": "int", "text": "string"})
    store.prepare()
    report = store.upsert("t", [note("1", id=1), note("one"), note("01")])
    assert report.written == 1
    assert [(failure.key, failure.transient) for failure in report.failures] == [("one", False), ("01", False)]


def test_a_lease_survives_neither_an_error_nor_a_stale_file(tmp_path: Path) -> None:
    leases = FileLeases(tmp_path)
    (tmp_path / "t.lock").write_text("backfill (process 1 on gone)")
    with leases.hold("t", "import"):
        assert "import" in (tmp_path / "t.lock").read_text()
    assert (tmp_path / "t.lock").read_text() == ""


def test_the_gate_is_one_statement_that_postgresql_speaks_too(rows: SqlRows) -> None:
    for dialect, comparison in ((sqlite.dialect(), "IS NOT"), (postgresql.dialect(), "IS DISTINCT FROM")):
        sql = str(gated_insert(rows._own["note"], [], dialect.name)[0].compile(dialect=dialect))
        assert sql.count("INSERT INTO") == 1
        assert all(part in sql for part in ("ON CONFLICT (tenant, id) DO UPDATE", "RETURNING", comparison))


def test_errors_name_the_store_and_no_secret(tmp_path: Path) -> None:
    store = opened(tmp_path, {"text": "string"})
    with pytest.raises(StoreError) as caught:
        asyncio.run(store.health(timeout_s=0.0))
    assert caught.value.store == "rows (sql)"
    assert caught.value.address == str(tmp_path / "rows.sqlite")
