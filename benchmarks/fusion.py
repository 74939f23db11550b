"""Fusion and packing of 3 × 1,000 candidates, against a plain dict and sort on the same lists in the same run.

Both sides alternate within one process, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from recall.fusion import fuse
from recall.packing import pack
from recall.results import Candidate
from recall.rows import Ref

CHANNELS = ("vector", "search", "graph")
Lists = Mapping[str, Sequence[Candidate]]


def ranked_lists(rng: random.Random, size: int) -> Lists:
    """One list of `size` candidates a channel; a third of the refs is found by more than one channel."""
    pool = [Ref(rng.choice(("note", "asset", "work_order")), f"row-{number:06d}") for number in range(2 * size)]
    return {
        name: tuple(Candidate(ref, rank, 1.0 / rank) for rank, ref in enumerate(rng.sample(pool, size), 1))
        for name in CHANNELS
    }


def ours(method: str, lists: Lists, sizes: Mapping[Ref, int], budget: int) -> list[Ref]:
    ranking = fuse("convex" if method == "convex" else "rrf", lists, dict.fromkeys(CHANNELS, 1.0))
    packed = pack("prefix", (sizes[ref] for ref in ranking.refs), budget)
    return [ranking.refs[position] for position in packed.kept]


def plain(lists: Lists, sizes: Mapping[Ref, int], budget: int) -> list[Ref]:
    """What one would write on the spot: no duplicates handled, the tie-break in the sort key."""
    scores: dict[Ref, float] = {}
    for name in sorted(lists):
        for candidate in lists[name]:
            scores[candidate.ref] = scores.get(candidate.ref, 0.0) + 1.0 / (60 + candidate.rank)
    kept, used = [], 0
    for ref, _ in sorted(scores.items(), key=lambda item: (-item[1], item[0].entity, item[0].id)):
        if used + sizes[ref] > budget:
            break
        used += sizes[ref]
        kept.append(ref)
    return kept


def measure(size: int, runs: int, budget: int) -> dict[str, dict[str, float]]:
    rng = random.Random(7)
    sides: dict[str, Callable[[Lists, Mapping[Ref, int], int], list[Ref]]] = {
        "rrf + pack": lambda *arguments: ours("rrf", *arguments),
        "convex + pack": lambda *arguments: ours("convex", *arguments),
        "plain dict and sort": plain,
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    gc.disable()
    for run in range(runs):
        lists = ranked_lists(rng, size)
        sizes = {candidate.ref: rng.randint(20, 200) for found in lists.values() for candidate in found}
        assert ours("rrf", lists, sizes, budget) == plain(lists, sizes, budget)
        for name in list(sides)[:: 1 if run % 2 else -1]:
            started = time.perf_counter()
            sides[name](lists, sizes, budget)
            times[name].append(1000 * (time.perf_counter() - started))
        gc.collect(0)
    gc.enable()
    return {
        name: {"median_ms": statistics.median(found), "p99_ms": statistics.quantiles(found, n=100)[98]}
        for name, found in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=1000, help="per channel")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--budget", type=int, default=8000)
    args = parser.parse_args()
    print(json.dumps(measure(args.candidates, args.runs, args.budget), indent=1))


if __name__ == "__main__":
    main()
