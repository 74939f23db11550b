"""The staging job of one lane: changed rows through the lane's stage into parts, counted by receipts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, Dataset

from pipelines.context import recall_errors
from pipelines.embed import EmbedStage
from pipelines.lanes import Lane, Shares
from pipelines.receipts import Receipt, read_receipts, receipts_table
from pipelines.rowsource import ChangedRows, PageRead
from pipelines.sinks import put_part
from pipelines.stages import Staged, plain_stage, split_pending
from pipelines.storage import Folder
from recall.errors import RecallError


def stage_rows(
    lane: Lane, pages: Sequence[PageRead], folder: Folder | None, on_receipt: Callable[[Receipt], None]
) -> Receipt:
    """Stage what changed in `pages` under `folder`, or only count it when there is none; returns the sum of receipts.

    Raises the RecallError of a stage. Parts finished before an error, or a kill, stay.
    """
    total = Receipt()
    if not pages:
        return total
    with recall_errors(f"stage {lane.plane} of tenant {lane.tenant}"):
        if lane.plane == "vector" and lane.settings.embedder.kind == "vllm" and folder is not None:
            return _by_engine(lane, pages, folder, on_receipt)
        for batch in _receipts(lane, pages, folder).iter_batches(
            batch_size=None, batch_format="pyarrow", prefetch_batches=0
        ):
            receipt = read_receipts(batch)
            total += receipt
            on_receipt(receipt)
    return total


def _by_engine(lane: Lane, pages: Sequence[PageRead], folder: Folder, on_receipt: Callable[[Receipt], None]) -> Receipt:
    """Through a vLLM engine, which takes a minute to start: not for pages in which nothing has changed."""
    from pipelines.engine_vectors import stage_vectors

    dry = stage_rows(lane, pages, None, lambda _: None)
    if not dry.changed + dry.deleted:
        on_receipt(dry)
        return dry
    return stage_vectors(lane, lane.settings.embedder, pages, folder, on_receipt)


def _receipts(lane: Lane, pages: Sequence[PageRead], folder: Folder | None) -> Dataset:
    shares = Shares.of(lane.settings)
    changed = ray.data.read_datasource(
        ChangedRows(lane, pages), num_cpus=shares.cpus, concurrency=shares.readers, override_num_blocks=len(pages)
    )
    if folder is None:
        return changed.map_batches(count_rows, batch_format="pyarrow", num_cpus=shares.cpus)
    if lane.plane == "vector":
        return changed.map_batches(
            Embedding,
            fn_constructor_args=(lane, folder),
            batch_size=lane.settings.pipeline.rows_per_part,
            batch_format="pyarrow",
            num_cpus=shares.cpus,
            compute=ActorPoolStrategy(size=lane.settings.pipeline.embedders),
        )
    return changed.map_batches(shape_rows, fn_args=(lane, folder), batch_format="pyarrow", num_cpus=shares.cpus)


def count_rows(batch: pa.Table) -> pa.Table:
    """The receipt of a dry run."""
    rows, tally = split_pending(batch)
    return receipts_table([tally + Receipt(changed=rows.num_rows - tally.deleted)])


def shape_rows(batch: pa.Table, lane: Lane, folder: Folder) -> pa.Table:
    """Documents or nodes of a batch, as a part."""
    return _stage(batch, folder, lambda rows: plain_stage(rows, lane.staged_schema))


class Embedding:
    """The actor of the vector lane. Loads its model at the first row that needs it."""

    def __init__(self, lane: Lane, folder: Folder) -> None:
        self._lane = lane
        self._folder = folder
        self._embed: EmbedStage | None = None

    def __call__(self, batch: pa.Table) -> pa.Table:
        return _stage(batch, self._folder, self._rows)

    def _rows(self, rows: pa.Table) -> Iterator[Staged]:
        if self._embed is None:
            self._embed = EmbedStage(self._lane.model(), self._lane.registry, self._lane.staged_schema)
        return self._embed(rows)


def _stage(batch: pa.Table, folder: Folder, stage: Callable[[pa.Table], Iterator[Staged]]) -> pa.Table:
    rows, tally = split_pending(batch)
    receipts = [tally]
    try:
        if rows.num_rows:
            for staged in stage(rows):
                put_part(folder, staged)
                receipts.append(staged.receipt)
    except RecallError as error:
        return receipts_table(receipts, error)
    return receipts_table(receipts)
