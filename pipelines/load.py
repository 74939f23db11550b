"""The load job of one lane: staged parts into the plane, in bounded steps, repeatable alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import ray

from pipelines.context import recall_errors
from pipelines.lanes import Lane, Shares
from pipelines.receipts import Failure
from pipelines.rowsource import StagedParts
from pipelines.runs import LOADED, Stage
from pipelines.sinks import Loaded, StoreSink
from recall.ports import WriteFailure

# Groups of parts in one Ray job: progress is counted between jobs.
GROUPS_PER_JOB = 8
# Names of parts and the records in them.
Group = tuple[list[str], int]


def load(lane: Lane, stage: Stage, on_progress: Callable[[int, int], None], *, missing_only: bool = False) -> Loaded:
    """Write every part of `stage` into the lane's plane and mark the stage as loaded.

    `missing_only` leaves out rows that the plane holds already, for stages of which a part may be loaded.
    `on_progress` gets records done and in all. Raises StoreError; loading again is safe.
    """
    groups = list(_groups(lane, stage))
    with lane.store() as store:
        store.prepare(lane.tenant)
        most = Shares.of(lane.settings).readers
        writers = most if store.max_writers is None else min(most, store.max_writers)
    loaded = _load_in_bulk(lane, stage, groups, on_progress)
    if loaded is None:
        loaded = _load_in_steps(lane, stage, groups, on_progress, writers, missing_only)
    with lane.store() as store:
        store.finish(lane.tenant)
    stage.mark(LOADED, {"written": loaded.written, "stale": loaded.stale, "failed": len(loaded.failures)})
    return loaded


def _load_in_bulk(
    lane: Lane, stage: Stage, groups: Sequence[Group], on_progress: Callable[[int, int], None]
) -> Loaded | None:
    """A first load by the plane's fast way in; None when it has none, or the load is too small or not the first."""
    total = sum(size for _, size in groups)

    def parts() -> Iterator[pa.Table]:
        done = 0
        for names, size in groups:
            yield from (stage.folder.read_table(name) for name in names)
            done += size
            on_progress(done, total)

    with lane.bulk() as writer:
        if writer is None or total < writer.bulk_from:
            return None
        report = writer.bulk_load(lane.tenant, parts())
    if report is None:
        return None
    return Loaded(report.written, report.stale, tuple(_named(stage, report.failures)))


def _named(stage: Stage, failures: Sequence[WriteFailure]) -> Iterator[Failure]:
    """`failures` with the names of their rows, which are in the parts."""
    reasons = {failure.key: failure.reason for failure in failures}
    for name in stage.parts() if reasons else ():
        part = stage.folder.read_table(name).select(["row_key", "entity", "id"])
        for row in part.filter(pc.is_in(part["row_key"], pa.array(reasons, pa.string()))).to_pylist():
            if reason := reasons.pop(row["row_key"], None):
                yield Failure(row["entity"], row["id"], reason)


def _load_in_steps(
    lane: Lane,
    stage: Stage,
    groups: Sequence[Group],
    on_progress: Callable[[int, int], None],
    writers: int,
    missing_only: bool,
) -> Loaded:
    """Upserts by several writers, in Ray jobs of a few groups."""
    total = sum(size for _, size in groups)
    loaded, done = Loaded(), 0
    for first in range(0, len(groups), GROUPS_PER_JOB):
        step = groups[first : first + GROUPS_PER_JOB]
        loaded += _load_groups(lane, stage, [names for names, _ in step], writers, missing_only)
        done += sum(size for _, size in step)
        on_progress(done, total)
    return loaded


def _load_groups(lane: Lane, stage: Stage, groups: list[list[str]], writers: int, missing_only: bool) -> Loaded:
    share = Shares.of(lane.settings).cpus
    source = StagedParts(lane, stage.folder, groups, missing_only=missing_only)
    sink = StoreSink(lane)
    with recall_errors(f"load {lane.plane} of tenant {lane.tenant}"):
        staged = ray.data.read_datasource(source, num_cpus=share, concurrency=writers, override_num_blocks=len(groups))
        staged.write_datasink(sink, ray_remote_args={"num_cpus": share}, concurrency=writers)
    return sink.loaded


def _groups(lane: Lane, stage: Stage) -> Iterator[Group]:
    """Names of parts that make up about `load_rows` records, with their number."""
    group: list[str] = []
    size = 0
    for name in stage.parts():
        rows = stage.folder.rows(name)
        if group and size + rows > lane.settings.pipeline.load_rows:
            yield group, size
            group, size = [], 0
        group.append(name)
        size += rows
    if group:
        yield group, size
