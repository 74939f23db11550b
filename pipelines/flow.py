"""Work spread over Ray Data, or done here: items in, what a worker reports of each out. Knows nothing of the work.

Workers are picklable; one is sent to each process that works, whatever the number of items.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.data import Dataset, TaskPoolStrategy

from pipelines.context import ray_session, recall_errors
from recall.errors import RecallError
from recall.settings import Settings

Item = TypeVar("Item")
Report = TypeVar("Report")


@dataclass(frozen=True, slots=True)
class Grouping:
    """A distributed group-by: `read` an item into rows, make a table of each group by `key`, report what was made.

    Rows should be light: a group is in one process at a time.
    """

    read: Callable[[Any], pa.Table]
    key: str
    make: Callable[[pa.Table], pa.Table]
    report: Callable[[pa.Table], Any]


class Flow(Protocol):
    def each(self, items: Sequence[Item], work: Callable[[Item], Report], *, job: str) -> Iterator[Report]:
        """Reports in any order. An item whose process died is done again: `work` must be idempotent."""

    def grouped(self, items: Sequence[Any], grouping: Grouping, *, job: str) -> Iterator[Any]: ...


class InlineFlow:
    """This process alone: for work that is done sooner than Ray would start."""

    def each(self, items: Sequence[Item], work: Callable[[Item], Report], *, job: str) -> Iterator[Report]:
        return map(work, items)

    def grouped(self, items: Sequence[Any], grouping: Grouping, *, job: str) -> Iterator[Any]:
        if not items:
            return
        rows = pa.concat_tables([grouping.read(item) for item in items])
        keys = sorted(set(rows[grouping.key].to_pylist()))
        made = [grouping.make(rows.filter(pc.equal(rows[grouping.key], key))) for key in keys]
        if made:
            yield grouping.report(pa.concat_tables(made))


class RayFlow:
    """Ray Data, on at most `pipeline.embedders` processes at a time; up to `few` items are done in this process.

    Ray starts with the first work that is spread, and stops with the block that this is the context manager of;
    `startup_s`: how long the start took. A job of Ray Data costs a second before anything is done, and each of its
    processes loads the models, so a distillation after a small change would do little else.
    """

    def __init__(self, settings: Settings, few: int = 4) -> None:
        self._settings = settings
        self._few = few
        self._inline = InlineFlow()
        self._workers = max(1, settings.pipeline.embedders)
        self._partitions = max(2, settings.pipeline.logical_cpus)
        self._session = ExitStack()
        self._started = False
        self.startup_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.__exit__(kind, error, trace)

    def each(self, items: Sequence[Item], work: Callable[[Item], Report], *, job: str) -> Iterator[Report]:
        """Raises the RecallError of a worker as itself."""
        if len(items) <= self._few:
            yield from self._inline.each(items, work, job=job)
            return
        self._start()
        reports = self._spread(items).map_batches(
            _work, fn_kwargs={"work": work}, batch_size=1, compute=TaskPoolStrategy(self._workers), num_cpus=1
        )
        with recall_errors(job):
            yield from _reports(reports)

    def grouped(self, items: Sequence[Any], grouping: Grouping, *, job: str) -> Iterator[Any]:
        if len(items) <= self._few:
            yield from self._inline.grouped(items, grouping, job=job)
            return
        self._start()
        rows = self._spread(items).map_batches(_read, fn_kwargs={"read": grouping.read}, batch_size=1, num_cpus=1)
        made = rows.groupby(grouping.key, num_partitions=self._partitions).map_groups(
            _make, fn_kwargs={"make": grouping.make}, batch_format="pyarrow"
        )
        reports = made.map_batches(
            _report, fn_kwargs={"report": grouping.report}, batch_size=None, batch_format="pyarrow"
        )
        with recall_errors(job):
            yield from _reports(reports)

    def _start(self) -> None:
        if not self._started:
            self._started = True
            began = time.perf_counter()
            self._session.enter_context(ray_session(self._settings))
            self.startup_s = time.perf_counter() - began

    def _spread(self, items: Sequence[Any]) -> Dataset:
        packed = [{"item": pickle.dumps(item)} for item in items]
        return ray.data.from_items(packed, override_num_blocks=min(len(packed), 1000))


def _work(batch: dict[str, Any], work: Callable[[Any], Any]) -> dict[str, list[bytes]]:
    # Ray keeps only the text of an exception raised in a function it maps, so a typed error travels as data.
    try:
        return {"report": [pickle.dumps(work(pickle.loads(batch["item"][0])))]}
    except RecallError as error:
        return {"report": [pickle.dumps(error)]}


def _read(batch: dict[str, Any], read: Callable[[Any], pa.Table]) -> pa.Table:
    return read(pickle.loads(batch["item"][0]))


def _make(group: pa.Table, make: Callable[[pa.Table], pa.Table]) -> pa.Table:
    return make(group)


def _report(made: pa.Table, report: Callable[[pa.Table], Any]) -> pa.Table:
    try:
        return pa.table({"report": pa.array([pickle.dumps(report(made))], pa.binary())})
    except RecallError as error:
        return pa.table({"report": pa.array([pickle.dumps(error)], pa.binary())})


def _reports(reports: Dataset) -> Iterator[Any]:
    for batch in reports.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for packed in batch["report"].to_pylist():
            # Written by our own workers a moment ago, in the same job.
            report = pickle.loads(packed)
            if isinstance(report, RecallError):
                raise report
            yield report
