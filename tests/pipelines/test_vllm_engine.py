"""What surrounds the vLLM engine, without it: chunks in, whole rows out in any order; prompts that fit; answers cut."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import engine_summaries, engine_vectors
from pipelines.asking import ANSWERS, TASKS
from pipelines.engine import ERROR, through_engine
from pipelines.engine_summaries import EngineSummarizer, Prompting, fair_share, open_bulk
from pipelines.engine_vectors import AGAIN, CHUNK, Chunking, Gathering
from pipelines.lanes import Lane
from pipelines.receipts import Receipt, read_receipts
from pipelines.stages import pending_table
from pipelines.storage import Folder
from recall.errors import ConfigError
from recall.model_ports import SummaryTask
from recall.records import record
from recall.registry import Registry
from recall.rows import Ref, Row
from recall.settings import Settings, VllmSummarizerSettings

REGISTRY = Registry.parse(
    {
        "entities": {
            "note": {"columns": {"text": "string"}, "embed": {"fields": ["text"], "chunk_tokens": 16, "overlap": 0}},
        }
    }
)
DIM = 4


class WordTokenizer:
    """A word is a token, whose id is its length. Two special tokens a text."""

    chat_template: str | None = "some template"

    def num_special_tokens_to_add(self, pair: bool) -> int:
        return 2

    def __call__(self, text: str | list[str], **options: Any) -> dict[str, Any]:
        if isinstance(text, list):
            return {"input_ids": [[0, *map(len, one.split()), 0][: options["max_length"]] for one in text]}
        found = list(re.finditer(r"\S+", text))
        return {"input_ids": [len(word.group()) for word in found], "offset_mapping": [word.span() for word in found]}

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        return " ".join([*(message["content"] for message in messages), "assistant:"])


@pytest.fixture
def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lane:
    monkeypatch.setattr(engine_vectors, "load_tokenizer", lambda _: WordTokenizer())
    vllm = {"model": "m", "max_model_len": 64}
    embedder = {"kind": "vllm", "name": "m", "dim": DIM, "max_tokens": 18, "vllm": vllm}
    return Lane("vector", "acme", Settings.model_validate({"data_dir": str(tmp_path), "embedder": embedder}), REGISTRY)


def chunked(lane: Lane, *rows: Row) -> pa.Table:
    records = [record("vector", "acme", REGISTRY.entity("note"), row) for row in rows]
    tally = Receipt(rows=len(rows) + 5, unchanged=5, deleted=sum(row.deleted for row in rows))
    return Chunking(lane, lane.settings.embedder)(pending_table(records, tally, lane.pending_schema))


def note(number: int, words: int) -> Row:
    return Row(Ref("note", f"n{number}"), 1, {"text": " ".join(f"w{number}" for _ in range(words))})


def answered(chunks: pa.Table, failing: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What the engine makes of chunks: a vector for each, but for those of rows in `failing`."""
    rows = []
    for chunk in chunks.to_pylist():
        row = {name: chunk[name] for name in CHUNK.names if name != "ids"} | {ERROR: None}
        if chunk["ids"] is None:
            rows.append(row | {ERROR: "not for the engine"})
        elif chunk["row_key"] in failing:
            rows.append(row | {ERROR: "ValueError: too long"})
        else:
            vector = np.array([3, 4, 0, chunk["ordinal"]], np.float32).tobytes()
            rows.append(row | {"tokens": len(chunk["ids"]), "vector": vector})
    return rows


def gathered(gathering: Gathering, rows: list[dict[str, Any]], size: int) -> Receipt:
    total = Receipt()
    for first in range(0, len(rows), size):
        batch = rows[first : first + size]
        # As Ray makes a block of rows: every column that some row has.
        names = dict.fromkeys(name for row in batch for name in row)
        total += read_receipts(gathering(pa.table({name: [row.get(name) for row in batch] for name in names})))
    return total


def parts(folder: Folder) -> list[dict[str, Any]]:
    return [row for name in folder.names() if name.startswith("part-") for row in folder.read_table(name).to_pylist()]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_rows_are_staged_whole_whatever_order_their_chunks_come_in(lane: Lane, tmp_path: Path, size: int) -> None:
    rows = [note(1, 40), note(2, 3), note(3, 16), note(4, 0), Row(Ref("note", "gone"), 2, {}, deleted=True)]
    found = answered(chunked(lane, *rows))
    random.Random(size).shuffle(found)
    folder = Folder(str(tmp_path / "parts"))
    receipt = gathered(Gathering(lane, folder, last=True), found, size)
    assert (receipt.rows, receipt.unchanged, receipt.changed, receipt.deleted) == (10, 5, 4, 1)
    assert (receipt.chunks, receipt.tokens, receipt.failures) == (5, 40 + 3 + 16 + 2 * 5, ())
    staged = sorted(parts(folder), key=lambda row: (row["id"], row["ordinal"]))
    assert [(row["id"], row["ordinal"], row["live"]) for row in staged] == [
        ("gone", 0, False),
        ("n1", 0, True),
        ("n1", 1, True),
        ("n1", 2, True),
        ("n2", 0, True),
        ("n3", 0, True),
        ("n4", 0, False),
    ]
    assert [(row["start"], row["end"]) for row in staged if row["id"] == "n1"] == [(0, 47), (48, 95), (96, 119)]
    assert all(np.isclose(np.linalg.norm(row["vector"]), 1) for row in staged if row["live"])
    first, second = staged[1]["vector"], staged[2]["vector"]
    assert np.allclose(first, [0.6, 0.8, 0, 0])
    assert second[3] > 0


def test_a_row_with_a_failed_chunk_is_kept_for_another_try_and_reported_at_the_last(lane: Lane, tmp_path: Path) -> None:
    chunks = chunked(lane, note(1, 40), note(2, 3))
    key = next(row["row_key"] for row in chunks.to_pylist() if row["chunks"] == 3)
    folder = Folder(str(tmp_path / "parts"))
    first = gathered(Gathering(lane, folder, last=False), answered(chunks, (key,)), 2)
    assert (first.changed, first.failures) == (1, ())
    (again,) = [name for name in folder.names() if name.startswith(AGAIN)]
    assert {row["id"] for row in parts(folder)} == {"n2"}
    kept = folder.read_table(again).cast(lane.pending_schema)
    retried = Chunking(lane, lane.settings.embedder)(kept)
    assert retried.drop_columns(["row"]) == chunks.filter(pa.compute.equal(chunks["row_key"], key)).drop_columns(
        ["row"]
    )
    last = gathered(Gathering(lane, folder, last=True), answered(retried, (key,)), 2)
    assert [(failure.id, failure.reason) for failure in last.failures] == [("n1", "ValueError: too long")]
    healed = gathered(Gathering(lane, folder, last=True), answered(retried), 2)
    assert (healed.changed, healed.failures) == (1, ())
    assert {row["id"] for row in parts(folder)} == {"n1", "n2"}


def test_a_model_of_another_dimension_stops_the_lane(lane: Lane, tmp_path: Path) -> None:
    rows = [row | {"vector": b"\0" * 8} for row in answered(chunked(lane, note(1, 3))) if row["chunks"]]
    with pytest.raises(ConfigError, match=r"embedder\.dim is 4, but the model answers 2"):
        gathered(Gathering(lane, Folder(str(tmp_path / "parts")), last=True), rows, 9)


def test_without_vllm_the_settings_are_wrong(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ray-recall\[gpu\]"):
        through_engine(None, lane.settings.embedder.vllm, "embed", dict, dict)


# ---- summaries -----------------------------------------------------------------------------------------------------


def summarizer(length: int) -> VllmSummarizerSettings:
    prompts = {level: {"system": "Short please.", "user": "{texts}"} for level in ("entity", "scope", "tenant")}
    vllm = {"model": "m", "max_model_len": length}
    return VllmSummarizerSettings.model_validate({"kind": "vllm", "vllm": vllm, "prompts": prompts})


@pytest.fixture
def prompting(monkeypatch: pytest.MonkeyPatch) -> Prompting:
    monkeypatch.setattr(engine_summaries, "load_tokenizer", lambda _: WordTokenizer())
    return Prompting(summarizer(100))


def test_a_prompt_and_its_answer_fit_the_model(prompting: Prompting) -> None:
    short = "One two three."
    long = " ".join(["A sentence of five words."] * 60)
    assert len(prompting.tokens(SummaryTask(0, (short,), 20))) == 2 + 3 + 1
    for texts in ((long,), (short, long), (long, long, short), (short,) * 26):
        assert len(prompting.tokens(SummaryTask(1, texts, 20))) <= 80
    # The short text is whole, the long one takes the rest, up to the end of a sentence.
    assert len(prompting.tokens(SummaryTask(1, (short, long), 20))) >= 74


def test_a_model_that_is_too_short_for_its_prompt_is_named(prompting: Prompting) -> None:
    with pytest.raises(ConfigError, match="max_model_len 100 leaves no room for 1 texts"):
        prompting.tokens(SummaryTask(0, ("word " * 50,), 98))


def test_a_model_without_a_chat_template_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordTokenizer, "chat_template", None)
    monkeypatch.setattr(engine_summaries, "load_tokenizer", lambda _: WordTokenizer())
    with pytest.raises(ConfigError, match="chat template"):
        Prompting(summarizer(100))


def test_answers_are_cut_and_failures_keep_their_task(prompting: Prompting) -> None:
    task = {"level": 1, "budget": 8, "texts": ["a", "b"]}
    made = {"num_input_tokens": 9, "num_generated_tokens": 5, "time_taken_llm": 0.5}
    rows = [
        {**task, **made, "task": "good", "generated_text": " Fine. ", ERROR: ""},
        {**task, **made, "task": "torn", "generated_text": "It is so. And th", "num_generated_tokens": 8, ERROR: ""},
        {**task, **made, "task": "long", "generated_text": "One two. " * 9, ERROR: ""},
        {**task, **made, "task": "mute", "generated_text": "  ", ERROR: ""},
        {**task, "task": "bad", ERROR: "ValueError: no"},
    ]
    answers = engine_summaries._finish(pa.Table.from_pylist(rows), None)
    found = {row["task"]: row for row in answers.to_pylist()}
    assert [found[name]["summary"] for name in ("good", "torn", "long", "mute", "bad")] == [
        "Fine.",
        "It is so.",
        "One two. One two. One two.",
        "",
        "",
    ]
    assert [found[name]["error"] for name in ("good", "torn", "long")] == [None] * 3
    assert found["good"]["cited"] == [0, 1]
    assert found["good"]["texts"] is None
    assert found["bad"]["error"] == "ValueError: no"
    assert found["mute"]["error"]
    assert {name: found["bad"][name] for name in TASKS.names} == {**task, "task": "bad"}
    assert set(ANSWERS.names) < set(answers.schema.names)
    # A batch of failures alone has none of the columns of an answer.
    assert engine_summaries._finish(pa.Table.from_pylist(rows[-1:]), None)["error"].to_pylist() == ["ValueError: no"]


def test_only_an_engine_is_asked_for_whole_levels() -> None:
    settings = Settings()
    assert open_bulk(settings) is None
    distill = settings.distill.model_copy(update={"summarizer": summarizer(100)})
    assert isinstance(open_bulk(settings.model_copy(update={"distill": distill})), EngineSummarizer)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=20), st.integers(1, 2000))
def test_shares_fit_and_waste_nothing(sizes: list[int], free: int) -> None:
    share = fair_share(sizes, free)
    taken = sum(min(size, share) for size in sizes)
    assert taken <= max(free, 0) or sum(sizes) <= free
    if sum(sizes) > free:
        assert taken > free - len(sizes)
