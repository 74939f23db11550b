"""Making summaries: ask the model, cut to the budget, pass the guard, embed. Opens no store and writes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from pipelines.retries import FIRST_PAUSE_S, LONGEST_PAUSE_S
from recall.digest.guard import open_guard
from recall.errors import ConfigError, RecallError
from recall.model_ports import Embedder, GuardContext, Guarded, Summarizer, Summary, SummaryTask
from recall.models.extractive import cut
from recall.packing import load_tokenizer
from recall.settings import Settings

# From this many tasks on, a model that fails on all of them is what is wrong, not the tasks.
TASKS_TO_BLAME_MODEL = 8
Done = TypeVar("Done")
OpenModels = Callable[[Settings], tuple[Embedder, Summarizer | None]]


@dataclass(slots=True)
class Draft:
    """A summary on its way. With a `summary` from the start nothing is asked; `asked` says that a model made it.

    In the end there is a summary, or an `error`, or it is `blocked`. `cited`: positions of `texts`. `called`: the
    model was asked for it in this run, and answered.
    """

    node: str
    level: int
    scope: str | None
    budget: int
    texts: tuple[str, ...]
    summary: str | None = None
    asked: bool = False
    cited: tuple[int, ...] = ()
    error: str | None = None
    blocked: bool = False
    called: bool = False

    @property
    def task(self) -> SummaryTask:
        return SummaryTask(self.level, self.texts, self.budget)


class Maker:
    """The models and the guard of one process, opened at their first use."""

    def __init__(self, settings: Settings, tenant: str, open_models: OpenModels | None = None) -> None:
        self._settings = settings
        self._tenant = tenant
        self._open_models = open_models
        self._guard = open_guard(settings.distill.guard)
        self.tokenizer = load_tokenizer(settings.recall.tokenizer)

    @cached_property
    def _models(self) -> tuple[Embedder, Summarizer | None]:
        if self._open_models is not None:
            return self._open_models(self._settings)
        from recall.models import open_embedder, open_summarizer

        embedder = open_embedder(self._settings.embedder)
        if embedder is None:
            raise ConfigError("distillation needs an embedder: set `embedder`")
        chosen = self._settings.distill.summarizer
        return embedder, None if chosen.kind == "vllm" else open_summarizer(chosen, embedder)

    def tokens(self, text: str) -> int:
        return self.tokenizer(text.encode())

    def admit(self, text: str, scope: str | None) -> Guarded:
        """The guard's word on a source text."""
        return self._checked(text, GuardContext(self._tenant, scope, 0, "ingest"))

    def finish(self, drafts: Sequence[Draft], answers: Mapping[str, Summary] | None = None) -> int:
        """Bring every draft to its end, with `answers` by node where a bulk engine was asked. Returns the calls."""
        open_ = [draft for draft in drafts if draft.summary is None and draft.error is None]
        calls = len(open_) if answers is not None else 0
        if answers is None:
            calls = self._ask(open_)
        else:
            for draft in open_:
                _take(draft, answers.get(draft.node, Summary("", error="the engine returned no answer")))
        for draft in drafts:
            self._emit(draft)
        return calls

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """(len(texts), dim) float32. A text on which the model raises has the zero vector: it joins no cluster."""
        embedder, _ = self._models
        found, _ = _isolated(list(range(len(texts))), lambda some: list(embedder.embed([texts[n] for n in some])))
        matrix = np.zeros((len(texts), embedder.dim), np.float32)
        for position, vector in found.items():
            matrix[position] = vector
        return matrix

    def _ask(self, drafts: Sequence[Draft]) -> int:
        calls = 0
        waiting: dict[SummaryTask, list[Draft]] = {}
        for draft in drafts:
            waiting.setdefault(draft.task, []).append(draft)
        todo = list(waiting)
        for attempt in range(self._settings.distill.retries + 1):
            if not todo:
                break
            if attempt:
                time.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempt - 1)))
            calls += len(todo)
            answers = self._summaries(todo)
            for task, answer in answers.items():
                for position, draft in enumerate(waiting[task]):
                    _take(draft, answer)
                    draft.called = draft.error is None and not position
            todo = [task for task, answer in answers.items() if answer.error is not None]
        if len(todo) == len(waiting) >= TASKS_TO_BLAME_MODEL:
            raise ConfigError(f"the summarizer fails on every task of a batch: {waiting[todo[0]][0].error}")
        return calls

    def _summaries(self, tasks: Sequence[SummaryTask]) -> dict[SummaryTask, Summary]:
        _, summarizer = self._models
        if summarizer is None:
            raise ConfigError("distill.summarizer: this engine works on whole levels and cannot be asked here")
        found, failed = _isolated(tasks, summarizer.summarize)
        return {task: found.get(task) or Summary("", error=failed[task]) for task in tasks}

    def _emit(self, draft: Draft) -> None:
        if draft.summary is None:
            return
        text = cut(draft.summary.strip(), draft.budget, self.tokenizer)
        guarded = self._checked(text, GuardContext(self._tenant, draft.scope, draft.level, "emit"))
        # What replaces a match may be longer than the match.
        draft.summary = cut(guarded.text.strip(), draft.budget, self.tokenizer)
        if guarded.blocked or not draft.summary:
            draft.summary, draft.blocked = None, True

    def _checked(self, text: str, context: GuardContext) -> Guarded:
        return self._guard.check(text, context) if self._guard else Guarded(text)


def _take(draft: Draft, answer: Summary) -> None:
    if answer.error is None and not answer.text.strip():
        draft.error = "the model returned an empty summary"
        return
    draft.error = answer.error
    if answer.error is None:
        draft.summary, draft.asked, draft.called = answer.text, True, True
        draft.cited = answer.cited


def _isolated(
    items: Sequence[SummaryTask] | Sequence[int], call: Callable[[Sequence], Sequence[Done]]
) -> tuple[dict, dict]:
    """Results by item, and reasons by item, halving what `call` raises on until the items at fault stand alone."""
    if not items:
        return {}, {}
    try:
        return dict(zip(items, call(items), strict=True)), {}
    except RecallError:
        raise
    except Exception as error:  # noqa: BLE001 - the border where a model's failure becomes a dead letter
        if len(items) == 1:
            return {}, {items[0]: f"{type(error).__name__}: {error}"}
    middle = len(items) // 2
    found, failed = _isolated(items[:middle], call)
    more, worse = _isolated(items[middle:], call)
    return {**found, **more}, {**failed, **worse}
