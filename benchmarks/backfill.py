"""What a backfill costs beside its embedder: rows/s and CPU time of both in one run, peak memory, memory slope.

CPU time is the number to trust on a machine that others use. The whole family of processes counts, Ray's own included.

python -m benchmarks.backfill --rows 20000                                  # made-up sentences of 8 to 24 words
python -m benchmarks.backfill --rows 8000 --corpus FOLDER/corpus.jsonl      # passages of a BEIR corpus
python -m benchmarks.backfill --rows 20000 --embedder hash --slope
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from benchmarks.processes import family
from pipelines.backfill import BackfillSummary, run_backfill
from pipelines.importing import run_import
from recall.models import open_embedder
from recall.records import PLANES
from recall.registry import Registry
from recall.settings import Settings

REGISTRY = Registry.parse(
    {
        "entities": {
            "note": {
                "columns": {"title": "string", "year": {"type": "int", "filterable": True}, "site": "string"},
                "search": {"fields": ["title"]},
                "embed": {"fields": ["title"]},
                "edges": [{"field": "site", "rel": "AT", "target": "site"}],
            },
            "site": {"columns": {"name": "string"}},
        }
    }
)
# Characters; English has about four to a token of the model, which takes 256.
LONGEST = 800
WORDS = (
    "pump valve sensor alarm pressure temperature night shift report leak north hall bearing motor cooling line "
    "operator replaced checked vibration again before after the of in was is with no sign repair oil seal filter"
)


def texts(count: int, corpus: Path | None = None) -> list[str]:
    """The first short passages of `corpus`, or sentences of 8 to 24 words: the same in every run.

    Short is what fits one chunk: of a longer text the bare embedder sees the beginning, a backfill all of it.
    """
    if corpus is not None:
        with corpus.open(encoding="utf-8") as lines:
            found = (json.loads(line)["text"] for line in lines)
            return list(islice((text for text in found if len(text) <= LONGEST), count))
    chance = random.Random(7)
    words = WORDS.split()
    return [" ".join(chance.choices(words, k=chance.randint(8, 24))) + f" {number}" for number in range(count)]


def write_rows(folder: Path, rows: Sequence[str]) -> Path:
    path = folder / "note.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(rows):
            row = {"id": f"n{number}", "title": text, "year": 1990 + number % 30, "site": f"s{number % 100}"}
            file.write(json.dumps(row) + "\n")
    return path


def bare(settings: Settings, rows: Sequence[str]) -> tuple[float, float]:
    """Rows/s and CPU seconds of the embedder alone, here, in batches of `rows_per_part`; loading it not counted."""
    model = open_embedder(settings.embedder)
    assert model is not None
    model.embed(rows[:64])
    started, used = time.perf_counter(), time.process_time()
    size = settings.pipeline.rows_per_part
    for first in range(0, len(rows), size):
        model.embed(rows[first : first + size])
    rate, cpu = len(rows) / (time.perf_counter() - started), time.process_time() - used
    print(f"bare embedder: {rate:,.0f} rows/s, {cpu:.1f} CPU-s")
    return rate, cpu


class Watch(threading.Thread):
    """Samples the CPU time of this process's family and, on request, its memory (proportional set size, so that shared
    pages count once). Reading a proportional set size walks all pages of a process: never while a rate is measured."""

    def __init__(self, *, memory: bool) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, int]] = []
        self._memory = memory
        self._cpu: dict[int, float] = {}
        self._before = 0.0
        self._done = threading.Event()

    def run(self) -> None:
        self._before = sum(_cpu(pid) for pid in family(os.getpid()))
        while not self._done.wait(0.5):
            processes = family(os.getpid())
            if self._memory:
                self.samples.append((time.perf_counter(), sum(_pss(pid) for pid in processes)))
            # The last reading of a process that ended stays.
            self._cpu |= {pid: used for pid in processes if (used := _cpu(pid))}

    def stop(self) -> None:
        self._done.set()
        self.join()

    @property
    def cpu_seconds(self) -> float:
        return sum(self._cpu.values()) - self._before

    @property
    def peak_mb(self) -> float:
        return max(size for _, size in self.samples) / 1024

    def slope_mb_per_minute(self) -> float:
        """Least squares over the middle of the run: after everything has started, before lanes end."""
        half = self.samples[len(self.samples) * 2 // 5 : len(self.samples) * 4 // 5]
        mean_t = sum(t for t, _ in half) / len(half)
        mean_m = sum(m for _, m in half) / len(half)
        spread = sum((t - mean_t) ** 2 for t, _ in half)
        return 60 / 1024 * sum((t - mean_t) * (m - mean_m) for t, m in half) / spread


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


@contextmanager
def watched(*, memory: bool) -> Iterator[Watch]:
    watch = Watch(memory=memory)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def filled(
    settings: Settings, rows: Sequence[str], planes: Sequence[str], *, memory: bool = False
) -> tuple[BackfillSummary, Watch]:
    """Import rows with these texts under a fresh data directory and back-fill them."""
    with tempfile.TemporaryDirectory() as name:
        fresh = settings.model_copy(update={"data_dir": str(Path(name) / "data")})
        imported = run_import(fresh, REGISTRY, "bench", [str(write_rows(Path(name), rows))])
        print(f"import: {imported.line()}")
        with watched(memory=memory) as watch:
            summary = run_backfill(fresh, REGISTRY, "bench", planes=planes)
        print(summary.line())
        assert summary.errors == (), summary.errors
        return summary, watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--corpus", type=Path, help="corpus.jsonl with a `text` a line; default: made-up sentences")
    parser.add_argument("--embedder", choices=("minilm", "hash"), default="minilm")
    parser.add_argument("--slope", action="store_true", help="memory of a run ten times as long")
    arguments = parser.parse_args()
    embedder = {"kind": arguments.embedder}
    settings = Settings.model_validate({"embedder": embedder})
    if arguments.slope:
        for count in (arguments.rows, 10 * arguments.rows):
            _, watch = filled(settings, texts(count, arguments.corpus), PLANES, memory=True)
            print(f"rows {count:,}: peak {watch.peak_mb:,.0f} MB, slope {watch.slope_mb_per_minute():+.1f} MB/min")
        return
    # The embedder before and after, because a machine's speed drifts.
    rows = texts(arguments.rows, arguments.corpus)
    before = bare(settings, rows)
    for planes in (("vector",), PLANES):
        summary, watch = filled(settings, rows, planes)
        after = bare(settings, rows)
        base, base_cpu = (before[0] + after[0]) / 2, (before[1] + after[1]) / 2
        whole = len(rows) / (summary.seconds + summary.startup_seconds)
        staged = max(lane.stage_seconds for lane in summary.lanes)
        print(
            f"planes {', '.join(planes)}, of the embedder's rows/s: {len(rows) / staged / base:.2f} staging, "
            f"{len(rows) / summary.seconds / base:.2f} with loading and indexing, {whole / base:.2f} with the "
            f"start of Ray ({summary.startup_seconds:.1f} s); CPU-s {watch.cpu_seconds:.1f} for {base_cpu:.1f} of "
            "the embedder"
        )
        before = after


if __name__ == "__main__":
    main()
