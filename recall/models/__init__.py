"""Embedders and summarizers that run without Ray. `open_embedder` picks the one that the settings name."""

from __future__ import annotations

from recall.models.encoder import LocalEncoder
from recall.ports import Embedder
from recall.settings import EmbedderSettings

__all__ = ["LocalEncoder", "open_embedder"]


def open_embedder(settings: EmbedderSettings) -> Embedder | None:
    """The configured embedder, loaded; None for `kind: none`. Raises ConfigError saying what to install or correct."""
    if settings.kind == "none":
        return None
    if settings.kind == "hash":
        from recall.models.hashing import HashEmbedder

        return HashEmbedder(settings.dim)
    from recall.models.minilm import MiniLmEmbedder

    return MiniLmEmbedder(settings)
