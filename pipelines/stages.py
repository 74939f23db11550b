"""Stages: one batch in, one batch out. Which rows changed, and the documents and nodes made of them.

Never opens a store or a file; the embedding stage is in `embed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.receipts import Receipt
from recall.records import Record, records_table


@dataclass(frozen=True, slots=True)
class Staged:
    """A table of the lane's staged schema, whole rows only, and what it cost to make."""

    table: pa.Table
    receipt: Receipt


def changed_rows(records: Sequence[Record], stored: Mapping[str, str]) -> tuple[list[Record], Receipt]:
    """The records that the plane does not hold as they are, and the tally of all of them.

    `stored` is the plane's content hash by row key. A tombstone or a row without text that the plane never held is
    unchanged: there is nothing to take away.
    """
    changed = [
        record for record in records if stored.get(record.key) != record.hash and (record.live or record.key in stored)
    ]
    deleted = sum(record.hash == "" for record in changed)
    return changed, Receipt(rows=len(records), unchanged=len(records) - len(changed), deleted=deleted)


def pending_table(records: Sequence[Record], tally: Receipt, schema: pa.Schema) -> pa.Table:
    """Changed rows and, as one more row, the tally of the page they came from.

    The tally travels with the rows because nothing else that a Ray task returns reaches the driver exactly once.
    """
    counts = {"rows": tally.rows, "unchanged": tally.unchanged, "deleted": tally.deleted}
    last = pa.Table.from_pylist([{"tally": counts}], schema=schema)
    return pa.concat_tables([records_table(records, schema), last]) if records else last


def split_pending(batch: pa.Table) -> tuple[pa.Table, Receipt]:
    """The changed rows of a batch, and the sum of the tallies in it."""
    is_row = pc.is_valid(batch["row_key"])
    tally = Receipt()
    for counts in batch.filter(pc.invert(is_row))["tally"].to_pylist():
        tally += Receipt(**counts)
    return batch.filter(is_row).drop_columns(["tally"]), tally


def plain_stage(rows: pa.Table, schema: pa.Schema) -> Iterator[Staged]:
    """Documents or nodes: the columns that `schema` names, as they came."""
    tombstones = pc.sum(pc.equal(rows["hash"], "")).as_py() or 0
    yield Staged(conform(rows, schema), Receipt(changed=rows.num_rows - tombstones))


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with exactly the columns, order and types of `schema`."""
    return rows.select(schema.names).cast(schema)
