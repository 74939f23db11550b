"""Ports of models: what embeds, counts, summarises and guards text. Protocols and the values they exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Half-open character range of a text."""

    start: int
    end: int


class Embedder(Protocol):
    """Texts to unit vectors. `name` identifies model, precision and token limit: it is part of the index version."""

    name: str
    dim: int
    max_tokens: int

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """(len(texts), dim) float32, rows L2-normalised, in the order given."""

    def token_spans(self, texts: Sequence[str]) -> list[list[TextSpan]]:
        """Character span of every token of each text, special tokens left out, never truncated."""


class QueryEncoder(Protocol):
    """The online half: one query to one vector. Raises ChannelError with an `embed_*` or `no_embedder` code."""

    async def encode(self, text: str, *, timeout_s: float | None = None) -> np.ndarray: ...


class Tokenizer(Protocol):
    """Token count of a UTF-8 payload; pluggable by import path."""

    def __call__(self, payload: bytes, /) -> int: ...


@dataclass(frozen=True, slots=True)
class SummaryTask:
    """Texts to be summarised together: the source of a level-0 node, or the summaries of a node's children.

    `budget`: tokens that the summary may have. `level` chooses the prompt of models that have one.
    """

    level: int
    texts: tuple[str, ...]
    budget: int


@dataclass(frozen=True, slots=True)
class Summary:
    """`cited`: positions of the texts that the summary's sentences come from (all of them where it cannot be known).

    With an `error` the text is empty: this task failed and may be tried again; the others of the batch are good.
    """

    text: str
    cited: tuple[int, ...] = ()
    error: str | None = None


class Summarizer(Protocol):
    """Batch in, batch out, in order. `name` covers model, prompts and parameters: it is part of the recipe."""

    name: str

    def summarize(self, tasks: Sequence[SummaryTask]) -> list[Summary]: ...


@dataclass(frozen=True, slots=True)
class GuardContext:
    """What a guard may know. `stage`: `ingest` for raw source text, `emit` for a summary."""

    tenant: str
    scope: str | None
    level: int
    stage: Literal["ingest", "emit"]


@dataclass(frozen=True, slots=True)
class Guarded:
    """What a guard made of a text: perhaps redacted, perhaps blocked with a reason."""

    text: str
    blocked: bool = False
    reason: str | None = None


class Guard(Protocol):
    """Called on every raw source and every summary; pluggable by import path. `version` is part of the recipe."""

    version: str

    def check(self, text: str, context: GuardContext) -> Guarded: ...
