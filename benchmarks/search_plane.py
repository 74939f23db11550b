"""OpenSearch plane against the bare client, side by side in one run: load rows/s, search p50, 64 readers at once.

Batches and queries alternate between the two, so that a busy machine slows both. Starts a node of its own unless
`--url` names a server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from opensearchpy import AsyncOpenSearch, OpenSearch
from opensearchpy.helpers import streaming_bulk

from recall.keys import store_key
from recall.planes.opening import ModelId, PlaneContext
from recall.planes.opensearch import OpenSearchSearch
from recall.planes.opensearch_schema import OpenSearchLayout
from recall.ports import SearchQuery
from recall.registry import Registry
from recall.rows import Caller
from recall.schema import document_schema
from recall.settings import OpenSearchSettings

TENANT = "bench"
ENTITIES = {
    "note": {
        "columns": {"kind": {"type": "string", "filterable": True}, "text": "string"},
        "search": {"fields": ["text"]},
    }
}
REGISTRY = Registry.parse({"entities": ENTITIES})
# Words as frequent as in prose: the n-th one 1/n as often as the first.
WORDS = [f"word{n}" for n in range(1, 20_001)]
WEIGHTS = [1 / n for n in range(1, 20_001)]


def batch(first: int, size: int) -> pa.Table:
    rng = random.Random(first)
    ids = [f"n{first + i}" for i in range(size)]
    keys = [store_key(TENANT, "note", row_id) for row_id in ids]
    columns: dict[str, list[Any]] = {
        "row_key": keys,
        "entity": ["note"] * size,
        "id": ids,
        "version": [1] * size,
        "hash": keys,
        "live": [True] * size,
        "text": [" ".join(rng.choices(WORDS, WEIGHTS, k=80)) for _ in ids],
        "s_kind": ["rare" if (first + i) % 200 == 0 else "common" for i in range(size)],
    }
    schema = document_schema(REGISTRY)
    return pa.table([pa.array(columns.get(f.name, [None] * size), f.type) for f in schema], schema=schema)


class Bare:
    """What a script without an adapter would do, on an index with the same mapping."""

    def __init__(self, settings: OpenSearchSettings) -> None:
        template = OpenSearchLayout(settings, REGISTRY).template(dedicated=True)["template"]
        self.index = f"{settings.index}_bare"
        self.rows = settings.bulk_rows
        self.client = OpenSearch(list(settings.hosts), timeout=60)
        self.client.indices.create(index=self.index, body=template)
        self.reader = AsyncOpenSearch(list(settings.hosts), timeout=60, maxsize=settings.pool_size)

    def load(self, table: pa.Table) -> None:
        actions = (
            {"_index": self.index, "_id": row["key"], "_source": {"tenant": TENANT, **row}}
            for row in table.rename_columns(self._names(table)).to_pylist()
        )
        for ok, item in streaming_bulk(self.client, actions, chunk_size=self.rows):
            assert ok, item

    def _names(self, table: pa.Table) -> list[str]:
        """Column names as the mapping has them."""
        return ["key" if name == "row_key" else name for name in table.column_names]

    async def search(self, text: str, k: int, kind: str | None) -> int:
        filters: list[dict[str, Any]] = [{"term": {"tenant": TENANT}}, {"term": {"live": True}}]
        filters.append({"term": {"entity": "note"}})
        if kind:
            filters.append({"term": {"s_kind": kind}})
        query = {"bool": {"must": [{"match": {"text": text}}], "filter": filters}}
        order = [{"_score": "desc"}, {"entity": "asc"}, {"id": "asc"}]
        body = {"query": query, "sort": order, "size": k, "_source": ["entity", "id", "version"]}
        answer = await self.reader.search(index=self.index, body=body)
        return len(answer["hits"]["hits"])


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


async def timed_async(work: Awaitable[object]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def measure(args: argparse.Namespace, url: str) -> dict[str, Any]:
    settings = OpenSearchSettings(kind="opensearch", hosts=(url,), replicas=0, index=f"b{uuid.uuid4().hex[:8]}")
    store = OpenSearchSearch(settings, PlaneContext(REGISTRY, ModelId("bench", 8), Path()))
    store.prepare(TENANT)
    bare = Bare(settings)
    report: dict[str, Any] = {"server": bare.client.info()["version"]["number"], "rows": args.rows}
    report |= await asyncio.to_thread(loads, args, store, bare)
    bare.client.indices.refresh(index=bare.index)
    for label, kind in (("unfiltered", None), ("filter_0.5_percent", "rare")):
        report[f"search_ms_{label}"] = await searches(args, store, bare, kind)
    report["64_readers"] = await crowd(store, url)
    await store.close()
    await bare.reader.close()
    bare.client.indices.delete(index=f"{settings.index}*")
    bare.client.indices.delete_index_template(name=f"{settings.index}-*")
    bare.client.close()
    return report


def loads(args: argparse.Namespace, store: OpenSearchSearch, bare: Bare) -> dict[str, Any]:
    ours: list[float] = []
    theirs: list[float] = []
    # The first batch finds both sides cold.
    for number, first in enumerate(range(0, args.rows + args.batch, args.batch)):
        table = batch(first, args.batch)
        sides = [
            (ours, lambda table=table: store.upsert(TENANT, table)),
            (theirs, lambda table=table: bare.load(table)),
        ]
        for times, load in sides if number % 2 else sides[::-1]:
            taken = timed(load)
            if number:
                times.append(taken)
    rates = {"adapter": args.rows / sum(ours), "bare": args.rows / sum(theirs)}
    ratio = sum(theirs) / sum(ours)
    return {"load_rows_per_s": rates, "load_ratio": ratio, "finish_s": timed(lambda: store.finish(TENANT))}


async def searches(args: argparse.Namespace, store: OpenSearchSearch, bare: Bare, kind: str | None) -> dict[str, float]:
    from recall.where import parse_where

    where = parse_where({"kind": kind} if kind else None, {"note": REGISTRY.entity("note").filter_fields})
    rng = random.Random(8)
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(args.queries + 20):
        text = " ".join(rng.choices(WORDS[10:], WEIGHTS[10:], k=6))
        query = SearchQuery(Caller(TENANT), ("note",), text, args.k, where=where)
        sides = [
            (ours, lambda query=query: store.search(query, timeout_s=30)),
            (theirs, lambda text=text: bare.search(text, args.k, kind)),
        ]
        for times, search in sides if number % 2 else sides[::-1]:
            taken = await timed_async(search())
            if number >= 20:
                times.append(taken)
    adapter, client = 1000 * statistics.median(ours), 1000 * statistics.median(theirs)
    return {"adapter_p50": adapter, "bare_p50": client, "ratio": adapter / client}


async def crowd(store: OpenSearchSearch, url: str) -> dict[str, Any]:
    """64 readers, 10 searches each."""
    rng = random.Random(9)
    before, latencies = _resident_mb(), list[float]()
    peak = 0

    async def reader() -> None:
        nonlocal peak
        for _ in range(10):
            text = " ".join(rng.choices(WORDS[10:], WEIGHTS[10:], k=6))
            latencies.append(
                await timed_async(store.search(SearchQuery(Caller(TENANT), ("note",), text, 24), timeout_s=120))
            )
            peak = max(peak, _connections(url))

    taken = await timed_async(asyncio.gather(*(reader() for _ in range(64))))
    return {
        "connections": peak,
        "more_memory_mb": _resident_mb() - before,
        "searches_per_s": 640 / taken,
        "p50_ms": 1000 * statistics.median(latencies),
        "highest_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def _connections(url: str) -> int:
    """Connections to the server's port that are established; of this machine, so only on a server of one's own."""
    port = f":{int(url.rpartition(':')[2].rstrip('/')):04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(fields[2].endswith(port) and fields[3] == "01" for fields in map(str.split, lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--major", type=int, default=3, choices=(2, 3))
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--batch", type=int, default=4_000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("-k", type=int, default=24)
    args = parser.parse_args()
    if args.url:
        print(json.dumps(asyncio.run(measure(args, args.url)), indent=1))
        return
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from servers.opensearch import opensearch_node

    with tempfile.TemporaryDirectory() as folder, opensearch_node(args.major, Path(folder)) as node:
        print(json.dumps(asyncio.run(measure(args, node.url)), indent=1))


if __name__ == "__main__":
    main()
