"""Names, settings and mappings of the OpenSearch indexes, and how a record becomes a document. Talks to no server."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from recall.fields import FieldType
from recall.keys import content_hash, cut_bytes
from recall.planes.opensearch_analysis import ASKING, INDEXING, RECIPE, analysis
from recall.registry import FilterColumn, Registry
from recall.schema import document_schema
from recall.settings import OpenSearchSettings

# Longest string that is a term as a whole, in bytes. Of a longer one the beginning is, and `long` names its column.
LONGEST = 8192
# The server's bound on from + size.
WINDOW = 10_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_TYPES: Mapping[FieldType, str] = {
    "string": "keyword",
    "int": "long",
    "float": "double",
    "bool": "boolean",
    "date": "long",
    "datetime": "long",
}


class OpenSearchLayout:
    """What the registry and the settings say about indexes.

    `{index}-{version}` holds all tenants that share, `{index}-{version}-{tenant}-{hash}` one that does not. Two aliases
    per tenant, filtered and routed, lead to them once loaded: `{index}-{version}@{tenant}` and, whatever the version,
    `{index}@{tenant}`. Writers go through `{index…}-write`.
    """

    def __init__(self, settings: OpenSearchSettings, registry: Registry) -> None:
        self._settings = settings
        self.columns = registry.filter_columns
        self.schema = document_schema(registry)
        self.version = content_hash(["opensearch", RECIPE, registry.search_version()])[:8]
        self.prefix = settings.index

    def dedicated(self, tenant: str) -> bool:
        return self._settings.isolation_of(tenant) == "dedicated"

    def index(self, tenant: str) -> str:
        """The index of this version that holds the tenant."""
        shared = f"{self.prefix}-{self.version}"
        return f"{shared}-{self._own(tenant)}" if self.dedicated(tenant) else shared

    def write_alias(self, index: str) -> str:
        return f"{index}-write"

    def stable_alias(self, tenant: str) -> str:
        return f"{self.prefix}@{tenant}"

    def version_alias(self, tenant: str) -> str:
        return f"{self.prefix}-{self.version}@{tenant}"

    def is_alias_of(self, alias: str, tenant: str) -> bool:
        """Whether `alias` is one that leads readers to the tenant, of any version."""
        name, at, owner = alias.rpartition("@")
        return bool(at) and owner == tenant and (name == self.prefix or name.startswith(f"{self.prefix}-"))

    def may_drop(self, index: str, tenant: str) -> bool:
        """Whether `index` is another version of the one that holds the tenant."""
        if index == self.index(tenant) or not index.startswith(f"{self.prefix}-"):
            return False
        version, _, owner = index.removeprefix(f"{self.prefix}-").partition("-")
        return len(version) == len(self.version) and owner == (self._own(tenant) if self.dedicated(tenant) else "")

    def _own(self, tenant: str) -> str:
        # Index names know no upper case: the hash keeps `A` and `a` apart.
        return f"{tenant.lower()}-{hashlib.blake2b(tenant.encode(), digest_size=8).hexdigest()}"

    def alias_options(self, tenant: str) -> dict[str, Any]:
        if self.dedicated(tenant):
            return {}
        return {"filter": {"term": {"tenant": tenant}}, "routing": tenant}

    def routing(self, tenant: str) -> str | None:
        return None if self.dedicated(tenant) else tenant

    def template(self, *, dedicated: bool) -> dict[str, Any]:
        """Index template of this version. `refresh_interval` is off until a load is finished."""
        name = f"{self.prefix}-{self.version}"
        settings = {
            "number_of_shards": self._settings.shards,
            "number_of_replicas": self._settings.replicas,
            "refresh_interval": "-1",
            "max_result_window": WINDOW,
            "analysis": analysis(),
        }
        return {
            "index_patterns": [f"{name}-*" if dedicated else name],
            "priority": 500,
            "template": {"settings": {"index": settings}, "mappings": self._mappings(required=not dedicated)},
        }

    def _mappings(self, *, required: bool) -> dict[str, Any]:
        keyword = {"type": "keyword"}
        fixed: dict[str, Any] = {
            "tenant": keyword,
            "key": keyword,
            "entity": keyword,
            "id": keyword,
            "scope": keyword,
            "version": {"type": "long", "index": False},
            "hash": {"type": "keyword", "index": False, "doc_values": False},
            "live": {"type": "boolean"},
            # Offsets make highlights of any text cheap, and of a huge one possible.
            "text": {"type": "text", "analyzer": INDEXING, "search_analyzer": ASKING, "index_options": "offsets"},
            "long": keyword,
            "values": {"type": "object", "enabled": False},
        }
        typed = {column.column: {"type": _TYPES[column.kind]} for column in self.columns}
        mappings: dict[str, Any] = {"dynamic": "strict", "properties": {**fixed, **typed}}
        return mappings | ({"_routing": {"required": True}} if required else {})


def documents(tenant: str, table: pa.Table, columns: Sequence[FilterColumn]) -> list[str]:
    """JSON documents of the records of `document_schema`."""
    return [_dump(_document(tenant, row, columns)) for row in table.to_pylist()]


_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _document(tenant: str, row: Mapping[str, Any], columns: Sequence[FilterColumn]) -> dict[str, Any]:
    made = {"tenant": tenant, "key": row["row_key"], "entity": row["entity"], "id": row["id"]}
    made |= {"version": row["version"], "hash": row["hash"], "live": row["live"]}
    if row["scope"] is not None:
        made["scope"] = row["scope"]
    if not row["live"]:
        return made
    made["text"] = row["text"]
    long: dict[str, str] = {}
    for column in columns:
        value = row[column.column]
        if value is None:
            continue
        if column.kind == "string" and too_long(value):
            long[column.column] = value
            value = cut_bytes(value, LONGEST)
        made[column.column] = stored_value(column.kind, value)
    if long:
        made["long"], made["values"] = list(long), long
    return made


def stored_value(kind: FieldType, value: Any) -> Any:
    """A filter value as the index holds it: dates as day numbers, times as microseconds, no negative zero."""
    return _STORED[kind](value) if kind in _STORED else value


def too_long(value: str) -> bool:
    return len(value) > LONGEST // 4 and len(value.encode()) > LONGEST


_STORED: Mapping[FieldType, Callable[[Any], Any]] = {
    "date": lambda value: dt.date.fromisoformat(value).toordinal(),
    "datetime": lambda value: (dt.datetime.fromisoformat(value) - _EPOCH) // _MICROSECOND,
    "float": lambda value: value + 0.0,
}
