"""What each plane stores of a row: its text, filter values, edges and the content hash that says whether it changed.

Pure: rows in, records or Arrow tables out. The planes' schemas are in `recall.schema`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from recall.keys import content_hash, store_key
from recall.registry import Entity
from recall.rows import Json, Ref, Row
from recall.schema import edge_schema
from recall.texts import embed_text, search_text

Plane = Literal["vector", "search", "graph"]
PLANES: tuple[Plane, ...] = ("vector", "search", "graph")


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """One directed edge, owned by the row that declares it."""

    source: Ref
    rel: str
    target: Ref


@dataclass(frozen=True, slots=True)
class Record:
    """One version of a row as one plane sees it. `filters` by physical column; a tombstone has hash ""."""

    key: str
    ref: Ref
    scope: str | None
    version: int
    hash: str
    live: bool
    text: str
    filters: dict[str, Json]
    edges: tuple[Edge, ...] = ()


def seen_by(plane: Plane, entity: Entity) -> bool:
    """Whether rows of `entity` leave anything in `plane`."""
    if plane == "vector":
        return entity.spec.embed is not None
    return plane == "graph" or entity.spec.search is not None


def record(plane: Plane, tenant: str, entity: Entity, row: Row) -> Record:
    """`row` as `plane` sees it. Not live: a tombstone, or a row without text in a plane that is about text."""
    key = store_key(tenant, entity.name, row.ref.id)
    if row.deleted:
        return Record(key, row.ref, row.scope, row.version, "", False, "", {})
    filters = {column.column: row.values.get(column.field) for column in entity.filter_columns}
    if plane == "graph":
        edges = row_edges(entity, row)
        shape = [[edge.source.entity, edge.source.id, edge.rel, edge.target.entity, edge.target.id] for edge in edges]
        digest = content_hash([shape, row.scope, filters])
        return Record(key, row.ref, row.scope, row.version, digest, True, "", filters, edges)
    text = embed_text(entity, row.values) if plane == "vector" else search_text(entity, row.values)
    digest = content_hash([text, row.scope, filters])
    return Record(key, row.ref, row.scope, row.version, digest, bool(text), text, filters)


def row_edges(entity: Entity, row: Row) -> tuple[Edge, ...]:
    """The edges that `row` declares, sorted, without repetition."""
    found: set[Edge] = set()
    for spec in entity.spec.edges:
        for target in _ids(row.values.get(spec.field)):
            found.add(Edge(row.ref, spec.rel, Ref(spec.target, target)))
    if table := entity.spec.edge:
        for source in _ids(row.values.get(table.source.field)):
            for target in _ids(row.values.get(table.target.field)):
                found.add(Edge(Ref(table.source.entity, source), table.rel, Ref(table.target.entity, target)))
    return tuple(sorted(found))


def _ids(value: Json) -> Iterator[str]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, (str, int)) and item != "":
            yield str(item)


def records_table(records: Sequence[Record], schema: pa.Schema) -> pa.Table:
    """`records` as a table of `schema`; columns that no record knows are null."""
    known: dict[str, list[object]] = {
        "row_key": [record.key for record in records],
        "entity": [record.ref.entity for record in records],
        "id": [record.ref.id for record in records],
        "scope": [record.scope for record in records],
        "version": [record.version for record in records],
        "hash": [record.hash for record in records],
        "live": [record.live for record in records],
        "text": [record.text for record in records],
        "edges": [[_edge(edge) for edge in record.edges] for record in records],
    }
    columns = [
        pa.array(known[field.name] if field.name in known else [r.filters.get(field.name) for r in records], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _edge(edge: Edge) -> dict[str, str]:
    return {
        "source_entity": edge.source.entity,
        "source_id": edge.source.id,
        "rel": edge.rel,
        "target_entity": edge.target.entity,
        "target_id": edge.target.id,
    }


def with_edges(fields: Sequence[pa.Field]) -> list[pa.Field]:
    """`fields` and the list of edges a record owns, without owner and version, which the record has itself."""
    inner = pa.struct([field for field in edge_schema() if field.name not in ("owner", "version")])
    return [*fields, pa.field("edges", pa.list_(inner))]


def edges_of(nodes: pa.Table) -> pa.Table:
    """The `edges` column of `nodes` unfolded into a table of `recall.schema.edge_schema`."""
    column = nodes["edges"].combine_chunks()
    owners = nodes.select(["row_key", "version"]).take(pc.list_parent_indices(column))
    edges = pa.Table.from_struct_array(pc.list_flatten(column))
    unfolded = edges.append_column("owner", owners["row_key"]).append_column("version", owners["version"])
    return unfolded.select(edge_schema().names).cast(edge_schema())
