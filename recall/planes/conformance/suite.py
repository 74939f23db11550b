"""What the suites of all planes share: one event loop, one store and one fresh tenant per test."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeAlias, TypeVar

import pytest

from recall.planes.conformance.data import DIM, conformance_registry
from recall.planes.opening import ModelId, PlaneContext

T = TypeVar("T")
# Opens a store; picklable (a module-level function or a partial of one) where a second process is to open it.
Opener: TypeAlias = Callable[[PlaneContext], Any]
# Nothing in this suite may take longer; a store that hangs fails instead of stopping the run.
PATIENCE_S = 60.0


class Loop:
    """One event loop for everything that a test class does, because clients of servers bind to theirs."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, PATIENCE_S))

    def close(self) -> None:
        self._runner.close()


class StoreSuite:
    """Fixtures of every suite. A subclass, or its module, has to define the fixture `opener`."""

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls) -> Iterator[Loop]:
        loop = Loop()
        yield loop
        loop.close()

    @pytest.fixture(scope="class")
    @classmethod
    def context(cls, tmp_path_factory: pytest.TempPathFactory) -> PlaneContext:
        folder = tmp_path_factory.mktemp("planes")
        return PlaneContext(conformance_registry(), ModelId("conformance", DIM), folder)

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, opener: Opener, context: PlaneContext, run: Loop) -> Iterator[Any]:
        store = opener(context)
        yield store
        run(store.close())

    @pytest.fixture
    def tenant(self) -> str:
        """A tenant that no other test uses, on this machine or on a shared server."""
        return new_tenant()


def new_tenant() -> str:
    return f"t-{uuid.uuid4().hex[:16]}"
