"""Sinks: parts into a run's folder, staged rows into a store. Reads nothing back, creates no schema."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from ray.data.block import Block, BlockAccessor
from ray.data.datasource import Datasink, WriteResult

from pipelines.lanes import Lane, Store
from pipelines.receipts import Failure
from pipelines.retries import write_with_retries
from pipelines.stages import Staged
from pipelines.storage import Folder
from recall.keys import content_hash
from recall.ports import WriteReport

if TYPE_CHECKING:
    from ray.data._internal.execution.interfaces import TaskContext

PART = "part-"


def put_part(folder: Folder, staged: Staged) -> None:
    """Write one part, whole or not at all. The name follows from its rows, so a repeated task replaces its part."""
    if staged.table.num_rows:
        identity = [staged.table[name].to_pylist() for name in ("row_key", "version", "hash")]
        folder.put_table(f"{PART}{content_hash(identity)}.parquet", staged.table)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What reached a store, in rows."""

    written: int = 0
    stale: int = 0
    failures: tuple[Failure, ...] = ()

    def __add__(self, other: Loaded) -> Loaded:
        return Loaded(self.written + other.written, self.stale + other.stale, self.failures + other.failures)


class StoreSink(Datasink[Loaded]):
    """Upserts blocks of the lane's staged schema. At least once: the same block twice leaves the same store.

    Each write task opens its own writer, sends at most `load_rows` records a call, never splits a row's records
    between calls, and repeats what failed transiently. `loaded` holds the sum when the job is done.
    """

    def __init__(self, lane: Lane, pause: Callable[[float], None] = time.sleep) -> None:
        self._lane = lane
        self._pause = pause
        self.loaded = Loaded()

    def get_name(self) -> str:
        return f"load_{self._lane.plane}"

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Nothing: stores are prepared once, before the job."""

    def write(self, blocks: Iterable[Block], ctx: TaskContext) -> Loaded:
        # Ray may cut a block between two records of one row; all blocks of a task are joined before they are sliced.
        tables = [BlockAccessor.for_block(block).to_arrow() for block in blocks]
        tables = [table for table in tables if table.num_rows]
        total = Loaded()
        if not tables:
            return total
        staged = pa.concat_tables(tables).cast(self._lane.staged_schema)
        with self._lane.store() as store:
            for part in whole_rows(staged, self._lane.settings.pipeline.load_rows):
                total += self._send(store, part)
        return total

    def _send(self, store: Store, part: pa.Table) -> Loaded:
        def write(keys: frozenset[str] | None) -> WriteReport:
            again = part if keys is None else part.filter(pc.is_in(part["row_key"], pa.array(sorted(keys))))
            return self._lane.upsert(store, again)

        report = write_with_retries(write, self._lane.settings.pipeline.write_retries, self._pause)
        failures = []
        for failure in report.failures:
            row = part.filter(pc.equal(part["row_key"], failure.key)).slice(0, 1).to_pylist()[0]
            failures.append(Failure(row["entity"], row["id"], failure.reason))
        return Loaded(report.written, report.stale, tuple(failures))

    def on_write_complete(self, write_result: WriteResult[Loaded]) -> None:
        for loaded in write_result.write_returns:
            self.loaded += loaded


def whole_rows(staged: pa.Table, limit: int) -> Iterator[pa.Table]:
    """Consecutive slices of at most `limit` records that end where a row ends; a larger row is a slice by itself."""
    keys = staged["row_key"].to_pylist()
    first = 0
    while first < len(keys):
        last = min(first + limit, len(keys))
        end = last
        while end < len(keys) and end > first and keys[end] == keys[end - 1]:
            end -= 1
        if end == first:
            end = last
            while end < len(keys) and keys[end] == keys[first]:
                end += 1
        yield staged.slice(first, end - first)
        first = end
