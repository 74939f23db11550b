"""A PostgreSQL server that is killed, stalls or refuses: nothing acknowledged is lost, nothing hangs."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
import pytest
from servers.postgres import PASSWORD_ENV, PostgresServer, postgres_settings
from standins.line import Line, free_port

from recall.errors import Busy, ConfigError, StoreError, TerminalStoreError, TransientStoreError
from recall.planes.conformance.data import conformance_registry
from recall.planes.opening import ModelId, PlaneContext
from recall.planes.sql import SqlRows
from recall.ports import WriteReport
from recall.rows import Caller, Ref, Row
from recall.settings import PostgresSettings

pytestmark = pytest.mark.server


@contextmanager
def opened(settings: PostgresSettings) -> Iterator[SqlRows]:
    store = SqlRows.postgres(settings, PlaneContext(conformance_registry(), ModelId("none", 2), None))
    try:
        yield store
    finally:
        asyncio.run(store.close())


@pytest.fixture
def rows(postgres: PostgresServer) -> Iterator[SqlRows]:
    with opened(postgres_settings(postgres.port)) as store:
        store.prepare()
        yield store


def item(row_id: str, version: int = 1, **values: object) -> Row:
    return Row(Ref("item", row_id), version, values)


def read(store: SqlRows, *ids: str, timeout_s: float | None = None) -> Mapping[str, Row]:
    return asyncio.run(store.get_many(Caller("t"), "item", ids, timeout_s=timeout_s))


# ---- killed ---------------------------------------------------------------------------------------------------------


def test_a_server_killed_in_the_middle_of_a_load_keeps_every_acknowledged_row(
    postgres: PostgresServer, rows: SqlRows
) -> None:
    acknowledged: list[str] = []
    failures: list[StoreError] = []
    running = threading.Event()

    def load() -> None:
        for batch in range(10_000):
            ids = [f"r{batch}-{i}" for i in range(200)]
            try:
                rows.upsert("t", [item(row_id, title="x" * 200) for row_id in ids])
            except StoreError as error:
                failures.append(error)
                return
            acknowledged.extend(ids)
            if batch == 5:
                running.set()

    loading = threading.Thread(target=load)
    loading.start()
    assert running.wait(60)
    postgres.kill()
    loading.join(60)
    assert not loading.is_alive()
    assert isinstance(failures[0], TransientStoreError)
    with pytest.raises(TransientStoreError, match=r"(?s)start the server"):
        read(rows, "r0-0")
    postgres.start()
    assert read(rows, *acknowledged).keys() == set(acknowledged)
    # The batch in flight is there as a whole or not at all; sent again, it is the same store.
    extra = asyncio.run(rows.count("t"))["item"] - len(acknowledged)
    assert extra in (0, 200)
    again = rows.upsert("t", [item(row_id, title="x" * 200) for row_id in acknowledged])
    assert again == WriteReport()


def test_a_server_killed_in_the_middle_of_a_query_is_a_transient_error(postgres: PostgresServer, rows: SqlRows) -> None:
    rows.upsert("t", [item("a")])
    schema = rows._database.place(None)
    with postgres.superuser() as other, other.transaction():
        # The read waits for this lock, so that it is under way when the server dies.
        other.execute(f"LOCK TABLE {schema}.item IN ACCESS EXCLUSIVE MODE")
        outcome: list[object] = []
        reading = threading.Thread(target=lambda: outcome.append(_caught(lambda: read(rows, "a"))))
        reading.start()
        _await_blocked(other)
        postgres.kill()
        reading.join(30)
        assert isinstance(outcome[0], TransientStoreError)
        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")
    postgres.start()
    assert read(rows, "a")


def _caught(call: object) -> object:
    try:
        return call()
    except StoreError as error:
        return error


def _await_blocked(connection: psycopg.Connection) -> None:
    deadline = time.monotonic() + 20
    while not connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_connections_that_died_while_idle_are_replaced_before_anybody_notices(
    postgres: PostgresServer, rows: SqlRows
) -> None:
    rows.upsert("t", [item("a")])
    with postgres.superuser() as other:
        ended = other.execute("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'recall'")
        assert ended.fetchone()[0] > 0
        while other.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = 'recall'").fetchone()[0]:
            time.sleep(0.01)
    assert read(rows, "a")
    assert rows.upsert("t", [item("b")]).written == 1


# ---- stalled, slow --------------------------------------------------------------------------------------------------


@pytest.fixture
def line(postgres: PostgresServer) -> Iterator[Line]:
    line = Line(postgres.port)
    yield line
    line.cut()


def test_half_open_connections_end_at_the_deadline_and_leave_no_thread_behind(line: Line) -> None:
    settings = postgres_settings(line.port, threads=2, pool_size=3, connect_timeout_s=2, write_timeout_s=1)
    with opened(settings) as rows:
        rows.prepare()
        rows.upsert("t", [item("a")])
        read(rows, "a")
        with line.stalled():
            for _ in range(4):
                started = time.monotonic()
                with pytest.raises(TransientStoreError, match=r"no answer within 0\.5 s"):
                    read(rows, "a", timeout_s=0.5)
                assert time.monotonic() - started < 2
            started = time.monotonic()
            with pytest.raises(TransientStoreError):
                rows.upsert("t", [item("b")])
            assert time.monotonic() - started < 10
        # More attempts hung than there are threads and connections: all were freed.
        assert read(rows, "a", timeout_s=20)
        assert rows.upsert("t", [item("b")]).written == 1


def test_a_line_that_is_two_seconds_late_keeps_no_deadline_waiting_and_nothing_locked(
    postgres: PostgresServer, line: Line
) -> None:
    settings = postgres_settings(line.port, write_timeout_s=1)
    with opened(settings) as rows:
        rows.prepare()
        rows.upsert("t", [item("a")])
        read(rows, "a")
        with line.delayed(2.0):
            assert read(rows, "a", timeout_s=30)
            started = time.monotonic()
            with pytest.raises(TransientStoreError, match=r"no answer within 0\.5 s"):
                read(rows, "a", timeout_s=0.5)
            assert time.monotonic() - started < 1.5
            with pytest.raises(TransientStoreError):
                rows.upsert("t", [item("a", 2, title="late"), item("b")])
        with postgres.superuser() as other:
            _await_unlocked(other, settings.db_schema)
        assert read(rows, "a", timeout_s=20)
        # Whether or not the late write arrived, it is whole, and the next one finds nobody in its way.
        assert len(read(rows, "a", "b", timeout_s=20)) in (1, 2)
        assert rows.upsert("t", [item("a", 3), item("b", 3)]).written == 2


def _await_unlocked(connection: psycopg.Connection, schema: str) -> None:
    held = (
        "SELECT count(*) FROM pg_locks JOIN pg_class ON relation = pg_class.oid WHERE relnamespace = %s::regnamespace"
    )
    deadline = time.monotonic() + 20
    while connection.execute(held, (schema,)).fetchone()[0]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_cut_line_is_transient_and_heals(line: Line) -> None:
    with opened(postgres_settings(line.port)) as rows:
        rows.prepare()
        rows.upsert("t", [item("a")])
        with line.outage():
            for call in (lambda: read(rows, "a"), lambda: rows.upsert("t", [item("b")]), lambda: rows.tenants()):
                with pytest.raises(TransientStoreError, match=rf"127\.0\.0\.1:{line.port}/recall"):
                    call()
        assert read(rows, "a")
        assert rows.upsert("t", [item("b")]).written == 1


def test_a_slow_statement_is_ended_by_the_server_at_the_deadline_of_the_call(
    postgres: PostgresServer, rows: SqlRows
) -> None:
    rows.upsert("t", [item("a")])
    schema = rows._database.place(None)
    with postgres.superuser() as other:
        with other.transaction():
            other.execute(f"LOCK TABLE {schema}.item IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(TransientStoreError, match=r"no answer within 0\.3 s|ended it at its deadline"):
                read(rows, "a", timeout_s=0.3)
            # Not only the caller has stopped waiting: nothing is left waiting in the server either.
            deadline = time.monotonic() + 5
            while other.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert read(rows, "a")


def test_a_write_that_waits_too_long_is_transient(postgres: PostgresServer, rows: SqlRows) -> None:
    impatient = postgres_settings(postgres.port, db_schema=rows._database.place(None), write_timeout_s=0.5)
    with opened(impatient) as other:
        other.upsert("t", [item("a")])
        with postgres.superuser() as blocker, blocker.transaction():
            blocker.execute(f"LOCK TABLE {rows._database.place(None)}.item IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(TransientStoreError, match=r"at its deadline|no answer within"):
                other.upsert("t", [item("b")])
    assert rows.upsert("t", [item("b")]).written == 1


# ---- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"password_env": "WRONG_PASSWORD"}, TerminalStoreError, "password authentication failed.*password_env"),
        ({"password_env": None}, TerminalStoreError, "password.*password_env"),
        ({"user": "ghost"}, TerminalStoreError, "ghost.*check `user`"),
        ({"database": "ghost"}, TerminalStoreError, "ghost.*create the database"),
        ({"parameters": {"sslmode": "require"}}, TransientStoreError, "SSL"),
        ({"user": "postgres"}, TerminalStoreError, "bypasses row-level security"),
    ],
    ids=["password", "no-password", "user", "database", "tls", "superuser"],
)
def test_a_refused_connection_says_what_to_do(
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    options: Mapping[str, object],
    kind: type[StoreError],
    said: str,
) -> None:
    monkeypatch.setenv("WRONG_PASSWORD", "battery staple")
    monkeypatch.setenv("PGPASSFILE", "/nonexistent")
    with opened(postgres_settings(postgres.port, **options)) as rows:
        for call in (rows.prepare, lambda: asyncio.run(rows.health()), lambda: rows.lease("t", "x").__enter__()):
            with pytest.raises(kind, match=rf"(?s)127\.0\.0\.1:{postgres.port}/.*{said}") as caught:
                call()
            assert "battery" not in str(caught.value)


def test_no_server_is_transient_and_names_the_address() -> None:
    port = free_port()
    with (
        opened(postgres_settings(port)) as rows,
        pytest.raises(TransientStoreError, match=rf"(?s){port}.*start the server"),
    ):
        asyncio.run(rows.health(timeout_s=5))


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT", raising=False)
    for options in ({"password_env": "ABSENT"}, {"url_env": "ABSENT"}):
        with pytest.raises(ConfigError, match="ABSENT"), opened(postgres_settings(1, **options)):
            pytest.fail("opened")
    monkeypatch.setenv("ABSENT", "no url")
    with pytest.raises(ConfigError, match="ABSENT"), opened(postgres_settings(1, url_env="ABSENT")):
        pytest.fail("opened")


def test_secrets_in_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="password_env"):
        postgres_settings(1, parameters={"password": "in the open"})


def test_a_whole_url_may_come_from_the_environment(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    password = os.environ[PASSWORD_ENV].replace(" ", "%20")
    monkeypatch.setenv("A_URL", f"postgresql://recall:{password}@localhost:{postgres.port}/recall?sslmode=disable")
    with opened(postgres_settings(1, url_env="A_URL", host="nowhere")) as rows:
        rows.prepare()
        assert rows.upsert("t", [item("a")]).written == 1


# ---- refused rows ---------------------------------------------------------------------------------------------------


def test_a_row_that_cannot_be_stored_fails_alone(rows: SqlRows) -> None:
    good = [item(f"r{i}", title="fine") for i in range(50)]
    bad = [item("nul", title="a\0b"), item("half", title="\ud83d"), item("huge", amount=2**70), item("i\0d")]
    report = rows.upsert("t", [*good[:20], *bad, *good[20:]])
    assert report.written == 50
    assert {failure.key for failure in report.failures} == {"nul", "half", "huge", "i\0d"}
    assert not any(failure.transient for failure in report.failures)
    assert asyncio.run(rows.count("t")) == {"item": 50}


def test_ids_that_no_database_can_hold_are_simply_not_there(rows: SqlRows) -> None:
    rows.upsert("t", [item("a")])
    assert read(rows, "a", "a\0", "\ud800").keys() == {"a"}


# ---- connections ----------------------------------------------------------------------------------------------------


def test_many_readers_share_few_connections(postgres: PostgresServer) -> None:
    with opened(postgres_settings(postgres.port, threads=3, pool_size=4)) as rows:
        rows.prepare()
        rows.upsert("t", [item(f"r{i}") for i in range(50)])
        seen: list[int] = []

        async def load() -> None:
            ids = [f"r{i}" for i in range(50)]
            with postgres.superuser() as other:
                reads = [asyncio.create_task(rows.get_many(Caller("t"), "item", ids)) for _ in range(64)]
                count = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'recall' AND strpos(query, %s) > 0"
                while not all(task.done() for task in reads):
                    found = await asyncio.to_thread(other.execute, count, (rows._database.place(None),))
                    seen.append(found.fetchone()[0])
                assert all(len(task.result()) == 50 for task in reads)

        asyncio.run(load())
        assert max(seen) <= 4
        assert rows._database.engine.pool.checkedout() == 0


def test_a_lease_holds_its_own_connection_and_ends_with_it(postgres: PostgresServer, rows: SqlRows) -> None:
    with rows.lease("t", "backfill"):
        assert rows._database.engine.pool.checkedout() == 0
        with postgres.superuser() as other:
            held = other.execute(
                "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'backfill%'"
            )
            assert len(held.fetchall()) == 1
        with pytest.raises(Busy, match="backfill"), rows.lease("t", "import"):
            pytest.fail("two jobs hold one tenant")
        # The server has lost the holder: the next job may begin, and the end of the first disturbs nobody.
        with postgres.superuser() as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'backfill%'"
            )
        with rows.lease("t", "import"):
            pass
    with rows.lease("t", "again"):
        pass


def test_writers_in_opposite_order_do_not_lock_up(rows: SqlRows) -> None:
    ids = [f"r{i:03d}" for i in range(300)]
    failed: list[BaseException] = []

    def write(order: list[str], offset: int) -> None:
        try:
            for version in range(1, 8):
                rows.upsert("t", [item(row_id, 2 * version + offset) for row_id in order])
        except StoreError as error:
            failed.append(error)

    writers = [threading.Thread(target=write, args=(order, n)) for n, order in enumerate((ids, ids[::-1]))]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert failed == []
    assert asyncio.run(rows.count("t")) == {"item": 300}
