"""Stores that outlive their process: another process reads while this one writes; a killed writer loses nothing."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from recall.errors import ModelMismatch
from recall.planes.conformance.data import item
from recall.planes.conformance.suite import PATIENCE_S, Loop, Opener
from recall.planes.conformance.writing import PlaneSuite
from recall.planes.opening import ModelId, PlaneContext
from recall.rows import Ref, Tombstone


class OtherProcess:
    """A store opened by another process, called by method name. Exceptions come back and are raised here."""

    def __init__(self, pipe: Connection, process: Any) -> None:
        self._pipe = pipe
        self._process = process

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.begin(method, *args, **kwargs)
        return self.end()

    def begin(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Start a call there; `end` waits for its value."""
        self._pipe.send((method, args, kwargs))

    def end(self) -> Any:
        if not self._pipe.poll(PATIENCE_S):
            raise TimeoutError(f"the other process took longer than {PATIENCE_S} s")
        ok, value = self._pipe.recv()
        if not ok:
            raise value
        return value

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


@contextmanager
def other_process(opener: Opener, context: PlaneContext) -> Iterator[OtherProcess]:
    """A fresh interpreter that has opened its own store."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(opener, context, there), daemon=True)
    process.start()
    there.close()
    try:
        yield OtherProcess(here, process)
    finally:
        here.close()
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def _serve(opener: Opener, context: PlaneContext, pipe: Connection) -> None:
    store = opener(context)
    with asyncio.Runner() as runner:
        while True:
            try:
                method, args, kwargs = pipe.recv()
            except EOFError:
                runner.run(store.close())
                return
            try:
                value = getattr(store, method)(*args, **kwargs)
                if inspect.isawaitable(value):
                    value = runner.run(_awaited(value))
                pipe.send((True, value))
            except Exception as error:  # noqa: BLE001 (raised again on the other side)
                pipe.send((False, error))


async def _awaited(value: Any) -> Any:
    return await value


class DurableConformance(PlaneSuite):
    """Mixin for the vector, search and graph suites. `opener` has to be picklable."""

    # How long after `finish` a reader in another process may still see the state before it.
    lag_s = 2.0

    def test_a_reopened_store_holds_what_was_written(
        self, run: Loop, opener: Opener, context: PlaneContext, tenant: str
    ) -> None:
        first = opener(context)
        self.write(first, context, tenant, [item("a", 5), item("b", 1)])
        first.delete(tenant, [Tombstone(Ref("item", "b"), 2)])
        first.finish(tenant)
        run(first.close())
        second = opener(context)
        assert self.ids(run, second, tenant) == ["a"]
        assert self.write(second, context, tenant, [item("a", 4), item("b", 2)]).stale == 2
        assert self.ids(run, second, tenant) == ["a"]
        run(second.close())

    def test_a_reader_in_another_process_sees_every_finished_write(
        self, run: Loop, store: Any, opener: Opener, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a")])
        with other_process(opener, context) as other:
            assert other.call("count", tenant).get("item") == 1
            for size in (2, 3, 4):
                self.write(store, context, tenant, [item(f"r{size}")])
                self._eventually(other, tenant, size)
            store.delete(tenant, [Tombstone(Ref("item", "a"), 2)])
            store.finish(tenant)
            self._eventually(other, tenant, 3)

    def test_a_killed_writer_loses_nothing_that_was_acknowledged(
        self, run: Loop, opener: Opener, context: PlaneContext, tenant: str
    ) -> None:
        with other_process(_Writer(type(self), opener), context) as writer:
            for batch in range(3):
                writer.call("put", tenant, batch)
            writer.kill()
        store = opener(context)
        assert self.count(run, store, tenant) == 300
        self.write(store, context, tenant, [item(f"after{i}") for i in range(5)])
        assert self.count(run, store, tenant) == 305
        run(store.close())

    def test_an_index_of_another_model_is_not_taken_for_this_one(
        self, run: Loop, store: Any, opener: Opener, context: PlaneContext, tenant: str
    ) -> None:
        self.write(store, context, tenant, [item("a")])
        other = opener(PlaneContext(context.registry, ModelId("another", 8), context.data_dir))
        try:
            found = self.ids(run, other, tenant)
        except ModelMismatch as mismatch:
            assert "conformance" in str(mismatch) and "another" in str(mismatch)  # noqa: PT018, PT017
        else:
            # Planes without vectors do not care about the model.
            assert found == ["a"]
        run(other.close())

    def _eventually(self, other: OtherProcess, tenant: str, expected: int) -> None:
        deadline = time.monotonic() + self.lag_s
        while (found := other.call("count", tenant).get("item", 0)) != expected:
            assert time.monotonic() < deadline, f"the other process still sees {found} rows, not {expected}"


class _Writer:
    """Opens a store that also knows how to write a batch of the suite; picklable with its opener."""

    def __init__(self, suite: type[PlaneSuite], opener: Opener) -> None:
        self._suite = suite
        self._opener = opener

    def __call__(self, context: PlaneContext) -> Any:
        return _WritingStore(self._suite(), self._opener(context), context)


class _WritingStore:
    def __init__(self, suite: PlaneSuite, store: Any, context: PlaneContext) -> None:
        self._suite = suite
        self._store = store
        self._context = context

    def put(self, tenant: str, batch: int) -> None:
        rows = [item(f"r{batch}-{i}") for i in range(100)]
        self._suite.write(self._store, self._context, tenant, rows)

    async def close(self) -> None:
        await self._store.close()
