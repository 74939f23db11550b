"""Digests measured on meetings (QMSum) and conversations (LoCoMo): without a model judging anything.

`summaries`: what the extractive summarizer picks against the first and against random sentences of the same budget.
`altitude`: how much evidence a pack holds at each altitude and budget. `cost`: model calls and time of a first run, an
unchanged one, and one after 1 % of the rows changed.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.altitude import altitude
from pipelines.distill import run_distill
from recall.demo import generate
from recall.evaluation.digests import Talk, locomo_talks, mean, qmsum_talks, share_cited, share_said
from recall.evaluation.metrics import rouge_l, rouge_n
from recall.model_ports import Summary, SummaryTask
from recall.models.extractive import ExtractiveSummarizer, sentences
from recall.models.minilm import MiniLmEmbedder
from recall.packing import quarter_bytes
from recall.planes.opening import open_rows, plane_context
from recall.registry import Registry
from recall.rows import Ref, Row
from recall.settings import MiniLmSettings, Settings

SETS: Mapping[str, Callable[[Path], list[Talk]]] = {"locomo": locomo_talks, "qmsum": qmsum_talks}
BUDGETS = (128, 256)
MEASURES = ("rouge1", "rouge1_recall", "rougeL", "rougeL_recall", "cited", "said", "compression")
Summarize = Callable[[Sequence[SummaryTask]], list[Summary]]


def picked(order: Callable[[int], Sequence[int]], *, stop: bool) -> Summarize:
    """Sentences in a given order while they fit; the first that does not fit ends it, or is skipped."""

    def summarize(tasks: Sequence[SummaryTask]) -> list[Summary]:
        return [one(task) for task in tasks]

    def one(task: SummaryTask) -> Summary:
        found = [(at, sentence) for at, text in enumerate(task.texts) for sentence in sentences(text)]
        left, kept = task.budget, []
        for place in order(len(found)):
            size = quarter_bytes(found[place][1].encode()) + 1
            if size <= left:
                kept.append(place)
                left -= size
            elif stop:
                break
        chosen = [found[place] for place in sorted(kept)]
        return Summary(" ".join(text for _, text in chosen), tuple(sorted({at for at, _ in chosen})))

    return summarize


def shuffled(count: int) -> list[int]:
    order = list(range(count))
    random.Random(count).shuffle(order)
    return order


def summaries(folder: Path) -> None:
    """ROUGE F1 against the references of the held-out half; citations of gold turns; compression."""
    extractive = ExtractiveSummarizer(MiniLmEmbedder(MiniLmSettings()))
    methods: Mapping[str, Summarize] = {
        "extractive": extractive.summarize,
        "first sentences": picked(range, stop=True),
        "random sentences": picked(shuffled, stop=False),
    }
    columns = "ROUGE-1 F1 | recall | ROUGE-L F1 | recall | cited | said | compression | gain in F1 | gain in recall"
    print(f"| set | budget | summarizer | {columns} |")
    print("|---" * 12 + "|")
    for name, read in SETS.items():
        talks = [talk for talk in read(folder / name) if talk.held_out]
        for budget in BUDGETS:
            scores = {method: score(talks, budget, summarize) for method, summarize in methods.items()}
            for method, found in scores.items():
                gains = [
                    ""
                    if method == "extractive"
                    else interval(np.array(scores["extractive"][key]) - np.array(found[key]))
                    for key in ("rouge1", "rouge1_recall")
                ]
                values = [f"{mean(found[key]):.3f}" for key in MEASURES]
                print(f"| {name} | {budget} | {method} | {' | '.join([*values, *gains])} |", flush=True)


def score(talks: Sequence[Talk], budget: int, summarize: Summarize) -> dict[str, list[float]]:
    """Per reference: ROUGE. Per question: gold turns that the digests of their scopes cite, and how much of their text
    these say word for word. Per scope: compression."""
    found: dict[str, list[float]] = {key: [] for key in MEASURES}
    for talk in talks:
        text_of = {turn.id: turn.text for turn in talk.turns}
        tasks = [SummaryTask(1, tuple(text_of[id_] for id_ in ids), budget) for _, ids in talk.references]
        for (reference, _), summary in zip(talk.references, summarize(tasks), strict=True):
            for key, overlap in (("rouge1", rouge_n), ("rougeL", rouge_l)):
                shared = overlap(summary.text, reference)
                found[key].append(shared.f1)
                found[f"{key}_recall"].append(shared.recall)
        scopes: dict[str, list[str]] = {}
        for turn in talk.turns:
            scopes.setdefault(turn.scope, []).append(turn.id)
        tasks = [SummaryTask(1, tuple(text_of[id_] for id_ in ids), budget) for ids in scopes.values()]
        cited: set[str] = set()
        said: dict[str, str] = {}
        for ids, task, summary in zip(scopes.values(), tasks, summarize(tasks), strict=True):
            cited |= {ids[at] for at in summary.cited}
            said |= dict.fromkeys(ids, summary.text)
            found["compression"].append(len(summary.text) / max(1, len(" ".join(task.texts))))
        for query in talk.questions:
            found["said"].append(mean([share_said(text_of[ref.id], [said[ref.id]]) for ref in query.relevant]))
        found["cited"] += [share_cited([ref.id for ref in query.relevant], cited) for query in talk.questions]
    return found


def interval(gains: np.ndarray) -> str:
    """Mean of paired differences with the 95 % interval of 2,000 bootstrap samples."""
    chosen = np.random.default_rng(7).integers(0, len(gains), (2000, len(gains)))
    low, high = np.quantile(gains[chosen].mean(axis=1), [0.025, 0.975])
    return f"{gains.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def cost(scale: float) -> None:
    """Model calls and wall time of three runs over the demo tenant's notes and work orders; Ray's start left out."""
    described = {
        name: {"columns": {"text": "string", "scope": "string"}, "distill": {"fields": ["text"], "scopes": ["scope"]}}
        for name in ("work_order", "note")
    }
    registry = Registry.parse({"entities": described})
    rows = [
        Row(Ref(entity, str(row["id"])), 1, {"text": str(row["text"]), "scope": str(row.get("asset") or row["id"])[:5]})
        for entity, found in generate(scale=scale).items()
        if entity in described
        for row in found
    ]
    print(f"| run over {len(rows):,} rows | model calls | calls saved | nodes written | nodes removed | seconds |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=folder)
        store = open_rows(settings, plane_context(settings, registry))
        store.prepare()
        changed = [
            Row(row.ref, 2, {**row.values, "text": f"{row.values['text']} Checked again."}) for row in rows[::100]
        ]
        for name, batch in (("first", rows), ("unchanged", []), (f"{len(changed)} rows changed", changed)):
            store.upsert("demo", batch)
            started = time.perf_counter()
            done = run_distill(settings, registry, "demo", load=False)
            seconds = time.perf_counter() - started - done.startup_seconds
            print(
                f"| {name} | {done.calls:,} | {done.saved:,} | {done.written:,} | {done.removed:,} | {seconds:.1f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("summaries", "altitude", "cost"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with qmsum and locomo")
    parser.add_argument("--questions", type=int, default=60, help="questions a talk, at most (altitude)")
    parser.add_argument("--talks", type=int, default=10, help="talks a set, at most (altitude)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the demo tenant, 5,000 rows at 1 (cost)")
    options = parser.parse_args()
    if options.part == "summaries":
        summaries(options.data)
    elif options.part == "cost":
        cost(options.scale)
    else:
        for name, read in SETS.items():
            altitude(name, read(options.data / name)[: options.talks], options.questions)


if __name__ == "__main__":
    main()
