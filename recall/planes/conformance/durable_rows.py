"""A source of truth that several processes write, lease and survive."""

from __future__ import annotations

import os
from typing import Any

import pytest

from recall.errors import Busy
from recall.planes.conformance.durability import other_process
from recall.planes.conformance.rows import VALUES, RowsConformance, row
from recall.planes.conformance.suite import Loop, Opener
from recall.planes.opening import PlaneContext
from recall.ports import RowStore, WriteReport


class DurableRowsConformance(RowsConformance):
    """For a source of truth that outlives its process and may be opened by several. `opener` has to be picklable."""

    def test_a_reopened_store_holds_what_was_written(
        self, run: Loop, store: RowStore, opener: Opener, context: PlaneContext, tenant: str
    ) -> None:
        store.upsert(tenant, [row("a", 5, **VALUES)])
        another = opener(context)
        assert self.get(run, another, tenant, "a") == self.get(run, store, tenant, "a")
        assert another.upsert(tenant, [row("a", 4)]) == WriteReport(stale=1)
        run(another.close())

    def test_two_processes_write_one_tenant_and_lose_nothing(
        self, run: Loop, store: RowStore, opener: Opener, context: PlaneContext, tenant: str
    ) -> None:
        with other_process(opener, context) as other:
            for batch in range(10):
                theirs = [row(f"b{batch}-{i}") for i in range(20)] + [row("shared", 2 * batch)]
                ours = [row(f"a{batch}-{i}") for i in range(20)] + [row("shared", 2 * batch + 1)]
                other.begin("upsert", tenant, theirs)
                store.upsert(tenant, ours)
                assert other.end().written >= 20
        assert run(store.count(tenant)) == {"item": 401}
        assert self.get(run, store, tenant, "shared")["shared"].version == 19

    def test_a_lease_holds_across_processes_until_its_holder_dies(
        self, store: RowStore, opener: Opener, context: PlaneContext, tenant: str
    ) -> None:
        with other_process(Leasing(opener), context) as other:
            pid = other.call("hold", tenant, "backfill")
            with pytest.raises(Busy, match=rf"backfill.*{pid}"), store.lease(tenant, "import"):
                pytest.fail("two processes hold one tenant")
            other.kill()
            with store.lease(tenant, "import"):
                pass

    def test_a_killed_writer_loses_nothing_that_was_acknowledged(
        self, run: Loop, store: RowStore, opener: Opener, context: PlaneContext, tenant: str
    ) -> None:
        with other_process(opener, context) as other:
            for batch in range(3):
                assert other.call("upsert", tenant, [row(f"r{batch}-{i}") for i in range(100)]).written == 100
            other.kill()
        assert run(store.count(tenant)) == {"item": 300}
        assert store.upsert(tenant, [row("after")]).written == 1


class Leasing:
    """Opens a store whose leases another process can take by a call."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    def __call__(self, context: PlaneContext) -> LeasingStore:
        return LeasingStore(self._opener(context))


class LeasingStore:
    def __init__(self, store: Any) -> None:
        self._store = store
        self._held: list[Any] = []

    def hold(self, tenant: str, purpose: str) -> int:
        """Take the lease for as long as the process lives; its process id."""
        lease = self._store.lease(tenant, purpose)
        lease.__enter__()
        self._held.append(lease)
        return os.getpid()

    async def close(self) -> None:
        await self._store.close()
