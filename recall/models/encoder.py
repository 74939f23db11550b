"""The online half of an embedder: one query at a time, off the event loop, with a deadline and named failures."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from recall.errors import ChannelError
from recall.model_ports import Embedder
from recall.results import DegradedCode

CHANNEL = "vector"


class LocalEncoder:
    """`QueryEncoder` over an embedder in this process, on one thread of its own; `None` has no embedder."""

    def __init__(self, embedder: Embedder | None) -> None:
        self._embedder = embedder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="query-encoder")

    async def encode(self, text: str, *, timeout_s: float | None = None) -> np.ndarray:
        """(dim,) float32 unit vector. Raises ChannelError: no_embedder, embed_timeout or embed_failed."""
        if self._embedder is None:
            detail = "no query embedder is configured (embedder.kind is none)"
            raise ChannelError(CHANNEL, DegradedCode.NO_EMBEDDER, detail)
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._embedder.embed, [text])
        try:
            vectors = await asyncio.wait_for(work, timeout_s)
        except TimeoutError:
            detail = f"no vector within {timeout_s} s"
            raise ChannelError(CHANNEL, DegradedCode.EMBED_TIMEOUT, detail) from None
        except Exception as error:
            # A model is foreign code: whatever it raises means that this query has no vector.
            detail = f"{type(error).__name__}: {error}"
            raise ChannelError(CHANNEL, DegradedCode.EMBED_FAILED, detail) from error
        return np.asarray(vectors[0], dtype=np.float32)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
