"""An embedder without a model: feature-hashed words. It knows no meaning; it tests everything around an embedder."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np

from recall.model_ports import TextSpan

_WORD = re.compile(r"\w+")


class HashEmbedder:
    """Unit vectors whose cosine grows with shared words. Deterministic, and independent of the batch."""

    name = "hash"
    max_tokens = 256

    def __init__(self, dim: int = 64) -> None:
        self.dim = dim

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """(len(texts), dim) float32 unit vectors. A text without words gets the first axis."""
        matrix = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(matrix, texts, strict=True):
            for word in _WORD.findall(text.casefold()):
                bits = zlib.crc32(word.encode(errors="replace"))
                row[bits % self.dim] += 1.0 if bits >> 16 & 1 else -1.0
            if not row.any():
                row[0] = 1.0
        unit: np.ndarray = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
        return unit

    def token_spans(self, texts: Sequence[str]) -> list[list[TextSpan]]:
        """One token per word."""
        return [[TextSpan(match.start(), match.end()) for match in _WORD.finditer(text)] for text in texts]
