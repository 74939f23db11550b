"""The deployment in front of the source of truth: hydration reads, nothing else. Never writes."""

from __future__ import annotations

from collections.abc import Sequence

from ray import serve

from deployments.channels import CONSTRUCTOR_RETRIES
from recall.planes import open_rows, plane_context
from recall.registry import Registry
from recall.rows import Caller, Row
from recall.settings import Settings
from recall.where import Where


@serve.deployment(max_constructor_retry_count=CONSTRUCTOR_RETRIES)
class Rows:
    """Live rows, by id or by an indexed column."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._store = open_rows(settings, plane_context(settings, registry))

    async def get_many(
        self, caller: Caller, entity: str, ids: Sequence[str], timeout_s: float | None
    ) -> dict[str, Row]:
        return await self._store.get_many(caller, entity, ids, timeout_s=timeout_s)

    async def find(self, caller: Caller, entity: str, where: Where, limit: int, timeout_s: float | None) -> list[Row]:
        return await self._store.find(caller, entity, where, limit, timeout_s=timeout_s)

    def tenants(self) -> list[str]:
        """Every tenant that has rows; runs in Serve's thread pool, because the store's method blocks."""
        return self._store.tenants()

    async def health(self, timeout_s: float) -> None:
        """Return when the store answers; StoreError otherwise."""
        await self._store.health(timeout_s=timeout_s)

    async def check_health(self) -> None:
        """The loop runs."""

    async def __del__(self) -> None:
        await self._store.close()
