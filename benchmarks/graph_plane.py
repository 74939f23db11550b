"""NebulaGraph graph plane against the bare client, side by side in one run: load rows/s, read p50, 64 recalls at once.

Batches and reads alternate between the two. Without `--addresses` a stand-in in a process of its own answers; its speed
is Python's, so only the ratios mean something then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from nebula3.Config import Config
from nebula3.gclient.net import ConnectionPool
from nebula3.gclient.net.Session import Session

from recall.keys import content_hash, store_key
from recall.planes.nebula import NebulaGraph
from recall.planes.nebula_reading import StepKind
from recall.planes.nebula_text import inserts, quoted, space_name, text
from recall.planes.opening import ModelId, PlaneContext
from recall.ports import NeighbourQuery
from recall.registry import Registry, Step
from recall.rows import Caller, Ref
from recall.schema import edge_schema, node_schema
from recall.settings import NebulaSettings

ENTITIES = {
    "entities": {
        "note": {
            "columns": {"kind": {"type": "string", "filterable": True}, "next": "strings"},
            "edges": [{"field": "next", "rel": "NEXT", "target": "note"}],
        }
    }
}
STEP = Step("note", "NEXT", "note", reverse=False)
COLUMNS = ("tenant", "scope", "rid", "version", "hash", "s_kind")


@contextmanager
def server(addresses: str | None) -> Iterator[tuple[str, ...]]:
    if addresses:
        yield tuple(addresses.split(","))
        return
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "tests")}
    command = [sys.executable, "-m", "standins.nebula", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield (process.stdout.readline().split()[-1],)
        process.terminate()


class Rows:
    """Notes, each with three edges to later ones."""

    def __init__(self, tenant: str, registry: Registry, first: int, size: int) -> None:
        self.tenant = tenant
        self.ids = [f"n{first + i}" for i in range(size)]
        self.keys = [store_key(tenant, "note", row_id) for row_id in self.ids]
        self.targets = [[f"n{first + (i * 7 + j * 13 + 1) % size}" for j in range(3)] for i in range(size)]
        self.registry = registry

    def nodes(self) -> pa.Table:
        rows = [
            {
                "row_key": key,
                "entity": "note",
                "id": row_id,
                "scope": None,
                "version": 1,
                "live": True,
                "s_kind": "common",
            }
            | {"hash": content_hash(row_id)}
            for key, row_id in zip(self.keys, self.ids, strict=True)
        ]
        return pa.Table.from_pylist(rows, schema=node_schema(self.registry))

    def edges(self) -> pa.Table:
        rows = [
            {"owner": key, "source_entity": "note", "source_id": row_id, "rel": "NEXT", "version": 1}
            | {"target_entity": "note", "target_id": target}
            for key, row_id, targets in zip(self.keys, self.ids, self.targets, strict=True)
            for target in targets
        ]
        return pa.Table.from_pylist(rows, schema=edge_schema())

    def bare(self) -> list[str]:
        """The INSERT statements alone: same rows, same bytes, no reads before them."""
        vertices = (
            (text(key), (self.tenant, None, row_id, 1, content_hash(row_id), "common"))
            for key, row_id in zip(self.keys, self.ids, strict=True)
        )
        edges = (
            (f"{text(key)}->{text(store_key(self.tenant, 'note', target))}@0", (1,))
            for key, targets in zip(self.keys, self.targets, strict=True)
            for target in targets
        )
        head = ",".join(quoted(name) for name in COLUMNS)
        batches = [*inserts(f"INSERT VERTEX `note`({head})", vertices, 500, 1_000_000)]
        batches += inserts("INSERT EDGE `NEXT`(`version`)", edges, 500, 1_000_000)
        return [batch.text for batch in batches]


def timed(work: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started


def insert(session: Session, rows: Rows) -> None:
    run_all(session, rows.bare())


def fetch(session: Session, statement: str) -> list[list[str]]:
    """Rows as Python values, by the client library's own means."""
    found = session.execute(statement)
    return [[value.as_string() for value in found.row_values(i)] for i in range(found.row_size())]


def run_all(session: Session, statements: list[str]) -> None:
    for statement in statements:
        found = session.execute(statement)
        assert found.is_succeeded(), found.error_msg()


def load(store: NebulaGraph, session: Session, registry: Registry, rows: int) -> dict[str, float]:
    spent = {"adapter": 0.0, "bare": 0.0}
    for first in range(0, rows, 1000):
        mine, theirs = Rows("bench", registry, first, 1000), Rows("bare", registry, first, 1000)
        nodes, edges = mine.nodes(), mine.edges()
        spent["adapter"] += timed(store.upsert, "bench", nodes, edges)
        spent["bare"] += timed(insert, session, theirs)
    return {name: rows / seconds for name, seconds in spent.items()}


def read(store: NebulaGraph, session: Session, registry: Registry, count: int) -> dict[str, list[float]]:
    """Sorted milliseconds of one hop from eight seeds."""
    spent: dict[str, list[float]] = {"adapter": [], "bare": []}
    with asyncio.Runner() as runner:
        for i in range(count):
            refs = tuple(Ref("note", f"n{(i * 8 + j) % 1000}") for j in range(8))
            query = NeighbourQuery(Caller("bench"), refs, (STEP,), 64)
            vids = [store_key("bench", "note", ref.id) for ref in refs]
            statement = f"{StepKind('note', registry.entity('note'), False, ('NEXT',), query).go(vids)} | LIMIT 1001"
            # Whoever goes second finds a warm server: take turns.
            if i % 2:
                spent["bare"].append(timed(fetch, session, statement))
            spent["adapter"].append(timed(runner.run, store.neighbours(query)))
            if not i % 2:
                spent["bare"].append(timed(fetch, session, statement))
    return {name: sorted(1000 * seconds for seconds in times) for name, times in spent.items()}


def shown(times: dict[str, list[float]], share: float) -> dict[str, float]:
    """A quantile of both, and their ratio. On a busy machine the low one says more: it saw the fewest interruptions."""
    found = {name: round(values[int(len(values) * share)], 2) for name, values in times.items()}
    return {**found, "ratio": round(found["adapter"] / found["bare"], 2)}


def at_once(store: NebulaGraph, recalls: int) -> float:
    """Seconds of `recalls` one-hop reads that start together."""

    async def all_of_them() -> None:
        queries = [NeighbourQuery(Caller("bench"), (Ref("note", f"n{i}"),), (STEP,), 64) for i in range(recalls)]
        await asyncio.gather(*(store.neighbours(query, timeout_s=60) for query in queries))

    return timed(lambda: asyncio.run(all_of_them()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--addresses", help="host:port of a real cluster, comma-separated (root, shipped password)")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--reads", type=int, default=200)
    options = parser.parse_args()
    registry = Registry.parse(ENTITIES)
    with server(options.addresses) as addresses:
        wait = 10.0 if options.addresses else 0.0
        settings = NebulaSettings(kind="nebula", addresses=addresses, space="bench", heartbeat_s=wait)
        store = NebulaGraph(settings, PlaneContext(registry, ModelId("none", 2), Path()))
        store.prepare("bench")
        config = Config()
        config.timeout = 60_000
        pool = ConnectionPool()
        pool.init([(host, int(port)) for host, _, port in (address.rpartition(":") for address in addresses)], config)
        session = pool.get_session("root", "nebula")
        run_all(session, [f"USE {quoted(space_name('bench', registry, None))}"])
        loaded = load(store, session, registry, options.rows)
        times = read(store, session, registry, options.reads)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = at_once(store, 64)
        held = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        session.release()
        pool.close()
        asyncio.run(store.close())
    figures = {
        "server": options.addresses or "stand-in",
        "rows": options.rows,
        "load_rows_per_s": {name: round(value) for name, value in loaded.items()},
        "load_ratio": round(loaded["adapter"] / loaded["bare"], 2),
        "read_p50_ms": shown(times, 0.5),
        "read_p10_ms": shown(times, 0.1),
        "at_once": {
            "recalls": 64,
            "seconds": round(seconds, 2),
            "sessions": settings.pool_size,
            "mib_more": round(held, 1),
        },
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
