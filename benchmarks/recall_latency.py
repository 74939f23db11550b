"""What Ray Serve and HTTP cost: warm `recall` over HTTP beside the same channels called directly, in one run.

python -m benchmarks.recall_latency --scale 4        # about 20,000 rows per plane

Prints p50 and p99 of the HTTP request, of each channel as the engine behind HTTP saw it and called directly in this
process with the same queries, and the two ratios that matter: HTTP p50 to the slowest channel called directly, and to
the sum of the three calls made one after the other. With --place the filled stores are kept and used again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import httpx

from deployments.serving import serving
from pipelines.backfill import run_backfill
from pipelines.importing import run_import
from recall.demo import ENTITIES, QUESTIONS, write_jsonl
from recall.engine import Engine
from recall.local import Local, open_local
from recall.ports import Channel, ChannelQuery
from recall.requests import RecallRequest, parse_request
from recall.results import ChannelAnswer
from recall.rows import Caller
from recall.settings import Settings, load_registry, load_settings

TENANT = "bench"
ENTITY_NAMES = ("asset", "work_order", "note")
K = 24


def fill(place: Path, scale: float) -> Settings:
    """A demo tenant of about 5,000 · `scale` rows in embedded stores under `place`; what is there already stays."""
    write_jsonl(place / "rows", scale=scale)
    config = place / "recall.yaml"
    config.write_text(f"data_dir: data\nentities: {ENTITIES}\nauth: {{ loopback_tenant: {TENANT} }}\n")
    settings = load_settings(config)
    registry = load_registry(settings)
    print(run_import(settings, registry, TENANT, [str(place / "rows")]).line())
    print(run_backfill(settings, registry, TENANT).line())
    return settings


async def timed(calls: int, call: Callable[[], Awaitable[object]]) -> list[float]:
    """Milliseconds of `calls` calls, one after the other, after a tenth as many that are not counted."""
    taken = []
    for number in range(calls + calls // 10):
        started = time.perf_counter()
        await call()
        if number >= calls // 10:
            taken.append((time.perf_counter() - started) * 1000)
    return taken


class Listener:
    """A channel that remembers what it was asked."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.queries: list[ChannelQuery] = []

    async def search(self, query: ChannelQuery) -> ChannelAnswer:
        self.queries.append(query)
        return await self._channel.search(query)


async def direct(local: Local, calls: int) -> dict[str, list[float]]:
    """Each channel called in this process, with the queries of the engine."""
    listeners = {name: Listener(channel) for name, channel in local.toolbox.channels.items()}
    engine = Engine(local.registry, listeners, local.planes.rows, local.settings.recall)
    for question in QUESTIONS:
        await engine.recall(Caller(TENANT), parse_request(RecallRequest, body(question.text)))
    taken: dict[str, list[float]] = {}
    for name, listener in listeners.items():
        queries = itertools.cycle(tuple(listener.queries))
        channel = local.toolbox.channels[name]
        taken[name] = await timed(calls, lambda queries=queries, channel=channel: channel.search(next(queries)))
    return taken


def body(text: str) -> dict[str, object]:
    return {"query": text, "budget": 4000, "entities": list(ENTITY_NAMES), "k": K}


async def over_http(url: str, calls: int, seen: dict[str, list[float]]) -> list[float]:
    """Milliseconds of the whole request; those of each channel, as the engine saw it, are added to `seen`."""
    texts = itertools.cycle([question.text for question in QUESTIONS])
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:

        async def ask() -> None:
            response = await client.post("/v1/recall", json=body(next(texts)))
            response.raise_for_status()
            answer = response.json()
            assert not answer["degraded"], answer["warnings"]
            for name, report in answer["channels"].items():
                seen.setdefault(name, []).append(report["ms"])

        return await timed(calls, ask)


def shown(name: str, taken: Sequence[float]) -> float:
    """Print p50 and p99, return p50."""
    ordered = sorted(taken)
    p50 = statistics.median(ordered)
    print(f"{name:<24} p50 {p50:6.1f} ms   p99 {ordered[int(len(ordered) * 0.99) - 1]:6.1f} ms")
    return p50


async def measure(settings: Settings, url: str, calls: int) -> None:
    local = open_local(settings)
    seen: dict[str, list[float]] = {}
    before = await over_http(url, calls, seen)
    channels = await direct(local, calls)
    after = await over_http(url, calls, seen)
    await local.close()
    for name, taken in seen.items():
        shown(f"{name}, behind HTTP", taken)
    medians = {name: shown(f"{name}, called directly", taken) for name, taken in channels.items()}
    http = shown("recall over HTTP", before + after)
    slowest = max(medians, key=lambda name: medians[name])
    print(f"HTTP p50 / slowest channel ({slowest}): {http / medians[slowest]:.2f}")
    print(f"HTTP p50 / the three calls in sequence: {http / sum(medians.values()):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=4.0)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--place", type=Path, help="folder of the stores, kept; by default a new one, removed")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = arguments.place or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = fill(place, arguments.scale)
        with serving(settings, port=0) as url:
            asyncio.run(measure(settings, url, arguments.calls))


if __name__ == "__main__":
    main()
