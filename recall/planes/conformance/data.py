"""Rows of the conformance suite: a registry, awkward ids, and Arrow tables made of records."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from recall.keys import chunk_key, content_hash, store_key
from recall.registry import Registry
from recall.rows import Json, Ref
from recall.schema import document_schema, edge_schema, node_schema, vector_schema

DIM = 16
INJECTION = "') or true or ('"
UUID_ID = "123e4567-e89b-12d3-a456-426614174000"
AWKWARD_IDS = (
    "plain",
    "main",
    UUID_ID,
    "it's",
    'say "hi"',
    "trailing\\",
    "C:\\repo\\",
    "line1\nline2",
    "tab\tand space ",
    "a|b",
    "a/b?c#d&e=%20",
    "50%_off",
    "`backtick```",
    "$id {id} {{id}}",
    INJECTION,
    '") or true or ("',
    "'; DROP TABLE item; --",
    "认证系统",
    "é\N{COMBINING ACUTE ACCENT}🙂",
    "x" * 300,
    "系" * 100,
    "null",
    "-1",
)


def conformance_registry() -> Registry:
    """`item` (every filterable type, two edges), `place` (the same field with another type), `link` (an edge table),
    `badge` (an integer key, names of its own in the database)."""
    item = {
        "columns": {
            "title": {"type": "string", "filterable": True, "indexed": True},
            "status": {"type": "string", "filterable": True},
            "cost": {"type": "float", "filterable": True},
            "amount": {"type": "int", "filterable": True, "indexed": True},
            "active": {"type": "bool", "filterable": True},
            "due": {"type": "date", "filterable": True},
            "seen": {"type": "datetime", "filterable": True},
            "region": "string",
            "body": "string",
            "place": "string",
            "parts": "strings",
            "meta": "json",
        },
        "scope": "region",
        "search": {"fields": ["body"]},
        "embed": {"fields": ["body"]},
        "edges": [
            {"field": "place", "rel": "AT", "target": "place"},
            {"field": "parts", "rel": "HAS", "target": "item"},
        ],
    }
    place = {
        "columns": {
            "status": {"type": "string", "filterable": True},
            "cost": {"type": "int", "filterable": True},
            "inside": "string",
        },
        "search": {"fields": ["status"]},
        "embed": {"fields": ["status"]},
        "edges": [{"field": "inside", "rel": "IN", "target": "place"}],
    }
    link = {
        "columns": {"from_id": "string", "to_id": "string"},
        "edge": {
            "source": {"field": "from_id", "entity": "item"},
            "rel": "NEAR",
            "target": {"field": "to_id", "entity": "place"},
        },
    }
    badge = {"columns": {"id": "int", "name": {"type": "string", "column": "badge_name"}}, "table": "Badges"}
    return Registry.parse({"entities": {"item": item, "place": place, "link": link, "badge": badge}})


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge that a record owns; `source` is the record itself unless given (edge tables)."""

    rel: str
    target: Ref
    source: Ref | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A row as the suite writes it into any plane. `vectors`, one per chunk, are derived from the id when None."""

    ref: Ref
    version: int = 1
    text: str = "common words"
    vectors: np.ndarray | None = None
    values: Mapping[str, Json] = field(default_factory=dict)
    scope: str | None = None
    live: bool = True
    hash: str | None = None
    edges: tuple[Edge, ...] = ()

    @property
    def content_hash(self) -> str:
        if self.hash is not None:
            return self.hash
        chunks = None if self.vectors is None else self.vectors.tolist()
        edges = [[edge.rel, edge.target.entity, edge.target.id] for edge in self.edges]
        return content_hash([self.text, dict(self.values), self.scope, chunks, edges, self.live])


def item(row_id: str, version: int = 1, *, text: str = "common words", live: bool = True, **values: Json) -> Record:
    """A live `item` with these filterable values."""
    return Record(Ref("item", row_id), version, text, values=values, live=live)


def unit_vector(seed: str) -> np.ndarray:
    """The same unit vector for the same seed, (DIM,) float32."""
    vector = np.random.default_rng(zlib.crc32(seed.encode())).standard_normal(DIM)
    return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)


def axis(index: int, sign: float = 1.0) -> np.ndarray:
    """Unit vector along one axis, (DIM,) float32."""
    vector = np.zeros(DIM, dtype=np.float32)
    vector[index] = sign
    return vector


def vector_table(registry: Registry, tenant: str, records: Sequence[Record], dim: int = DIM) -> pa.Table:
    rows: list[dict[str, object]] = []
    for record in records:
        vectors = record.vectors if record.vectors is not None else unit_vector(repr(record.ref))[None, :dim]
        chunks = vectors if record.live else [None]
        for ordinal, vector in enumerate(chunks):
            row = _identity(registry, tenant, record)
            row |= {"key": chunk_key(str(row["row_key"]), ordinal), "ordinal": ordinal}
            row |= {"start": ordinal * 10, "end": ordinal * 10 + 9 if record.live else 0, "vector": vector}
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=vector_schema(registry, dim))


def document_table(registry: Registry, tenant: str, records: Sequence[Record]) -> pa.Table:
    rows = [{**_identity(registry, tenant, record), "text": record.text if record.live else ""} for record in records]
    return pa.Table.from_pylist(rows, schema=document_schema(registry))


def node_table(registry: Registry, tenant: str, records: Sequence[Record]) -> pa.Table:
    rows = [_identity(registry, tenant, record) for record in records]
    return pa.Table.from_pylist(rows, schema=node_schema(registry))


def edge_table(tenant: str, records: Sequence[Record]) -> pa.Table:
    rows = [
        {
            "owner": store_key(tenant, record.ref.entity, record.ref.id),
            "source_entity": (edge.source or record.ref).entity,
            "source_id": (edge.source or record.ref).id,
            "rel": edge.rel,
            "target_entity": edge.target.entity,
            "target_id": edge.target.id,
            "version": record.version,
        }
        for record in records
        if record.live
        for edge in record.edges
    ]
    return pa.Table.from_pylist(rows, schema=edge_schema())


def _identity(registry: Registry, tenant: str, record: Record) -> dict[str, object]:
    row: dict[str, object] = {column.column: None for column in registry.filter_columns}
    for column in registry.entity(record.ref.entity).filter_columns:
        row[column.column] = record.values.get(column.field)
    return row | {
        "row_key": store_key(tenant, record.ref.entity, record.ref.id),
        "entity": record.ref.entity,
        "id": record.ref.id,
        "scope": record.scope,
        "version": record.version,
        "hash": record.content_hash,
        "live": record.live,
    }
