"""Leases on tenants as advisory locks of PostgreSQL: one writing job per tenant, freed with the holder's connection."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b

import sqlalchemy as sa

from recall.errors import Busy
from recall.planes.sql_database import Database

# A holder that has just died is gone from the server a moment later.
_PATIENCE = "500ms"
_HELD = "55P03"
_HOLDER = """
    SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid)
    WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = :key
"""
# The session lives as long as the job; the server notices within a minute when the holder's machine is gone.
_SESSION = (
    ("lock_timeout", _PATIENCE),
    ("idle_session_timeout", "0"),
    ("tcp_keepalives_idle", "30"),
    ("tcp_keepalives_interval", "10"),
    ("tcp_keepalives_count", "3"),
)


def lock_key(schema: str, tenant: str) -> int:
    """The 64-bit number of an advisory lock; the tenant "" is nobody's."""
    return int.from_bytes(blake2b(f"{schema}/{tenant}".encode(), digest_size=8).digest(), "big", signed=True)


@contextmanager
def hold_advisory_lock(database: Database, schema: str, tenant: str, purpose: str) -> Iterator[None]:
    """Hold `tenant` on a connection of its own; raises Busy naming who does."""
    key = lock_key(schema, tenant)
    with database.mapped():
        connection = database.engine.connect()
    try:
        with database.watched(None, database.read_s) as watched, database.mapped(), watched.using(connection):
            # Out of the pool: a long job takes no connection from readers, and closing it ends the session.
            connection.detach()
            _take(connection, key, tenant, f"{purpose} (process {os.getpid()} on {socket.gethostname()})")
        yield
    finally:
        with suppress(sa.exc.DBAPIError):
            connection.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": key})
        connection.close()


def _take(connection: sa.Connection, key: int, tenant: str, holder: str) -> None:
    for name, value in (*_SESSION, ("application_name", holder)):
        connection.execute(sa.text("SELECT set_config(:name, :value, false)"), {"name": name, "value": value})
    try:
        connection.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": key})
    except sa.exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _HELD:
            raise
        found = connection.scalar(sa.text(_HOLDER), {"key": key}) or "another job"
        raise Busy(f"tenant {tenant!r} is held by {found}: wait for it, or stop that process") from None
