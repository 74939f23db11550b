"""From an outside record to a checked row: names, types, id, version, text hygiene. Reads nothing, writes nothing."""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from recall.errors import ConfigError, InvalidRequest
from recall.fields import FieldType, convert
from recall.keys import check_id, clean_row, clean_text
from recall.registry import Entity
from recall.rows import Json, Ref, Row

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_MICROSECOND = dt.timedelta(microseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class RowRejected(InvalidRequest):
    """A record that cannot become a row; the message names every wrong field."""

    code = "row_rejected"


@dataclass(frozen=True, slots=True)
class Checked:
    """A row and whether NUL or lone surrogates had to be taken out of its text."""

    row: Row
    cleaned: bool


class Intake:
    """Checks records of one entity that come from one kind of source.

    `rename` maps the source's names to fields, `defaults` fill fields that are absent or null, `from_text` says that
    every value is text (CSV). Names that belong to no field collect in `ignored`.
    """

    def __init__(
        self,
        entity: Entity,
        *,
        rename: Mapping[str, str] | None = None,
        defaults: Mapping[str, Json] | None = None,
        from_text: bool = False,
    ) -> None:
        if entity.spec.existing is not None:
            raise ConfigError(
                f"entity {entity.name!r} is the existing table {entity.table!r}: rows are changed there, not imported"
            )
        self.entity = entity
        self.ignored: set[str] = set()
        self._defaults = dict(defaults or {})
        self._from_text = from_text
        self._kinds: dict[str, FieldType] = {name: column.type for name, column in entity.columns.items()}
        self._ids = _id_fields(entity)
        self._names = {column.column or name: name for name, column in entity.columns.items()}
        self._names.update({name: name for name in entity.columns}, **(rename or {}))
        # The tenant column is the caller's to read, unless the entity declares a field of that name.
        self._silent = {entity.spec.tenant}
        self._check_names()

    def _check_names(self) -> None:
        known = set(self._kinds)
        for use, names in (("rename", set(self._names.values())), ("defaults", set(self._defaults))):
            if wrong := sorted(names - known):
                raise ConfigError(f"{use} of entity {self.entity.name!r} names {', '.join(wrong)}: not a column")
        version = self.entity.spec.version
        if version and self._kinds[version] not in ("int", "datetime"):
            raise ConfigError(f"version column {version!r} of entity {self.entity.name!r} must be int or datetime")

    def fields(self, names: Iterator[str] | list[str]) -> list[str]:
        """Those of the source's `names` that are read; the others are noted as ignored."""
        wanted = [name for name in names if name in self._names]
        self.ignored.update(set(names) - set(wanted) - self._silent)
        return wanted

    def check(self, record: Mapping[str, object], version: int) -> Checked:
        """The row that `record` describes; `version` counts when the entity has no version column.

        Raises RowRejected.
        """
        values = self._renamed(record)
        row_id = self._row_id(values.get(self.entity.key))
        clean = clean_row(values)
        clean[self.entity.key] = int(row_id) if self._kinds[self.entity.key] == "int" else row_id
        converted = self._converted(clean)
        scope = self.entity.spec.scope
        shown = None if scope is None or converted[scope] is None else str(converted[scope])
        row = Row(Ref(self.entity.name, row_id), version_of(self.entity, converted, version), converted, shown)
        return Checked(row, clean != values and _unstorable(values))

    def _renamed(self, record: Mapping[str, object]) -> dict[str, object]:
        values: dict[str, object] = dict(self._defaults)
        for name, value in record.items():
            field = self._names.get(name)
            if field is None:
                if name not in self._silent:
                    self.ignored.add(name)
            elif not self._absent(field, value) or field not in values:
                values[field] = value
        return values

    def _absent(self, field: str, value: object) -> bool:
        return value is None or (self._from_text and value == "" and self._kinds[field] != "string")

    def _row_id(self, value: object) -> str:
        """Ids are text everywhere; whole numbers keep their decimal form."""
        if value is None or value == "":
            raise RowRejected(f"no id: field {self.entity.key!r} is missing or empty")
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise RowRejected(f"field {self.entity.key!r}: an id is a string or an int, got {type(value).__name__}")
        text = unicodedata.normalize("NFC", str(value))
        try:
            check_id(text)
        except InvalidRequest as error:
            raise RowRejected(str(error)) from None
        if self._kinds[self.entity.key] == "int" and not _canonical_int(text):
            raise RowRejected(f"field {self.entity.key!r}: expected int, got {text[:60]!r}")
        return text

    def _converted(self, values: Mapping[str, object]) -> dict[str, Json]:
        converted: dict[str, Json] = {}
        wrong: list[str] = []
        for name, kind in self._kinds.items():
            value = values.get(name)
            if name in self._ids:
                value = _as_ids(value)
            try:
                converted[name] = convert(value, kind, from_text=self._from_text)
            except (ValueError, RecursionError) as error:
                wrong.append(f"field {name!r}: {error or 'nested too deeply'}")
        if wrong:
            raise RowRejected("; ".join(wrong))
        return converted


def version_of(entity: Entity, values: Mapping[str, Json], default: int) -> int:
    """Version of a row with these values: its version column, times in microseconds, else `default`.

    Raises RowRejected when the column is null.
    """
    if entity.spec.version is None:
        return default
    value = values[entity.spec.version]
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return (dt.datetime.fromisoformat(value) - _EPOCH) // _MICROSECOND
    raise RowRejected(f"field {entity.spec.version!r}: the version is missing")


def _id_fields(entity: Entity) -> frozenset[str]:
    """Fields that hold ids of other rows, where `7` and `"7"` mean the same row."""
    fields = {edge.field for edge in entity.spec.edges}
    if entity.spec.edge:
        fields |= {entity.spec.edge.source.field, entity.spec.edge.target.field}
    return frozenset(name for name in fields if entity.columns[name].type in ("string", "strings"))


def _as_ids(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return [_as_ids(item) for item in value] if isinstance(value, (list, tuple)) else value


def _canonical_int(text: str) -> bool:
    return re.fullmatch(r"0|-?[1-9][0-9]{0,18}", text) is not None


def _unstorable(value: object) -> bool:
    if isinstance(value, str):
        return _UNSTORABLE.search(value) is not None
    if isinstance(value, Mapping):
        return any(_unstorable(name) or _unstorable(item) for name, item in value.items())
    return isinstance(value, (list, tuple)) and any(_unstorable(item) for item in value)


def excerpt(value: object, limit: int = 200) -> str:
    """The beginning of a rejected record, storable as text."""
    return clean_text(value if isinstance(value, str) else repr(value))[:limit]
