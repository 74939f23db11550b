"""What a stage reports of each part: counts and failed rows. The only data that reaches the driver."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import pyarrow as pa

from recall.errors import RecallError

_COUNTS = ("rows", "unchanged", "deleted", "changed", "chunks", "tokens", "model_calls")
SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64(), nullable=False) for name in _COUNTS),
        pa.field("error", pa.binary()),
        pa.field("failures", pa.list_(pa.struct([(name, pa.string()) for name in ("entity", "id", "reason")]))),
    ]
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that a stage or a store could not take."""

    entity: str
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """Counts of source rows read and of what a stage made of them."""

    rows: int = 0
    unchanged: int = 0
    deleted: int = 0
    changed: int = 0
    chunks: int = 0
    tokens: int = 0
    model_calls: int = 0
    failures: tuple[Failure, ...] = ()

    def __add__(self, other: Receipt) -> Receipt:
        return Receipt(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Receipt)))


def receipts_table(receipts: Sequence[Receipt], error: RecallError | None = None) -> pa.Table:
    """One row per receipt; a last one carries the error that ended the stage.

    Ray keeps only the text of an exception raised in a function it maps, so a typed error travels as data.
    """
    rows: list[dict[str, object]] = [asdict(receipt) for receipt in receipts]
    if error is not None:
        rows.append({**asdict(Receipt()), "error": pickle.dumps(error)})
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def read_receipts(table: pa.Table) -> Receipt:
    """The sum of a table of receipts. Raises the error that one of them carries."""
    total = Receipt()
    for row in table.to_pylist():
        if error := row.pop("error"):
            # Written by our own stage a moment ago, in the same job.
            raise pickle.loads(error)
        total += Receipt(**{**row, "failures": tuple(Failure(**failure) for failure in row["failures"])})
    return total
