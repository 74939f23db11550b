"""What PostgreSQL's errors mean: whether repeating may help, and what to do. By SQLSTATE where the server gave one."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from recall.planes.sql_database import Verdict

# By the longest prefix of the SQLSTATE: transient, advice.
_STATES: Sequence[tuple[str, bool, str]] = (
    ("40", True, "another transaction was in the way; try again"),
    ("55P03", True, "another transaction holds a lock; try again"),
    ("57014", True, "the server ended it at its deadline: try again, or allow more time"),
    ("57", True, "the server is going down or coming up; try again"),
    ("08", True, "the connection was lost; try again"),
    ("25006", True, "the server takes no writes: set target_session_attrs: read-write under `parameters`"),
    ("53100", False, "free space on the server's disk, then run the same command again"),
    ("53", True, "the server is short of connections or memory: lower pool_size, or try again"),
    ("28", False, "check `user` and `password_env` of planes.rows"),
    ("3D000", False, "create the database, or correct `database` of planes.rows"),
    ("3F000", False, "run `recall import` first, or correct `db_schema` of planes.rows"),
    ("42P01", False, "run `recall import` first, or correct `db_schema` of planes.rows"),
    ("42703", False, "run `recall import` again: the registry has columns that the table lacks"),
    ("42501", False, "grant the role what it lacks, or use the role that owns the tables"),
)
# Of connections that failed: the client library passes the server's words on, but not its SQLSTATE.
_WORDS: Sequence[tuple[str, str]] = (
    ("password authentication failed", "28"),
    ("no password supplied", "28"),
    ("authentication failed", "28"),
    ("no pg_hba.conf entry", "28"),
    ("is not permitted to log in", "28"),
    ("role ", "28"),
    ("database ", "3D000"),
    ("permission denied", "42501"),
)


def explain_postgres(error: sa.exc.DBAPIError) -> Verdict:
    """What `error` means to somebody who can act on it."""
    said = str(error.orig).strip()
    state = getattr(error.orig, "sqlstate", None) or _state_of_refusal(said)
    for prefix, transient, advice in _STATES:
        if state and state.startswith(prefix):
            return Verdict(transient, f"{said}: {advice}")
    if error.connection_invalidated or isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError):
        return Verdict(True, f"{said}: start the server, or check `host` and `port` of planes.rows")
    return Verdict(False, said)


def _state_of_refusal(said: str) -> str | None:
    _, fatal, reason = said.partition("FATAL:")
    for words, state in _WORDS:
        if words in (reason if fatal else said) and (fatal or state == "28"):
            # "the database system is starting up" is no complaint about a database.
            return None if "database system" in reason else state
    return None
