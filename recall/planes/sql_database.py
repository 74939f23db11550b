"""A SQL database as the source of truth sees it: transactions of a tenant, deadlines, errors as StoreError, leases.

`Database` is what SQLite needs. Another database overrides what it does differently, nothing above knows which it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import sqlalchemy as sa

from recall.errors import StoreError, TerminalStoreError, TransientStoreError
from recall.planes.sql_definitions import create_or_widen
from recall.planes.sql_tables import EntityTable, Readable

STORE = "rows (sql)"
# What a client waits beyond the deadline that it gave the server, before it takes the connection for dead.
GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an error of the database means: whether repeating may help, and a sentence that says what to do."""

    transient: bool
    detail: str


class Leases(Protocol):
    def hold(self, tenant: str, purpose: str) -> AbstractContextManager[None]: ...


class Attempt:
    """One use of the database with a deadline. Whoever waits for it may give it up, from any thread."""

    def __init__(self, database: Database, seconds: float | None) -> None:
        self._database = database
        self._ends = None if seconds is None else time.monotonic() + seconds
        self._guard = threading.Lock()
        self._connection: Any = None
        self.abandoned = False

    @property
    def left_ms(self) -> int:
        """Milliseconds until the deadline, at least one; 0 without a deadline."""
        return 0 if self._ends is None else max(1, round((self._ends - time.monotonic()) * 1000))

    @contextmanager
    def using(self, connection: sa.Connection) -> Iterator[None]:
        """While entered, giving up the attempt cuts this connection."""
        with self._guard:
            if self.abandoned:
                raise TimeoutError
            self._connection = connection.connection.driver_connection
        try:
            yield
        finally:
            with self._guard:
                self._connection = None

    def abandon(self) -> None:
        """Wake a thread that waits for the database in vain: its connection is lost, and raises."""
        with self._guard:
            self.abandoned = True
            if self._connection is not None:
                self._database.cut(self._connection)

    def expire(self) -> None:
        """Nobody waits any longer: the server may still end it by itself, then the connection is cut."""
        _later(GRACE_S, self.abandon)


class Database:
    """SQLite, and what every database shares. No connection is made before the first use."""

    # Keys in one statement.
    keys_at_once: ClassVar[int] = 1000
    # Where tables of other people lie that name no schema.
    public_schema: ClassVar[str | None] = None
    # Options of a connection that writes.
    writing_options: ClassVar[Mapping[str, Any]] = {}
    # Schema of the tables that all tenants share; None where there is none, or each tenant has its own.
    home: str | None = None
    read_s: float | None = None
    write_s: float | None = None

    def __init__(self, engine: sa.Engine, address: str, leases: Leases | None = None) -> None:
        self.engine = engine
        self.address = address
        self._leases = leases
        self._existing: set[tuple[str | None, str]] = set()

    # ---- differs from database to database --------------------------------------------------------------------------

    def explain(self, error: sa.exc.DBAPIError) -> Verdict:
        """What `error` means."""
        from recall.planes.sqlite import explain_sqlite

        return Verdict(*explain_sqlite(error))

    def cut(self, connection: Any) -> None:
        """Make a driver's connection fail in the thread that waits for it."""
        connection.interrupt()

    def place(self, tenant: str | None) -> str | None:
        """Schema that holds the tables of a tenant; None where there are no schemas."""
        return None

    def among(self, table: Readable) -> sa.ColumnElement[bool]:
        """The key is one of the parameter `keys`, at most `keys_at_once`."""
        return table.key.in_(sa.bindparam("keys", expanding=True))

    def prepare(self, tables: Sequence[EntityTable]) -> None:
        """Create or widen the tables that Recall owns."""
        with self.writing(None) as connection:
            for table in tables:
                create_or_widen(connection, table.table, None)

    def admit(self, tenant: str, tables: Sequence[EntityTable]) -> None:
        """Before rows of a tenant are written."""

    def tenants(self, tables: Sequence[EntityTable]) -> set[str]:
        """Tenants that have rows in the tables that Recall owns."""
        present = [table for table in tables if self.has(table.table.name, None)]
        with self.reading(None) as connection:
            return {str(t) for table in present for t in connection.scalars(sa.select(table.tenant).distinct())}

    def lease(self, tenant: str, purpose: str) -> AbstractContextManager[None]:
        assert self._leases is not None
        return self._leases.hold(tenant, purpose)

    def enter(self, connection: sa.Connection, tenant: str | None, timeout_ms: int) -> None:
        """Begin a writing transaction of a tenant."""

    # ---- shared -----------------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self, tenant: str | None, attempt: Attempt | None = None) -> Iterator[sa.Connection]:
        """A connection for statements that only read, each a transaction of its own."""
        with (
            self.watched(attempt, self.write_s) as watched,
            self.mapped(),
            self.engine.connect() as connection,
            watched.using(connection),
        ):
            yield connection.execution_options(**self._options(tenant), tenant=tenant, left_ms=watched.left_ms)

    @contextmanager
    def writing(self, tenant: str | None) -> Iterator[sa.Connection]:
        """One transaction, committed at the end."""
        with self.watched(None, self.write_s) as watched, self.mapped(), self.engine.connect() as connection:
            connection = connection.execution_options(**self._options(tenant), **self.writing_options)
            with watched.using(connection), connection.begin():
                self.enter(connection, tenant, watched.left_ms)
                yield connection

    def _options(self, tenant: str | None) -> dict[str, Any]:
        place = None if self.home else self.place(tenant)
        return {} if place is None else {"schema_translate_map": {None: place}}

    def has(self, name: str, tenant: str | None, attempt: Attempt | None = None) -> bool:
        """Whether a table was created; until then reads are empty, because nothing was imported yet."""
        place = self.place(tenant)
        if (place, name) not in self._existing:
            with self.reading(tenant, attempt) as connection:
                found = sa.inspect(connection).get_table_names(schema=place)
                self._existing |= {(place, name) for name in found}
        return (place, name) in self._existing

    def chunks(self, keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """`keys` in parts that one statement may ask for."""
        return (keys[at : at + self.keys_at_once] for at in range(0, len(keys), self.keys_at_once))

    @contextmanager
    def watched(self, attempt: Attempt | None, seconds: float | None) -> Iterator[Attempt]:
        """`attempt`, or a new one that is given up by itself when `seconds` have passed."""
        if attempt is not None:
            yield attempt
            return
        watched = Attempt(self, seconds)
        timer = None if seconds is None else _later(seconds + GRACE_S, watched.abandon)
        try:
            yield watched
        except (StoreError, TimeoutError):
            if watched.abandoned:
                raise self.error(Verdict(True, f"no answer within {seconds:g} s: try again")) from None
            raise
        finally:
            if timer is not None:
                timer.cancel()

    @contextmanager
    def mapped(self) -> Iterator[None]:
        """Database errors as StoreError; everything else passes."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise self.error(self.explain(error)) from None
        except sa.exc.TimeoutError as error:
            raise self.error(Verdict(True, f"all connections are in use: {error}")) from None
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise self.error(Verdict(False, f"{error}: make the folder writable")) from None

    def error(self, verdict: Verdict) -> StoreError:
        kind = TransientStoreError if verdict.transient else TerminalStoreError
        return kind(STORE, self.address, verdict.detail)

    def close(self) -> None:
        self.engine.dispose()


def _later(seconds: float, action: Any) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    return timer
