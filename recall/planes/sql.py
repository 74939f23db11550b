"""The source of truth in a SQL database through SQLAlchemy Core: one table per entity, SQLite or PostgreSQL.

Reads run on threads of its own, so that a slow disk or server never blocks the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import sqlalchemy as sa

from recall.errors import ConfigError, TransientStoreError
from recall.planes.indexed import check_indexed
from recall.planes.leases import FileLeases
from recall.planes.opening import PlaneContext
from recall.planes.sql_database import STORE, Attempt, Database, Verdict
from recall.planes.sql_existing import ExistingTable, Unreadable, existing_table
from recall.planes.sql_find import satisfies
from recall.planes.sql_gate import sum_of, write_rows
from recall.planes.sql_tables import EntityTable, Readable, entity_table
from recall.planes.sqlite import sqlite_engine
from recall.ports import Page, WriteReport
from recall.registry import Registry
from recall.rows import Caller, Ref, Row, Tombstone
from recall.settings import PostgresSettings, SqliteSettings
from recall.where import Where

T = TypeVar("T")
_STATEMENTS = 1000


class SqlRows:
    """Rows in a SQL database. Opened by `SqlRows.sqlite` or `SqlRows.postgres`; connects with the first use."""

    def __init__(self, registry: Registry, database: Database, threads: int) -> None:
        self._registry = registry
        self._database = database
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="rows")
        metadata = sa.MetaData(schema=database.home)
        own = {name: entity for name, entity in registry.entities.items() if entity.spec.existing is None}
        _check_table_names({name: entity.table for name, entity in own.items()})
        self._own = {name: entity_table(entity, metadata) for name, entity in own.items()}
        self._described: dict[str, ExistingTable] = {}
        # Made once for each entity and caller: making a statement takes longer than executing it.
        self._by_keys = lru_cache(_STATEMENTS)(self._live_among_keys)

    @classmethod
    def sqlite(cls, settings: SqliteSettings, context: PlaneContext) -> SqlRows:
        """Rows in the SQLite file that the settings name, relative to the data directory."""
        path = context.data_dir / settings.path
        leases = FileLeases(path.with_name(path.name + ".leases"))
        return cls(
            context.registry, Database(sqlite_engine(path, settings.threads), str(path), leases), settings.threads
        )

    @classmethod
    def postgres(cls, settings: PostgresSettings, context: PlaneContext) -> SqlRows:
        """Rows in the PostgreSQL database that the settings name. Raises ConfigError when a variable is not set."""
        from recall.planes.sql_postgres import PostgresDatabase

        return cls(context.registry, PostgresDatabase(settings), settings.threads)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self._database.prepare(list(self._own.values()))
        for name in self._registry.entities:
            self._table(name)

    def upsert(self, tenant: str, rows: Sequence[Row]) -> WriteReport:
        best: dict[Ref, Row] = {}
        for row in rows:
            if row.ref not in best or row.version >= best[row.ref].version:
                best[row.ref] = row
        by_entity: dict[str, list[Row]] = {}
        for row in best.values():
            by_entity.setdefault(row.ref.entity, []).append(row)
        tables = {entity: self._writable(entity) for entity in by_entity}
        if rows:
            self._database.admit(tenant, list(self._own.values()))
        return sum_of([write_rows(self._database, tenant, tables[name], chosen) for name, chosen in by_entity.items()])

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport:
        return self.upsert(tenant, [Row(t.ref, t.version, {}, deleted=True) for t in tombstones])

    # ---- reading ---------------------------------------------------------------------------------------------------

    async def get_many(
        self, caller: Caller, entity: str, ids: Sequence[str], *, timeout_s: float | None = None
    ) -> dict[str, Row]:
        self._registry.entity(entity)
        return await self._on_thread(lambda attempt: self._get_many(entity, caller, ids, attempt), timeout_s)

    def _get_many(self, entity: str, caller: Caller, ids: Sequence[str], attempt: Attempt) -> dict[str, Row]:
        table = self._table(entity, attempt)
        query = self._by_keys(table.entity.name, caller)
        found: dict[str, Row] = {}
        for keys in self._database.chunks(_keys(table, ids)):
            found |= {row.ref.id: row for row in self._rows(table, caller.tenant, query, attempt, keys)}
        return {row_id: found[row_id] for row_id in ids if row_id in found}

    def _live_among_keys(self, entity: str, caller: Caller) -> sa.Select[Any]:
        table = self._table(entity)
        return self._visible(table, caller).where(self._database.among(table))

    def _visible(self, table: Readable, caller: Caller) -> sa.Select[Any]:
        """Live rows that the caller may see."""
        query = sa.select(*table.selected).where(table.belongs(caller.tenant), table.live)
        return query if caller.scope is None else query.where(table.within(caller.scope))

    async def find(
        self, caller: Caller, entity: str, where: Where, limit: int, *, timeout_s: float | None = None
    ) -> list[Row]:
        check_indexed(where, self._registry.entity(entity))
        return await self._on_thread(lambda attempt: self._find(entity, caller, where, limit, attempt), timeout_s)

    def _find(self, entity: str, caller: Caller, where: Where, limit: int, attempt: Attempt) -> list[Row]:
        table = self._table(entity, attempt)
        query = self._visible(table, caller).where(satisfies(table, where))
        return self._rows(table, caller.tenant, query.order_by(table.key).limit(limit), attempt)

    def pages(self, tenant: str, entity: str, size: int) -> list[Page]:
        table = self._table(entity)
        if not self._exists(table, tenant):
            return []
        number = sa.func.row_number().over(order_by=table.key).label("number")
        total = sa.func.count().over().label("total")
        keyed = sa.select(table.key.label("key"), number, total).where(table.belongs(tenant), table.key.is_not(None))
        ranked = keyed.subquery()
        cut = sa.or_(ranked.c.number == ranked.c.total, ranked.c.number % size == 0)
        with self._database.reading(tenant) as connection:
            last = [str(key) for key in connection.scalars(sa.select(ranked.c.key).where(cut).order_by(ranked.c.key))]
        return [Page(after, upto) for after, upto in pairwise([None, *last[:-1], None])] if last else []

    def read_page(self, tenant: str, entity: str, page: Page) -> list[Row]:
        table = self._table(entity)
        query = sa.select(*table.selected).where(table.belongs(tenant), table.key.is_not(None)).order_by(table.key)
        if page.after is not None:
            query = query.where(table.key > table.key_value(page.after))
        if page.upto is not None:
            query = query.where(table.key <= table.key_value(page.upto))
        return self._rows(table, tenant, query)

    def tenants(self) -> list[str]:
        found = self._database.tenants(list(self._own.values()))
        for name, entity in self._registry.entities.items():
            if (existing := entity.spec.existing) and existing.owner:
                found.add(existing.owner)
            elif existing:
                table = self._table(name)
                with self._database.reading(None) as connection:
                    column = table.table.c[entity.spec.tenant]
                    found |= {str(t) for t in connection.scalars(sa.select(column).distinct()) if t is not None}
        return sorted(found)

    def lease(self, tenant: str, purpose: str) -> AbstractContextManager[None]:
        return self._database.lease(tenant, purpose)

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        return await self._on_thread(lambda attempt: self._count(tenant, attempt), timeout_s)

    def _count(self, tenant: str, attempt: Attempt) -> dict[str, int]:
        tables = {name: self._table(name, attempt) for name in self._registry.entities}
        present = {name: table for name, table in tables.items() if self._exists(table, tenant, attempt)}
        with self._database.reading(tenant, attempt) as connection:
            counts = {name: connection.scalars(_live_rows(table, tenant)).one() for name, table in present.items()}
        return {name: count for name, count in counts.items() if count}

    async def health(self, *, timeout_s: float | None = None) -> None:
        await self._on_thread(self._ping, timeout_s)

    def _ping(self, attempt: Attempt) -> None:
        with self._database.reading(None, attempt) as connection:
            sa.inspect(connection).get_table_names()

    async def close(self) -> None:
        # Reads under way give their connections back first; they end at their deadlines at the latest.
        await asyncio.get_running_loop().run_in_executor(None, lambda: self._threads.shutdown(cancel_futures=True))
        self._database.close()

    # ---- the border to the database --------------------------------------------------------------------------------

    def _table(self, entity: str, attempt: Attempt | None = None) -> Readable:
        name = self._registry.entity(entity).name
        if own := self._own.get(name):
            return own
        if name not in self._described:
            with self._database.reading(None, attempt) as connection:
                self._described[name] = existing_table(
                    self._registry.entity(name), connection, self._database.public_schema
                )
        return self._described[name]

    def _writable(self, entity: str) -> EntityTable:
        name = self._registry.entity(entity).name
        if name not in self._own:
            table = self._registry.entity(entity).table
            raise ConfigError(f"entity {name!r} is the existing table {table!r}: rows are changed there, not by Recall")
        return self._own[name]

    def _exists(self, table: Readable, tenant: str, attempt: Attempt | None = None) -> bool:
        return isinstance(table, ExistingTable) or self._database.has(table.table.name, tenant, attempt)

    def _rows(
        self,
        table: Readable,
        tenant: str,
        query: sa.Select[Any],
        attempt: Attempt | None = None,
        keys: Sequence[Any] | None = None,
    ) -> list[Row]:
        if not self._exists(table, tenant, attempt):
            return []
        with self._database.reading(tenant, attempt) as connection:
            records = connection.execute(query, None if keys is None else {"keys": keys}).all()
        try:
            return [table.row(record) for record in records]
        except Unreadable as error:
            raise self._database.error(Verdict(False, str(error))) from None

    async def _on_thread(self, read: Callable[[Attempt], T], timeout_s: float | None) -> T:
        """`read` on a thread, within `timeout_s` or the database's own limit, whichever is shorter."""
        limits = [limit for limit in (timeout_s, self._database.read_s) if limit is not None]
        seconds = min(limits, default=None)
        attempt = Attempt(self._database, seconds)
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.run_in_executor(self._threads, read, attempt), seconds)
        except asyncio.CancelledError:
            attempt.expire()
            raise
        except TimeoutError:
            attempt.expire()
            detail = f"no answer within {seconds} s: try again, or allow more time"
            raise TransientStoreError(STORE, self._database.address, detail) from None


def _check_table_names(tables: Mapping[str, str]) -> None:
    owners: dict[str, str] = {}
    for name, table in tables.items():
        other = owners.setdefault(table.lower(), name)
        if other != name:
            raise ConfigError(f"entities {other!r} and {name!r} both name the table {table!r}")


def _live_rows(table: Readable, tenant: str) -> sa.Select[int]:
    return sa.select(sa.func.count()).select_from(table.table).where(table.belongs(tenant), table.live)


def _keys(table: Readable, ids: Sequence[str]) -> list[Any]:
    """Distinct ids as key values; those that the key column cannot hold are left out, because no row has them."""
    keys: dict[Any, None] = {}
    for row_id in ids:
        try:
            keys[table.key_value(row_id)] = None
        except ValueError:
            continue
    return list(keys)
