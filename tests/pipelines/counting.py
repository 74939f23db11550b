"""Embedders for worker processes that note on disk what they were asked, or misbehave on purpose."""

from __future__ import annotations

import hashlib
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from recall.model_ports import TextSpan
from recall.settings import HashEmbedderSettings


class CountingEmbedder:
    """Vectors from a hash of the text. Every text embedded is a line in `log`; a text with `poison` is refused."""

    name = "hash"
    max_tokens = 256

    def __init__(self, dim: int, log: Path) -> None:
        self.dim = dim
        self._log = log

    def token_spans(self, texts: Sequence[str]) -> list[list[TextSpan]]:
        return [[TextSpan(*word.span()) for word in re.finditer(r"\w+", text)] for text in texts]

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        if any("poison" in text for text in texts):
            raise ValueError("poisoned")
        with self._log.open("ab", buffering=0) as log:
            log.write(b"".join(text.encode() + b"\n" for text in texts))
        rows = [np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)[: self.dim] for text in texts]
        matrix = np.stack(rows).astype(np.float32) + 1
        return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


class Counted:
    """Opens a CountingEmbedder on one log, here or in a worker.

    With `kill_at`, call number `kill_at` of a worker kills the process `driver` and then the worker, after it has
    embedded and before anything of it can be stored.
    """

    def __init__(self, log: Path, kill_at: int = 0, driver: int = 0) -> None:
        self.log = log
        self.kill_at = kill_at
        self.driver = driver

    def __call__(self, settings: HashEmbedderSettings) -> CountingEmbedder:
        model = CountingEmbedder(settings.dim, self.log)
        if self.kill_at:
            model.embed = partial(self._embed_and_kill, model.embed, count(1))
        return model

    def _embed_and_kill(
        self, embed: Callable[[Sequence[str]], np.ndarray], calls: Iterator[int], texts: Sequence[str]
    ) -> np.ndarray:
        vectors = embed(texts)
        if next(calls) == self.kill_at:
            os.kill(self.driver, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return vectors

    def texts(self) -> Counter[str]:
        """How often each text was embedded."""
        return Counter(self.log.read_text().splitlines()) if self.log.exists() else Counter()

    def forget(self) -> None:
        self.log.unlink(missing_ok=True)
