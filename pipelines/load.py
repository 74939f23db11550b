"""The load job of one lane: staged parts into the plane, in bounded steps, repeatable alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import ray

from pipelines.context import recall_errors
from pipelines.lanes import Lane, Shares
from pipelines.rowsource import StagedParts
from pipelines.runs import LOADED, Stage
from pipelines.sinks import Loaded, StoreSink

# Groups of parts in one Ray job: progress is counted between jobs.
GROUPS_PER_JOB = 8


def load(lane: Lane, stage: Stage, on_progress: Callable[[int, int], None], *, missing_only: bool = False) -> Loaded:
    """Write every part of `stage` into the lane's plane and mark the stage as loaded.

    `missing_only` leaves out rows that the plane holds already, for stages of which a part may be loaded.
    `on_progress` gets records done and in all. Raises StoreError; loading again is safe.
    """
    groups = list(_groups(lane, stage))
    total = sum(size for _, size in groups)
    loaded, done = Loaded(), 0
    with lane.store() as store:
        store.prepare(lane.tenant)
        most = Shares.of(lane.settings).readers
        writers = most if store.max_writers is None else min(most, store.max_writers)
    for first in range(0, len(groups), GROUPS_PER_JOB):
        step = groups[first : first + GROUPS_PER_JOB]
        loaded += _load_groups(lane, stage, [names for names, _ in step], writers, missing_only)
        done += sum(size for _, size in step)
        on_progress(done, total)
    with lane.store() as store:
        store.finish(lane.tenant)
    stage.mark(LOADED, {"written": loaded.written, "stale": loaded.stale, "failed": len(loaded.failures)})
    return loaded


def _load_groups(lane: Lane, stage: Stage, groups: list[list[str]], writers: int, missing_only: bool) -> Loaded:
    share = Shares.of(lane.settings).cpus
    source = StagedParts(lane, stage.folder, groups, missing_only=missing_only)
    sink = StoreSink(lane)
    with recall_errors(f"load {lane.plane} of tenant {lane.tenant}"):
        staged = ray.data.read_datasource(source, num_cpus=share, concurrency=writers, override_num_blocks=len(groups))
        staged.write_datasink(sink, ray_remote_args={"num_cpus": share}, concurrency=writers)
    return sink.loaded


def _groups(lane: Lane, stage: Stage) -> Iterator[tuple[list[str], int]]:
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
