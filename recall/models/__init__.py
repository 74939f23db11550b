"""Embedders and summarizers that run without Ray. `open_embedder` and `open_summarizer` pick what settings name."""

from __future__ import annotations

from recall.errors import ConfigError
from recall.model_ports import Embedder, Summarizer
from recall.models.encoder import LocalEncoder
from recall.settings import EmbedderSettings, SummarizerSettings

__all__ = ["LocalEncoder", "open_embedder", "open_summarizer"]


def open_embedder(settings: EmbedderSettings) -> Embedder | None:
    """The configured embedder, loaded; None for `kind: none`. Raises ConfigError saying what to install or correct.

    For `kind: vllm` it is the endpoint that serves the same model to queries: one text at a time, no token spans.
    """
    if settings.kind == "none":
        return None
    if settings.kind == "hash":
        from recall.models.hashing import HashEmbedder

        return HashEmbedder(settings.dim)
    if settings.kind == "vllm":
        from recall.models.openai import OpenAiEmbedder

        return OpenAiEmbedder(settings)
    from recall.models.minilm import MiniLmEmbedder

    return MiniLmEmbedder(settings)


def open_summarizer(settings: SummarizerSettings, embedder: Embedder | None) -> Summarizer:
    """The configured summarizer. Raises ConfigError where it needs an embedder, a key, or an engine of Ray's."""
    if settings.kind == "openai":
        from recall.models.openai import OpenAiSummarizer

        return OpenAiSummarizer(settings)
    if settings.kind == "vllm":
        raise ConfigError("distill.summarizer: vllm runs in pipelines only, a whole level at a time")
    if embedder is None:
        raise ConfigError("distill.summarizer: extractive needs an embedder; set `embedder`, or another summarizer")
    from recall.models.extractive import ExtractiveSummarizer

    return ExtractiveSummarizer(embedder, diversity=settings.diversity)
