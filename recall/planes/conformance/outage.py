"""Stores behind a server: the connection is lost, and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from recall.errors import TransientStoreError
from recall.planes.conformance.data import item
from recall.planes.conformance.suite import Loop
from recall.planes.conformance.writing import PlaneSuite
from recall.planes.opening import PlaneContext
from recall.rows import Caller, Ref


class OutageConformance(PlaneSuite):
    """Mixin for the vector, search and graph suites. Wants the fixture `outage`: while its context is entered, the
    server cannot be reached; afterwards it can, with the same contents."""

    def test_a_lost_connection_is_a_transient_error_and_heals(
        self,
        run: Loop,
        store: Any,
        context: PlaneContext,
        tenant: str,
        outage: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.write(store, context, tenant, [item("a")])
        with outage():
            started = time.monotonic()
            for attempt in (
                lambda: run(store.health(timeout_s=2)),
                lambda: run(store.count(tenant, timeout_s=2)),
                lambda: run(self.find(store, Caller(tenant), timeout_s=2)),
            ):
                with pytest.raises(TransientStoreError):
                    attempt()
            assert time.monotonic() - started < 15
            self._write_fails_softly(store, context, tenant)
        assert run(self.find(store, Caller(tenant), timeout_s=30)) == [Ref("item", "a")]
        assert self.write(store, context, tenant, [item("b")]).written == 1
        assert self.ids(run, store, tenant) == ["a", "b"]

    def _write_fails_softly(self, store: Any, context: PlaneContext, tenant: str) -> None:
        """A write raises a transient error, or reports every record as a transient failure."""
        try:
            report = self.write(store, context, tenant, [item("b")])
        except TransientStoreError:
            return
        assert report.written == 0
        assert report.failures
        assert all(failure.transient for failure in report.failures)
