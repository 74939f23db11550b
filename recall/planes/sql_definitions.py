"""Tables of the source of truth in a database: created, widened in place, refused when somebody else made them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.types import TypeDecorator, TypeEngine

from recall.errors import ConfigError


def create_or_widen(connection: sa.Connection, table: sa.Table, schema: str | None) -> None:
    """Create `table` in `schema`, or add the nullable columns it lacks. ConfigError when it exists with other columns.

    `connection` translates the table's missing schema to `schema`.
    """
    connection.execute(CreateTable(table, if_not_exists=True))
    stored = {c["name"]: c["type"] for c in sa.inspect(connection).get_columns(table.name, schema=schema)}
    _check_columns(connection, table, stored, schema)
    for index in table.indexes:
        connection.execute(CreateIndex(index, if_not_exists=True))


def _check_columns(
    connection: sa.Connection, table: sa.Table, stored: Mapping[str, TypeEngine[Any]], schema: str | None
) -> None:
    for column in table.columns:
        if column.name not in stored:
            if not column.nullable:
                raise ConfigError(
                    f"table {table.name!r} exists without the column {column.name!r}: it was not made by "
                    "`recall import`; give the entity another `table`"
                )
            _add_column(connection, table, column, schema)
        elif _family(column.type) != _family(stored[column.name]):
            raise ConfigError(
                f"column {column.name!r} of table {table.name!r} is {stored[column.name]}, the registry says "
                f"{_family(column.type)}: change the registry back, or give the field another `column`"
            )


def _add_column(connection: sa.Connection, table: sa.Table, column: sa.Column[Any], schema: str | None) -> None:
    kind = column.type.compile(connection.dialect)
    statement = f"ALTER TABLE {quoted(table.name, schema)} ADD COLUMN {quoted(column.name)} {kind}"
    connection.execute(ddl(statement))


def quoted(name: str, schema: str | None = None) -> str:
    """An identifier for `ddl`, which both databases take as it is written."""
    parts = (schema, name) if schema else (name,)
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def ddl(statement: str) -> sa.DDL:
    """`statement` as it is: per cent signs in names are no placeholders."""
    return sa.DDL(statement.replace("%", "%%"))  # type: ignore[no-untyped-call]


def _family(kind: TypeEngine[Any]) -> str:
    """What is compared of two column types: databases report their own names and lengths."""
    plain = kind.impl_instance if isinstance(kind, TypeDecorator) else kind
    for name, family in (
        ("bool", sa.Boolean),
        ("int", sa.Integer),
        ("float", sa.Numeric),
        ("float", sa.Float),
        ("datetime", sa.DateTime),
        ("date", sa.Date),
        ("text", sa.String),
    ):
        if isinstance(plain, family):
            return name
    return str(plain)
