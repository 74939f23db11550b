"""Milvus vector plane against the bare client, side by side in one run: load rows/s and search p50.

python benchmarks/milvus_plane.py --uri http://127.0.0.1:19530
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from pymilvus import AsyncMilvusClient, MilvusClient
from vector_plane import ENTITIES, TENANT, batch, timed, unit_rows

from recall.planes.milvus import MilvusVectors
from recall.planes.milvus_schema import MilvusLayout
from recall.planes.opening import ModelId, PlaneContext
from recall.ports import VectorQuery
from recall.registry import Registry
from recall.rows import Caller
from recall.schema import vector_schema
from recall.settings import MilvusSettings

FIELDS = ["entity", "id", "ordinal", "start", "end", "version"]


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    registry = Registry.parse({"entities": ENTITIES})
    context = PlaneContext(registry, ModelId("bench", args.dim), Path())
    raw = {"kind": "milvus", "uri": args.uri, "collection": f"bench{uuid4().hex[:6]}", "index": {"kind": args.index}}
    settings = MilvusSettings.model_validate(raw)
    store, layout = MilvusVectors(settings, context), MilvusLayout(settings, context)
    client, bare = MilvusClient(args.uri), f"{settings.collection}_bare"
    store.prepare(TENANT)
    indexes, version = layout.index_params(), client.get_server_version()
    client.create_collection(bare, schema=layout.schema(version), index_params=indexes, consistency_level="Bounded")
    try:
        report = load(args, store, client, bare, layout)
        store.finish(TENANT)
        client.flush(bare)
        await asyncio.sleep(args.settle_s)
        report["search_ms"] = await searches(args, store, bare, layout)
    finally:
        await store.close()
        client.drop_collection(bare)
        client.drop_alias(layout.alias(TENANT))
        client.drop_collection(layout.collection(TENANT))
        client.close()
    return report


def load(
    args: argparse.Namespace, store: MilvusVectors, client: MilvusClient, bare: str, layout: MilvusLayout
) -> dict[str, Any]:
    schema = vector_schema(Registry.parse({"entities": ENTITIES}), args.dim)
    rng = np.random.default_rng(7)
    ours = theirs = 0.0
    for number, first in enumerate(range(0, args.rows, args.batch)):
        table = batch(schema, first, unit_rows(rng, min(args.batch, args.rows - first), args.dim))
        rows = list(layout.rows(TENANT, table))
        for adapter in (True, False) if number % 2 else (False, True):
            if adapter:
                ours += timed(lambda table=table: store.upsert(TENANT, table))
                continue
            for start in range(0, len(rows), 1000):
                theirs += timed(lambda part=rows[start : start + 1000]: client.upsert(bare, part))
    figures = {"adapter_rows_per_s": args.rows / ours, "bare_rows_per_s": args.rows / theirs, "ratio": theirs / ours}
    return {"rows": args.rows, "dim": args.dim, "index": args.index, "load": figures}


async def searches(args: argparse.Namespace, store: MilvusVectors, bare: str, layout: MilvusLayout) -> dict[str, float]:
    client = AsyncMilvusClient(args.uri)
    ours: list[float] = []
    theirs: list[float] = []
    for number, vector in enumerate(unit_rows(np.random.default_rng(8), args.queries + 10, args.dim)):
        started = time.perf_counter()
        await store.search(VectorQuery(Caller(TENANT), ("note",), vector, args.k), timeout_s=30)
        middle = time.perf_counter()
        await client.search(
            bare,
            data=[vector.tolist()],
            anns_field="vector",
            filter=f'tenant == "{TENANT}" and live == true and entity in ["note"]',
            limit=args.k,
            output_fields=FIELDS,
            search_params=layout.search_params(args.k),
            consistency_level="Bounded",
        )
        if number >= 10:
            ours.append(middle - started)
            theirs.append(time.perf_counter() - middle)
    await client.close()
    adapter, bare_ms = 1000 * statistics.median(ours), 1000 * statistics.median(theirs)
    return {"adapter_p50": adapter, "bare_p50": bare_ms, "ratio": adapter / bare_ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--index", default="HNSW")
    parser.add_argument("--settle-s", type=float, default=5.0, help="seconds to wait for the server's index")
    parser.add_argument("-k", type=int, default=24)
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
