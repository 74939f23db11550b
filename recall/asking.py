"""Asking channels: one deadline each, and every failure turned into a named degradation. The only broad `except`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from recall.errors import (
    AllChannelsFailed,
    ChannelError,
    DeadlineExceeded,
    IndexMissing,
    InvalidRequest,
    ModelMismatch,
    RecallError,
)
from recall.ports import Channel, ChannelQuery
from recall.results import ChannelAnswer, ChannelReport, Degraded, DegradedCode

log = logging.getLogger(__name__)


class Deadline:
    """The one deadline of a request, on the running loop's clock."""

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + timeout_s

    def left(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self._end - self._loop.time())


T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """What came of asking one channel: an answer, or an error and the degradation it means."""

    name: str
    ms: float
    answer: T | None
    error: RecallError | None = None
    degraded: Degraded | None = None


def report(asked: Asked[ChannelAnswer]) -> ChannelReport:
    """What the caller is told about a channel."""
    if asked.answer is None:
        return ChannelReport(asked.ms, 0, error=asked.degraded.code if asked.degraded else None)
    return ChannelReport(asked.ms, len(asked.answer.candidates), asked.answer.truncated)


async def ask(name: str, call: Callable[[float], Awaitable[T]], timeout_s: float) -> Asked[T]:
    """Await `call(timeout_s)`. An InvalidRequest passes through, since another channel would not make it right."""
    # Not the loop's clock: uvloop's counts whole milliseconds.
    started = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            answer = await call(timeout_s)
    except InvalidRequest:
        raise
    except TimeoutError:
        detail = f"no answer within {timeout_s * 1000:.0f} ms"
        error: RecallError = ChannelError(name, DegradedCode.CHANNEL_TIMEOUT, detail)
    except RecallError as raised:
        error = raised
    except Exception as raised:
        # The channel border: a fault becomes a degradation in the answer, and a traceback in the log.
        log.exception("channel=%s failed", name)
        error = ChannelError(name, DegradedCode.CHANNEL_FAILED, f"{type(raised).__name__}: {raised}")
    else:
        return Asked(name, _ms_since(started), answer)
    degraded = degradation(name, error)
    log.warning("channel=%s code=%s detail=%s", name, degraded.code, degraded.detail)
    return Asked(name, _ms_since(started), None, error, degraded)


async def both(first: Awaitable[T], second: Awaitable[U]) -> tuple[T, U]:
    """Await two things side by side; when one of them raises, the other is cancelled."""
    tasks = asyncio.ensure_future(first), asyncio.ensure_future(second)
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def ask_channel(name: str, channel: Channel, query: ChannelQuery, timeout_s: float) -> Asked[ChannelAnswer]:
    """Search one channel within `timeout_s`."""
    return await ask(name, lambda left: channel.search(replace(query, timeout_s=left)), timeout_s)


def degradation(channel: str, error: RecallError) -> Degraded:
    """The degradation that a channel's error means."""
    if isinstance(error, ChannelError):
        return Degraded(channel, DegradedCode(error.reason), error.detail)
    if isinstance(error, ModelMismatch):
        return Degraded(channel, DegradedCode.MODEL_MISMATCH, str(error))
    if isinstance(error, DeadlineExceeded):
        return Degraded(channel, DegradedCode.CHANNEL_TIMEOUT, str(error))
    return Degraded(channel, DegradedCode.CHANNEL_FAILED, str(error))


def check_failures(asked: Sequence[Asked[ChannelAnswer]], *, strict: bool) -> None:
    """Raise when nothing is left to answer with, or, in strict mode, when anything failed."""
    failed = [one for one in asked if one.error is not None]
    if not failed:
        return
    if len(failed) == len(asked):
        errors = [one.error for one in failed]
        missing = next((error for error in errors if isinstance(error, IndexMissing | ModelMismatch)), None)
        if missing is not None:
            raise missing
        raise AllChannelsFailed("all channels failed: " + "; ".join(str(error) for error in errors))
    if strict:
        first = failed[0]
        assert first.degraded is not None
        raise ChannelError(first.name, first.degraded.code, first.degraded.detail)


_SENTENCES: Mapping[DegradedCode, str] = {
    DegradedCode.NO_EMBEDDER: "no query embedder is configured, so meaning was not searched",
    DegradedCode.EMBED_FAILED: "the query could not be embedded, so meaning was not searched",
    DegradedCode.EMBED_TIMEOUT: "embedding the query took too long, so meaning was not searched",
    DegradedCode.CHANNEL_FAILED: "the channel failed and was left out",
    DegradedCode.CHANNEL_TIMEOUT: "the channel did not answer in time and was left out",
    DegradedCode.CHANNEL_OVERLOADED: "the channel is overloaded and was left out",
    DegradedCode.HYDRATE_FAILED: "some rows could not be read from the source of truth",
    DegradedCode.NO_DIGESTS: "there are no digests",
    DegradedCode.GRAPH_TRUNCATED: "the graph was cut at its width limits; some linked rows may be missing",
    DegradedCode.MODEL_MISMATCH: "queries and index use different embedding models, so meaning was not searched",
}


def warnings(degraded: Sequence[Degraded]) -> tuple[str, ...]:
    """One readable sentence per degradation, in channel order as given, without duplicates."""
    return tuple(dict.fromkeys(f"{one.channel}: {_SENTENCES[one.code]} ({one.detail})" for one in degraded))


def _ms_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)
