"""PostgreSQL, Milvus, OpenSearch and NebulaGraph together, selected by settings alone: import, backfill, recall.

The same files also go through the embedded stores; both must find the same rows. NebulaGraph is the stand-in, Milvus
is Milvus Lite behind its server's wire; PostgreSQL and OpenSearch are real.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import yaml
from servers.availability import CannotStart, unavailable
from servers.opensearch import opensearch_node
from servers.postgres import DATABASE, PASSWORD, PASSWORD_ENV, PostgresServer, postgres_server
from standins.line import Line
from standins.milvus import CannotStart as MilvusCannotStart
from standins.milvus import lite_server
from standins.nebula import Server as NebulaServer

from pipelines.backfill import run_backfill
from pipelines.context import ray_session
from pipelines.distill import run_distill
from pipelines.importing import run_import
from recall.demo import ENTITIES, QUESTIONS, write_jsonl
from recall.digest.nodes import DIGEST, TENANT_NODE
from recall.errors import IndexMissing
from recall.local import Local, open_local
from recall.planes.milvus import MilvusVectors
from recall.planes.nebula import NebulaGraph
from recall.planes.opensearch import OpenSearchSearch
from recall.planes.sql import SqlRows
from recall.requests import RecallRequest
from recall.results import ContextPack
from recall.rows import Caller, Ref, Tombstone
from recall.settings import Settings, load_registry, load_settings
from recall.tools import call_tool

pytestmark = [
    pytest.mark.server,
    pytest.mark.ray,
    pytest.mark.timeout(600),
]

TENANT, DIGESTED = "demo", "digested"
POOL = 6
SMALL = {"rows_per_part": 200, "write_retries": 6}
# Sixty-four questions at once on a busy machine are slow, not wrong.
PATIENT = {"timeout_ms": 60_000, "channel_timeout_ms": 50_000, "hydrate_timeout_ms": 50_000}
ASKED = [question for question in QUESTIONS if question.needs in ("words", "links")]


@dataclass(frozen=True)
class Cluster:
    """Where the servers are, and the lines on which connections to them can be counted."""

    postgres: PostgresServer
    milvus: Line
    opensearch: Line
    nebula: NebulaServer

    @property
    def planes(self) -> dict[str, Any]:
        name = f"e{uuid4().hex[:8]}"
        rows = {"kind": "postgres", "port": self.postgres.port, "database": DATABASE, "password_env": PASSWORD_ENV}
        host = f"http://127.0.0.1:{self.opensearch.port}"
        graph = {"kind": "nebula", "addresses": [self.nebula.address], "heartbeat_s": 0, "schema_wait_s": 10}
        return {
            "rows": {**rows, "db_schema": name, "threads": POOL, "pool_size": POOL + 2},
            "vector": {
                "kind": "milvus",
                "uri": f"http://127.0.0.1:{self.milvus.port}",
                "collection": name,
                "index": {"kind": "FLAT"},
                "read_timeout_s": 30,
            },
            "search": {"kind": "opensearch", "hosts": [host], "index": name, "replicas": 0, "pool_size": POOL},
            "graph": {**graph, "space": name, "pool_size": POOL},
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    os.environ[PASSWORD_ENV] = PASSWORD
    with ExitStack() as stack:
        try:
            postgres = stack.enter_context(postgres_server())
            node = stack.enter_context(opensearch_node(2, tmp_path_factory.mktemp("opensearch")))
            milvus = Line(stack.enter_context(lite_server(tmp_path_factory.mktemp("milvus"))))
        except (CannotStart, MilvusCannotStart) as reason:
            unavailable(reason)
        opensearch = Line(node.port)
        stack.callback(milvus.cut)
        stack.callback(opensearch.cut)
        yield Cluster(postgres, milvus, opensearch, stack.enter_context(NebulaServer()))


@pytest.fixture(scope="module")
def filled(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Settings files of both kinds, after an import and a backfill with each."""
    folder = tmp_path_factory.mktemp("e2e")
    files = write_jsonl(folder / "files", scale=0.06)
    settings: dict[str, Path] = {}
    with ray_session(load_settings()):
        for kind, planes in (("embedded", {}), ("cluster", cluster.planes)):
            settings[kind] = folder / f"{kind}.yaml"
            raw = {"data_dir": kind, "entities": str(ENTITIES), "planes": planes, "pipeline": SMALL, "recall": PATIENT}
            settings[kind].write_text(yaml.safe_dump({**raw, "embedder": {"kind": "hash", "dim": 256}}))
            fill(settings[kind], files)
    return settings


def fill(path: Path, files: Mapping[str, Path]) -> None:
    settings = load_settings(path)
    registry = load_registry(settings)
    imported = run_import(settings, registry, TENANT, [f"{name}={file}" for name, file in files.items()])
    assert (imported.failed, imported.written) == (0, imported.rows)
    backfilled = run_backfill(settings, registry, TENANT)
    assert (backfilled.errors, backfilled.failed) == ((), 0)
    again = run_backfill(settings, registry, TENANT)
    assert [lane.staged.changed for lane in again.lanes] == [0, 0, 0]


@pytest.fixture
def opened(filled: dict[str, Path]) -> Iterator[tuple[asyncio.Runner, dict[str, Local]]]:
    with asyncio.Runner() as loop:
        stores = {kind: open_local(load_settings(path)) for kind, path in filled.items()}
        yield loop, stores
        for store in stores.values():
            loop.run(store.close())


def request(text: str, **options: object) -> RecallRequest:
    asked = {"query": text, "budget": 4000, "entities": ["asset", "work_order", "note"], "timeout_ms": 60_000}
    return RecallRequest.model_validate({**asked, **options})


async def recall(store: Local, asked: RecallRequest, tenant: str = TENANT) -> ContextPack:
    return await store.toolbox.engine.recall(Caller(tenant), asked)


def found(pack: ContextPack) -> set[tuple[str, str]]:
    return {(item.entity, item.id) for item in pack.items}


def test_settings_alone_select_the_four_servers(opened: tuple[asyncio.Runner, dict[str, Local]]) -> None:
    planes = opened[1]["cluster"].planes
    kinds = [type(store) for store in (planes.rows, planes.vector, planes.search, planes.graph)]
    assert kinds == [SqlRows, MilvusVectors, OpenSearchSearch, NebulaGraph]


def test_every_plane_counts_the_same_rows(opened: tuple[asyncio.Runner, dict[str, Local]]) -> None:
    loop, stores = opened
    counts = {
        kind: [loop.run(getattr(store.planes, plane).count(TENANT)) for plane in ("rows", "vector", "search", "graph")]
        for kind, store in stores.items()
    }
    assert counts["cluster"] == counts["embedded"]
    assert all(counts["cluster"])


@pytest.mark.parametrize("question", ASKED, ids=lambda question: question.text[:30])
def test_both_kinds_of_stores_find_the_evidence(opened: tuple[asyncio.Runner, dict[str, Local]], question: Any) -> None:
    loop, stores = opened
    asked = request(question.text, entities=list(question.entities), hops=question.hops, budget=question.budget, k=48)
    packs = {kind: loop.run(recall(store, asked)) for kind, store in stores.items()}
    for pack in packs.values():
        assert (pack.degraded, pack.warnings) == ((), ())
    gold = (question.gold.entity, question.gold.id)
    assert (gold in found(packs["cluster"])) == (gold in found(packs["embedded"]))
    assert set(packs["cluster"].channels) == set(packs["embedded"].channels)


def test_each_channel_finds_the_same_rows(opened: tuple[asyncio.Runner, dict[str, Local]]) -> None:
    loop, stores = opened
    for channel, text in (("vector", "pump bearing noise"), ("search", "E-7731"), ("search", "TQ9-0042-118")):
        weights = {name: 1.0 if name == channel else 0.0 for name in ("vector", "search", "graph")}
        asked = request(text, channels=weights, hops=0, k=10, budget=20_000)
        rows = {kind: found(loop.run(recall(store, asked))) for kind, store in stores.items()}
        assert rows["cluster"]
        assert rows["cluster"] == rows["embedded"], channel


def test_filters_hold_in_every_store(opened: tuple[asyncio.Runner, dict[str, Local]]) -> None:
    loop, stores = opened
    asked = request("pump", entities=["work_order"], filters={"status": "open"}, k=200, budget=100_000)
    rows = {kind: loop.run(recall(store, asked)) for kind, store in stores.items()}
    assert found(rows["cluster"]) == found(rows["embedded"])
    assert {item.row["status"] for item in rows["cluster"].items} == {"open"}


def test_another_tenant_finds_nothing_to_ask_and_no_row(opened: tuple[asyncio.Runner, dict[str, Local]]) -> None:
    loop, stores = opened
    for store in stores.values():
        with pytest.raises(IndexMissing, match="stranger"):
            loop.run(recall(store, request("pump"), tenant="stranger"))
        assert loop.run(store.planes.rows.get_many(Caller("stranger"), "asset", ["asset-story-1"])) == {}
        assert loop.run(store.planes.rows.get_many(Caller(TENANT), "asset", ["asset-story-1"]))


def test_digests_of_both_kinds_are_the_same(filled: dict[str, Path], tmp_path: Path) -> None:
    """`recall distill` over PostgreSQL and the cluster's planes: one tree, kept up with changes, read by every tool."""
    files = write_jsonl(tmp_path, scale=0.02)
    last_note = files["note"].read_text(encoding="utf-8").splitlines()[-1]
    maps: dict[str, list[dict[str, Any]]] = {}
    with ray_session(load_settings()):
        for kind, path in filled.items():
            settings = load_settings(path)
            registry = load_registry(settings)
            assert run_import(settings, registry, DIGESTED, [f"{name}={file}" for name, file in files.items()]).written
            first = run_distill(settings, registry, DIGESTED)
            assert (first.failed, first.backfill is not None and first.backfill.errors) == (0, ())
            assert (first.written, first.removed) > (20, 0)
            again = run_distill(settings, registry, DIGESTED)
            assert (again.changed, again.calls, again.written, again.backfill) == (0, 0, 0, None)
            asyncio.run(bury(settings, Ref("note", json.loads(last_note)["id"])))
            last = run_distill(settings, registry, DIGESTED)
            assert (last.failed, last.removed >= 1) == (0, True)
            maps[kind], read = asyncio.run(digests_of(settings))
            # Which of them come first is the stores' own affair: they rank words differently.
            assert read
            assert read <= {(DIGEST, node["id"]) for node in maps[kind] if node["level"] == 1}
    assert maps["cluster"] == maps["embedded"]


async def bury(settings: Settings, ref: Ref) -> None:
    store = open_local(settings)
    row = (await store.planes.rows.get_many(Caller(DIGESTED), ref.entity, [ref.id]))[ref.id]
    store.planes.rows.delete(DIGESTED, [Tombstone(ref, row.version + 1)])
    await store.close()


async def digests_of(settings: Settings) -> tuple[list[dict[str, Any]], set[tuple[str, str]]]:
    """The whole map, after a walk from it down and back by hash; and what a question reads at the altitude `scope`."""
    store, caller = open_local(settings), Caller(DIGESTED)
    try:
        nodes = (await call_tool(store.toolbox, "map", caller, {}))["nodes"]
        root = await call_tool(store.toolbox, "digest", caller, {"node_id": TENANT_NODE})
        assert root["children"]
        hash_ = next(node["content_hash"] for node in nodes if node["id"] == TENANT_NODE)
        assert (await call_tool(store.toolbox, "resolve", caller, {"hash": hash_}))["matches"]
        pack = await recall(store, request("pump bearing noise", altitude="scope", hops=0), DIGESTED)
        return nodes, found(pack)
    finally:
        await store.close()


def test_sixty_four_recalls_at_once_hold_few_connections_and_little_memory(
    cluster: Cluster, opened: tuple[asyncio.Runner, dict[str, Local]]
) -> None:
    loop, stores = opened
    store = stores["cluster"]
    loop.run(recall(store, request("pump")))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Ray's workers may still hold theirs.
    calm = {"milvus": cluster.milvus.connections, "opensearch": cluster.opensearch.connections}
    most: dict[str, int] = {"postgres": 0, "milvus": 0, "opensearch": 0}

    async def watch(watching: psycopg.AsyncConnection) -> None:
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'recall'"
        while True:
            open_now = await (await watching.execute(count)).fetchone()
            seen = {"postgres": open_now[0], "milvus": cluster.milvus.connections}
            seen["opensearch"] = cluster.opensearch.connections
            for name, number in seen.items():
                most[name] = max(most[name], number)
            await asyncio.sleep(0.02)

    async def load() -> list[ContextPack]:
        address = {"host": "127.0.0.1", "port": cluster.postgres.port, "dbname": DATABASE}
        async with await psycopg.AsyncConnection.connect(
            **address, user="recall", password=PASSWORD, autocommit=True
        ) as watching:
            watcher = asyncio.create_task(watch(watching))
            packs = await asyncio.gather(*(recall(store, request(f"pump {i} bearing noise")) for i in range(64)))
            watcher.cancel()
        return packs

    packs = loop.run(load())
    assert all(pack.items and not pack.degraded for pack in packs)
    assert 0 < most["postgres"] <= POOL + 2
    # The first of the pool's connections is among the calm ones; Milvus has one for any number of calls.
    assert 0 < most["opensearch"] - calm["opensearch"] < POOL
    assert most["milvus"] == calm["milvus"]
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 300
