"""Rows on their way into a SQL table: the version gate as one atomic statement, and rows that cannot be stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from recall.planes.sql_database import Database
from recall.planes.sql_tables import DELETED, VERSION, EntityTable, JsonText, json_text, plain_type
from recall.ports import WriteFailure, WriteReport
from recall.rows import Row

# What a driver raises of one value: PostgreSQL and SQLite take neither lone surrogates nor integers beyond 64 bits.
_UNSTORABLE = (sa.exc.DataError, sa.exc.IntegrityError, UnicodeEncodeError, OverflowError)
# Bind values by key, in the order of keys.
_Records = Sequence[tuple[Any, dict[str, Any]]]


def write_rows(database: Database, tenant: str, table: EntityTable, rows: Sequence[Row]) -> WriteReport:
    """Write rows, one version of each, over older ones. One that the database cannot hold is a failure of its own."""
    key = table.key.key
    records: dict[Any, dict[str, Any]] = {}
    failures: list[WriteFailure] = []
    for row in rows:
        try:
            record = table.record(tenant, row)
            records[record[key]] = record
        except ValueError as error:
            failures.append(WriteFailure(row.ref.id, str(error), transient=False))
    # In one order everywhere, so that two writers of the same rows wait for each other and never lock up.
    return sum_of([WriteReport(failures=tuple(failures)), _insert(database, tenant, table, sorted(records.items()))])


def sum_of(reports: Sequence[WriteReport]) -> WriteReport:
    return WriteReport(
        sum(report.written for report in reports),
        sum(report.stale for report in reports),
        tuple(failure for report in reports for failure in report.failures),
    )


class _UnstorableError(Exception):
    """The database takes everything but one of the rows in hand."""


def _insert(database: Database, tenant: str, table: EntityTable, records: _Records) -> WriteReport:
    """Write records all at once; when one of them cannot be stored, by halves until that one is alone."""
    if not records:
        return WriteReport()
    try:
        return _insert_all(database, tenant, table, dict(records))
    except _UnstorableError as error:
        if len(records) == 1:
            return WriteReport(failures=(WriteFailure(str(records[0][0]), str(error), transient=False),))
    middle = len(records) // 2
    return sum_of([_insert(database, tenant, table, half) for half in (records[:middle], records[middle:])])


def _insert_all(
    database: Database, tenant: str, table: EntityTable, records: Mapping[Any, Mapping[str, Any]]
) -> WriteReport:
    statement, values = gated_insert(table, list(records.values()), database.engine.dialect.name)
    with database.writing(tenant) as connection:
        try:
            written = set(connection.execute(statement, values).scalars().all())
        except _UNSTORABLE as error:
            raise _UnstorableError(str(getattr(error, "orig", error)).strip()) from None
        left_alone = {key: record for key, record in records.items() if key not in written}
        return WriteReport(len(written), _stale(database, connection, table, tenant, left_alone))


def _stale(
    database: Database,
    connection: sa.Connection,
    table: EntityTable,
    tenant: str,
    records: Mapping[Any, Mapping[str, Any]],
) -> int:
    """How many of the records that the gate refused lost to the stored version; the others equal it."""
    query = sa.select(table.key, table.version, table.deleted).where(table.belongs(tenant), database.among(table))
    stale = 0
    for keys in database.chunks(list(records)):
        for key, version, deleted in connection.execute(query, {"keys": keys}):
            stale += (records[key][VERSION], records[key][DELETED]) < (version, deleted)
    return stale


def gated_insert(table: EntityTable, records: Sequence[Mapping[str, Any]], dialect: str) -> tuple[Any, Any]:
    """INSERT that replaces an older or a different row and returns the keys it wrote, and what to execute it with.

    The version gate, in one atomic statement.
    """
    if dialect == "postgresql":
        # All rows as one JSON text: one short statement whatever their number, and the cheapest form on both sides.
        columns = list(table.table.columns)
        insert: Any = postgresql.insert(table.table).from_select([c.key for c in columns], _recordset(columns))
        parameters: Any = {"records": _recordset_text(columns, records)}
    else:
        insert, parameters = sqlite.insert(table.table), records
    return _gated(table, insert), parameters


def _recordset(columns: Sequence[sa.Column[Any]]) -> sa.Select[Any]:
    # Short names, because every row repeats them.
    typed = [sa.column(f"c{at}", plain_type(column)) for at, column in enumerate(columns)]
    text = sa.cast(sa.bindparam("records", type_=sa.Text()), postgresql.JSON)
    rows = sa.func.json_to_recordset(text).table_valued(*typed).render_derived(with_types=True)
    return sa.select(*rows.c)


def _recordset_text(columns: Sequence[sa.Column[Any]], records: Sequence[Mapping[str, Any]]) -> str:
    """Records in their JSON-ready form; a column that holds JSON holds it as text."""
    places = [(f"c{at}", column.key, isinstance(column.type, JsonText)) for at, column in enumerate(columns)]
    rows = [{c: json_text(record[key]) if nested else record[key] for c, key, nested in places} for record in records]
    # As it is, not escaped: the encoding refuses a lone surrogate, and two of them are no character.
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def _gated(table: EntityTable, insert: Any) -> Any:
    new = insert.excluded
    columns = [column for column in table.table.columns if not column.primary_key]
    differs = sa.or_(*(column.is_distinct_from(new[column.key]) for column in columns))
    resurrects = sa.and_(table.deleted, sa.not_(new[DELETED]))
    same_version = sa.and_(new[VERSION] == table.version, sa.not_(resurrects), differs)
    return insert.on_conflict_do_update(
        index_elements=[table.tenant, table.key],
        set_={column.key: new[column.key] for column in columns},
        where=sa.or_(new[VERSION] > table.version, same_version),
    ).returning(table.key)
