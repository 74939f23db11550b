"""A tenant in memory planes: rows in, toolbox out. What a backfill does, without Ray."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from recall.channels import GraphChannel, SearchChannel, VectorChannel
from recall.keys import chunk_key
from recall.models import LocalEncoder, open_embedder
from recall.options import RecallSettings
from recall.planes import Planes, open_planes, plane_context
from recall.records import edges_of, record, records_table, seen_by, with_edges
from recall.registry import Registry
from recall.rows import Row
from recall.schema import document_schema, node_schema, vector_schema
from recall.settings import Settings, load_settings
from recall.texts import chunk_spans
from recall.tools import Toolbox

MEMORY = {plane: {"kind": "memory"} for plane in ("rows", "vector", "search", "graph")}


class World:
    """Planes of `settings` (all in memory by default) that hold whatever `load` was given."""

    def __init__(self, registry: Registry, options: RecallSettings | None = None, settings: Settings | None = None):
        self.settings = settings or Settings.model_validate({"planes": MEMORY, "embedder": {"kind": "hash"}})
        self.registry = registry
        self.embedder = open_embedder(self.settings.embedder)
        context = plane_context(self.settings, registry)
        self.planes: Planes = open_planes(self.settings, context)
        self.planes.rows.prepare()
        self.encoder = LocalEncoder(self.embedder)
        options = options or RecallSettings()
        self.channels = {
            "vector": VectorChannel(self.planes.vector, self.encoder),
            "search": SearchChannel(self.planes.search),
            "graph": GraphChannel(self.planes.graph, registry, options.graph),
        }
        self.toolbox = Toolbox(registry, self.channels, self.planes.rows, options)

    def load(self, tenant: str, rows: Sequence[Row]) -> None:
        """Rows into the source of truth and every plane that sees them."""
        self.planes.rows.upsert(tenant, rows)
        for plane in (self.planes.vector, self.planes.search, self.planes.graph):
            plane.prepare(tenant)
        by_plane = {
            plane: [
                record(plane, tenant, self.registry.entity(row.ref.entity), row)
                for row in rows
                if seen_by(plane, self.registry.entity(row.ref.entity))
            ]
            for plane in ("vector", "search", "graph")
        }
        self.planes.vector.upsert(tenant, self._vectors(by_plane["vector"]))
        self.planes.search.upsert(tenant, records_table(by_plane["search"], document_schema(self.registry)))
        nodes = records_table(by_plane["graph"], pa.schema(with_edges(list(node_schema(self.registry)))))
        self.planes.graph.upsert(tenant, nodes.drop_columns(["edges"]), edges_of(nodes))
        for plane in (self.planes.vector, self.planes.search, self.planes.graph):
            plane.finish(tenant)

    def _vectors(self, records) -> pa.Table:
        schema = vector_schema(self.registry, self.embedder.dim)
        table = records_table(records, schema_without_chunks(schema))
        rows = []
        for one, values in zip(records, table.to_pylist(), strict=True):
            spec = self.registry.entity(one.ref.entity).spec.embed
            spans = chunk_spans(self.embedder.token_spans([one.text])[0], spec, self.embedder.max_tokens)
            if not spans:
                rows.append(values | {"live": False, "key": chunk_key(one.key, 0), "ordinal": 0, "start": 0, "end": 0})
            for ordinal, span in enumerate(spans):
                vector = self.embedder.embed([one.text[span.start : span.end]])[0]
                rows.append(
                    values
                    | {"key": chunk_key(one.key, ordinal), "ordinal": ordinal, "start": span.start, "end": span.end}
                    | {"vector": vector}
                )
        return pa.Table.from_pylist(rows, schema=schema)


def schema_without_chunks(schema: pa.Schema) -> pa.Schema:
    dropped = {"key", "ordinal", "start", "end", "vector"}
    return pa.schema([field for field in schema if field.name not in dropped])


def load_world(registry: Registry, rows: Sequence[Row], tenant: str = "acme", **keywords) -> World:
    world = World(registry, **keywords)
    world.load(tenant, rows)
    return world


__all__ = ["MEMORY", "World", "load_settings", "load_world"]
