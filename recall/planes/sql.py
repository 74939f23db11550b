"""The source of truth in a SQL database through SQLAlchemy Core: SQLite here, and any database that knows ON CONFLICT
and RETURNING by another engine. Reads run on threads of its own, so that a slow disk never blocks the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from recall.errors import ConfigError, StoreError, TerminalStoreError, TransientStoreError
from recall.planes.leases import FileLeases
from recall.planes.opening import PlaneContext
from recall.planes.sql_tables import DELETED, VERSION, EntityTable, create_or_widen, entity_table, gated_insert
from recall.planes.sqlite import explain_sqlite, sqlite_engine
from recall.ports import Page, WriteFailure, WriteReport
from recall.registry import Registry
from recall.rows import Caller, Ref, Row, Tombstone
from recall.settings import SqliteSettings

T = TypeVar("T")
_STORE = "rows (sql)"
_CHUNK = 1000
# What a database error means: whether repeating may help, and what to do.
Explain = Callable[[sa.exc.DBAPIError], tuple[bool, str]]


class Leases(Protocol):
    def hold(self, tenant: str, purpose: str) -> AbstractContextManager[None]: ...


class SqlRows:
    """Rows in one table per entity. Opened by `SqlRows.sqlite`; no connection is made before the first use."""

    def __init__(self, registry: Registry, engine: sa.Engine, leases: Leases, explain: Explain, threads: int) -> None:
        self._registry = registry
        self._engine = engine
        self._leases = leases
        self._explain = explain
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="rows")
        self._address = engine.url.database or str(engine.url.set(username=None, password=None))
        self._metadata = sa.MetaData()
        _check_table_names(registry)
        self._tables = {name: entity_table(entity, self._metadata) for name, entity in registry.entities.items()}
        self._existing: set[str] = set()

    @classmethod
    def sqlite(cls, settings: SqliteSettings, context: PlaneContext) -> SqlRows:
        """Rows in the SQLite file that the settings name, relative to the data directory."""
        path = context.data_dir / settings.path
        leases = FileLeases(path.with_name(path.name + ".leases"))
        return cls(context.registry, sqlite_engine(path, settings.threads), leases, explain_sqlite, settings.threads)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        with self._mapped(), self._engine.begin() as connection:
            for table in self._metadata.sorted_tables:
                create_or_widen(connection, table)

    def upsert(self, tenant: str, rows: Sequence[Row]) -> WriteReport:
        best: dict[Ref, Row] = {}
        for row in rows:
            if row.ref not in best or row.version >= best[row.ref].version:
                best[row.ref] = row
        by_entity: dict[str, list[Row]] = {}
        for row in best.values():
            by_entity.setdefault(row.ref.entity, []).append(row)
        reports = [self._write(tenant, entity, chosen) for entity, chosen in by_entity.items()]
        return WriteReport(
            sum(report.written for report in reports),
            sum(report.stale for report in reports),
            tuple(failure for report in reports for failure in report.failures),
        )

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport:
        return self.upsert(tenant, [Row(t.ref, t.version, {}, deleted=True) for t in tombstones])

    def _write(self, tenant: str, entity: str, rows: Sequence[Row]) -> WriteReport:
        table = self._table(entity)
        records: dict[Any, dict[str, Any]] = {}
        failures: list[WriteFailure] = []
        for row in rows:
            try:
                record = table.record(tenant, row)
                records[record[table.key.key]] = record
            except ValueError as error:
                failures.append(WriteFailure(row.ref.id, str(error), transient=False))
        if not records:
            return WriteReport(failures=tuple(failures))
        with self._mapped(), self._engine.begin() as connection:
            written = set(
                connection.execute(gated_insert(table, self._engine.dialect.name), list(records.values())).scalars()
            )
            left_alone = [key for key in records if key not in written]
            stale = self._stale(connection, table, tenant, {key: records[key] for key in left_alone})
        return WriteReport(len(written), stale, tuple(failures))

    def _stale(
        self, connection: sa.Connection, table: EntityTable, tenant: str, records: Mapping[Any, Mapping[str, Any]]
    ) -> int:
        """How many of the records that the gate refused lost to the stored version; the others equal it."""
        stale = 0
        for keys in _chunks(list(records)):
            query = sa.select(table.key, table.version, table.deleted)
            for key, version, deleted in connection.execute(query.where(table.tenant == tenant, table.key.in_(keys))):
                stale += (records[key][VERSION], records[key][DELETED]) < (version, deleted)
        return stale

    # ---- reading ---------------------------------------------------------------------------------------------------

    async def get_many(
        self, caller: Caller, entity: str, ids: Sequence[str], *, timeout_s: float | None = None
    ) -> dict[str, Row]:
        table = self._table(entity)
        return await self._on_thread(lambda: self._get_many(table, caller, ids), timeout_s)

    def _get_many(self, table: EntityTable, caller: Caller, ids: Sequence[str]) -> dict[str, Row]:
        query = sa.select(table.table).where(table.tenant == caller.tenant, sa.not_(table.deleted))
        if caller.scope is not None:
            query = query.where(sa.cast(table.scope, sa.Text) == caller.scope)
        found: dict[str, Row] = {}
        for keys in _chunks(_keys(table, ids)):
            found |= {row.ref.id: row for row in self._rows(table, query.where(table.key.in_(keys)))}
        return {row_id: found[row_id] for row_id in ids if row_id in found}

    def pages(self, tenant: str, entity: str, size: int) -> list[Page]:
        table = self._table(entity)
        if not self._exists(table):
            return []
        number = sa.func.row_number().over(order_by=table.key).label("number")
        total = sa.func.count().over().label("total")
        ranked = sa.select(table.key.label("key"), number, total).where(table.tenant == tenant).subquery()
        cut = sa.or_(ranked.c.number == ranked.c.total, ranked.c.number % size == 0)
        with self._mapped(), self._engine.connect() as connection:
            last = [str(key) for key in connection.scalars(sa.select(ranked.c.key).where(cut).order_by(ranked.c.key))]
        return [Page(after, upto) for after, upto in pairwise([None, *last[:-1], None])] if last else []

    def read_page(self, tenant: str, entity: str, page: Page) -> list[Row]:
        table = self._table(entity)
        query = sa.select(table.table).where(table.tenant == tenant).order_by(table.key)
        if page.after is not None:
            query = query.where(table.key > table.key_value(page.after))
        if page.upto is not None:
            query = query.where(table.key <= table.key_value(page.upto))
        return self._rows(table, query)

    def tenants(self) -> list[str]:
        tables = [table for table in self._tables.values() if self._exists(table)]
        with self._mapped(), self._engine.connect() as connection:
            return sorted({t for table in tables for t in connection.scalars(sa.select(table.tenant).distinct())})

    def lease(self, tenant: str, purpose: str) -> AbstractContextManager[None]:
        return self._leases.hold(tenant, purpose)

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        return await self._on_thread(lambda: self._count(tenant), timeout_s)

    def _count(self, tenant: str) -> dict[str, int]:
        tables = {name: table for name, table in self._tables.items() if self._exists(table)}
        with self._mapped(), self._engine.connect() as connection:
            counts = {
                name: connection.execute(_live_rows(table, tenant)).scalar_one() for name, table in tables.items()
            }
        return {name: count for name, count in counts.items() if count}

    async def health(self, *, timeout_s: float | None = None) -> None:
        await self._on_thread(self._ping, timeout_s)

    def _ping(self) -> None:
        with self._mapped(), self._engine.connect() as connection:
            sa.inspect(connection).get_table_names()

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._engine.dispose()

    # ---- the border to the database --------------------------------------------------------------------------------

    def _table(self, entity: str) -> EntityTable:
        return self._tables[self._registry.entity(entity).name]

    def _exists(self, table: EntityTable) -> bool:
        """Whether the table was created; until then reads are empty, because nothing was imported yet."""
        name = table.table.name
        if name not in self._existing:
            with self._mapped(), self._engine.connect() as connection:
                self._existing |= set(sa.inspect(connection).get_table_names())
        return name in self._existing

    def _rows(self, table: EntityTable, query: sa.Select[Any]) -> list[Row]:
        if not self._exists(table):
            return []
        with self._mapped(), self._engine.connect() as connection:
            return [table.row(record) for record in connection.execute(query).mappings()]

    async def _on_thread(self, read: Callable[[], T], timeout_s: float | None) -> T:
        try:
            return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(self._threads, read), timeout_s)
        except TimeoutError:
            raise TransientStoreError(
                _STORE, self._address, f"no answer within {timeout_s} s: try again, or allow more time"
            ) from None

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """Database errors as StoreError; everything else passes."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise self._store_error(*self._explain(error)) from None
        except sa.exc.TimeoutError as error:
            raise self._store_error(True, f"all connections are in use: {error}") from None
        except OSError as error:
            raise self._store_error(False, f"{error}: make the folder writable") from None

    def _store_error(self, transient: bool, detail: str) -> StoreError:
        kind = TransientStoreError if transient else TerminalStoreError
        return kind(_STORE, self._address, detail)


def _check_table_names(registry: Registry) -> None:
    owners: dict[str, str] = {}
    for name, entity in registry.entities.items():
        other = owners.setdefault(entity.table.lower(), name)
        if other != name:
            raise ConfigError(f"entities {other!r} and {name!r} both name the table {entity.table!r}")


def _live_rows(table: EntityTable, tenant: str) -> sa.Select[int]:
    return sa.select(sa.func.count()).where(table.tenant == tenant, sa.not_(table.deleted))


def _keys(table: EntityTable, ids: Sequence[str]) -> list[str | int]:
    """Distinct ids as key values; those that the key column cannot hold are left out, because no row has them."""
    keys: dict[str | int, None] = {}
    for row_id in ids:
        try:
            keys[table.key_value(row_id)] = None
        except ValueError:
            continue
    return list(keys)


def _chunks(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (keys[at : at + _CHUNK] for at in range(0, len(keys), _CHUNK))
