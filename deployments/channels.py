"""The three channel deployments: each a recall channel over one store, scaled by its own load. No fusion, no rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from ray import serve
from ray.serve.handle import DeploymentHandle

import recall.channels as core
from deployments.handles import HandleEncoder
from deployments.replicas import CONSTRUCTOR_RETRIES, StoreReplica
from recall.errors import IndexMissing
from recall.planes import open_graph, open_search, open_vector, plane_context
from recall.ports import ChannelQuery, GraphStore, SearchStore, VectorQuery, VectorStore
from recall.registry import Registry
from recall.results import ChannelAnswer, Walk
from recall.rows import Caller, Json
from recall.settings import Settings


@serve.deployment(max_constructor_retry_count=CONSTRUCTOR_RETRIES)
class VectorChannel(StoreReplica[VectorStore]):
    """Rows nearest in meaning; asks the query embedder for the vector."""

    def __init__(self, settings: Settings, registry: Registry, embedder: DeploymentHandle) -> None:
        context = plane_context(settings, registry)
        super().__init__(open_vector(settings, context))
        self._dim = context.model.dim
        self._entities = tuple(registry.entities)
        self._channel = core.VectorChannel(self._store, HandleEncoder(embedder))

    async def search(self, query: ChannelQuery) -> ChannelAnswer:
        return await self._channel.search(query)

    async def check_models(self, tenants: Sequence[str], timeout_s: float) -> None:
        """Raise ModelMismatch when a tenant's index was built by another model than the one that embeds queries."""
        vector = np.zeros(self._dim, dtype=np.float32)
        vector[0] = 1.0
        for tenant in tenants:
            probe = VectorQuery(Caller(tenant), self._entities, vector, 1)
            try:
                await self._store.search(probe, timeout_s=timeout_s)
            except IndexMissing:
                continue


@serve.deployment(max_constructor_retry_count=CONSTRUCTOR_RETRIES)
class SearchChannel(StoreReplica[SearchStore]):
    """Rows that share words with the query."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        super().__init__(open_search(settings, plane_context(settings, registry)))
        self._channel = core.SearchChannel(self._store)

    async def search(self, query: ChannelQuery) -> ChannelAnswer:
        return await self._channel.search(query)


@serve.deployment(max_constructor_retry_count=CONSTRUCTOR_RETRIES)
class GraphChannel(StoreReplica[GraphStore]):
    """Rows linked to the seeds; also bare walks and read-only graph queries."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        super().__init__(open_graph(settings, plane_context(settings, registry)))
        self._channel = core.GraphChannel(self._store, registry, settings.recall.graph)

    async def search(self, query: ChannelQuery) -> ChannelAnswer:
        return await self._channel.search(query)

    async def walk(self, query: ChannelQuery) -> Walk:
        return await self._channel.walk(query)

    async def traverse(
        self, caller: Caller, query: str, params: Mapping[str, Json], limit: int, timeout_s: float
    ) -> list[dict[str, Json]]:
        return await self._channel.traverse(caller, query, params, limit=limit, timeout_s=timeout_s)
