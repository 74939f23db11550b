"""Tables and views that somebody else made, read as they are: their types are asked for, nothing is ever written."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from recall.errors import ConfigError
from recall.fields import FieldType, canonical_datetime, convert
from recall.intake import version_of
from recall.keys import clean_row
from recall.planes.sql_tables import canonical_int, storable
from recall.registry import Entity
from recall.rows import Json, Ref, Row


class Unreadable(ValueError):
    """A value that is not of the type that the registry declares; says which, and of which row."""


@dataclass(frozen=True)
class ExistingTable:
    """A table as the database describes it. Column keys are those of the database, not field names."""

    entity: Entity
    table: sa.Table

    @property
    def key(self) -> sa.Column[Any]:
        return self.column(self.entity.key)

    @property
    def selected(self) -> Sequence[sa.Column[Any]]:
        return [self.column(name) for name in self.entity.columns]

    @property
    def live(self) -> sa.ColumnElement[bool]:
        return self.key.is_not(None)

    def belongs(self, tenant: str) -> sa.ColumnElement[bool]:
        assert self.entity.spec.existing is not None
        if owner := self.entity.spec.existing.owner:
            return sa.true() if owner == tenant else sa.false()
        column: sa.Column[Any] = self.table.c[self.entity.spec.tenant]
        try:
            mine: sa.ColumnElement[bool] = column == _bindable(column, tenant)
        except ValueError:
            return sa.false()
        return mine

    def within(self, scope: str) -> sa.ColumnElement[bool]:
        if self.entity.spec.scope is None:
            return sa.false()
        return sa.cast(self.column(self.entity.spec.scope), sa.Text) == scope

    def key_value(self, row_id: str) -> Any:
        return _bindable(self.key, row_id)

    def row(self, record: Sequence[Any]) -> Row:
        """A row from the values of its `selected` columns. Raises Unreadable."""
        raw = dict(zip(self.entity.columns, record, strict=True))
        row_id = str(raw[self.entity.key])
        values: dict[str, Json] = {}
        for name, column in self.entity.columns.items():
            try:
                values[name] = _json_ready(raw[name], column.type)
            except ValueError as error:
                raise Unreadable(
                    f"column {column.column or name!r} of the row {row_id!r} in {self.table.fullname!r}: {error}: "
                    f"declare it with its own type in the registry, or make a view that converts it"
                ) from None
        spec = self.entity.spec
        scope = values[spec.scope] if spec.scope else None
        versioned = spec.version is not None and values[spec.version] is not None
        version = version_of(self.entity, values, 0) if versioned else 0
        return Row(Ref(self.entity.name, row_id), version, values, None if scope is None else str(scope))

    def column(self, field: str) -> sa.Column[Any]:
        declared = self.entity.columns[field]
        return self.table.c[declared.column or field]


def existing_table(entity: Entity, connection: sa.Connection, default_schema: str | None) -> ExistingTable:
    """The table of `entity` as the database describes it. ConfigError when it, or a column of it, is not there."""
    assert entity.spec.existing is not None
    schema, _, name = entity.table.rpartition(".")
    try:
        found = sa.Table(name, sa.MetaData(), schema=schema or default_schema, autoload_with=connection)
    except sa.exc.NoSuchTableError:
        raise ConfigError(
            f"entity {entity.name!r} reads the table {entity.table!r}, which does not exist or may not be read: "
            "correct `table`, or leave out `existing` to have it made"
        ) from None
    wanted = {name: column.column or name for name, column in entity.columns.items()}
    if entity.spec.existing.owner is None:
        wanted[entity.spec.tenant] = entity.spec.tenant
    if missing := sorted(column for column in wanted.values() if column not in found.c):
        raise ConfigError(
            f"table {entity.table!r} of entity {entity.name!r} has no column {', '.join(missing)}: name the field's "
            "`column`, the `tenant` column, or under `existing` the `owner` of all rows"
        )
    # Columns that nobody declared are none of ours: they are never fetched.
    columns = [sa.Column(name, found.c[name].type) for name in dict.fromkeys(wanted.values())]
    table = ExistingTable(entity, sa.Table(name, sa.MetaData(), *columns, schema=schema or default_schema))
    if _family(table.key) is None:
        raise ConfigError(
            f"the key {table.key.name!r} of table {entity.table!r} is {table.key.type}: a key is text, an integer or "
            "a UUID; make a view that casts it to text"
        )
    return table


def _family(column: sa.Column[Any]) -> str | None:
    families = (("int", sa.Integer), ("uuid", sa.Uuid), ("decimal", sa.Numeric), ("text", sa.String))
    return next((name for name, kind in families if isinstance(column.type, kind)), None)


def _bindable(column: sa.Column[Any], text: str) -> Any:
    """`text` as a value of `column`. Raises ValueError when the column cannot hold exactly that."""
    family = _family(column)
    if family == "int":
        return canonical_int(text)
    if family == "decimal":
        return Decimal(canonical_int(text))
    if family == "uuid":
        value = UUID(text)
        if str(value) != text:
            raise ValueError(f"id {text!r} is not a UUID in canonical form")
        return value
    return storable(text)


def _json_ready(value: object, kind: FieldType) -> Json:
    """A database's value as the JSON-ready form of `kind`. Raises ValueError."""
    if value is None:
        return None
    if isinstance(value, str) and kind in ("json", "strings"):
        value = json.loads(value)
    adapted = _ADAPT[kind](value) if kind in _ADAPT else value
    return convert(_clean(adapted), kind)


def _clean(value: object) -> object:
    return clean_row({"": value})[""]


def _text(value: object) -> object:
    if isinstance(value, dt.datetime):
        return canonical_datetime(value)
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return value if isinstance(value, (bytes, memoryview)) else str(value)


def _whole(value: object) -> object:
    return int(value) if isinstance(value, (Decimal, float)) and value == int(value) else value


def _finite(value: object) -> object:
    """JSON knows neither NaN nor infinity."""
    if isinstance(value, (float, Decimal)):
        return float(value) if math.isfinite(value) else None
    return value


def _truth(value: object) -> object:
    return bool(value) if isinstance(value, int) and value in (0, 1) else value


def _list(value: object) -> object:
    return [str(item) for item in value if item is not None] if isinstance(value, list) else value


def _plain(value: object) -> object:
    return json.loads(json.dumps(value, default=_text, ensure_ascii=False))


_ADAPT: Mapping[FieldType, Callable[[object], object]] = {
    "string": _text,
    "int": _whole,
    "float": _finite,
    "bool": _truth,
    "strings": _list,
    "json": _plain,
}
