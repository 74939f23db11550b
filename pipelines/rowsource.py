"""Ray Data sources: changed rows of the source of truth, and staged parts. Read tasks open their own stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from ray.data.block import BlockMetadata
from ray.data.context import DataContext
from ray.data.datasource import Datasource, ReadTask

from pipelines.lanes import Lane
from pipelines.retries import patiently
from pipelines.stages import changed_rows, pending_table
from pipelines.storage import Folder
from recall.errors import IndexMissing
from recall.ports import Page, RowStore
from recall.records import record, seen_by


@dataclass(frozen=True, slots=True)
class PageRead:
    """A page to read, and at most how many rows of it."""

    entity: str
    page: Page
    limit: int | None = None


def plan_pages(lane: Lane, rows: RowStore, limit: int | None, entities: Sequence[str] | None = None) -> list[PageRead]:
    """The pages that cover every entity that `lane` sees, or its first `limit` rows; only `entities` where given."""
    most = lane.settings.pipeline.rows_per_part
    size = most if limit is None else max(1, min(most, limit))
    planned: list[PageRead] = []
    for name, entity in lane.registry.entities.items():
        if not seen_by(lane.plane, entity) or (entities is not None and name not in entities):
            continue
        pages = rows.pages(lane.tenant, name, size)
        counts = [None] * len(pages) if limit is None else [min(size, limit - n) for n in range(0, limit, size)]
        planned += [PageRead(name, page, count) for page, count in zip(pages, counts, strict=False)]
    return planned


class ChangedRows(Datasource):
    """Rows of `pages` that differ from what the lane's plane holds, with a tally of each page."""

    def __init__(self, lane: Lane, pages: Sequence[PageRead]) -> None:
        super().__init__()
        self._lane = lane
        self._pages = pages

    def get_name(self) -> str:
        return f"changed_rows_{self._lane.plane}"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        # One page a task: Ray joins what a task yields into one block, and a block is what progress moves by.
        return [_task(partial(read_changed, self._lane, page)) for page in self._pages]


def read_changed(lane: Lane, read: PageRead) -> Iterator[pa.Table]:
    """The changed rows of one page, with its tally."""
    retries = lane.settings.pipeline.write_retries
    entity = lane.registry.entity(read.entity)
    with lane.rows() as rows, lane.store() as store:
        found = patiently(lambda: rows.read_page(lane.tenant, read.entity, read.page), retries)
        records = [record(lane.plane, lane.tenant, entity, row) for row in found[: read.limit]]
        keys = [item.key for item in records]
        try:
            stored = patiently(lambda: store.hashes(lane.tenant, keys), retries)
        except IndexMissing:
            stored = {}
    changed, tally = changed_rows(records, stored)
    yield pending_table(changed, tally, lane.pending_schema)


class StagedParts(Datasource):
    """Tables of staged parts, one read task per group of part names."""

    def __init__(self, lane: Lane, folder: Folder, groups: Sequence[Sequence[str]], *, missing_only: bool) -> None:
        super().__init__()
        self._lane = lane
        self._folder = folder
        self._groups = groups
        self._missing_only = missing_only

    def get_name(self) -> str:
        return f"staged_{self._lane.plane}"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: DataContext | None = None
    ) -> list[ReadTask]:
        lane, folder, missing_only = self._lane, self._folder, self._missing_only
        return [_task(partial(read_parts, lane, folder, group, missing_only=missing_only)) for group in self._groups]


def read_parts(lane: Lane, folder: Folder, names: Sequence[str], *, missing_only: bool) -> Iterator[pa.Table]:
    """The parts called `names`; with `missing_only` without the rows that the plane already holds as they are."""
    if not missing_only:
        for name in names:
            yield folder.read_table(name).cast(lane.staged_schema)
        return
    with lane.store() as store:
        for name in names:
            part = folder.read_table(name).cast(lane.staged_schema)
            keys = part["row_key"].to_pylist()
            stored = store.hashes(lane.tenant, list(dict.fromkeys(keys)))
            missing = [stored.get(key) != value for key, value in zip(keys, part["hash"].to_pylist(), strict=True)]
            yield part.filter(pa.array(missing, pa.bool_()))


def _task(read: Callable[[], Iterator[pa.Table]]) -> ReadTask:
    return ReadTask(read, BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None))
