"""Chunk tables on their way into a vector plane: bad vectors, duplicates, the version gate. Pure Arrow, no store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recall.errors import ConfigError, InvalidRequest, ModelMismatch
from recall.keys import chunk_key, store_key
from recall.planes.opening import ModelId
from recall.ports import WriteFailure
from recall.rows import Tombstone


@dataclass(frozen=True, slots=True)
class StoredRow:
    """What a store holds of one row. A tombstone is a record that is not live and has no hash."""

    version: int
    tombstone: bool
    chunks: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """Records to write, rows that lost to a newer version, and chunk keys that the rows written no longer have."""

    table: pa.Table
    rows: int
    stale: int
    leftovers: list[str] = field(default_factory=list)


def tombstone_table(tenant: str, tombstones: Sequence[Tombstone], schema: pa.Schema) -> pa.Table:
    """`tombstones` as records of `schema`: not live, no hash, no vector."""
    keys = [store_key(tenant, stone.ref.entity, stone.ref.id) for stone in tombstones]
    columns: dict[str, object] = {
        "key": [chunk_key(key, 0) for key in keys],
        "row_key": keys,
        "entity": [stone.ref.entity for stone in tombstones],
        "id": [stone.ref.id for stone in tombstones],
        "version": [stone.version for stone in tombstones],
        "hash": [""] * len(keys),
        "live": [False] * len(keys),
        **{name: [0] * len(keys) for name in ("ordinal", "start", "end")},
    }
    arrays = [pa.array(columns.get(f.name, [None] * len(keys)), f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def check_dimension(table: pa.Table, model: ModelId, where: str) -> None:
    """Raise ModelMismatch when the vectors of `table` have another size than those of `model`."""
    kind = table.schema.field("vector").type if "vector" in table.column_names else None
    given = getattr(kind, "list_size", model.dim)
    if given != model.dim:
        raise ModelMismatch(f"of the chunks ({given} dimensions)", str(model), where)


def check_query_vector(vector: np.ndarray, model: ModelId, where: str) -> None:
    """Raise ModelMismatch for a query of another size, InvalidRequest for one that nothing can be near."""
    if vector.shape != (model.dim,):
        raise ModelMismatch(f"of unknown name ({vector.size} dimensions)", str(model), where)
    if not np.isfinite(vector).all() or not vector.any():
        raise InvalidRequest("the query vector is all zeros or not finite, so nothing can be near it")


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with exactly the columns of `schema`; a missing nullable one is null. ConfigError says what is wrong."""
    arrays = []
    for wanted in schema:
        if wanted.name not in table.column_names:
            if not wanted.nullable:
                raise ConfigError(f"a chunk table lacks the column {wanted.name!r}")
            arrays.append(pa.nulls(table.num_rows, wanted.type))
            continue
        try:
            arrays.append(table[wanted.name].cast(wanted.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConfigError(f"column {wanted.name!r} of a chunk table: {error}") from None
    return pa.Table.from_arrays(arrays, schema=schema)


def refuse_bad_vectors(table: pa.Table) -> tuple[pa.Table, tuple[WriteFailure, ...]]:
    """`table` without the rows that no cosine can rank, and one permanent failure for each of those rows."""
    live = table["live"].to_numpy()
    missing = live & table["vector"].is_null().to_numpy()
    squares = _squared_norms(table["vector"])
    broken, zero = live & ~missing & ~np.isfinite(squares), live & ~missing & (squares == 0)
    reasons: dict[str, str] = {}
    for mask, reason in (
        (missing, "a live chunk has no vector"),
        (broken, "a vector holds NaN or infinity"),
        (zero, "a vector is all zeros, which no cosine can rank"),
    ):
        reasons |= {table["row_key"][int(place)].as_py(): reason for place in np.flatnonzero(mask)}
    if not reasons:
        return table, ()
    kept = table.filter(pc.invert(pc.is_in(table["row_key"], pa.array(reasons, pa.string()))))
    return kept, tuple(WriteFailure(key, reason, False) for key, reason in reasons.items())


def _squared_norms(column: pa.ChunkedArray) -> np.ndarray:
    """Squared length of every vector; of a null, whatever its place in memory holds."""
    parts = []
    for chunk in column.chunks:
        size, dim = len(chunk), chunk.type.list_size
        flat = chunk.values.slice(chunk.offset * dim, size * dim)
        vectors = flat.to_numpy(zero_copy_only=flat.null_count == 0).reshape(size, dim)
        parts.append(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64, casting="safe"))
    return np.concatenate(parts) if parts else np.zeros(0)


def last_of_each_row(table: pa.Table) -> pa.Table:
    """One occurrence of every row: the highest version, then the last one in the table.

    Chunks of one row and version belong to one occurrence until an ordinal repeats.
    """
    rows = pc.count_distinct(table["row_key"]).as_py()
    if rows == table.num_rows:
        return table
    versions = table.group_by(["row_key", "version"]).aggregate([]).num_rows
    if versions == rows and pc.count_distinct(table["key"]).as_py() == table.num_rows:
        return table
    chosen: dict[str, tuple[int, dict[int, int]]] = {}
    rows = zip(*(table[name].to_pylist() for name in ("row_key", "version", "ordinal")), strict=True)
    for place, (key, version, ordinal) in enumerate(rows):
        best = chosen.get(key)
        if best is None or version > best[0] or (version == best[0] and ordinal in best[1]):
            chosen[key] = (version, {ordinal: place})
        elif version == best[0]:
            best[1][ordinal] = place
    kept = sorted(place for _, places in chosen.values() for place in places.values())
    return table.take(pa.array(kept, pa.int64()))


def gate(table: pa.Table, stored: Mapping[str, StoredRow]) -> Admitted:
    """What of `table` (one occurrence per row) may be written over `stored` (row key → what is there)."""
    if not stored:
        return Admitted(table, pc.count_distinct(table["row_key"]).as_py(), 0)
    rows = table.group_by("row_key").aggregate([("version", "max"), ("live", "max"), ("hash", "max"), ("key", "count")])
    refused: list[str] = []
    leftovers: list[str] = []
    columns = ("row_key", "version_max", "live_max", "hash_max", "key_count")
    for key, version, live, row_hash, chunks in zip(*(rows[name].to_pylist() for name in columns), strict=True):
        old = stored.get(key)
        if old is None:
            continue
        buried = old.tombstone and (live or row_hash != "")
        if version < old.version or (version == old.version and buried):
            refused.append(key)
        else:
            leftovers.extend(chunk_key(key, ordinal) for ordinal in range(chunks, old.chunks))
    if refused:
        table = table.filter(pc.invert(pc.is_in(table["row_key"], pa.array(refused, pa.string()))))
    return Admitted(table, rows.num_rows - len(refused), len(refused), leftovers)


def stored_rows(columns: Mapping[str, Iterable[object]]) -> dict[str, StoredRow]:
    """Stored rows by key from the columns row_key, version, live, hash and ordinal of their chunks."""
    found: dict[str, StoredRow] = {}
    names = ("row_key", "version", "live", "hash", "ordinal")
    for key, version, live, row_hash, ordinal in zip(*(columns[name] for name in names), strict=True):
        old = found.get(str(key))
        count = max(int(ordinal) + 1, old.chunks if old else 0)
        found[str(key)] = StoredRow(int(version), not live and row_hash == "", count)
    return found
