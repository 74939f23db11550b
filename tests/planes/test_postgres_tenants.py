"""Tenants in PostgreSQL: what row-level security keeps out, whatever the statement, and schemas of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from servers.postgres import DATABASE, PASSWORD, PostgresServer, postgres_settings

from recall.errors import TerminalStoreError
from recall.planes.opening import ModelId, PlaneContext
from recall.planes.sql import SqlRows
from recall.planes.sql_postgres import PostgresDatabase
from recall.registry import Registry
from recall.rows import Caller, Ref, Row
from recall.settings import PostgresSettings

pytestmark = pytest.mark.server

NOTE = {"columns": {"text": "string"}, "tenant": "owner %"}


@contextmanager
def opened(settings: PostgresSettings, **columns: str) -> Iterator[SqlRows]:
    registry = Registry.parse({"entities": {"note": {**NOTE, "columns": {"text": "string", **columns}}}})
    store = SqlRows.postgres(settings, PlaneContext(registry, ModelId("none", 2), Path()))
    try:
        yield store
    finally:
        asyncio.run(store.close())


def note(row_id: str, version: int = 1, **values: object) -> Row:
    return Row(Ref("note", row_id), version, {"text": row_id, **values})


def read(store: SqlRows, tenant: str, *ids: str) -> list[str]:
    return list(asyncio.run(store.get_many(Caller(tenant), "note", ids)))


@pytest.fixture
def shared(postgres: PostgresServer) -> Iterator[tuple[SqlRows, str]]:
    """Rows of two tenants in one table, and the table's name."""
    settings = postgres_settings(postgres.port)
    with opened(settings) as rows:
        rows.prepare()
        rows.upsert("ours", [note("a"), note("b")])
        rows.upsert("theirs", [note("c")])
        yield rows, f"{settings.db_schema}.note"


@contextmanager
def role(postgres: PostgresServer, name: str) -> Iterator[psycopg.Connection]:
    address = {"host": "127.0.0.1", "port": postgres.port, "dbname": DATABASE}
    with psycopg.connect(**address, user=name, password=PASSWORD, autocommit=True) as connection:
        yield connection


def grant(postgres: PostgresServer, schema: str) -> None:
    """What a role needs that only reads."""
    with role(postgres, "recall") as owner:
        owner.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader")
        owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader")


@pytest.mark.parametrize("name", ["reader", "recall"])
@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM {table}",
        "SELECT id FROM {table} WHERE true OR 'ours' = 'theirs'",
        "SELECT id FROM {table} WHERE \"owner %\" = 'theirs'",
        "SELECT a.id FROM {table} a JOIN {table} b ON true",
        "SELECT id FROM {table} UNION ALL SELECT id FROM {table}",
        "WITH everything AS (SELECT * FROM {table}) SELECT id FROM everything",
        "SELECT id FROM {table} TABLESAMPLE SYSTEM (100)",
    ],
)
def test_a_statement_without_its_condition_shows_no_other_tenant(
    postgres: PostgresServer, shared: tuple[SqlRows, str], name: str, query: str
) -> None:
    table = shared[1]
    grant(postgres, table.split(".", maxsplit=1)[0])
    with role(postgres, name) as connection:
        assert connection.execute(query.format(table=table)).fetchall() == []
        with connection.transaction():
            connection.execute("SET LOCAL app.tenant = 'ours'")
            assert {row[0] for row in connection.execute(query.format(table=table))} <= {"a", "b"}
        # The setting ended with its transaction.
        assert connection.execute(query.format(table=table)).fetchall() == []


def test_row_security_can_neither_be_switched_off_nor_written_past(
    postgres: PostgresServer, shared: tuple[SqlRows, str]
) -> None:
    rows, table = shared
    with role(postgres, "recall") as owner:
        owner.execute("SET row_security = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute(f"SELECT * FROM {table}")
        owner.execute("SET row_security = on")
        with owner.transaction():
            owner.execute("SET LOCAL app.tenant = 'ours'")
            assert owner.execute(f"UPDATE {table} SET text = 'x' WHERE id = 'c'").rowcount == 0
            assert owner.execute(f"DELETE FROM {table} WHERE id = 'c'").rowcount == 0
        for statement in (
            f"UPDATE {table} SET \"owner %\" = 'theirs'",
            f"INSERT INTO {table} (\"owner %\", id, _version, _deleted) VALUES ('theirs', 'd', 1, false)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                owner.execute(f"SELECT set_config('app.tenant', 'ours', false); {statement}")
    assert read(rows, "theirs", "c", "d") == ["c"]
    assert read(rows, "ours", "a", "b", "c") == ["a", "b"]


def test_a_forgotten_condition_of_ours_would_show_nothing(shared: tuple[SqlRows, str]) -> None:
    rows, table = shared
    database = rows._database
    assert isinstance(database, PostgresDatabase)
    for tenant, seen in (("ours", 2), ("theirs", 1), ("nobody", 0), (None, 0)):
        with database.reading(tenant) as connection:
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() == seen
    # Connections are pooled: none of them keeps a tenant.
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() == 0


def test_a_role_that_only_reads_serves_and_cannot_write(postgres: PostgresServer, shared: tuple[SqlRows, str]) -> None:
    schema = shared[1].split(".", maxsplit=1)[0]
    grant(postgres, schema)
    with opened(postgres_settings(postgres.port, db_schema=schema, user="reader")) as rows:
        assert read(rows, "ours", "a", "c") == ["a"]
        assert asyncio.run(rows.count("theirs")) == {"note": 1}
        assert rows.tenants() == ["ours", "theirs"]
        with pytest.raises(TerminalStoreError, match=r"(?s)permission denied.*grant"):
            rows.upsert("ours", [note("z")])


def test_preparing_again_locks_nobody_out(postgres: PostgresServer, shared: tuple[SqlRows, str]) -> None:
    rows, table = shared
    with role(postgres, "recall") as reading, reading.transaction():
        reading.execute(f"SELECT * FROM {table}")
        # Defining row-level security again would wait for this reader, and every later reader for that.
        with opened(
            postgres_settings(postgres.port, db_schema=table.split(".", maxsplit=1)[0], write_timeout_s=5)
        ) as other:
            other.prepare()
    assert read(rows, "ours", "a") == ["a"]


def test_row_security_may_be_left_to_somebody_else(postgres: PostgresServer) -> None:
    settings = postgres_settings(postgres.port, row_security=False)
    with opened(settings) as rows:
        rows.prepare()
        rows.upsert("ours", [note("a")])
        assert read(rows, "theirs", "a") == []
        with role(postgres, "recall") as owner:
            assert owner.execute(f"SELECT id FROM {settings.db_schema}.note").fetchall() == [("a",)]


def test_every_tenant_has_a_schema_of_its_own(postgres: PostgresServer) -> None:
    settings = postgres_settings(postgres.port, isolation="dedicated")
    long = "L" * 64
    with opened(settings) as rows:
        rows.prepare()
        for tenant in ("one", "Two-2", long):
            rows.upsert(tenant, [note("same", text=tenant)])
        assert rows.tenants() == sorted(["one", "Two-2", long])
        assert read(rows, "one", "same") == ["same"]
        assert asyncio.run(rows.count("absent")) == {}
        assert rows.pages("absent", "note", 10) == []
    with postgres.superuser() as connection:
        query = "SELECT nspname FROM pg_namespace WHERE nspname LIKE %s ORDER BY 1"
        schemas = [row[0] for row in connection.execute(query, (f"{settings.db_schema}%",))]
        assert len(schemas) == 4
        assert {f"{settings.db_schema}_one", f"{settings.db_schema}_Two-2"} < set(schemas)
        assert connection.execute(f"SELECT text FROM {settings.db_schema}_one.note").fetchall() == [("one",)]
        assert connection.execute("SELECT to_regclass(%s)", (f"{settings.db_schema}.note",)).fetchone() == (None,)


@pytest.mark.parametrize("isolation", ["shared", "dedicated"])
def test_a_new_column_reaches_the_tables_of_every_tenant(postgres: PostgresServer, isolation: str) -> None:
    settings = postgres_settings(postgres.port, isolation=isolation)
    with opened(settings) as rows:
        rows.prepare()
        rows.upsert("one", [note("a")])
        rows.upsert("two", [note("b")])
    with opened(settings, day="date") as wider:
        wider.prepare()
        wider.upsert("two", [note("b", 2, day="2026-01-02")])
        for tenant, row_id, day in (("one", "a", None), ("two", "b", "2026-01-02")):
            found = asyncio.run(wider.get_many(Caller(tenant), "note", [row_id]))
            assert found[row_id].values == {"id": row_id, "text": row_id, "day": day}


def test_two_processes_may_prepare_at_once(postgres: PostgresServer) -> None:
    settings = postgres_settings(postgres.port)
    with opened(settings) as one, opened(settings) as two, opened(settings) as three, ThreadPoolExecutor(3) as threads:
        for prepared in [threads.submit(store.prepare) for store in (one, two, three)]:
            prepared.result(60)
        assert one.upsert("ours", [note("a")]).written == 1


# ---- values ---------------------------------------------------------------------------------------------------------


def test_every_value_arrives_as_it_was_sent(postgres: PostgresServer) -> None:
    columns = {
        "text": "string",
        "big": "int",
        "real": "float",
        "yes": "bool",
        "day": "date",
        "at": "datetime",
        "any": "json",
        "all": "strings",
    }
    registry = Registry.parse({"entities": {"note": {"columns": columns}}})
    values = {
        "text": "quotes \" ' back \\ slash \\u0041 %s {} \n\t \x7f ☃ 😀",
        "big": -(2**63),
        "real": 5e-324,
        "yes": False,
        "day": "0001-01-01",
        "at": "9999-12-31T23:59:59.999999Z",
        "any": {"nul": "\0", "half": "\\ud83d", "deep": [None, {"'": '"'}]},
        "all": ["", "null", "a,b", '{"'],
    }
    extremes = {**dict.fromkeys(values), "text": "", "big": 2**63 - 1, "real": -1.7976931348623157e308, "yes": True}
    sent = [Row(Ref("note", f"n{i}"), 2**62, {"id": f"n{i}", **v}) for i, v in enumerate((values, extremes))]
    store = SqlRows.postgres(postgres_settings(postgres.port), PlaneContext(registry, ModelId("none", 2), Path()))
    store.prepare()
    assert store.upsert("t", sent).written == 2
    assert list(asyncio.run(store.get_many(Caller("t"), "note", ["n0", "n1"])).values()) == sent
    assert store.upsert("t", sent).written == 0
    asyncio.run(store.close())


def test_two_halves_of_a_character_are_not_taken_for_it(postgres: PostgresServer) -> None:
    with opened(postgres_settings(postgres.port)) as rows:
        rows.prepare()
        report = rows.upsert("t", [note("a", text="\ud83d\ude00"), note("b")])
        assert ([failure.key for failure in report.failures], report.written) == (["a"], 1)
