"""Distillation of many rows in one scope: wall time, model calls and memory of a first, an unchanged and a 1 % run.

    python -m benchmarks.distill_scale --rows 100000

Extractive summaries over the hash embedder: what is measured is everything around the models. Rows are short enough to
be their own summaries, so every call is one above the rows. Memory is the resident size of the largest process, and of
all processes of the run together without what they share.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processes import family
from pipelines.context import ray_session
from pipelines.distill import run_distill
from pipelines.distill_summary import DistillSummary
from recall.planes.opening import open_rows, plane_context
from recall.registry import Registry
from recall.rows import Ref, Row
from recall.settings import Settings

TENANT = "scale"
WORDS = 50
ENTITIES = {
    "entities": {
        "turn": {
            "columns": {"text": "string", "session": "string"},
            "distill": {"fields": ["text"], "scopes": ["session"]},
        }
    }
}


class Memory:
    """Samples the resident sizes of this process and everything below it."""

    def __init__(self) -> None:
        self.largest = self.together = 0
        self._ended = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[Memory]:
        self.largest = self.together = 0
        self._ended.clear()
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            sizes = [_private_bytes(pid) for pid in family(os.getpid())]
            self.largest = max(self.largest, *sizes)
            self.together = max(self.together, sum(sizes))


def _private_bytes(pid: int) -> int:
    """Resident bytes without files and shared memory: the object store is counted nowhere."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def rows(count: int, version: int = 1, salt: str = "") -> list[Row]:
    """Rows about one of 200 subjects each, in one scope."""
    made = []
    for at in range(count):
        dice = random.Random(f"{salt}{at}")
        subject = dice.randrange(200)
        words = [
            f"s{subject}w{dice.randrange(40)}" if dice.random() < 0.6 else f"w{dice.randrange(5000)}"
            for _ in range(WORDS)
        ]
        text = ". ".join(" ".join(words[n : n + 10]) for n in range(0, WORDS, 10)) + "."
        made.append(Row(Ref("turn", str(at)), version, {"id": str(at), "text": text, "session": "one"}))
    return made


def put(settings: Settings, registry: Registry, some: list[Row]) -> None:
    store = open_rows(settings, plane_context(settings, registry))
    store.prepare()
    for first in range(0, len(some), 10_000):
        store.upsert(TENANT, some[first : first + 10_000])
    asyncio.run(store.close())


def said(name: str, summary: DistillSummary, seconds: float, memory: Memory) -> None:
    print(
        f"| {name} | {seconds:.1f} | {summary.calls:,} | {summary.saved:,} | {summary.written:,} | {summary.removed:,} "
        f"| {summary.depth} | {memory.largest / 2**20:.0f} | {memory.together / 2**20:.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    count, workers = given.rows, given.workers
    memory = Memory()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.model_validate(
            {
                "data_dir": folder,
                "embedder": {"kind": "hash", "dim": 64},
                "pipeline": {"embedders": workers},
            }
        )
        registry = Registry.parse(ENTITIES)
        put(settings, registry, rows(count))
        print("| run | s | calls | saved | written | removed | passes | largest process, MiB | all, MiB |")
        print("|---|---|---|---|---|---|---|---|---|")
        with ray_session(settings):
            for name, changed in (("first", 0), ("unchanged", 0), ("1 % changed", count // 100)):
                put(settings, registry, rows(changed, 2, "new"))
                started = time.perf_counter()
                with memory.watched():
                    summary = run_distill(settings, registry, TENANT, load=False)
                said(name, summary, time.perf_counter() - started, memory)


if __name__ == "__main__":
    main()
