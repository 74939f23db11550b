"""SqlRows on PostgreSQL beside psycopg alone, in one run: load rows/s, read latency, connections under 64 readers.

    RECALL_TEST_POSTGRES_DSN=postgresql://recall:…@127.0.0.1/recall python -m benchmarks.rows_plane [rows]

Without the variable a server of its own is started, when Debian's `postgresql` is installed. The bare side writes the
same gated statement by `executemany` (pipelined by psycopg) and reads the same ids, with row-level security and
without. COPY, which can neither gate nor repeat, is shown for scale.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import psycopg

from recall.planes.opening import ModelId, PlaneContext
from recall.planes.sql import SqlRows
from recall.registry import Registry
from recall.rows import Caller, Ref, Row
from recall.settings import PostgresSettings

DSN_ENV = "RECALL_TEST_POSTGRES_DSN"
BATCH = 2000
READ_IDS = (50, 500)
READS = 400
COLUMNS = {"title": "string", "body": "string", "amount": "int", "cost": "float", "day": "date"}
NAMES = ("tenant", "id", *COLUMNS, "_version", "_deleted", "_scope")
Record = tuple[object, ...]


@contextmanager
def server() -> Iterator[str]:
    """A URL; also in the environment, where the settings look for it."""
    if url := os.environ.get(DSN_ENV):
        yield url
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from servers.postgres import PASSWORD, postgres_server

    with postgres_server() as own:
        os.environ[DSN_ENV] = f"postgresql://recall:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{own.port}/recall"
        yield os.environ[DSN_ENV]


def rows_of(count: int) -> list[Row]:
    values = [
        {"title": f"Order {i}", "body": "words " * 30, "amount": i, "cost": i / 7, "day": "2026-01-02"}
        for i in range(count)
    ]
    return [Row(Ref("order", f"id-{i:07d}"), 1, {"id": f"id-{i:07d}", **v}) for i, v in enumerate(values)]


def record(row: Row) -> Record:
    return ("t", row.ref.id, *(row.values[name] for name in COLUMNS), 1, False, None)


def batches(rows: list[Row]) -> Iterator[list[Row]]:
    return (rows[at : at + BATCH] for at in range(0, len(rows), BATCH))


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` took."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


async def middle_ms(*reads: Callable[[], Awaitable[object]]) -> list[float]:
    """The median of each, in milliseconds. They take turns: the machine is shared."""
    taken: list[list[float]] = [[] for _ in reads]
    for _ in range(READS):
        for read, times in zip(reads, taken, strict=True):
            started = time.perf_counter()
            await read()
            times.append((time.perf_counter() - started) * 1000)
    return [statistics.median(times) for times in taken]


async def at_once(value: object) -> object:
    return value


class Bare:
    """The client library in a bare loop, on a table of the same shape."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self.table, self.beside = f"{schema}.bare", f"{schema}.order"
        with psycopg.connect(url) as connection:
            connection.execute(f"CREATE TABLE {self.table} (LIKE {self.beside} INCLUDING ALL)")
            connection.execute(f"ALTER TABLE {self.table} ENABLE ROW LEVEL SECURITY")
            connection.execute(f"ALTER TABLE {self.table} FORCE ROW LEVEL SECURITY")
            mine = "(tenant = current_setting('app.tenant', true))"
            connection.execute(f"CREATE POLICY mine ON {self.table} USING {mine} WITH CHECK {mine}")

    @contextmanager
    def loading(self) -> Iterator[tuple[Callable[[list[Row]], None], Callable[[list[Row]], None]]]:
        """Writers of one batch: gated by `executemany`, and by COPY."""
        new = ", ".join(f"{name} = excluded.{name}" for name in NAMES[2:])
        differs = " OR ".join(f"b.{name} IS DISTINCT FROM excluded.{name}" for name in NAMES[2:])
        statement = (
            f"INSERT INTO {self.table} AS b ({', '.join(NAMES)}) VALUES ({', '.join(['%s'] * len(NAMES))}) "
            f"ON CONFLICT (tenant, id) DO UPDATE SET {new} "
            f"WHERE excluded._version > b._version OR (excluded._version = b._version AND ({differs}))"
        )
        with psycopg.connect(self._url) as connection:

            def many(batch: list[Row]) -> None:
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.execute("SELECT set_config('app.tenant', 't', true)")
                    cursor.executemany(statement, [record(row) for row in batch])

            def copied(batch: list[Row]) -> None:
                # COPY FROM does not take row-level security.
                connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS copied (LIKE {self.table})")
                with connection.cursor().copy(f"COPY copied ({', '.join(NAMES)}) FROM STDIN") as copy:
                    for row in batch:
                        copy.write_row(record(row))
                connection.commit()

            yield many, copied

    @contextmanager
    def reading(self, *, secured: bool) -> Iterator[Callable[[list[str]], list[Row]]]:
        query = f"SELECT {', '.join(NAMES)} FROM {self.table} WHERE tenant = 't' AND NOT _deleted AND id = ANY(%s)"
        with psycopg.connect(self._url, autocommit=True) as connection:
            if not secured:
                # Once for the session: what a client does that serves one tenant only.
                connection.execute("SELECT set_config('app.tenant', 't', false)")

            def read(ids: list[str]) -> list[Row]:
                if not secured:
                    return self._rows(connection.execute(query, (ids,)).fetchall())
                with connection.transaction():
                    connection.execute("SELECT set_config('app.tenant', 't', true)")
                    return self._rows(connection.execute(query, (ids,)).fetchall())

            yield read

    def _rows(self, found: list[Record]) -> list[Row]:
        names = ("id", *COLUMNS)
        return [Row(Ref("order", str(r[1])), 1, dict(zip(names, r[1:-3], strict=True))) for r in found]


def upsert(store: SqlRows, batch: list[Row]) -> None:
    assert not store.upsert("t", batch).failures


async def crowd(store: SqlRows, ids: list[str]) -> float:
    """Reads per second with 64 at a time."""
    started = time.perf_counter()
    for _ in range(5):
        await asyncio.gather(*(store.get_many(Caller("t"), "order", ids) for _ in range(64)))
    return 5 * 64 / (time.perf_counter() - started)


def main(count: int) -> None:
    registry = Registry.parse({"entities": {"order": {"columns": COLUMNS}}})
    rows = rows_of(count)
    with server() as url, asyncio.Runner() as loop:
        schema = f"bench_{uuid4().hex[:8]}"
        settings = PostgresSettings.model_validate({"kind": "postgres", "url_env": DSN_ENV, "db_schema": schema})
        store = SqlRows.postgres(settings, PlaneContext(registry, ModelId("none", 2), Path()))
        store.prepare()
        bare = Bare(url, schema)
        loading(store, bare, url, rows)
        for size in READ_IDS:
            loop.run(reading(store, bare, [row.ref.id for row in rows[:: max(1, count // size)]][:size]))
        speed = loop.run(crowd(store, [row.ref.id for row in rows[:50]]))
        with psycopg.connect(url) as other:
            held = other.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'recall'").fetchall()
            other.execute(f"DROP SCHEMA {schema} CASCADE")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"64 readers at once: {speed:,.0f} reads/s over {held[0][0]} connections, peak memory {peak:.0f} MiB")
        loop.run(store.close())


def loading(store: SqlRows, bare: Bare, url: str, rows: list[Row]) -> None:
    """Batch by batch in turns: the machine is shared."""
    spent = {"ours": 0.0, "many": 0.0, "copied": 0.0, "again": 0.0}
    with bare.loading() as (many, copied):
        writers = {"ours": partial(upsert, store), "many": many, "copied": copied, "again": partial(upsert, store)}
        for number, batch in enumerate(batches(rows)):
            first = ("ours", "many") if number % 2 else ("many", "ours")
            for name in (*first, "copied", "again"):
                spent[name] += timed(lambda write=writers[name], batch=batch: write(batch))
    with psycopg.connect(url, autocommit=True) as cleaning:
        cleaning.execute("ANALYZE")
    rate = {name: len(rows) / seconds for name, seconds in spent.items()}
    print(
        f"load, {len(rows):,} rows in batches of {BATCH:,}: SqlRows {rate['ours']:,.0f} rows/s, "
        f"psycopg executemany {rate['many']:,.0f} (ratio {rate['ours'] / rate['many']:.2f}), "
        f"COPY {rate['copied']:,.0f}; the same rows again {rate['again']:,.0f}"
    )


async def reading(store: SqlRows, bare: Bare, ids: list[str]) -> None:
    assert len(await store.get_many(Caller("t"), "order", ids)) == len(ids)
    with bare.reading(secured=True) as read, bare.reading(secured=False) as read_plainly:
        ours, secured, plain = await middle_ms(
            lambda: store.get_many(Caller("t"), "order", ids),
            lambda: at_once(read(ids)),
            lambda: at_once(read_plainly(ids)),
        )
    print(
        f"read of {len(ids)} rows by id, p50: SqlRows {ours:.2f} ms, psycopg with SET LOCAL {secured:.2f} ms "
        f"(ratio {ours / secured:.2f}), psycopg with one tenant a session {plain:.2f} ms (ratio {ours / plain:.2f})"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40_000)
