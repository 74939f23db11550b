"""A row on its way to its node, and the files that hold leaves between the passes of a run.

Parts of a run: `kept-` rows whose summary stands, `pending-` rows that need one, `made-` rows that got it, `gone-`
nodes to be removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipelines.distill_job import Job
from recall.digest.nodes import level1_parts

KEPT, PENDING, MADE, GONE = "kept-", "pending-", "made-", "gone-"
# Column of a `made-` part beside those of a leaf.
VECTOR = "vector"


@dataclass(slots=True)
class Leaf:
    """A row on its way to its node. `text` is the guarded source; `old_*` is what is stored of the node."""

    node: str
    entity: str
    id: str
    scope: str | None
    scopes: list[str]
    source_hash: str
    input_hash: str
    recipe: str
    budget: int
    text: str | None = None
    summary: str | None = None
    asked: bool = False
    tokens: int = 0
    routing: str | None = None
    old_hash: str | None = None
    old_scope: str | None = None
    old_routing: str | None = None
    old_summary_hash: str | None = None
    old_sem_hash: str | None = None
    old_parents: list[str] = field(default_factory=list)
    old_asked: bool = False

    @property
    def stored(self) -> bool:
        return self.old_hash is not None

    @property
    def moved(self) -> bool:
        """Whether the row has other scope values than its node."""
        return self.scopes != [parent for parent in self.old_parents if level1_parts(parent)[0] == "scope"]


_STRING = pa.string()
_KINDS = {"scopes": pa.list_(_STRING), "old_parents": pa.list_(_STRING), "budget": pa.int64(), "tokens": pa.int64()}
_KINDS |= {"asked": pa.bool_(), "old_asked": pa.bool_()}
SCHEMA = pa.schema([(name, _KINDS.get(name, _STRING)) for name in Leaf.__dataclass_fields__])


def put_leaves(job: Job, name: str, leaves: Sequence[Leaf], vectors: np.ndarray | None = None) -> None:
    """Write a part, with one vector a leaf where there are any."""
    if not leaves:
        return
    table = pa.table({name: [getattr(leaf, name) for leaf in leaves] for name in SCHEMA.names}, schema=SCHEMA)
    if vectors is not None:
        flat = pa.array(vectors.astype(np.float32, copy=False).ravel())
        table = table.append_column(VECTOR, pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]))
    job.run.put_table(name, table)


def get_leaves(job: Job, name: str, first: int = 0, last: int | None = None) -> tuple[list[Leaf], np.ndarray | None]:
    """The leaves first … last of a part, and their vectors."""
    table = job.run.read_table(name)
    table = table.slice(first, None if last is None else last - first)
    vectors = None
    if VECTOR in table.column_names:
        vectors = to_matrix(table[VECTOR])
        table = table.drop_columns([VECTOR])
    return [Leaf(**row) for row in table.to_pylist()], vectors


def to_matrix(column: pa.ChunkedArray) -> np.ndarray:
    """The column VECTOR as (rows, dim) float32."""
    whole = column.combine_chunks()
    return np.asarray(whole.flatten().to_numpy(zero_copy_only=False)).reshape(len(whole), whole.type.list_size)
