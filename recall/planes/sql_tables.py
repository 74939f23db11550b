"""SQL tables of the source of truth: one per entity, derived from the registry.

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
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from recall.errors import ConfigError
from recall.fields import FieldType, canonical_datetime
from recall.keys import content_hash
from recall.registry import Entity
from recall.rows import Json, Ref, Row

VERSION, DELETED, SCOPE = "_version", "_deleted", "_scope"
UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def json_text(value: Json) -> str | None:
    """A value of a JSON column as it is stored."""
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class JsonText(TypeDecorator[Json]):
    """JSON as text; null is SQL NULL."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Json, dialect: Dialect) -> str | None:
        return json_text(value)

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
    def selected(self) -> Sequence[sa.Column[Any]]:
        """The columns that `row` is made of."""

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

    def row(self, record: Sequence[Any]) -> Row:
        """A row from the values of its `selected` columns."""


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
    def selected(self) -> Sequence[sa.Column[Any]]:
        return [*(self.table.c[name] for name in self._fields), self.version, self.deleted, self.scope]

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

    def row(self, record: Sequence[Any]) -> Row:
        values = dict(zip(self._fields, record, strict=False))
        version, deleted, scope = record[-3:]
        ref = Ref(self.entity.name, str(values[self.entity.key]))
        if deleted:
            return Row(ref, version, {}, deleted=True)
        return Row(ref, version, values, None if scope is None else str(scope))


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


def plain_type(column: sa.Column[Any]) -> TypeEngine[Any]:
    """The type of a column's values; texts without their order."""
    return sa.Text() if isinstance(column.type, sa.String) else column.type
