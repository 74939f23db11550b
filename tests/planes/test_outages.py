"""The outage suite itself, on a plane in memory behind a line that can be cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recall.errors import TransientStoreError
from recall.planes.conformance.outage import OutageConformance
from recall.planes.conformance.suite import Opener
from recall.planes.conformance.vector import VectorConformance
from recall.planes.memory_vectors import MemoryVectors
from recall.ports import VectorHit, VectorQuery, WriteReport
from recall.rows import Caller, Ref


class DistantVectors(MemoryVectors):
    """Vectors in memory at the other end of a line."""

    down = False

    def _reach(self) -> None:
        if self.down:
            raise TransientStoreError("vector (distant)", "line:1", "connection refused: start the server")

    def upsert(self, tenant: str, table: pa.Table) -> WriteReport:
        self._reach()
        return super().upsert(tenant, table)

    async def search(self, query: VectorQuery, *, timeout_s: float | None = None) -> list[VectorHit]:
        self._reach()
        return await super().search(query, timeout_s=timeout_s)

    async def get(
        self, caller: Caller, refs: Sequence[Ref], *, timeout_s: float | None = None
    ) -> dict[Ref, np.ndarray]:
        self._reach()
        return await super().get(caller, refs, timeout_s=timeout_s)

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        self._reach()
        return await super().count(tenant, timeout_s=timeout_s)

    async def health(self, *, timeout_s: float | None = None) -> None:
        self._reach()
        await super().health(timeout_s=timeout_s)


class TestDistantVectors(OutageConformance):
    write = VectorConformance.write
    find = VectorConformance.find

    @pytest.fixture(scope="class")
    @classmethod
    def opener(cls) -> Opener:
        return DistantVectors

    @pytest.fixture
    def outage(self, store: Any) -> Callable[[], AbstractContextManager[None]]:
        @contextmanager
        def cut() -> Iterator[None]:
            store.down = True
            yield
            store.down = False

        return cut
