"""Bulk summaries by a vLLM engine: chat prompts in the model's own tokens, one pass over all tasks, failed ones again.

Never more prompt than the model can take: texts that are too long are cut, each at the end of a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from ray.data import ActorPoolStrategy, Dataset
from ray.data.expressions import col

from pipelines.asking import ANSWERS, TASKS, BulkSummarizer
from pipelines.engine import ERROR, SHARE, TOKENS, Fields, load_tokenizer, seconds_in_engine, through_engine
from recall import packing
from recall.errors import ConfigError
from recall.model_ports import SummaryTask
from recall.models.extractive import cut, without_torn_end
from recall.prompts import joined
from recall.settings import Settings, VllmSummarizerSettings

# Answers with what they cost: tokens as the model's own tokenizer counts them, seconds in the engine.
DETAILED = pa.schema(
    [
        *ANSWERS,
        ("prompt_tokens", pa.int32()),
        ("answer_tokens", pa.int32()),
        ("seconds", pa.float64()),
        # Of a failed task, to try it again.
        *(field.with_nullable(True) for field in TASKS if field.name != "task"),
    ]
)
_MADE = {
    "generated_text": pa.string(),
    "num_input_tokens": pa.int64(),
    "num_generated_tokens": pa.int64(),
    "time_taken_llm": pa.float64(),
}


def open_bulk(settings: Settings) -> BulkSummarizer | None:
    """The engine that `distill.summarizer` names; None for a summarizer that is asked one batch at a time."""
    chosen = settings.distill.summarizer
    return EngineSummarizer(chosen, settings.recall.tokenizer) if chosen.kind == "vllm" else None


class EngineSummarizer:
    """`BulkSummarizer` by `ray.data.llm`, temperature 0 and a seed. Which texts a summary draws on cannot be known:
    it cites them all. `tokenizer`: import path of what counts a summary's budget; null counts bytes / 4."""

    def __init__(self, settings: VllmSummarizerSettings, tokenizer: str | None = None) -> None:
        self._settings = settings
        self._tokenizer = tokenizer

    def __call__(self, tasks: Dataset) -> Dataset:
        """An answer per task. Raises ConfigError when vLLM is not installed."""
        return self.detailed(tasks).select_columns(ANSWERS.names)

    def detailed(self, tasks: Dataset) -> Dataset:
        """Columns of DETAILED. Runs at once: all tasks, then at most `vllm.retries` passes over those that failed."""
        passes = [self._pass(tasks)]
        for _ in range(self._settings.vllm.retries):
            failed = passes[-1].filter(expr=col("error").is_not_null())
            if not failed.count():
                break
            passes[-1] = passes[-1].filter(expr=col("error").is_null())
            passes.append(self._pass(failed.select_columns(TASKS.names)))
        return passes[0].union(*passes[1:]) if len(passes) > 1 else passes[0]

    def _pass(self, tasks: Dataset) -> Dataset:
        prompts = tasks.map_batches(
            Prompting,
            fn_constructor_args=(self._settings,),
            batch_size=self._settings.vllm.batch_size,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=1),
            **SHARE,
        )
        answered = through_engine(prompts, self._settings.vllm, "generate", _Asking(self._settings.seed), _keep)
        return answered.map_batches(_finish, fn_args=(self._tokenizer,), batch_format="pyarrow", **SHARE).materialize()


class Prompting:
    """The actor that gives tasks their token ids. Loads the model's tokenizer, not the model."""

    def __init__(self, settings: VllmSummarizerSettings) -> None:
        self._tokenizer = load_tokenizer(settings.vllm)
        if self._tokenizer.chat_template is None:
            raise ConfigError(f"model {settings.vllm.model!r} has no chat template: choose an instruction-tuned model")
        self._prompts = settings.prompts
        self._longest = settings.vllm.max_model_len

    def __call__(self, batch: pa.Table) -> pa.Table:
        tasks = batch.select(TASKS.names).cast(TASKS).to_pylist()
        ids = [self.tokens(SummaryTask(one["level"], tuple(one["texts"]), one["budget"])) for one in tasks]
        return pa.Table.from_pylist(tasks, schema=TASKS).append_column("ids", pa.array(ids, pa.list_(pa.int32())))

    def tokens(self, task: SummaryTask) -> list[int]:
        """Token ids of the chat for `task`, at most `max_model_len` less its budget. Raises ConfigError."""
        room = self._longest - task.budget
        ids = self._chat(task, task.texts)
        free = sum(map(self._count, task.texts))
        # A text may cost more inside a chat than alone; each turn asks for less.
        while len(ids) > room:
            free -= len(ids) - room
            if free < len(task.texts):
                raise ConfigError(
                    f"max_model_len {self._longest} leaves no room for {len(task.texts)} texts beside the prompt and a "
                    f"summary of {task.budget} tokens"
                )
            ids = self._chat(task, self._fitting(task.texts, free))
        return ids

    def _chat(self, task: SummaryTask, texts: tuple[str, ...]) -> list[int]:
        messages = self._prompts.of_level(task.level).messages(task, joined(texts))
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _count(self, text: bytes | str) -> int:
        text = text if isinstance(text, str) else text.decode()
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _fitting(self, texts: tuple[str, ...], free: int) -> tuple[str, ...]:
        """The texts, the longest of them cut so that all have at most `free` tokens together."""
        sizes = [self._count(text) for text in texts]
        share = fair_share(sizes, free)
        return tuple(
            text if size <= share else cut(text, share, self._count) for text, size in zip(texts, sizes, strict=True)
        )


class _Asking:
    """What the engine needs of a row. A class, because Ray pickles it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, row: Fields) -> Fields:
        params = {"temperature": 0.0, "max_tokens": int(row["budget"]), "seed": self._seed}
        return {TOKENS: [int(token) for token in row["ids"]], "sampling_params": params}


def _keep(row: Fields) -> Fields:
    return {name: row[name] for name in (*TASKS.names, *_MADE)}


def _finish(batch: pa.Table, tokenizer: str | None) -> pa.Table:
    """Answers of a batch that left the engine, cut to their budgets. A failed one keeps its task, a good one does not.

    Rows that failed have no columns of an answer.
    """
    count = packing.load_tokenizer(tokenizer)
    columns = {name: batch[name] for name in (*TASKS.names, ERROR)}
    columns |= {
        name: batch[name].cast(kind) if name in batch.schema.names else pa.nulls(batch.num_rows, kind)
        for name, kind in _MADE.items()
    }
    answers = []
    for row in pa.table(columns).to_pylist():
        text = (row["generated_text"] or "").strip()
        error = row[ERROR] or (None if text else "the model answered nothing")
        whole = text if (row["num_generated_tokens"] or 0) < row["budget"] else without_torn_end(text)
        answer = {
            "task": row["task"],
            "summary": "" if error else cut(whole, row["budget"], count),
            "cited": [] if error else list(range(len(row["texts"]))),
            "error": error,
            "prompt_tokens": row["num_input_tokens"] or 0,
            "answer_tokens": row["num_generated_tokens"] or 0,
            "seconds": seconds_in_engine(row),
        }
        answers.append(answer | ({name: row[name] for name in TASKS.names} if error else {}))
    return pa.Table.from_pylist(answers, schema=DETAILED)


def fair_share(sizes: Sequence[int], free: int) -> int:
    """The size at which to cut texts of these sizes so that all fit `free`: short ones leave theirs to long ones."""
    left = free
    for at, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - at)
        if size > share:
            return share
        left -= size
    return max(sizes)
