"""PostgreSQL as the source of truth: tenants by row-level security or by schema, pooled connections with deadlines.

A read is one round trip: the tenant is set and the statement runs in one pipeline, which is a transaction of its own.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from hashlib import blake2b
from typing import Any, ClassVar

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateSchema

from recall.errors import ConfigError
from recall.planes.sql_database import Database, Verdict
from recall.planes.sql_definitions import create_or_widen, ddl, quoted
from recall.planes.sql_postgres_errors import explain_postgres
from recall.planes.sql_postgres_lease import hold_advisory_lock, lock_key
from recall.planes.sql_tables import EntityTable, Readable, plain_type
from recall.settings import PostgresSettings

# Names who is spoken for; both end with the transaction, so that a pooled connection keeps nothing of a tenant.
_ENTER = "SELECT set_config('app.tenant', {0}, true), set_config('statement_timeout', {1}, true)"
_ENTER_NOW, _ENTER_LATER = _ENTER.format("%s", "%s"), sa.text(_ENTER.format(":tenant", ":left_ms"))
_ALONE = sa.text("SELECT pg_advisory_xact_lock(:key)")
# Canonical times are UTC, and the years 1 and 9999 have no room for another zone.
_INTRODUCE = (
    "SELECT set_config('TimeZone', 'UTC', false), rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
)
_POLICY = "recall_tenant"
_SECURED = """
    SELECT relrowsecurity AND relforcerowsecurity AND EXISTS (
        SELECT FROM pg_policies WHERE schemaname = :place AND tablename = :name AND policyname = :policy)
    FROM pg_class WHERE relname = :name AND relnamespace = to_regnamespace(:quoted)
"""
# A dead peer is noticed within a minute, and unsent data within ten seconds.
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 10_000}
_LONGEST_NAME = 63


class PostgresDatabase(Database):
    """A PostgreSQL database that an engine of its own connects to."""

    keys_at_once: ClassVar[int] = 20_000
    public_schema: ClassVar[str | None] = "public"
    writing_options: ClassVar[Mapping[str, Any]] = {"isolation_level": "READ COMMITTED"}

    def __init__(self, settings: PostgresSettings) -> None:
        url = _url(settings)
        super().__init__(_engine(url, settings), f"{url.host or 'local'}:{url.port or 5432}/{url.database}")
        self._settings = settings
        self._admitted: set[str] = set()
        # Names of all tenants, because row-level security hides them in the tables.
        name = sa.Column("tenant", sa.Text, primary_key=True)
        self._roll = sa.Table("_tenants", sa.MetaData(schema=settings.db_schema), name)
        self.home = settings.db_schema if settings.isolation == "shared" else None
        self.read_s, self.write_s = settings.read_timeout_s, settings.write_timeout_s
        sa.event.listen(self.engine, "connect", self._introduce)

    def explain(self, error: sa.exc.DBAPIError) -> Verdict:
        return explain_postgres(error)

    def cut(self, connection: psycopg.Connection) -> None:
        if connection.closed:
            return
        # A duplicate, because the descriptor itself belongs to the thread that waits for it.
        with closing(socket.socket(fileno=os.dup(connection.fileno()))) as line:
            line.shutdown(socket.SHUT_RDWR)

    def place(self, tenant: str | None) -> str | None:
        base = self._settings.db_schema
        if tenant is None or self._settings.isolation == "shared":
            return base
        name = f"{base}_{tenant}"
        return name if len(name) <= _LONGEST_NAME else f"{base}_{blake2b(tenant.encode(), digest_size=16).hexdigest()}"

    def among(self, table: Readable) -> sa.ColumnElement[bool]:
        kind = postgresql.ARRAY(plain_type(table.key), dimensions=1)
        return table.key == sa.any_(sa.bindparam("keys", type_=kind))

    def enter(self, connection: sa.Connection, tenant: str | None, timeout_ms: int) -> None:
        connection.execute(_ENTER_LATER, {"tenant": tenant or "", "left_ms": str(timeout_ms)})

    def lease(self, tenant: str, purpose: str) -> AbstractContextManager[None]:
        return hold_advisory_lock(self, self._settings.db_schema, tenant, purpose)

    # ---- tables -----------------------------------------------------------------------------------------------------

    def prepare(self, tables: Sequence[EntityTable]) -> None:
        self._admitted.clear()
        self._existing.clear()
        with self._defining(None) as connection:
            self._make_schema(connection, self._settings.db_schema)
            self._roll.create(connection, checkfirst=True)
            if self._settings.isolation == "shared":
                self._make_tables(connection, tables, self._settings.db_schema)
        if self._settings.isolation == "dedicated":
            for tenant in self.tenants(tables):
                self._make_own(tenant, tables)

    def admit(self, tenant: str, tables: Sequence[EntityTable]) -> None:
        if tenant in self._admitted:
            return
        if self._settings.isolation == "dedicated":
            self._make_own(tenant, tables)
        with self.writing(None) as connection:
            entry = postgresql.insert(self._roll).values(tenant=tenant)
            connection.execute(entry.on_conflict_do_nothing())
        self._admitted.add(tenant)

    def tenants(self, tables: Sequence[EntityTable]) -> set[str]:
        if not self.has(self._roll.name, None):
            return set()
        with self.reading(None) as connection:
            return set(connection.scalars(sa.select(self._roll.c.tenant)))

    def _make_own(self, tenant: str, tables: Sequence[EntityTable]) -> None:
        place = self.place(tenant)
        assert place is not None
        with self._defining(tenant) as connection:
            self._make_schema(connection, place)
            self._make_tables(connection, tables, place)

    @contextmanager
    def _defining(self, tenant: str | None) -> Iterator[sa.Connection]:
        """A transaction that defines tables, one at a time: two at once would make the same one."""
        with self.writing(tenant) as connection:
            connection.execute(_ALONE, {"key": lock_key(self._settings.db_schema, "")})
            yield connection

    def _make_schema(self, connection: sa.Connection, place: str) -> None:
        # CREATE SCHEMA wants the right to make one even where it exists.
        if not sa.inspect(connection).has_schema(place):
            connection.execute(CreateSchema(place, if_not_exists=True))

    def _make_tables(self, connection: sa.Connection, tables: Sequence[EntityTable], place: str) -> None:
        for table in tables:
            create_or_widen(connection, table.table, place)
            if self._settings.row_security:
                self._secure(connection, table, place)

    def _secure(self, connection: sa.Connection, table: EntityTable, place: str) -> None:
        """Row-level security on a table, for its owner too. Left alone where it is, because it locks readers out."""
        wanted = {"place": place, "quoted": quoted(place), "name": table.table.name, "policy": _POLICY}
        if connection.scalar(sa.text(_SECURED), wanted):
            return
        name = quoted(table.table.name, place)
        mine = f"({quoted(table.tenant.name)} = current_setting('app.tenant', true))"
        for statement in (
            f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY",
            f"DROP POLICY IF EXISTS {_POLICY} ON {name}",
            f"CREATE POLICY {_POLICY} ON {name} USING {mine} WITH CHECK {mine}",
        ):
            connection.execute(ddl(statement))

    def _introduce(self, connection: psycopg.Connection, _: object) -> None:
        """The first words on every connection."""
        introduced = connection.execute(_INTRODUCE).fetchone()
        if self._settings.row_security and introduced is not None and introduced[1]:
            user = connection.info.user
            connection.close()
            detail = (
                f"the role {user!r} bypasses row-level security: use one that is no superuser, or row_security: false"
            )
            raise self.error(Verdict(False, detail))


def _url(settings: PostgresSettings) -> sa.URL:
    if settings.url_env is not None:
        try:
            url = sa.make_url(settings.secret(settings.url_env))
        except sa.exc.ArgumentError:
            raise ConfigError(
                f"planes.rows: {settings.url_env} holds no URL such as postgresql://user@host/db"
            ) from None
        return url.set(drivername="postgresql+psycopg")
    password = None if settings.password_env is None else settings.secret(settings.password_env)
    return sa.URL.create(
        "postgresql+psycopg",
        settings.user,
        password,
        settings.host,
        settings.port,
        settings.database,
        query=settings.parameters,
    )


def _engine(url: sa.URL, settings: PostgresSettings) -> sa.Engine:
    engine = sa.create_engine(
        url,
        # Readers open no transaction: a pipeline is one, and its end costs no words.
        isolation_level="AUTOCOMMIT",
        skip_autocommit_rollback=True,
        pool_size=settings.pool_size,
        max_overflow=0,
        pool_timeout=settings.connect_timeout_s + settings.read_timeout_s,
        connect_args={"connect_timeout": settings.connect_timeout_s, "application_name": "recall", **_KEEPALIVE},
    )
    sa.event.listen(engine, "do_execute", _execute_as_tenant)
    sa.event.listen(engine, "checkout", _refuse_dead)
    return engine


def _execute_as_tenant(cursor: psycopg.Cursor, statement: Any, parameters: Any, context: Any) -> bool:
    """Statements of a reading connection: tenant and statement in one round trip, and in one transaction."""
    options = context.execution_options
    if "left_ms" not in options:
        return False
    connection = cursor.connection
    with connection.pipeline():
        connection.execute(_ENTER_NOW, (options["tenant"] or "", str(options["left_ms"])))
        cursor.execute(statement, parameters)
    return True


def _refuse_dead(connection: psycopg.Connection, *_: object) -> None:
    """An idle connection on which something can be read was closed by the server: nothing else is sent unasked."""
    line = select.poll()
    line.register(connection.fileno(), select.POLLIN)
    if line.poll(0):
        raise sa.exc.InvalidatePoolError
