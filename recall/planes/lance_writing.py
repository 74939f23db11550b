"""Writing one tenant's LanceDB table: exact version gate, whole rows in one commit, regular optimisation.

Everything here happens under the tenant's lock; nothing here answers queries.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from lancedb.expr import col, lit
from lancedb.index import Bitmap, BTree, HnswSq

from recall.errors import TransientStoreError
from recall.planes.chunks import (
    Admitted,
    StoredRow,
    check_dimension,
    conform,
    gate,
    last_of_each_row,
    refuse_bad_vectors,
    stored_rows,
)
from recall.planes.lance_index import STORE, IndexEntry, TenantIndexes, lance_errors
from recall.planes.opening import PlaneContext
from recall.ports import WriteReport
from recall.schema import vector_schema
from recall.settings import LanceDbSettings

logger = logging.getLogger(__name__)
T = TypeVar("T")
_GATE_COLUMNS = ["row_key", "version", "live", "hash", "ordinal"]
# A second guard inside the commit itself, for a writer that does not know the lock.
_NOT_OLDER = "target.version <= source.version"
# Up to this many keys are looked up through the index; more are joined with the keys in memory.
_FEW_KEYS = 256
_ATTEMPTS = 6
# Half of the library's default halves the time to build; the recall that is lost comes back by refining.
_EF_CONSTRUCTION = 150
_LOCK_PATIENCE_S = 900.0
# Readers of an older version keep its files for this long.
_KEEP = timedelta(hours=1)


@dataclass(slots=True)
class _Known:
    """Gate columns of the whole table as of one table version: spares a bulk load a scan per batch."""

    version: int
    rows: pa.Table

    def of(self, keys: pa.Array) -> pa.Table:
        return self.rows.filter(pc.is_in(self.rows["row_key"], keys))

    def written(self, table: pa.Table, version: int) -> None:
        replaced = pc.is_in(self.rows["row_key"], pc.unique(table["row_key"]))
        kept = self.rows.filter(pc.invert(replaced)) if pc.any(replaced).as_py() else self.rows
        self.rows = pa.concat_tables([kept, table.select(_GATE_COLUMNS)])
        if self.rows["row_key"].num_chunks > 64:
            self.rows = self.rows.combine_chunks()
        self.version = version


class LanceWriter:
    """Writes the index of one registry and model, of any tenant. Safe in any number of threads and processes."""

    def __init__(self, settings: LanceDbSettings, context: PlaneContext) -> None:
        self._settings = settings
        self._model = context.model
        self._version = context.registry.vector_version(str(context.model))
        self._schema = vector_schema(context.registry, context.model.dim)
        self._filters = context.registry.filter_columns
        self._known: weakref.WeakKeyDictionary[TenantIndexes, _Known] = weakref.WeakKeyDictionary()
        self._guard = threading.Lock()

    def prepare(self, indexes: TenantIndexes) -> None:
        with lance_errors(indexes.address), indexes.locked(_LOCK_PATIENCE_S):
            indexes.create(self._version, self._model, self._schema)

    def write(self, indexes: TenantIndexes, table: pa.Table) -> WriteReport:
        check_dimension(table, self._model, f"{STORE} at {indexes.address}")
        arrivals, failures = refuse_bad_vectors(conform(table, self._schema))
        if not arrivals.num_rows:
            return WriteReport(failures=failures)
        arrivals = last_of_each_row(arrivals)
        with lance_errors(indexes.address), indexes.locked(_LOCK_PATIENCE_S):
            entry = indexes.entry(self._version)
            if entry is None:
                entry = indexes.create(self._version, self._model, self._schema)
            admitted = self._retried(indexes, lambda: self._commit(indexes, entry, arrivals))
            self._optimize_when_due(indexes, entry)
        return WriteReport(admitted.rows, admitted.stale, failures)

    def hashes(self, indexes: TenantIndexes, keys: Sequence[str]) -> dict[str, str]:
        with lance_errors(indexes.address):
            entry = indexes.entry(self._version)
            if entry is None or not keys:
                return {}
            found = self._gate_rows(indexes, indexes.table(entry), pa.array(keys, pa.string()))
            return dict(zip(found["row_key"].to_pylist(), found["hash"].to_pylist(), strict=True))

    def finish(self, indexes: TenantIndexes) -> None:
        with lance_errors(indexes.address), indexes.locked(_LOCK_PATIENCE_S):
            entry = indexes.create(self._version, self._model, self._schema)
            table = indexes.table(entry)
            # Compaction first: it would move the rows that a new index has just been built on.
            if table.version > entry.optimized:
                self._optimize(indexes, entry, table)
            if self._retried(indexes, lambda: self._build_indexes(table)):
                entry = indexes.entry(self._version) or entry
                indexes.update(replace(entry, indexed=True, optimized=table.version))
            indexes.finish(self._version)

    def _commit(self, indexes: TenantIndexes, entry: IndexEntry, arrivals: pa.Table) -> Admitted:
        table = indexes.table(entry)
        admitted = gate(arrivals, self._stored(indexes, table, arrivals))
        if not admitted.table.num_rows:
            return admitted
        merge = table.merge_insert("key").when_matched_update_all(where=_NOT_OLDER).when_not_matched_insert_all()
        if admitted.leftovers:
            merge = merge.when_not_matched_by_source_delete(col("key").isin([lit(key) for key in admitted.leftovers]))
        before = table.version
        # All columns of the table, because a merge leaves those alone that it is not given. Only tombstones and rows
        # without text have no vector by now; the client would refuse their nulls.
        result = merge.execute(conform(admitted.table, table.schema), on_bad_vectors="null")
        with self._guard:
            known = self._known.get(indexes)
            if known is not None and known.version == before and result.version == before + 1:
                known.written(admitted.table, result.version)
        return admitted

    def _stored(self, indexes: TenantIndexes, table: Any, arrivals: pa.Table) -> dict[str, StoredRow]:
        found = self._gate_rows(indexes, table, pc.unique(arrivals["row_key"]))
        return stored_rows({name: found[name].to_pylist() for name in _GATE_COLUMNS})

    def _gate_rows(self, indexes: TenantIndexes, table: Any, keys: pa.Array) -> pa.Table:
        with self._guard:
            known = self._known.get(indexes)
            if known is not None and known.version == table.version:
                return known.of(keys)
        if len(keys) <= _FEW_KEYS:
            few = col("row_key").isin([lit(key) for key in keys.to_pylist()])
            return table.search().where(few).select(_GATE_COLUMNS).limit(None).to_arrow()
        with self._guard:
            version = table.version
            known = _Known(version, table.search().select(_GATE_COLUMNS).limit(None).to_arrow())
            if table.version == version:
                self._known[indexes] = known
            return known.of(keys)

    def _optimize_when_due(self, indexes: TenantIndexes, entry: IndexEntry) -> None:
        table = indexes.table(entry)
        if table.version - entry.optimized >= self._settings.optimize_every:
            self._optimize(indexes, entry, table)

    def _optimize(self, indexes: TenantIndexes, entry: IndexEntry, table: Any) -> None:
        started, before = time.monotonic(), table.version
        self._retried(indexes, lambda: table.optimize(cleanup_older_than=_KEEP))
        current = indexes.entry(entry.version) or entry
        indexes.update(replace(current, optimized=table.version))
        with self._guard:
            known = self._known.get(indexes)
            if known is not None and known.version == before:
                # Optimising moves rows but changes none.
                known.version = table.version
        logger.info(
            "optimized index=%s address=%s seconds=%.2f", entry.version, indexes.address, time.monotonic() - started
        )

    def _build_indexes(self, table: Any) -> bool:
        """Build the indexes that a large table lacks; whether it is a large one."""
        if table.count_rows("live = true") < self._settings.index_from:
            return False
        present = {index.columns[0] for index in table.list_indices()}
        wanted: dict[str, Any] = {
            "row_key": BTree(),
            "key": BTree(),
            "entity": Bitmap(),
            "live": Bitmap(),
            "scope": BTree(),
        }
        for held in self._filters:
            wanted[held.column] = Bitmap() if held.kind == "bool" else BTree()
        wanted["vector"] = HnswSq(distance_type="cosine", num_partitions=1, ef_construction=_EF_CONSTRUCTION)
        for column, config in wanted.items():
            if column not in present:
                table.create_index(column, config=config)
        return True

    def _retried(self, indexes: TenantIndexes, work: Callable[[], T]) -> T:
        """`work` again while its commit loses to one that came from outside the lock."""
        for attempt in range(_ATTEMPTS):
            try:
                with lance_errors(indexes.address):
                    return work()
            except TransientStoreError as error:
                if "conflict" not in error.detail.lower() or attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")
