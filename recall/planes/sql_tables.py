"""SQL tables of the source of truth: one per entity, derived from the registry, created and widened in place.

Values cross this border in their JSON-ready form; dates, times and JSON are typed columns on the other side.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.types import TypeDecorator, TypeEngine

from recall.errors import ConfigError
from recall.fields import FieldType, canonical_datetime
from recall.keys import content_hash
from recall.registry import Entity
from recall.rows import Json, Ref, Row

VERSION, DELETED, SCOPE = "_version", "_deleted", "_scope"
UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class JsonText(TypeDecorator[Json]):
    """JSON as text; null is SQL NULL."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Json, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def process_result_value(self, value: Any, dialect: Dialect) -> Json:
        parsed: Json = None if value is None else json.loads(value)
        return parsed


class CanonicalDate(TypeDecorator[str]):
    impl = sa.Date
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> dt.date | None:
        return None if value is None else dt.date.fromisoformat(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else value.isoformat()


class CanonicalDatetime(TypeDecorator[str]):
    """UTC on both sides; SQLite stores it without a zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> dt.datetime | None:
        return None if value is None else dt.datetime.fromisoformat(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else canonical_datetime(value)


# Identifiers order by code point everywhere, as SQLite does, so that key ranges mean the same in every database.
_KEY_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_SQL_TYPES: Mapping[FieldType, TypeEngine[Any]] = {
    "string": sa.Text(),
    "int": sa.BigInteger(),
    "float": sa.Double(),
    "bool": sa.Boolean(),
    "date": CanonicalDate(),
    "datetime": CanonicalDatetime(),
    "json": JsonText(),
    "strings": JsonText(),
}


class Readable(Protocol):
    """What reading needs of an entity's table, whoever made it."""

    @property
    def entity(self) -> Entity: ...

    @property
    def table(self) -> sa.Table: ...

    @property
    def key(self) -> sa.Column[Any]: ...

    @property
    def live(self) -> sa.ColumnElement[bool]:
        """The row is not deleted."""

    def column(self, field: str) -> sa.Column[Any]:
        """The column that holds a field."""

    def belongs(self, tenant: str) -> sa.ColumnElement[bool]:
        """The row is this tenant's."""

    def within(self, scope: str) -> sa.ColumnElement[bool]:
        """The row is in this scope."""

    def key_value(self, row_id: str) -> Any:
        """`row_id` as the key column holds it. Raises ValueError when the column cannot hold it."""

    def row(self, record: Mapping[str, Any]) -> Row:
        """A row from its columns by key."""


@dataclass(frozen=True)
class EntityTable:
    """The table of one entity. Its primary key is (tenant, key); `_version` and `_deleted` belong to the gate."""

    entity: Entity
    table: sa.Table

    @property
    def tenant(self) -> sa.Column[Any]:
        return self.table.c[self.entity.spec.tenant]

    @property
    def key(self) -> sa.Column[Any]:
        return self.table.c[self.entity.key]

    @property
    def scope(self) -> sa.Column[Any]:
        return self.table.c[self.entity.spec.scope or SCOPE]

    @property
    def version(self) -> sa.Column[Any]:
        return self.table.c[VERSION]

    @property
    def deleted(self) -> sa.Column[Any]:
        return self.table.c[DELETED]

    @cached_property
    def _int_key(self) -> bool:
        return self.entity.columns[self.entity.key].type == "int"

    @cached_property
    def _fields(self) -> tuple[str, ...]:
        return tuple(self.entity.columns)

    @property
    def live(self) -> sa.ColumnElement[bool]:
        return sa.not_(self.deleted)

    def column(self, field: str) -> sa.Column[Any]:
        return self.table.c[field]

    def belongs(self, tenant: str) -> sa.ColumnElement[bool]:
        return self.tenant == tenant

    def within(self, scope: str) -> sa.ColumnElement[bool]:
        return sa.cast(self.scope, sa.Text) == scope

    def key_value(self, row_id: str) -> str | int:
        return canonical_int(row_id) if self._int_key else storable(row_id)

    def record(self, tenant: str, row: Row) -> dict[str, Any]:
        """One row as bind values. A tombstone keeps nothing of the row's contents."""
        values: dict[str, Any] = {name: None if row.deleted else row.values.get(name) for name in self._fields}
        spec = self.entity.spec
        if spec.scope is None:
            values[SCOPE] = None if row.deleted else row.scope
        values[spec.key], values[spec.tenant] = self.key_value(row.ref.id), tenant
        values[VERSION], values[DELETED] = row.version, row.deleted
        return values

    def row(self, record: Mapping[str, Any]) -> Row:
        spec = self.entity.spec
        ref = Ref(self.entity.name, str(record[spec.key]))
        if record[DELETED]:
            return Row(ref, record[VERSION], {}, deleted=True)
        scope = record[spec.scope or SCOPE]
        values = {name: record[name] for name in self._fields}
        return Row(ref, record[VERSION], values, None if scope is None else str(scope))


def storable(text: str) -> str:
    """`text` itself. Raises ValueError when no database could hold it as text."""
    if UNSTORABLE.search(text):
        raise ValueError(f"id {text!r} holds NUL or a lone surrogate")
    return text


def canonical_int(text: str) -> int:
    """The integer that `text` writes. Raises ValueError for another form of it, or one beyond 64 bits."""
    number = int(text)
    if str(number) != text or not -(2**63) <= number < 2**63:
        raise ValueError(f"id {text!r} is not a 64-bit integer in canonical form")
    return number


def entity_table(entity: Entity, metadata: sa.MetaData) -> EntityTable:
    """The table of `entity`. Column keys are field names; column names may differ (`column:` in the registry)."""
    spec = entity.spec
    columns: dict[str, sa.Column[Any]] = {spec.tenant: sa.Column(spec.tenant, _KEY_TEXT, primary_key=True)}
    for name, column in entity.columns.items():
        is_key = name == entity.key
        kind = _KEY_TEXT if is_key and column.type == "string" else _SQL_TYPES[column.type]
        if name == spec.tenant:
            continue
        columns[name] = sa.Column(
            column.column or name, kind, key=name, primary_key=is_key, nullable=not is_key, autoincrement=False
        )
    columns[VERSION] = sa.Column(VERSION, sa.BigInteger, nullable=False)
    columns[DELETED] = sa.Column(DELETED, sa.Boolean, nullable=False)
    if spec.scope is None:
        columns[SCOPE] = sa.Column(SCOPE, sa.Text)
    _check_names(entity, [column.name for column in columns.values()])
    table = EntityTable(entity, sa.Table(entity.table, metadata, *columns.values()))
    for name, column in entity.columns.items():
        if column.indexed:
            # In SQLite the names of indexes are one namespace, in PostgreSQL they have 63 bytes.
            sa.Index(f"ix_{content_hash([entity.table, name])[:16]}", table.tenant, table.table.c[name])
    return table


def _check_names(entity: Entity, names: list[str]) -> None:
    """SQL identifiers that differ in case only are one column to most databases."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise ConfigError(f"entity {entity.name!r} has two columns called {name!r} in table {entity.table!r}")
        seen.add(name.lower())


def gated_insert(table: EntityTable, records: Sequence[Mapping[str, Any]], dialect: str) -> tuple[Any, Any]:
    """INSERT that replaces an older or a different row and returns the keys it wrote, and what to execute it with.

    The version gate, in one atomic statement.
    """
    if dialect == "postgresql":
        # An array for each column: one short statement, whatever the number of rows.
        columns = list(table.table.columns)
        insert: Any = postgresql.insert(table.table).from_select([c.key for c in columns], _unnested(columns))
        parameters: Any = {f"c{at}": [record[c.key] for record in records] for at, c in enumerate(columns)}
    else:
        insert, parameters = sqlite.insert(table.table), records
    return _gated(table, insert), parameters


def _unnested(columns: Sequence[sa.Column[Any]]) -> sa.Select[Any]:
    arrays = [
        sa.bindparam(f"c{at}", type_=postgresql.ARRAY(plain_type(column), dimensions=1))
        for at, column in enumerate(columns)
    ]
    rows = sa.func.unnest(*arrays).table_valued(*(f"c{at}" for at in range(len(columns)))).render_derived()
    return sa.select(*rows.c)


def plain_type(column: sa.Column[Any]) -> TypeEngine[Any]:
    """The type of a column's values; texts without their order."""
    return sa.Text() if isinstance(column.type, sa.String) else column.type


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
