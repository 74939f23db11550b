"""What the deployments in front of a store share: how often they start, whether they are well, how they end."""

from __future__ import annotations

from typing import Generic, TypeVar

from recall.ports import PlaneReader

# A replica that cannot start fails for a reason that the next attempt shares; Serve's default is 20 attempts.
CONSTRUCTOR_RETRIES = 3

Store = TypeVar("Store", bound=PlaneReader)


class StoreReplica(Generic[Store]):
    """A replica in front of one store, which it closes when Serve drops it.

    `health` asks the store and is what /readyz uses; `check_health` does not, because a store's outage must not make
    Serve restart every replica in front of it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def health(self, timeout_s: float) -> None:
        """Return when the store answers; StoreError otherwise."""
        await self._store.health(timeout_s=timeout_s)

    async def check_health(self) -> None:
        """The loop runs."""

    async def __del__(self) -> None:
        await self._store.close()
