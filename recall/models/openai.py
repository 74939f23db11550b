"""Summaries and query vectors from any OpenAI-compatible endpoint. A row that fails is an error beside good rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from recall.errors import ConfigError
from recall.model_ports import Summary, SummaryTask, TextSpan, Tokenizer
from recall.models.endpoint import Endpoint, RequestFailed
from recall.models.extractive import cut, without_torn_end
from recall.packing import quarter_bytes
from recall.prompts import joined
from recall.settings import OpenAiSummarizerSettings, VllmEmbedderSettings


class OpenAiSummarizer:
    """`Summarizer` over chat completions at temperature 0, `concurrency` requests at a time.

    Which texts a sentence came from cannot be known: a summary cites them all.
    """

    def __init__(
        self,
        settings: OpenAiSummarizerSettings,
        *,
        tokenizer: Tokenizer = quarter_bytes,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._endpoint = Endpoint(settings, pause=pause)
        self.name = settings.identity

    def summarize(self, tasks: Sequence[SummaryTask]) -> list[Summary]:
        """One summary per task, in order. Raises ConfigError when the endpoint refuses key, model or path."""
        with ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="summaries") as pool:
            return list(pool.map(self._one, tasks))

    def _one(self, task: SummaryTask) -> Summary:
        body = {
            "model": self._settings.model,
            "messages": self._settings.prompts.of_level(task.level).messages(task, joined(task.texts)),
            "max_tokens": task.budget,
            "temperature": 0,
            "seed": self._settings.seed,
        }
        try:
            answer = self._endpoint.post("chat/completions", body)
            text, complete = _chosen(answer)
        except RequestFailed as error:
            return Summary("", error=str(error))
        text = cut(text if complete else without_torn_end(text), task.budget, self._tokenizer)
        return Summary(text, tuple(range(len(task.texts))))


def _chosen(answer: object) -> tuple[str, bool]:
    """The text of the first choice, and whether the model ended it by itself."""
    try:
        choice = answer["choices"][0]  # type: ignore[index]
        text, reason = choice["message"]["content"], choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise RequestFailed("the answer is no chat completion") from None
    if reason == "content_filter":
        raise RequestFailed("the endpoint's content filter withheld the answer")
    if not isinstance(text, str) or not text.strip():
        raise RequestFailed(f"the answer is empty (finish_reason {reason!r})")
    return text.strip(), reason != "length"


class OpenAiEmbedder:
    """`Embedder` of queries over `/embeddings`, for an index that vLLM filled. It never chunks a row."""

    def __init__(self, settings: VllmEmbedderSettings, *, pause: Callable[[float], None] = time.sleep) -> None:
        """Raises ConfigError when the settings name no endpoint."""
        if settings.queries is None:
            raise ConfigError(
                f"embedder: vllm fills the index; to encode queries with the same model, name an endpoint that serves "
                f"{settings.name} under embedder.queries"
            )
        self._endpoint = Endpoint(settings.queries, pause=pause)
        self._model = settings.queries.model
        self.name, self.dim, self.max_tokens = settings.model_name, settings.dim, settings.max_tokens

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """(len(texts), dim) float32 unit vectors. Raises RequestFailed, or ConfigError for a model of another `dim`."""
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        body: Mapping[str, object] = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        answer = self._endpoint.post("embeddings", body)
        try:
            rows = sorted(answer["data"], key=lambda row: int(row["index"]))
            vectors = np.array([row["embedding"] for row in rows], np.float32)
        except (KeyError, TypeError, ValueError):
            raise RequestFailed("the answer is no list of embeddings") from None
        if vectors.shape != (len(texts), self.dim):
            raise ConfigError(
                f"embedder.queries: {self._model} answered {vectors.shape} for {len(texts)} texts; "
                f"embedder.dim is {self.dim}"
            )
        unit: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return unit

    def token_spans(self, texts: Sequence[str]) -> list[list[TextSpan]]:
        """Not for queries: rows are chunked where they are embedded, by the engine's own tokenizer."""
        raise ConfigError("embedder: rows of kind vllm are chunked and embedded by `recall backfill` only")
