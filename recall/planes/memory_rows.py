"""The source of truth as a dict: for tests, notebooks and as the reference for other adapters."""

from __future__ import annotations

import os
import socket
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise

from recall.errors import Busy, TransientStoreError
from recall.planes.indexed import check_indexed
from recall.planes.opening import PlaneContext
from recall.ports import Page, WriteReport
from recall.registry import Entity
from recall.rows import Caller, Ref, Row, Tombstone
from recall.where import Where, matches


class MemoryRows:
    """The source of truth as a dict. Rows are keyed by (tenant, entity, id)."""

    def __init__(self, context: PlaneContext) -> None:
        self._registry = context.registry
        self._rows: dict[tuple[str, str], dict[str, Row]] = {}
        self._leases: dict[str, str] = {}
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Nothing has to exist before the first write."""

    def upsert(self, tenant: str, rows: Sequence[Row]) -> WriteReport:
        best: dict[Ref, Row] = {}
        for row in rows:
            if row.ref not in best or row.version >= best[row.ref].version:
                best[row.ref] = _declared(self._registry.entity(row.ref.entity), row)
        return self._write(tenant, best.values())

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport:
        return self.upsert(tenant, [Row(t.ref, t.version, {}, deleted=True) for t in tombstones])

    def _write(self, tenant: str, rows: Iterable[Row]) -> WriteReport:
        written = stale = 0
        for row in rows:
            table = self._rows.setdefault((tenant, row.ref.entity), {})
            stored = table.get(row.ref.id)
            if stored == row:
                continue
            if stored is not None and (row.version, row.deleted) < (stored.version, stored.deleted):
                stale += 1
            else:
                table[row.ref.id] = row
                written += 1
        return WriteReport(written, stale)

    async def get_many(
        self, caller: Caller, entity: str, ids: Sequence[str], *, timeout_s: float | None = None
    ) -> dict[str, Row]:
        self._check_deadline(timeout_s)
        table = self._rows.get((caller.tenant, self._registry.entity(entity).name), {})
        rows = {row_id: table[row_id] for row_id in ids if row_id in table}
        return {i: row for i, row in rows.items() if not row.deleted and caller.scope in (None, row.scope)}

    async def find(
        self, caller: Caller, entity: str, where: Where, limit: int, *, timeout_s: float | None = None
    ) -> list[Row]:
        self._check_deadline(timeout_s)
        check_indexed(where, self._registry.entity(entity))
        table = self._rows.get((caller.tenant, entity), {})
        seen = (table[row_id] for row_id in sorted(table) if caller.scope in (None, table[row_id].scope))
        return list(islice((row for row in seen if not row.deleted and matches(where, row.values)), limit))

    def pages(self, tenant: str, entity: str, size: int) -> list[Page]:
        ids = sorted(self._rows.get((tenant, entity), {}))
        borders = [None, *ids[size - 1 : len(ids) - 1 : size], None]
        return [Page(after, upto) for after, upto in pairwise(borders)] if ids else []

    def read_page(self, tenant: str, entity: str, page: Page) -> list[Row]:
        table = self._rows.get((tenant, entity), {})
        ids = sorted(table)
        first = 0 if page.after is None else bisect_right(ids, page.after)
        last = len(ids) if page.upto is None else bisect_right(ids, page.upto)
        return [table[row_id] for row_id in ids[first:last]]

    def tenants(self) -> list[str]:
        return sorted({tenant for (tenant, _), rows in self._rows.items() if rows})

    @contextmanager
    def lease(self, tenant: str, purpose: str) -> Iterator[None]:
        holder = f"{purpose} (process {os.getpid()} on {socket.gethostname()})"
        with self._lock:
            if tenant in self._leases:
                raise Busy(f"tenant {tenant!r} is held by {self._leases[tenant]}: wait for it, or stop it")
            self._leases[tenant] = holder
        try:
            yield
        finally:
            del self._leases[tenant]

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        self._check_deadline(timeout_s)
        counts = {
            e: sum(not row.deleted for row in rows.values()) for (t, e), rows in self._rows.items() if t == tenant
        }
        return {entity: count for entity, count in counts.items() if count}

    async def health(self, *, timeout_s: float | None = None) -> None:
        self._check_deadline(timeout_s)

    async def close(self) -> None:
        """Nothing to release."""

    def _check_deadline(self, timeout_s: float | None) -> None:
        if timeout_s is not None and timeout_s <= 0:
            raise TransientStoreError("rows (memory)", "memory", "the deadline passed before the read began; try again")


def _declared(entity: Entity, row: Row) -> Row:
    """The row with every declared column, in declaration order; a tombstone keeps none of them."""
    if row.deleted:
        return Row(row.ref, row.version, {}, deleted=True)
    values = {name: row.values.get(name) for name in entity.columns}
    if values[entity.key] is None:
        values[entity.key] = row.ref.id
    scope = values[entity.spec.scope] if entity.spec.scope else row.scope
    return Row(row.ref, row.version, values, None if scope is None else str(scope))
