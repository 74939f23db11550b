"""From settings to open stores. Client libraries are imported here, one plane at a time, and only when named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recall.ports import GraphStore, RowStore, SearchStore, VectorStore
from recall.registry import Registry
from recall.settings import Settings


@dataclass(frozen=True, slots=True)
class ModelId:
    """The embedding model an index was, or is to be, built with."""

    name: str
    dim: int

    def __str__(self) -> str:
        return f"{self.name} ({self.dim} dimensions)"


@dataclass(frozen=True, slots=True)
class PlaneContext:
    """What every plane needs to derive its schema: the registry, the model, and where embedded stores keep files."""

    registry: Registry
    model: ModelId
    data_dir: Path


@dataclass(frozen=True, slots=True)
class Planes:
    rows: RowStore
    vector: VectorStore
    search: SearchStore
    graph: GraphStore

    async def close(self) -> None:
        for store in (self.rows, self.vector, self.search, self.graph):
            await store.close()


def plane_context(settings: Settings, registry: Registry) -> PlaneContext:
    """The context that `settings` imply; the model is identified without loading it."""
    model = ModelId(settings.embedder.model_name, settings.embedder.dim)
    return PlaneContext(registry, model, Path(settings.data_dir))


def open_planes(settings: Settings, context: PlaneContext) -> Planes:
    """All four stores; none is contacted before its first use."""
    return Planes(
        open_rows(settings, context),
        open_vector(settings, context),
        open_search(settings, context),
        open_graph(settings, context),
    )


def open_rows(settings: Settings, context: PlaneContext) -> RowStore:
    chosen = settings.planes.rows
    if chosen.kind == "memory":
        from recall.planes.memory_rows import MemoryRows

        return MemoryRows(context)
    from recall.planes.sql import SqlRows

    if chosen.kind == "postgres":
        return SqlRows.postgres(chosen, context)
    return SqlRows.sqlite(chosen, context)


def open_vector(settings: Settings, context: PlaneContext) -> VectorStore:
    chosen = settings.planes.vector
    if chosen.kind == "memory":
        from recall.planes.memory_vectors import MemoryVectors

        return MemoryVectors(context)
    if chosen.kind == "milvus":
        from recall.planes.milvus import MilvusVectors

        return MilvusVectors(chosen, context)
    from recall.planes.lance import LanceVectors

    return LanceVectors(chosen, context)


def open_search(settings: Settings, context: PlaneContext) -> SearchStore:
    chosen = settings.planes.search
    if chosen.kind == "memory":
        from recall.planes.memory_search import MemorySearch

        return MemorySearch(context)
    if chosen.kind == "opensearch":
        from recall.planes.opensearch import OpenSearchSearch

        return OpenSearchSearch(chosen, context)
    from recall.planes.tantivy import TantivySearch

    return TantivySearch(chosen, context)


def open_graph(settings: Settings, context: PlaneContext) -> GraphStore:
    chosen = settings.planes.graph
    if chosen.kind == "memory":
        from recall.planes.memory_graph import MemoryGraph

        return MemoryGraph(context)
    if chosen.kind == "nebula":
        from recall.planes.nebula import NebulaGraph

        return NebulaGraph(chosen, context)
    from recall.planes.ladybug import LadybugGraph

    return LadybugGraph(chosen, context)
