"""A small corpus of two tenants, loaded into planes through their writers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from recall.keys import chunk_key
from recall.models import open_embedder
from recall.planes import Planes, open_planes, plane_context
from recall.records import PLANES, Record, record, seen_by
from recall.registry import Registry
from recall.rows import Ref, Row
from recall.schema import document_schema, edge_schema, node_schema, vector_schema
from recall.settings import Settings, load_registry

ENTITIES = """
entities:
  site:
    columns: {name: string}
    search: {fields: [name]}
  asset:
    columns:
      name: string
      status: {type: string, filterable: true}
      cost: {type: int, filterable: true}
      site_id: string
    search: {fields: [name]}
    embed: {fields: [name]}
    edges: [{field: site_id, rel: LOCATED_AT, target: site}]
"""
NAMES = ["diesel generator", "water pump", "cooling fan", "spare pump seal", "fire door", "pump house roof"]


def rows_of(tenant: str) -> list[Row]:
    """The same ids in both tenants; texts name the tenant, so that a leak is seen."""
    sites = [Row(Ref("site", "s1"), 1, {"id": "s1", "name": f"{tenant} harbour"})]
    assets = [
        Row(
            Ref("asset", f"a{at}"),
            1,
            {
                "id": f"a{at}",
                "name": f"{name} {tenant}",
                "status": "open" if at % 2 else "closed",
                "cost": at * 10,
                "site_id": "s1",
            },
        )
        for at, name in enumerate(NAMES)
    ]
    memory = Row(
        Ref("memory", "m1"), 1, {"id": "m1", "fact": f"the pump broke at {tenant}", "metadata": {"day": 20250102}}
    )
    return [*sites, *assets, memory]


def settings(folder: Path, kind: str = "embedded", embedder: Mapping[str, Any] | None = None) -> Settings:
    """Settings of a fresh data directory; `kind` memory keeps everything in this process."""
    entities = folder / "entities.yaml"
    entities.write_text(ENTITIES)
    raw: dict[str, Any] = {
        "data_dir": str(folder / "data"),
        "entities": str(entities),
        "embedder": embedder or {"kind": "hash"},
    }
    if kind == "memory":
        raw["planes"] = {name: {"kind": "memory"} for name in ("rows", "vector", "search", "graph")}
    return Settings.model_validate(raw)


def load(planes: Planes, chosen: Settings, *tenants: str) -> None:
    """Write every row of `tenants` into all four planes."""
    registry = load_registry(chosen)
    planes.rows.prepare()
    for tenant in tenants:
        rows = rows_of(tenant)
        planes.rows.upsert(tenant, rows)
        records = {
            plane: [
                record(plane, tenant, registry.entity(row.ref.entity), row)
                for row in rows
                if seen_by(plane, registry.entity(row.ref.entity))
            ]
            for plane in PLANES
        }
        for store in (planes.vector, planes.search, planes.graph):
            store.prepare(tenant)
        planes.vector.upsert(tenant, _vectors(chosen, registry, records["vector"]))
        planes.search.upsert(tenant, _table(records["search"], document_schema(registry)))
        planes.graph.upsert(tenant, _table(records["graph"], node_schema(registry)), _edges(records["graph"]))
        for store in (planes.vector, planes.search, planes.graph):
            store.finish(tenant)


def open_loaded(chosen: Settings, *tenants: str) -> Planes:
    registry = load_registry(chosen)
    planes = open_planes(chosen, plane_context(chosen, registry))
    load(planes, chosen, *tenants)
    return planes


def _fields(one: Record) -> dict[str, Any]:
    return {
        "row_key": one.key,
        "entity": one.ref.entity,
        "id": one.ref.id,
        "scope": one.scope,
        "version": one.version,
        "hash": one.hash,
        "live": one.live,
        "text": one.text,
        **one.filters,
    }


def _table(records: list[Record], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([_fields(one) for one in records], schema=schema)


def _vectors(chosen: Settings, registry: Registry, records: list[Record]) -> pa.Table:
    embedder = open_embedder(chosen.embedder)
    assert embedder is not None
    vectors = embedder.embed([one.text for one in records])
    chunks = [
        {
            **_fields(one),
            "key": chunk_key(one.key, 0),
            "ordinal": 0,
            "start": 0,
            "end": len(one.text),
            "vector": vector.tolist(),
        }
        for one, vector in zip(records, vectors, strict=True)
    ]
    return pa.Table.from_pylist(chunks, schema=vector_schema(registry, embedder.dim))


def _edges(records: list[Record]) -> pa.Table:
    edges = [
        {
            "owner": one.key,
            "source_entity": edge.source.entity,
            "source_id": edge.source.id,
            "rel": edge.rel,
            "target_entity": edge.target.entity,
            "target_id": edge.target.id,
            "version": one.version,
        }
        for one in records
        for edge in one.edges
    ]
    return pa.Table.from_pylist(edges, schema=edge_schema())
