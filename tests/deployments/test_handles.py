"""Handles seen as ports, in Serve's local testing mode: results, deadlines, cancellation and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from ray import serve
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from deployments.handles import HandleChannel, HandleEncoder, HandleRows, HandleWalker, call
from recall.errors import ChannelError, InvalidFilter, RecallError, StoreError, TransientStoreError, UnknownEntity
from recall.ports import ChannelQuery, EntitiesReader
from recall.results import Candidate, ChannelAnswer, DegradedCode, Walk
from recall.rows import Caller, Ref, Row

CALLER = Caller("acme")
QUERY = ChannelQuery(CALLER, "question", ("asset",), 3, timeout_s=1.5)
# Filled by replicas of this process; local testing mode runs them in threads.
SEEN: list[Any] = []


@serve.deployment
class Fake:
    """A channel whose behaviour is the query's text."""

    async def search(self, query: ChannelQuery) -> ChannelAnswer:
        if query.text == "slow":
            SEEN.append("started")
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                SEEN.append("cancelled")
                raise
        if query.text == "wrong filter":
            raise InvalidFilter("colour", "unknown field")
        if query.text == "broken":
            raise ZeroDivisionError("oops")
        SEEN.append(query)
        return ChannelAnswer((Candidate(Ref("asset", "1"), 1, 0.5),))

    async def walk(self, query: ChannelQuery) -> Walk:
        return Walk(truncated=True)

    async def traverse(
        self, caller: Caller, query: str, params: dict[str, Any], limit: int, timeout_s: float
    ) -> list[dict[str, Any]]:
        return [{"tenant": caller.tenant, "params": params, "limit": limit, "timeout_s": timeout_s}]

    async def encode(self, text: str) -> np.ndarray:
        if text == "slow":
            await asyncio.sleep(30)
        if text == "broken":
            raise ValueError("bad weights")
        return np.ones(2, dtype=np.float32)

    async def get_many(
        self, caller: Caller, entity: str, ids: Sequence[str], timeout_s: float | None
    ) -> dict[str, Row]:
        if entity == "broken":
            raise ValueError("disk")
        return {id_: Row(Ref(entity, id_), 1, {"id": id_}) for id_ in ids}

    async def get_entities(
        self, caller: Caller, ids: Mapping[str, Sequence[str]], timeout_s: float | None
    ) -> dict[str, dict[str, Row] | StoreError]:
        if "broken" in ids:
            raise ValueError("disk")
        locked = TransientStoreError("rows (SQLite)", "rows.sqlite", "locked")
        found = {entity: await self.get_many(caller, entity, wanted, timeout_s) for entity, wanted in ids.items()}
        return {entity: locked if entity == "locked" else rows for entity, rows in found.items()}

    def tenants(self) -> list[str]:
        return ["acme"]

    async def health(self, timeout_s: float = 0.0) -> None:
        SEEN.append(("health", timeout_s))


@pytest.fixture(scope="module")
def handle() -> DeploymentHandle:
    return serve.run(Fake.bind(), name="fake", _local_testing_mode=True)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


def query(text: str) -> ChannelQuery:
    return ChannelQuery(CALLER, text, ("asset",), 3, timeout_s=1.5)


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the replica is another thread, which knows no event of ours
            await asyncio.sleep(0.005)


async def test_query_and_its_deadline_reach_the_replica(handle: DeploymentHandle) -> None:
    answer = await HandleChannel("search", handle).search(QUERY)
    assert answer.candidates[0].ref == Ref("asset", "1")
    assert SEEN == [QUERY]


async def test_timeout_is_a_timeout_and_stops_the_replica(handle: DeploymentHandle) -> None:
    channel = HandleChannel("search", handle)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await channel.search(query("slow"))
    await until(lambda: SEEN == ["started", "cancelled"])


async def test_cancelled_caller_stops_the_replica(handle: DeploymentHandle) -> None:
    task = asyncio.create_task(HandleChannel("search", handle).search(query("slow")))
    await until(lambda: SEEN == ["started"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: SEEN == ["started", "cancelled"])


async def test_recall_errors_cross_intact(handle: DeploymentHandle) -> None:
    with pytest.raises(InvalidFilter) as caught:
        await HandleChannel("search", handle).search(query("wrong filter"))
    assert type(caught.value) is InvalidFilter
    assert (caught.value.field, caught.value.reason) == ("colour", "unknown field")


async def test_unforeseen_error_is_the_channels_failure(handle: DeploymentHandle) -> None:
    with pytest.raises(ChannelError) as caught:
        await HandleChannel("search", handle).search(query("broken"))
    assert caught.value.channel == "search"
    assert caught.value.reason == "channel_failed"
    assert "ZeroDivisionError: oops" in caught.value.detail


async def test_walker_walks_and_traverses(handle: DeploymentHandle) -> None:
    walker = HandleWalker("graph", handle)
    assert (await walker.walk(QUERY)).truncated
    rows = await walker.traverse(CALLER, "MATCH (n) RETURN n", {"a": 1}, limit=5, timeout_s=0.5)
    assert rows == [{"tenant": "acme", "params": {"a": 1}, "limit": 5, "timeout_s": 0.5}]


async def test_encoder_gives_vectors_and_names_its_timeout(handle: DeploymentHandle) -> None:
    encoder = HandleEncoder(handle)
    assert (await encoder.encode("text")).shape == (2,)
    with pytest.raises(ChannelError) as slow:
        await encoder.encode("slow", timeout_s=0.05)
    assert slow.value.reason == "embed_timeout"
    with pytest.raises(ChannelError) as broken:
        await encoder.encode("broken")
    assert (broken.value.channel, broken.value.reason) == ("vector", "embed_failed")


async def test_rows_come_back_and_failures_are_store_errors(handle: DeploymentHandle) -> None:
    rows = HandleRows(handle)
    assert list(await rows.get_many(CALLER, "asset", ["1", "2"])) == ["1", "2"]
    assert await rows.tenants() == ["acme"]
    with pytest.raises(TransientStoreError, match="deployment Fake"):
        await rows.get_many(CALLER, "broken", ["1"])


async def test_rows_of_several_entities_come_in_one_call(handle: DeploymentHandle) -> None:
    rows = HandleRows(handle)
    assert isinstance(rows, EntitiesReader)
    found = await rows.get_entities(CALLER, {"asset": ["1"], "locked": ["2"]}, timeout_s=1.0)
    assert found["asset"] == {"1": Row(Ref("asset", "1"), 1, {"id": "1"})}
    assert isinstance(found["locked"], TransientStoreError)
    with pytest.raises(TransientStoreError, match="deployment Fake"):
        await rows.get_entities(CALLER, {"broken": ["1"]})


async def test_health_is_asked_with_its_deadline(handle: DeploymentHandle) -> None:
    await HandleChannel("search", handle).health(0.5)
    await HandleRows(handle).health(0.25)
    assert SEEN == [("health", 0.5), ("health", 0.25)]


class Answering:
    """Stands in for a handle's method whose response raises `error`."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def remote(self, *_: object) -> Answering:
        return self

    def __await__(self) -> Any:
        raise self._error
        yield

    def cancel(self) -> None:
        SEEN.append("cancelled")


def failure(code: DegradedCode, detail: str) -> RecallError:
    return ChannelError("vector", code, detail)


async def test_full_queue_is_an_overload() -> None:
    with pytest.raises(ChannelError) as caught:
        await call(Answering(BackPressureError(9, 8)), failure=failure)  # type: ignore[arg-type]
    assert caught.value.reason == "channel_overloaded"


async def test_dead_replica_is_a_failed_channel() -> None:
    with pytest.raises(ChannelError) as caught:
        await call(Answering(ActorDiedError()), failure=failure)  # type: ignore[arg-type]
    assert caught.value.reason == "channel_failed"


@pytest.mark.parametrize("cause", [UnknownEntity("x", ("a", "b")), TransientStoreError("vector (x)", "path", "gone")])
async def test_error_that_ray_wrapped_is_unwrapped(cause: RecallError) -> None:
    wrapped = RayTaskError("search", "a long traceback", cause).as_instanceof_cause()
    with pytest.raises(type(cause)) as caught:
        await call(Answering(wrapped), failure=failure)  # type: ignore[arg-type]
    assert type(caught.value) is type(cause)
    assert str(caught.value) == str(cause)


async def test_overload_that_ray_wrapped_is_still_an_overload() -> None:
    wrapped = RayTaskError("encode", "a long traceback", BackPressureError(9, 8)).as_instanceof_cause()
    with pytest.raises(ChannelError) as caught:
        await call(Answering(wrapped), failure=failure)  # type: ignore[arg-type]
    assert caught.value.reason == "channel_overloaded"


async def test_call_cancelled_by_the_replica_is_a_failed_channel() -> None:
    with pytest.raises(ChannelError) as caught:
        await call(Answering(asyncio.CancelledError()), failure=failure)  # type: ignore[arg-type]
    assert caught.value.reason == "channel_failed"
