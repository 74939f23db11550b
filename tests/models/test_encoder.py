"""The hash embedder and the one-query encoder."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.errors import ChannelError
from recall.model_ports import TextSpan
from recall.models import LocalEncoder, open_embedder
from recall.models.hashing import HashEmbedder
from recall.settings import HashEmbedderSettings, NoEmbedderSettings


@given(st.lists(st.text(), max_size=8))
def test_hash_vectors_are_unit_and_independent_of_the_batch(texts: list[str]) -> None:
    embedder = HashEmbedder(16)
    vectors = embedder.embed(texts)
    assert vectors.shape == (len(texts), 16)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for text, vector in zip(texts, vectors, strict=True):
        assert np.array_equal(embedder.embed([text])[0], vector)


def test_hash_cosine_grows_with_shared_words() -> None:
    same, near, far = HashEmbedder(64).embed(["pump leaks oil", "the pump leaks", "quarterly invoice total"])
    assert same @ near > same @ far + 0.3


def test_hash_spans_name_the_words() -> None:
    assert HashEmbedder(64).token_spans(["a pump, leaking", ""]) == [
        [TextSpan(0, 1), TextSpan(2, 6), TextSpan(8, 15)],
        [],
    ]


def test_settings_choose_the_embedder() -> None:
    chosen = open_embedder(HashEmbedderSettings(kind="hash", dim=32))
    assert isinstance(chosen, HashEmbedder)
    assert chosen.dim == 32
    assert chosen.name == HashEmbedderSettings(kind="hash", dim=32).model_name
    assert open_embedder(NoEmbedderSettings(kind="none")) is None


class Blocked:
    """Waits for `release`; fails when told to."""

    name, dim, max_tokens = "blocked", 4, 8

    def __init__(self, error: Exception | None = None) -> None:
        self.began = threading.Event()
        self.release = threading.Event()
        self.error = error
        self.seen: list[str] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.seen.extend(texts)
        self.began.set()
        if self.error:
            raise self.error
        self.release.wait(10)
        return np.ones((len(texts), 4), np.float32) / 2

    def token_spans(self, texts: Sequence[str]) -> list[list[TextSpan]]:
        return [[] for _ in texts]


async def test_encoder_gives_the_embedders_vector() -> None:
    embedder = HashEmbedder(16)
    encoder = LocalEncoder(embedder)
    assert np.array_equal(await encoder.encode("pump"), embedder.embed(["pump"])[0])


async def test_no_embedder_is_named() -> None:
    with pytest.raises(ChannelError) as caught:
        await LocalEncoder(None).encode("pump")
    assert (caught.value.channel, caught.value.reason) == ("vector", "no_embedder")


@pytest.mark.parametrize("error", [ValueError("bad model"), RuntimeError("out of memory")])
async def test_failure_of_the_model_is_named(error: Exception) -> None:
    with pytest.raises(ChannelError, match=str(error)) as caught:
        await LocalEncoder(Blocked(error)).encode("pump")
    assert (caught.value.channel, caught.value.reason) == ("vector", "embed_failed")


async def test_late_vector_is_a_timeout_and_a_queued_query_is_never_computed() -> None:
    slow = Blocked()
    encoder = LocalEncoder(slow)
    try:
        for text in ("first", "second"):
            with pytest.raises(ChannelError) as caught:
                await encoder.encode(text, timeout_s=0.05)
            assert (caught.value.channel, caught.value.reason) == ("vector", "embed_timeout")
        slow.release.set()
        assert (await encoder.encode("third", timeout_s=5)).shape == (4,)
        assert slow.seen == ["first", "third"]
    finally:
        slow.release.set()


async def test_event_loop_runs_while_the_model_works() -> None:
    slow = Blocked()
    task = asyncio.create_task(LocalEncoder(slow).encode("pump"))
    assert await asyncio.to_thread(slow.began.wait, 10)
    assert not task.done()
    slow.release.set()
    assert (await task).shape == (4,)
