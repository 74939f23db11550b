"""What Ray Serve and HTTP cost: warm `recall` over HTTP beside the same channels called directly, in one run.

python -m benchmarks.recall_latency --scale 4        # about 20,000 rows per plane

Prints p50 and p99 of the HTTP request, of each channel called directly in this process, and the two ratios that
matter: HTTP p50 to the slowest channel's p50, and to the sum of the same calls made one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import httpx

from deployments.serving import serving
from pipelines.backfill import run_backfill
from pipelines.importing import run_import
from recall.demo import ENTITIES, QUESTIONS, write_jsonl
from recall.local import Local, open_local
from recall.ports import ChannelQuery
from recall.rows import Caller
from recall.settings import Settings, load_registry, load_settings

TENANT = "bench"
ENTITY_NAMES = ("asset", "work_order", "note")
K = 24


def fill(place: Path, scale: float) -> Settings:
    """A demo tenant of about 5,000 · `scale` rows in embedded stores under `place`."""
    write_jsonl(place / "rows", scale=scale)
    config = place / "recall.yaml"
    config.write_text(f"data_dir: data\nentities: {ENTITIES}\nauth: {{ loopback_tenant: {TENANT} }}\n")
    settings = load_settings(config)
    registry = load_registry(settings)
    print(run_import(settings, registry, TENANT, [str(place / "rows")]).line())
    print(run_backfill(settings, registry, TENANT).line())
    return settings


def question_texts() -> Iterator[str]:
    return itertools.cycle([question.text for question in QUESTIONS])


async def timed(calls: int, call: Callable[[], Awaitable[object]]) -> list[float]:
    """Milliseconds of `calls` calls, one after the other, after a tenth as many that are not counted."""
    taken = []
    for number in range(calls + calls // 10):
        started = time.perf_counter()
        await call()
        if number >= calls // 10:
            taken.append((time.perf_counter() - started) * 1000)
    return taken


async def direct(local: Local, calls: int) -> dict[str, list[float]]:
    """Each channel called in this process; the graph from the seeds that vector and search find."""
    caller, texts = Caller(TENANT), question_texts()
    channels = local.toolbox.channels
    taken: dict[str, list[float]] = {}
    for name in ("vector", "search"):

        async def ask(name: str = name) -> object:
            return await channels[name].search(ChannelQuery(caller, next(texts), ENTITY_NAMES, K * len(ENTITY_NAMES)))

        taken[name] = await timed(calls, ask)
    seeds = []
    for text in [question.text for question in QUESTIONS]:
        found = await channels["vector"].search(ChannelQuery(caller, text, ENTITY_NAMES, 8))
        seeds.append(tuple(candidate.ref for candidate in found.candidates))
    chosen = itertools.cycle(seeds)

    async def walk() -> object:
        return await channels["graph"].search(ChannelQuery(caller, "", ENTITY_NAMES, K, seeds=next(chosen), hops=1))

    taken["graph"] = await timed(calls, walk)
    return taken


async def over_http(url: str, calls: int) -> list[float]:
    texts = question_texts()
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:

        async def ask() -> object:
            body = {"query": next(texts), "budget": 4000, "entities": list(ENTITY_NAMES), "k": K}
            answer = await client.post("/v1/recall", json=body)
            answer.raise_for_status()
            assert not answer.json()["degraded"], answer.json()["warnings"]
            return answer

        return await timed(calls, ask)


def shown(name: str, taken: Sequence[float]) -> float:
    """Print p50 and p99, return p50."""
    ordered = sorted(taken)
    p50 = statistics.median(ordered)
    print(f"{name:<22} p50 {p50:6.1f} ms   p99 {ordered[int(len(ordered) * 0.99) - 1]:6.1f} ms")
    return p50


async def measure(settings: Settings, url: str, calls: int) -> None:
    local = open_local(settings)
    before = await over_http(url, calls)
    channels = await direct(local, calls)
    after = await over_http(url, calls)
    await local.close()
    medians = {name: shown(f"{name}, called directly", taken) for name, taken in channels.items()}
    http = shown("recall over HTTP", before + after)
    slowest = max(medians, key=lambda name: medians[name])
    print(f"HTTP p50 / slowest channel ({slowest}): {http / medians[slowest]:.2f}")
    print(f"HTTP p50 / the three calls in sequence: {http / sum(medians.values()):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=4.0)
    parser.add_argument("--calls", type=int, default=300)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        settings = fill(Path(place), arguments.scale)
        with serving(settings, port=0) as url:
            asyncio.run(measure(settings, url, arguments.calls))


if __name__ == "__main__":
    main()
