"""OpenVINO and ONNX Runtime on the same model and texts, side by side in one run: rows/s, tokens per CPU-second, RSS.

Each runtime lives in a process of its own, so that memory and CPU time are its own; rounds alternate between them. Also
measured: one query alone, how far a vector moves with its batch, and how far the runtimes are apart.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from recall.demo import generate
from recall.models.minilm import MiniLmEmbedder
from recall.settings import MiniLmSettings

RUNTIMES = ("openvino", "onnxruntime")
QUERIES = ("bearing too hot", "which pump lost pressure after the seal was replaced", "who has the key of the station")


def corpora(embedder: MiniLmEmbedder, short: int, long: int) -> dict[str, list[str]]:
    """Short rows: numbered job titles. Long ones: jobs of 50 to 60 tokens, about 55 in the mean."""
    orders = generate(scale=1.0)["work_order"]
    titles = [f"{number} {orders[number % len(orders)]['title']}" for number in range(short)]
    texts = [str(order["text"]) for order in orders]
    sizes = [len(spans) for spans in embedder.token_spans(texts)]
    fitting = [text for text, size in zip(texts, sizes, strict=True) if 48 <= size <= 58]
    return {f"{short} short rows": titles, f"{long} texts of ~55 tokens": fitting[:long]}


def serve(settings: MiniLmSettings, link: Connection) -> None:
    """Child process: embed what arrives, answer with wall and CPU seconds."""
    before = resident()
    started = time.perf_counter()
    embedder = MiniLmEmbedder(settings)
    link.send({"open_s": time.perf_counter() - started, "rss_of_libraries_and_model_mib": resident() - before})
    while (texts := link.recv()) is not None:
        wall, cpu = time.perf_counter(), time.process_time()
        vectors = embedder.embed(texts)
        link.send((time.perf_counter() - wall, time.process_time() - cpu, resident(), vectors))


def resident() -> float:
    """MiB that this process holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Child:
    """One runtime in a process of its own."""

    def __init__(self, settings: MiniLmSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(settings, theirs), daemon=True)
        self._process.start()
        self.opened: dict[str, float] = self._link.recv()

    def embed(self, texts: Sequence[str]) -> tuple[float, float, float, np.ndarray]:
        self._link.send(list(texts))
        answer: tuple[float, float, float, np.ndarray] = self._link.recv()
        return answer

    def close(self) -> None:
        self._link.send(None)
        self._process.join()


def bulk(children: dict[str, Child], texts: list[str], tokens: int, rounds: int) -> dict[str, Any]:
    """Best of `rounds` alternating rounds."""
    walls: dict[str, list[float]] = {name: [] for name in children}
    cpus: dict[str, list[float]] = {name: [] for name in children}
    report: dict[str, Any] = {}
    for _ in range(rounds):
        for name, child in children.items():
            wall, cpu, rss, _ = child.embed(texts)
            walls[name].append(wall)
            cpus[name].append(cpu)
            report[name] = {"rss_mib": round(rss)}
    for name, found in report.items():
        found["rows_per_s"] = round(len(texts) / min(walls[name]))
        found["tokens_per_cpu_s"] = round(tokens / min(cpus[name]))
    return report


def single(children: dict[str, Child], runs: int) -> dict[str, Any]:
    """Milliseconds of one query alone."""
    times: dict[str, list[float]] = {name: [] for name in children}
    for run in range(runs):
        for name, child in children.items():
            times[name].append(1000 * child.embed([QUERIES[run % len(QUERIES)]])[0])
    return {name: {"p50_ms": statistics.median(found), "min_ms": min(found)} for name, found in times.items()}


def agreement(children: dict[str, Child], texts: list[str]) -> dict[str, Any]:
    """How a vector depends on its batch and on the runtime."""
    together = {name: child.embed(texts)[3] for name, child in children.items()}
    report: dict[str, Any] = {"largest_move_with_the_batch": {}}
    for name, child in children.items():
        alone = np.concatenate([child.embed([text])[3] for text in texts])
        report["largest_move_with_the_batch"][name] = float(np.abs(together[name] - alone).max())
    left, right = (together[name] for name in RUNTIMES)
    cosines = (left * right).sum(axis=1)
    report["cosine_between_runtimes"] = {"mean": float(cosines.mean()), "min": float(cosines.min())}
    order = [np.argsort(-(vectors @ vectors.T), axis=1)[:, 1:11] for vectors in (left, right)]
    shared = [len(set(a) & set(b)) / 10 for a, b in zip(*order, strict=True)]
    report["shared_among_10_nearest"] = float(np.mean(shared))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", type=int, default=20_000)
    parser.add_argument("--long", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--threads", type=int, default=MiniLmSettings().threads)
    parser.add_argument("--batch-tokens", type=int, default=MiniLmSettings().batch_tokens)
    args = parser.parse_args()
    chosen = {
        name: MiniLmSettings.model_validate(
            {"runtime": name, "threads": args.threads, "batch_tokens": args.batch_tokens}
        )
        for name in RUNTIMES
    }
    counter = MiniLmEmbedder(chosen["openvino"])
    texts = corpora(counter, args.short, args.long)
    children = {name: Child(settings) for name, settings in chosen.items()}
    report: dict[str, Any] = {"opening": {name: child.opened for name, child in children.items()}}
    report["one query"] = single(children, args.queries)
    for label, found in texts.items():
        # Two special tokens a text.
        tokens = sum(len(spans) + 2 for spans in counter.token_spans(found))
        report[label] = {"tokens": tokens, **bulk(children, found, tokens, args.rounds)}
    report["agreement"] = agreement(children, list(texts.values())[1])
    for child in children.values():
        child.close()
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
