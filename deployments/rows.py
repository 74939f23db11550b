"""The deployment in front of the source of truth: hydration reads, nothing else. Never writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ray import serve

from deployments.replicas import CONSTRUCTOR_RETRIES, StoreReplica
from recall.errors import StoreError
from recall.hydration import read_entities
from recall.planes import open_rows, plane_context
from recall.ports import RowStore
from recall.registry import Registry
from recall.rows import Caller, Row
from recall.settings import Settings
from recall.where import Where


@serve.deployment(max_constructor_retry_count=CONSTRUCTOR_RETRIES)
class Rows(StoreReplica[RowStore]):
    """Live rows, by id or by an indexed column."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        super().__init__(open_rows(settings, plane_context(settings, registry)))

    async def get_many(
        self, caller: Caller, entity: str, ids: Sequence[str], timeout_s: float | None
    ) -> dict[str, Row]:
        return await self._store.get_many(caller, entity, ids, timeout_s=timeout_s)

    async def get_entities(
        self, caller: Caller, ids: Mapping[str, Sequence[str]], timeout_s: float | None
    ) -> dict[str, dict[str, Row] | StoreError]:
        """`get_many` of several entities in one call, which costs more than the reads do."""
        return await read_entities(self._store, caller, ids, timeout_s)

    async def find(self, caller: Caller, entity: str, where: Where, limit: int, timeout_s: float | None) -> list[Row]:
        return await self._store.find(caller, entity, where, limit, timeout_s=timeout_s)

    def tenants(self) -> list[str]:
        """Every tenant that has rows; runs in Serve's thread pool, because the store's method blocks."""
        return self._store.tenants()
