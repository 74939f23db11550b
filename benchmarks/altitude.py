"""Evidence in packs at each altitude and budget: rows, digests, or both. One process, planes in memory, no Ray.

Two measures. Evidence *said*: a row counts whole, a digest for the sentences of a row that it says word for word.
Evidence *reached*: in the pack as a row, or beneath one of its digests, from where `digest` leads to it.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipelines.distill import run_distill
from pipelines.embed import EmbedStage
from pipelines.flow import InlineFlow
from pipelines.lanes import Lane
from pipelines.receipts import Receipt
from pipelines.stages import pending_table, plain_stage, split_pending
from recall.channels import GraphChannel, SearchChannel, VectorChannel
from recall.digest.nodes import DIGEST, TENANT_NODE
from recall.engine import Engine
from recall.evaluation.digests import Talk, mean, share_said
from recall.evaluation.readers import Query
from recall.model_ports import Embedder, Summarizer
from recall.models import LocalEncoder, open_embedder
from recall.models.extractive import ExtractiveSummarizer
from recall.planes.opening import Planes, open_planes, plane_context
from recall.records import PLANES, record, seen_by
from recall.registry import Registry
from recall.requests import RecallRequest
from recall.results import ContextPack
from recall.rows import Caller, Ref, Row
from recall.settings import Settings

BUDGETS = (500, 1500, 4000)
ALTITUDES = ("entity", "scope", "auto", "mixed")
REGISTRY = Registry.parse(
    {
        "entities": {
            "turn": {
                "columns": {"text": "string", "scope": "string"},
                "search": {"fields": ["text"]},
                "embed": {"fields": ["text"]},
                "distill": {"fields": ["text"], "scopes": ["scope"]},
                "pack_fields": ["text"],
            }
        }
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    said: float
    reached: float
    tokens: int
    # Whether a row stands beside a digest that covers it, which must never be.
    twice: bool


Found = dict[tuple[int, str], list[Answer]]


@lru_cache(maxsize=1)
def models() -> tuple[Embedder, Summarizer]:
    embedder = open_embedder(Settings().embedder)
    assert embedder is not None
    return embedder, ExtractiveSummarizer(embedder)


def opened(settings: Settings) -> tuple[Embedder, Summarizer]:
    return models()


def altitude(name: str, talks: Sequence[Talk], most: int) -> None:
    """Print both measures, tokens and evidence said per 1,000 tokens for each budget and altitude."""
    found: Found = {}
    started = time.perf_counter()
    for talk in talks:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_ask(talk, _settings(folder), most, found))
    count = len(found[BUDGETS[0], "entity"])
    print(f"\n{name}: {count} questions in {len(talks)} talks, {time.perf_counter() - started:.0f} s")
    print("| budget | altitude | evidence said | over entity | evidence reached | tokens | said per 1,000 tokens |")
    print("|---|---|---|---|---|---|---|")
    for (budget, level), answers in found.items():
        said = np.array([answer.said for answer in answers])
        gain = said - np.array([answer.said for answer in found[budget, "entity"]])
        chosen = np.random.default_rng(7).integers(0, count, (2000, count))
        low, high = np.quantile(gain[chosen].mean(axis=1), [0.025, 0.975])
        over = "" if level == "entity" else f"{gain.mean():+.3f} [{low:+.3f}, {high:+.3f}]"
        reached = np.mean([answer.reached for answer in answers])
        tokens = sum(answer.tokens for answer in answers)
        print(
            f"| {budget:,} | {level} | {said.mean():.3f} | {over} | {reached:.3f} | {tokens / count:,.0f} | "
            f"{1000 * said.sum() / max(1, tokens):.3f} |",
            flush=True,
        )
    packs = [answer for answers in found.values() for answer in answers]
    twice = sum(answer.twice for answer in packs)
    print(f"\nA row and a digest that covers it are both in {twice} of {len(packs):,} packs.")


def _settings(folder: str) -> Settings:
    memory = {"kind": "memory"}
    planes = {"vector": memory, "search": memory, "graph": memory}
    # A busy machine must not decide what an answer holds.
    patient = {"timeout_ms": 600_000, "channel_timeout_ms": 300_000, "hydrate_timeout_ms": 300_000}
    return Settings.model_validate({"data_dir": folder, "planes": planes, "recall": patient})


async def _ask(
    talk: Talk, settings: Settings, most: int, found: dict[tuple[int, str], list[tuple[float, int]]]
) -> None:
    planes = open_planes(settings, plane_context(settings, REGISTRY))
    planes.rows.prepare()
    rows = [Row(Ref("turn", turn.id), 1, {"text": turn.text, "scope": turn.scope}) for turn in talk.turns]
    planes.rows.upsert(talk.id, rows)
    await asyncio.to_thread(run_distill, settings, REGISTRY, talk.id, load=False, flow=InlineFlow(), open_models=opened)
    above = _fill(planes, settings, talk.id)
    channels = {
        "vector": VectorChannel(planes.vector, LocalEncoder(models()[0])),
        "search": SearchChannel(planes.search),
        "graph": GraphChannel(planes.graph, REGISTRY, settings.recall.graph),
    }
    engine = Engine(REGISTRY, channels, planes.rows, settings.recall)
    texts = {turn.id: turn.text for turn in talk.turns}
    questions = list(talk.questions)
    random.Random(7).shuffle(questions)
    for query in questions[:most]:
        for budget in BUDGETS:
            for level in ALTITUDES:
                request = RecallRequest(query=query.text, budget=budget, entities=["turn"], altitude=level)
                pack = await engine.recall(Caller(talk.id), request)
                found.setdefault((budget, level), []).append(_measured(query, pack, texts, above))
    await planes.close()


def _measured(query: Query, pack: ContextPack, texts: Mapping[str, str], above: Mapping[str, set[str]]) -> Answer:
    rows = {item.id for item in pack.items if item.entity != DIGEST}
    digests = {item.id: str(item.row["summary"]) for item in pack.items if item.entity == DIGEST}
    said = [1.0 if ref.id in rows else share_said(texts[ref.id], digests.values()) for ref in query.relevant]
    reached = [ref.id in rows or bool(above[ref.id] & digests.keys()) for ref in query.relevant]
    return Answer(mean(said), mean(reached), pack.tokens, any(above[row] & digests.keys() for row in rows))


def _fill(planes: Planes, settings: Settings, tenant: str) -> dict[str, set[str]]:
    """What a backfill does, in one process. Returns the digests above each turn."""
    rows = [
        row
        for name in REGISTRY.entities
        for page in planes.rows.pages(tenant, name, 100_000)
        for row in planes.rows.read_page(tenant, name, page)
    ]
    stores = {"vector": planes.vector, "search": planes.search, "graph": planes.graph}
    for plane in PLANES:
        lane = Lane(plane, tenant, settings, REGISTRY)
        entities = {name: entity for name, entity in REGISTRY.entities.items() if seen_by(plane, entity)}
        records = [record(plane, tenant, entities[row.ref.entity], row) for row in rows if row.ref.entity in entities]
        pending, _ = split_pending(pending_table(records, Receipt(), lane.pending_schema))
        stage = EmbedStage(models()[0], REGISTRY, lane.staged_schema) if plane == "vector" else None
        stores[plane].prepare(tenant)
        for staged in stage(pending) if stage else plain_stage(pending, lane.staged_schema):
            lane.upsert(stores[plane], staged.table)
        stores[plane].finish(tenant)
    return {
        str(row.values["source_id"]): {row.ref.id, TENANT_NODE, *map(str, row.values["parent_ids"] or ())}
        for row in rows
        if row.ref.entity == DIGEST and row.values.get("level") == 0
    }
