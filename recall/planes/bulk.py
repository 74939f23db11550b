"""The fast way into a plane for first loads, where it has one: what it can do, and opening it by settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa

from recall.planes.opening import PlaneContext
from recall.ports import WriteReport
from recall.settings import Settings


class BulkWriter(Protocol):
    """Loads a tenant that a plane does not hold yet; everything else goes through `PlaneWriter.upsert`."""

    @property
    def bulk_from(self) -> int:
        """Records from which a first load is worth it."""

    def bulk_load(self, tenant: str, parts: Iterable[pa.Table]) -> WriteReport | None:
        """Load `parts`, tables of the plane's schema, for a prepared tenant; None when it has records already.

        The outcome is that of upserting the parts one after another. None leaves `parts` unread. Raises StoreError;
        what was loaded until then stays, and the next attempt is an upsert.
        """

    async def close(self) -> None: ...


def open_bulk(settings: Settings, context: PlaneContext) -> BulkWriter | None:
    """The vector plane's fast way in; None when it has none or the settings leave it off."""
    chosen = settings.planes.vector
    if chosen.kind == "milvus" and chosen.bulk.from_rows is not None:
        from recall.planes.milvus_bulk import MilvusBulk

        return MilvusBulk(chosen, context)
    return None
