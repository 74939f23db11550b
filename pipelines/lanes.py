"""A lane: one plane of one tenant being filled. Says what the plane's stages need; picklable, opens nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from recall.errors import ConfigError
from recall.keys import content_hash
from recall.model_ports import Embedder
from recall.planes.bulk import BulkWriter, open_bulk
from recall.planes.opening import (
    PlaneContext,
    open_graph,
    open_rows,
    open_search,
    open_vector,
    plane_context,
)
from recall.ports import GraphStore, RowStore, SearchStore, VectorStore, WriteReport
from recall.records import Plane, edges_of, with_edges
from recall.registry import Registry
from recall.schema import document_schema, filter_fields, node_schema, vector_schema
from recall.settings import EmbedderSettings, Settings

STAGE_NAMES: dict[Plane, str] = {"vector": "vectors", "search": "documents", "graph": "edges"}
Store = VectorStore | SearchStore | GraphStore
OpenModel = Callable[[EmbedderSettings], Embedder | None]


@dataclass(frozen=True, slots=True)
class Shares:
    """How a backfill divides the logical CPUs of its settings: no lane starves, whatever their number."""

    readers: int
    cpus: float

    @classmethod
    def of(cls, settings: Settings) -> Shares:
        """Readers of each of three lanes, and the CPUs that one reader or embedder holds."""
        cpus, embedders = settings.pipeline.logical_cpus, settings.pipeline.embedders
        share = cpus / (embedders + len(STAGE_NAMES))
        return cls(max(1, (cpus - embedders) // len(STAGE_NAMES)), min(1.0, int(share * 100) / 100))


@dataclass(frozen=True, slots=True)
class Lane:
    plane: Plane
    tenant: str
    settings: Settings
    registry: Registry
    # Opens the embedder in the process that embeds; None: as the settings say.
    open_model: OpenModel | None = None

    @property
    def context(self) -> PlaneContext:
        return plane_context(self.settings, self.registry)

    @property
    def recipe(self) -> str:
        """Equal for two runs whose staged parts are interchangeable: same index version, same columns."""
        versions = {
            "vector": self.registry.vector_version(str(self.context.model)),
            "search": self.registry.search_version(),
            "graph": self.registry.graph_version(),
        }
        return content_hash([self.plane, versions[self.plane], str(self.staged_schema)])

    @property
    def staged_schema(self) -> pa.Schema:
        """Columns of a staged part: the plane's own; edges stay folded into their owner, so that a part is one file."""
        if self.plane == "vector":
            return vector_schema(self.registry, self.context.model.dim)
        if self.plane == "search":
            return document_schema(self.registry)
        return pa.schema(with_edges(list(node_schema(self.registry))))

    @property
    def pending_schema(self) -> pa.Schema:
        """Columns of changed rows on their way to a stage; all nullable, for the row that carries a page's tally."""
        identity = [field.with_nullable(True) for field in document_schema(Registry({}))]
        tally = pa.struct([(name, pa.int64()) for name in ("rows", "unchanged", "deleted")])
        return pa.schema([*with_edges(identity), *filter_fields(self.registry), pa.field("tally", tally)])

    def model(self) -> Embedder:
        """The loaded embedder. Raises ConfigError when the settings name none."""
        opener = self.open_model
        if opener is None:
            from recall.models import open_embedder

            opener = open_embedder
        model = opener(self.settings.embedder)
        if model is None:
            raise ConfigError("the settings name no embedder: set `embedder`, or fill other planes only")
        return model

    @contextmanager
    def rows(self) -> Iterator[RowStore]:
        store = open_rows(self.settings, self.context)
        try:
            yield store
        finally:
            asyncio.run(store.close())

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The plane's store, open for as long as one step takes: some stores take a single writer."""
        store = self._open()
        try:
            yield store
        finally:
            asyncio.run(store.close())

    def live(self) -> dict[str, int]:
        """Live rows of the tenant by entity, asked and closed on one event loop: clients are bound to theirs."""

        async def count() -> dict[str, int]:
            store = self._open()
            try:
                return await store.count(self.tenant)
            finally:
                await store.close()

        return asyncio.run(count())

    @contextmanager
    def bulk(self) -> Iterator[BulkWriter | None]:
        """The plane's fast way in for first loads; None where it has none, or where the settings leave it off."""
        writer = open_bulk(self.settings, self.context) if self.plane == "vector" else None
        try:
            yield writer
        finally:
            if writer is not None:
                asyncio.run(writer.close())

    def _open(self) -> Store:
        if self.plane == "vector":
            return open_vector(self.settings, self.context)
        if self.plane == "search":
            return open_search(self.settings, self.context)
        return open_graph(self.settings, self.context)

    def upsert(self, store: Store, staged: pa.Table) -> WriteReport:
        """Write a table of the staged schema."""
        if self.plane == "graph":
            nodes = staged.drop_columns(["edges"]).cast(node_schema(self.registry))
            return store.upsert(self.tenant, nodes, edges_of(staged))  # type: ignore[call-arg]
        return store.upsert(self.tenant, staged)  # type: ignore[call-arg]
