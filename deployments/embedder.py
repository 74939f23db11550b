"""The query embedder deployment: texts of concurrent requests in one batch, the model in a thread of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pydantic import Field
from ray import serve

from deployments.replicas import CONSTRUCTOR_RETRIES
from recall.entities import Strict
from recall.errors import ChannelError
from recall.models import open_embedder
from recall.results import DegradedCode
from recall.settings import EmbedderSettings

if TYPE_CHECKING:
    import numpy as np


class BatchNumbers(Strict):
    """`user_config` of the deployment. With no wait a lone query leaves at once and a busy model gathers the rest."""

    max_batch_size: int = Field(16, ge=1)
    batch_wait_timeout_s: float = Field(0.0, ge=0)


@serve.deployment(max_constructor_retry_count=CONSTRUCTOR_RETRIES)
class QueryEmbedder:
    """One text in, one unit vector out."""

    def __init__(self, settings: EmbedderSettings) -> None:
        self._embedder = open_embedder(settings)
        # One thread: the model's runtime brings its own; more would only contend. Never the loop itself.
        self._model = ThreadPoolExecutor(1, thread_name_prefix="query-embedder")
        # Made here and not in the class body, where Serve would keep the queue on the class itself.
        self._embed = serve.batch(max_batch_size=16, batch_wait_timeout_s=0.0)(self._embed_batch)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        numbers = BatchNumbers.model_validate(user_config)
        self._embed.set_max_batch_size(numbers.max_batch_size)
        self._embed.set_batch_wait_timeout_s(numbers.batch_wait_timeout_s)

    async def encode(self, text: str) -> np.ndarray:
        """The vector of `text`. Raises ChannelError `no_embedder` or `embed_failed`."""
        if self._embedder is None:
            raise ChannelError("vector", DegradedCode.NO_EMBEDDER, "no embedder is configured")
        vector: np.ndarray = await self._embed(text)
        return vector

    async def _embed_batch(self, texts: list[str]) -> list[np.ndarray]:
        assert self._embedder is not None
        try:
            vectors = await asyncio.get_running_loop().run_in_executor(self._model, self._embedder.embed, texts)
        except Exception as error:
            detail = f"{self._embedder.name}: {type(error).__name__}: {error}"
            raise ChannelError("vector", DegradedCode.EMBED_FAILED, detail) from error
        return list(vectors)

    async def health(self) -> None:
        """Return when the model embeds; ChannelError otherwise. Without a model there is nothing to fail."""
        if self._embedder is not None:
            await self._embed("ready")

    async def check_health(self) -> None:
        """The loop runs."""

    def __del__(self) -> None:
        self._model.shutdown(wait=False, cancel_futures=True)
