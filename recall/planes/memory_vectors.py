"""The vector plane in memory: exact cosines over everything that passes the filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recall.errors import ModelMismatch
from recall.planes.memory_records import MemoryPlane, Record, newest, read_record, visible
from recall.planes.opening import PlaneContext
from recall.ports import VectorHit, VectorQuery, WriteReport
from recall.rows import Caller, Ref, Tombstone

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Chunks of one row in order: their character spans and a (chunks, dim) float32 array."""

    spans: tuple[tuple[int, int], ...]
    vectors: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class _Matrix:
    """All live chunks of a tenant, by (ref, ordinal)."""

    records: list[Record[Chunks]]
    ordinals: np.ndarray
    vectors: np.ndarray


class MemoryVectors(MemoryPlane[Chunks]):
    def __init__(self, context: PlaneContext) -> None:
        super().__init__(context, "vector (memory)")
        self._model = context.model
        self._matrices: dict[str, _Matrix] = {}

    def upsert(self, tenant: str, table: pa.Table) -> WriteReport:
        self._check_dimension(table.schema.field("vector").type.list_size)
        return self._put(tenant, newest(self._rows(table)))

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport:
        return self._put(tenant, self._records.tombs(tenant, tombstones))

    async def search(self, query: VectorQuery, *, timeout_s: float | None = None) -> list[VectorHit]:
        self._records.check_deadline(timeout_s)
        self._check_dimension(query.vector.shape[-1])
        matrix = self._matrix(query.caller.tenant)
        chosen = np.flatnonzero(
            [r.ref.entity in query.entities and visible(r, query.caller, query.where) for r in matrix.records]
        )
        # Not a BLAS product: equal vectors must get equal scores wherever they lie.
        scores = np.clip(np.einsum("ij,j->i", matrix.vectors[chosen], query.vector), -1.0, 1.0)
        best = np.argsort(-scores, kind="stable")[: query.limit]
        return [_hit(matrix, int(chosen[at]), float(scores[at])) for at in best]

    async def get(
        self, caller: Caller, refs: Sequence[Ref], *, timeout_s: float | None = None
    ) -> dict[Ref, np.ndarray]:
        self._records.check_deadline(timeout_s)
        found = {ref: self._records.get(caller.tenant, ref) for ref in refs}
        return {
            ref: record.content.vectors
            for ref, record in found.items()
            if record and record.content and visible(record, caller, None)
        }

    def _put(self, tenant: str, records: dict[str, Record[Chunks]]) -> WriteReport:
        self._matrices.pop(tenant, None)
        return self._records.put(tenant, records)[1]

    def _rows(self, table: pa.Table) -> list[tuple[str, Record[Chunks]]]:
        """Chunks of each (row, version), in order of first appearance."""
        vectors = _dense(table, self._model.dim)
        grouped: dict[tuple[str, int], dict[int, int]] = {}
        rows = table.drop_columns(["vector"]).to_pylist()
        for at, row in enumerate(rows):
            grouped.setdefault((row["row_key"], row["version"]), {})[row["ordinal"]] = at
        records = []
        for (key, _), by_ordinal in grouped.items():
            places = [by_ordinal[ordinal] for ordinal in sorted(by_ordinal)]
            chunks = Chunks(tuple((rows[at]["start"], rows[at]["end"]) for at in places), vectors[places])
            records.append((key, read_record(rows[places[-1]], self._registry, chunks)))
        return records

    def _matrix(self, tenant: str) -> _Matrix:
        if tenant not in self._matrices:
            live = sorted(self._records.live(tenant), key=lambda record: record.ref)
            pairs = [(r, o, v) for r in live if r.content for o, v in enumerate(r.content.vectors)]
            vectors = np.array([vector for _, _, vector in pairs], dtype=np.float32).reshape(-1, self._model.dim)
            ordinals = np.array([ordinal for _, ordinal, _ in pairs], dtype=np.int64)
            self._matrices[tenant] = _Matrix([record for record, _, _ in pairs], ordinals, vectors)
        return self._matrices[tenant]

    def _check_dimension(self, dim: int) -> None:
        if dim != self._model.dim:
            raise ModelMismatch(f"with {dim} dimensions", str(self._model), self._records.name)


def _dense(table: pa.Table, dim: int) -> np.ndarray:
    """Vectors of all records, (records, dim) float32, zeros where there is none."""
    column = table["vector"].combine_chunks()
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    vectors = np.zeros((len(table), dim), dtype=np.float32)
    vectors[valid] = column.drop_null().flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    return vectors


def _hit(matrix: _Matrix, at: int, score: float) -> VectorHit:
    record, ordinal = matrix.records[at], int(matrix.ordinals[at])
    assert record.content is not None
    start, end = record.content.spans[ordinal]
    return VectorHit(record.ref, score, ordinal, start, end, record.version)
