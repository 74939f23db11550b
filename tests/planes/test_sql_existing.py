"""Tables and views that were there before Recall: read where they lie, in PostgreSQL and in SQLite, never touched."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import pytest
from servers.postgres import PostgresServer, postgres_settings

from pipelines.importing import run_import
from recall.errors import ConfigError, StoreError, TerminalStoreError
from recall.planes.opening import ModelId, PlaneContext
from recall.planes.sql import SqlRows
from recall.ports import Page
from recall.registry import Registry
from recall.rows import Caller, Ref, Row, Tombstone
from recall.settings import Settings, SqliteSettings
from recall.where import Condition

Open = Callable[[Mapping[str, object]], SqlRows]


def context(entities: Mapping[str, object], folder: Path) -> PlaneContext:
    return PlaneContext(Registry.parse({"entities": entities}), ModelId("none", 2), folder)


def everything(rows: SqlRows, tenant: str, entity: str, size: int = 2) -> list[Row]:
    pages = rows.pages(tenant, entity, size)
    return [row for page in pages for row in rows.read_page(tenant, entity, page)]


def get(rows: SqlRows, entity: str, *ids: str, tenant: str = "acme", scope: str | None = None) -> dict[str, Row]:
    return asyncio.run(rows.get_many(Caller(tenant, scope), entity, ids))


# ---- on both --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.server)])
def sales(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Open, Callable[[str], list[tuple]], str]]:
    """A table `orders` and a view of it: how to open rows on them, to run SQL as their owner, and their schema."""
    definitions = """
        CREATE TABLE {0}orders (
            order_no INTEGER PRIMARY KEY, company VARCHAR(20), note TEXT, amount NUMERIC(10, 2), open BOOLEAN,
            secret TEXT);
        INSERT INTO {0}orders VALUES
            (7, 'acme', 'cafe\u0301', 10.50, true, 's'), (8, 'acme', '', NULL, false, 's'),
            (30, 'acme', NULL, 2, true, 's'),
            (9, 'other', 'theirs', 1, true, 's'), (10, NULL, 'nobody', 1, true, 's');
        CREATE VIEW {0}open_orders AS SELECT order_no AS id, company, note FROM {0}orders WHERE open;
    """
    stores: list[SqlRows] = []

    def opened(make: Callable[[PlaneContext], SqlRows]) -> Open:
        def open_rows(entities: Mapping[str, object]) -> SqlRows:
            stores.append(make(context(entities, tmp_path)))
            return stores[-1]

        return open_rows

    if request.param == "sqlite":
        with sqlite3.connect(tmp_path / "rows.sqlite") as owner:
            owner.executescript(definitions.format(""))
            yield opened(lambda c: SqlRows.sqlite(SqliteSettings(), c)), lambda q: owner.execute(q).fetchall(), ""
            owner.commit()
        owner.close()
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        schema = f"sales{uuid4().hex[:8]}"
        settings = postgres_settings(server.port)
        with server.superuser() as owner:
            owner.execute(f"CREATE SCHEMA {schema}")
            owner.execute(definitions.format(f"{schema}."))
            owner.execute(f"GRANT USAGE ON SCHEMA {schema} TO recall")
            owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO recall")
            query = lambda q: cursor.fetchall() if (cursor := owner.execute(q)).description else []  # noqa: E731
            yield opened(lambda c: SqlRows.postgres(settings, c)), query, f"{schema}."
    for store in stores:
        asyncio.run(store.close())


ORDER = {
    "columns": {"number": {"type": "int", "column": "order_no"}, "note": "string", "amount": "float", "open": "bool"},
    "key": "number",
    "tenant": "company",
    "existing": True,
}


def test_a_table_is_read_by_id_by_page_and_counted(sales: tuple[Open, Callable[[str], list[tuple]], str]) -> None:
    open_rows, _, schema = sales
    rows = open_rows({"order": {**ORDER, "table": f"{schema}orders"}})
    seven = Row(Ref("order", "7"), 0, {"number": 7, "note": "café", "amount": 10.5, "open": True})
    assert get(rows, "order", "7", "9", "10", "007", "seven", "a\0")["7"] == seven
    assert get(rows, "order", "7", "9", "10", "007", "seven", "a\0").keys() == {"7"}
    assert [row.ref.id for row in everything(rows, "acme", "order")] == ["7", "8", "30"]
    assert everything(rows, "acme", "order")[2].values == {"number": 30, "note": None, "amount": 2.0, "open": True}
    assert [row.ref.id for row in rows.read_page("acme", "order", Page("7", "8"))] == ["8"]
    assert asyncio.run(rows.count("acme")) == {"order": 3}
    assert get(rows, "order", "9", tenant="other")["9"].values["note"] == "theirs"
    assert rows.tenants() == ["acme", "other"]
    assert everything(rows, "nobody", "order") == []
    assert get(rows, "order", "7", scope="north") == {}


def test_it_is_asked_by_its_columns(sales: tuple[Open, Callable[[str], list[tuple]], str]) -> None:
    open_rows, _, schema = sales
    number = {"type": "int", "column": "order_no", "indexed": True}
    spec = {**ORDER, "table": f"{schema}orders", "columns": {**ORDER["columns"], "number": number}}
    rows = open_rows({"order": spec})
    above = Condition("number", "int", "gt", 7)
    found = asyncio.run(rows.find(Caller("acme"), "order", above, 10))
    assert [row.ref.id for row in found] == ["8", "30"]


def test_a_view_is_read_too(sales: tuple[Open, Callable[[str], list[tuple]], str]) -> None:
    open_rows, _, schema = sales
    view = {"columns": {"note": "string"}, "table": f"{schema}open_orders", "tenant": "company", "existing": True}
    rows = open_rows({"order": {**view, "scope": "note"}})
    assert [row.ref.id for row in everything(rows, "acme", "order")] == ["7", "30"]
    assert get(rows, "order", "7", "8").keys() == {"7"}
    assert get(rows, "order", "9", tenant="other", scope="theirs")["9"].scope == "theirs"
    assert get(rows, "order", "9", tenant="other", scope="ours") == {}


def test_a_table_without_tenants_has_an_owner(sales: tuple[Open, Callable[[str], list[tuple]], str]) -> None:
    open_rows, _, schema = sales
    spec = {**ORDER, "table": f"{schema}orders", "tenant": "tenant", "existing": {"owner": "whole"}}
    rows = open_rows({"order": spec})
    assert len(everything(rows, "whole", "order")) == 5
    assert get(rows, "order", "10", tenant="whole").keys() == {"10"}
    assert (everything(rows, "acme", "order"), get(rows, "order", "7")) == ([], {})
    assert rows.tenants() == ["whole"]


def test_nothing_is_ever_written_to_it(sales: tuple[Open, Callable[[str], list[tuple]], str], tmp_path: Path) -> None:
    open_rows, query, schema = sales
    before = query(f"SELECT * FROM {schema}orders ORDER BY order_no")
    rows = open_rows({"order": {**ORDER, "table": f"{schema}orders"}, "note": {"columns": {"text": "string"}}})
    rows.prepare()
    ours = Row(Ref("note", "n"), 1, {"text": "ours"})
    with pytest.raises(ConfigError, match="orders"):
        rows.upsert("acme", [ours, Row(Ref("order", "7"), 1, {"number": 7})])
    with pytest.raises(ConfigError, match="orders"):
        rows.delete("acme", [Tombstone(Ref("order", "7"), 1)])
    assert get(rows, "note", "n") == {}
    assert rows.upsert("acme", [ours]).written == 1
    assert query(f"SELECT * FROM {schema}orders ORDER BY order_no") == before


def test_what_is_missing_is_named(sales: tuple[Open, Callable[[str], list[tuple]], str]) -> None:
    open_rows, _, schema = sales
    table = {**ORDER, "table": f"{schema}orders"}
    for changed, said in (
        ({"table": f"{schema}ghost"}, "ghost.*does not exist"),
        ({"tenant": "tenant"}, "no column tenant.*owner"),
        ({"columns": {**ORDER["columns"], "price": "int"}}, "no column price"),
        ({"columns": {"amount": "int", "number": {"type": "int", "column": "open"}}}, "key 'open'.*BOOLEAN"),
    ):
        rows = open_rows({"order": {**table, **changed}})
        for call in (rows.prepare, lambda rows=rows: rows.pages("acme", "order", 2)):
            with pytest.raises(ConfigError, match=rf"(?s){said}"):
                call()


def test_a_value_of_another_type_names_its_row_and_the_way_out(
    sales: tuple[Open, Callable[[str], list[tuple]], str],
) -> None:
    open_rows, _, schema = sales
    rows = open_rows({"order": {**ORDER, "table": f"{schema}orders", "columns": {**ORDER["columns"], "note": "int"}}})
    assert get(rows, "order", "30").keys() == {"30"}
    with pytest.raises(TerminalStoreError, match=r"column 'note' of the row '7'.*make a view"):
        get(rows, "order", "7")


def test_importing_into_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "order.jsonl").write_text('{"number": 1}\n')
    settings = Settings.model_validate({"data_dir": str(tmp_path), "embedder": {"kind": "none"}})
    with sqlite3.connect(tmp_path / "rows.sqlite") as owner:
        owner.execute("CREATE TABLE orders (order_no INT, company TEXT, note TEXT, amount REAL, open BOOLEAN)")
    owner.close()
    registry = Registry.parse({"entities": {"order": {**ORDER, "table": "orders"}}})
    with pytest.raises(ConfigError, match=r"'order' is the existing table 'orders'"):
        run_import(settings, registry, "acme", [str(tmp_path / "order.jsonl")])


# ---- types of PostgreSQL ---------------------------------------------------------------------------------------------


@pytest.fixture
def wide(postgres: PostgresServer, tmp_path: Path) -> Iterator[SqlRows]:
    name = f"wide_{uuid4().hex[:8]}"
    columns = {
        "site": "string",
        "price": "float",
        "ratio": "float",
        "state": "string",
        "tags": "strings",
        "extra": "json",
        "noted": {"type": "json", "column": "Noted As"},
        "day": "date",
        "changed": "datetime",
        "at": "datetime",
    }
    asset = {"columns": columns, "table": name, "existing": True, "version": "changed", "tenant": "tenant_no"}
    with postgres.superuser() as owner:
        owner.execute(
            f"""
            CREATE TYPE {name}_state AS ENUM ('new', 'old');
            CREATE TABLE {name} (
                id UUID PRIMARY KEY, tenant_no INT NOT NULL, site INT, price NUMERIC, ratio REAL, state {name}_state,
                tags TEXT[], extra JSONB, "Noted As" TEXT, day DATE, changed TIMESTAMPTZ, at TIMESTAMP);
            INSERT INTO {name} (id, tenant_no) VALUES ('00000000-0000-4000-8000-00000000000b', 42);
            INSERT INTO {name} VALUES
                ('00000000-0000-4000-8000-00000000000a', 42, 7, 12.5, 'NaN', 'old', '{{a,b}}', '{{"k": [1, 2.5]}}',
                 '[1]', '2026-01-02', '2026-01-02 04:04:05.5+01', '2026-01-02 03:04:05');
            GRANT SELECT ON {name} TO recall;
            """
        )
        rows = SqlRows.postgres(postgres_settings(postgres.port), context({"asset": asset}, tmp_path))
        yield rows
        asyncio.run(rows.close())
        owner.execute(f"DROP TABLE {name}")


@pytest.mark.server
def test_values_of_its_own_types_come_back_as_declared(wide: SqlRows) -> None:
    first, second = (f"00000000-0000-4000-8000-00000000000{digit}" for digit in "ab")
    found = get(wide, "asset", first, second, first.upper(), "no uuid", tenant="42")
    assert found.keys() == {first, second}
    assert found[first].values == {
        "id": first,
        "site": "7",
        "price": 12.5,
        "ratio": None,
        "state": "old",
        "tags": ["a", "b"],
        "extra": {"k": [1, 2.5]},
        "noted": [1],
        "day": "2026-01-02",
        "changed": "2026-01-02T03:04:05.500000Z",
        "at": "2026-01-02T03:04:05.000000Z",
    }
    assert found[first].version == 1_767_323_045_500_000
    assert found[second].version == 0
    assert [row.ref.id for row in everything(wide, "42", "asset", 1)] == [first, second]
    assert get(wide, "asset", first, tenant="acme") == {}


@pytest.mark.server
def test_reading_it_needs_the_right_to(postgres: PostgresServer, tmp_path: Path) -> None:
    with postgres.superuser() as owner:
        owner.execute("CREATE TABLE IF NOT EXISTS hidden (id TEXT, tenant TEXT)")
    rows = SqlRows.postgres(
        postgres_settings(postgres.port),
        context({"note": {"columns": {}, "table": "hidden", "existing": True}}, tmp_path),
    )
    with pytest.raises(StoreError, match=r"(?s)permission denied.*grant"):
        get(rows, "note", "a")
    asyncio.run(rows.close())
