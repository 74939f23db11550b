"""LanceDB vector plane against the bare client, side by side in one run: load rows/s and search p50.

Batches and queries alternate between the two, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from lancedb.expr import col, lit
from lancedb.index import HnswSq

from recall.keys import chunk_key, store_key
from recall.planes.lance import LanceVectors
from recall.planes.opening import ModelId, PlaneContext
from recall.ports import VectorQuery
from recall.registry import Registry
from recall.rows import Caller
from recall.schema import vector_schema
from recall.settings import LanceDbSettings

TENANT = "bench"
ENTITIES = {
    "note": {
        "columns": {"kind": {"type": "string", "filterable": True}, "text": "string"},
        "embed": {"fields": ["text"]},
    }
}


def unit_rows(rng: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    """Unit vectors around a few hundred centres, because uniform noise has no neighbours."""
    centres = np.random.default_rng(0).standard_normal((256, dim))
    vectors = centres[rng.integers(256, size=rows)] + 0.7 * rng.standard_normal((rows, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def batch(schema: pa.Schema, first: int, vectors: np.ndarray) -> pa.Table:
    size, dim = vectors.shape
    ids = [f"n{first + i}" for i in range(size)]
    keys = [store_key(TENANT, "note", row_id) for row_id in ids]
    columns: dict[str, Any] = {
        "key": [chunk_key(key, 0) for key in keys],
        "row_key": keys,
        "entity": ["note"] * size,
        "id": ids,
        "version": [1] * size,
        "hash": keys,
        "live": [True] * size,
        "s_kind": ["rare" if (first + i) % 200 == 0 else "common" for i in range(size)],
        **{name: [0] * size for name in ("ordinal", "start", "end")},
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim),
    }
    return pa.table([pa.array(columns.get(f.name, [None] * size), f.type) for f in schema], schema=schema)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Bare:
    """What a script without an adapter would do."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.table = lancedb.connect(folder, read_consistency_interval=timedelta(0)).create_table("bare", schema=schema)
        self.table.set_unenforced_primary_key("key")

    def load(self, table: pa.Table) -> None:
        self.table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(table)

    def search(self, vector: np.ndarray, k: int, kind: str | None) -> list[dict[str, Any]]:
        where = (col("live") == lit(True)) & col("entity").isin(["note"])
        if kind:
            where = where & (col("s_kind") == lit(kind))
        search = self.table.search(vector, vector_column_name="vector").distance_type("cosine")
        search = (
            search.where(where, prefilter=True).select(["entity", "id", "ordinal", "version", "_distance"]).limit(k)
        )
        return search.ef(200).refine_factor(3).to_arrow().to_pylist()


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    registry = Registry.parse({"entities": ENTITIES})
    schema = vector_schema(registry, args.dim)
    settings = LanceDbSettings(index_from=args.index_from)
    store = LanceVectors(settings, PlaneContext(registry, ModelId("bench", args.dim), folder))
    store.prepare(TENANT)
    bare, rng = Bare(folder / "bare", schema), np.random.default_rng(7)
    ours: list[float] = []
    theirs: list[float] = []
    for number, first in enumerate(range(0, args.rows, args.batch)):
        table = batch(schema, first, unit_rows(rng, min(args.batch, args.rows - first), args.dim))
        sides = [(ours, lambda t: store.upsert(TENANT, t)), (theirs, bare.load)]
        for times, load in sides if number % 2 else sides[::-1]:
            times.append(timed(lambda load=load, table=table: load(table)))
    report: dict[str, Any] = {"rows": args.rows, "dim": args.dim, "batch": args.batch}
    report["load_rows_per_s"] = {"adapter": args.rows / sum(ours), "bare": args.rows / sum(theirs)}
    report["load_ratio"] = sum(theirs) / sum(ours)
    report["finish_s"] = timed(lambda: store.finish(TENANT))
    bare.table.optimize()
    if args.rows >= args.index_from:
        bare.table.create_index("vector", config=HnswSq(distance_type="cosine", num_partitions=1))
    for label, kind in (("unfiltered", None), ("filter_0.5_percent", "rare")):
        report[f"search_ms_{label}"] = await searches(args, store, bare, registry, kind)
    await store.close()
    return report


async def searches(
    args: argparse.Namespace, store: LanceVectors, bare: Bare, registry: Registry, kind: str | None
) -> dict[str, float]:
    from recall.where import parse_where

    where = parse_where({"kind": kind} if kind else None, {"note": registry.entity("note").filter_fields})
    ours: list[float] = []
    theirs: list[float] = []
    for number, vector in enumerate(unit_rows(np.random.default_rng(8), args.queries + 5, args.dim)):
        started = time.perf_counter()
        hits = await store.search(VectorQuery(Caller(TENANT), ("note",), vector, args.k, where), timeout_s=30)
        taken = time.perf_counter() - started
        bare_taken = timed(lambda vector=vector: bare.search(vector, args.k, kind))
        assert len(hits) == min(args.k, args.rows)
        if number >= 5:
            ours.append(taken)
            theirs.append(bare_taken)
    adapter, client = 1000 * statistics.median(ours), 1000 * statistics.median(theirs)
    return {"adapter_p50": adapter, "bare_p50": client, "ratio": adapter / client}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--batch", type=int, default=2_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("-k", type=int, default=24)
    parser.add_argument("--index-from", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(args, Path(folder))), indent=1))


if __name__ == "__main__":
    main()
