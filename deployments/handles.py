"""A DeploymentHandle seen as a Channel, GraphWalker, QueryEncoder or RowReader.

Owns the border between Serve's failures and ours: whatever a handle raises leaves here as a RecallError. Never retries,
never ranks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException, RequestCancelledError
from ray.serve.handle import DeploymentHandle

from recall.errors import ChannelError, RecallError, StoreError, TransientStoreError
from recall.ports import ChannelQuery
from recall.results import ChannelAnswer, DegradedCode, Walk
from recall.rows import Caller, Json, Row
from recall.where import Where

if TYPE_CHECKING:
    import numpy as np

# (degraded code, what happened) → the error that the port promises.
Failure = Callable[[DegradedCode, str], RecallError]


async def call(method: DeploymentHandle, *args: Any, failure: Failure) -> Any:
    """Result of `method.remote(*args)`; when the caller is cancelled, so is the replica's work.

    RecallErrors of the replica arrive as themselves. Everything else becomes what `failure` makes of it: a full queue
    `channel_overloaded`, a dead or missing replica and an unforeseen exception `channel_failed`.
    """
    response = method.remote(*args)
    try:
        return await response
    except (asyncio.CancelledError, RequestCancelledError) as error:
        # Without this the replica would go on after our deadline; in local testing mode the cancellation of the
        # awaiting task arrives as RequestCancelledError.
        response.cancel()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from None
        raise failure(DegradedCode.CHANNEL_FAILED, f"the replica cancelled the call: {error}") from None
    except RecallError as error:
        raise _original(error) from None
    except BackPressureError as error:
        raise failure(DegradedCode.CHANNEL_OVERLOADED, _original_text(error)) from None
    except (RayError, RayServeException, grpc.RpcError) as error:
        raise failure(DegradedCode.CHANNEL_FAILED, _original_text(error)) from None
    except Exception as error:  # noqa: BLE001 - local testing mode and gRPC raise the replica's exception bare
        raise failure(DegradedCode.CHANNEL_FAILED, f"{type(error).__name__}: {error}") from None


def _method(handle: DeploymentHandle, name: str) -> DeploymentHandle:
    # Both sides import the same classes, so plain pickle will do; by default Serve's asks Python about every object.
    return handle.options(method_name=name, request_serialization="pickle", response_serialization="pickle")


def _original(error: RecallError) -> RecallError:
    """Ray raises a subclass of the cause and of RayTaskError whose text is a traceback; the cause is what was meant."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, RecallError):
        return error.cause
    return error


def _original_text(error: BaseException) -> str:
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"{type(cause).__name__}: {cause}"


class HandleChannel:
    """A channel deployment. Raises what the replica's channel raises, or ChannelError with this channel's name."""

    def __init__(self, name: str, handle: DeploymentHandle) -> None:
        self.name = name
        self._search = _method(handle, "search")
        self._health = _method(handle, "health")

    async def search(self, query: ChannelQuery) -> ChannelAnswer:
        answer: ChannelAnswer = await call(self._search, query, failure=self._failure)
        return answer

    async def health(self, timeout_s: float) -> None:
        """Return when a replica and its store answer."""
        await call(self._health, timeout_s, failure=self._failure)

    def _failure(self, code: DegradedCode, detail: str) -> RecallError:
        return ChannelError(self.name, code, detail)


class HandleVectors(HandleChannel):
    """The vector channel deployment, which also compares indexes with the query model."""

    def __init__(self, name: str, handle: DeploymentHandle) -> None:
        super().__init__(name, handle)
        self._check_models = _method(handle, "check_models")

    async def check_models(self, tenants: Sequence[str], timeout_s: float) -> None:
        """Raise ModelMismatch for the first tenant whose index another model built."""
        await call(self._check_models, tuple(tenants), timeout_s, failure=self._failure)


class HandleWalker(HandleChannel):
    """The graph channel deployment, with its walks and read-only queries."""

    def __init__(self, name: str, handle: DeploymentHandle) -> None:
        super().__init__(name, handle)
        self._walk = _method(handle, "walk")
        self._traverse = _method(handle, "traverse")

    async def walk(self, query: ChannelQuery) -> Walk:
        found: Walk = await call(self._walk, query, failure=self._failure)
        return found

    async def traverse(
        self, caller: Caller, query: str, params: Mapping[str, Json], *, limit: int, timeout_s: float
    ) -> list[dict[str, Json]]:
        rows: list[dict[str, Json]] = await call(
            self._traverse, caller, query, dict(params), limit, timeout_s, failure=self._failure
        )
        return rows


class HandleEncoder:
    """The query embedder deployment as a QueryEncoder of the vector channel."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._encode = _method(handle, "encode")
        self._health = _method(handle, "health")

    async def encode(self, text: str, *, timeout_s: float | None = None) -> np.ndarray:
        """The unit vector of `text`; `embed_timeout` after `timeout_s`, and the waiting slot in the batch is freed."""
        try:
            async with asyncio.timeout(timeout_s):
                vector: np.ndarray = await call(self._encode, text, failure=_embed_failure)
                return vector
        except TimeoutError:
            raise ChannelError("vector", DegradedCode.EMBED_TIMEOUT, f"no vector within {timeout_s:.3f} s") from None

    async def health(self) -> None:
        await call(self._health, failure=_embed_failure)


def _embed_failure(code: DegradedCode, detail: str) -> RecallError:
    failed = code is DegradedCode.CHANNEL_FAILED
    return ChannelError("vector", DegradedCode.EMBED_FAILED if failed else code, f"query embedder: {detail}")


class HandleRows:
    """The rows deployment as a RowReader. A replica that cannot be reached is a TransientStoreError."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._address = f"deployment {handle.deployment_name}"
        self._get_many = _method(handle, "get_many")
        self._get_entities = _method(handle, "get_entities")
        self._find = _method(handle, "find")
        self._health = _method(handle, "health")
        self._tenants = _method(handle, "tenants")

    async def get_many(
        self, caller: Caller, entity: str, ids: Sequence[str], *, timeout_s: float | None = None
    ) -> dict[str, Row]:
        rows: dict[str, Row] = await call(self._get_many, caller, entity, tuple(ids), timeout_s, failure=self._failure)
        return rows

    async def get_entities(
        self, caller: Caller, ids: Mapping[str, Sequence[str]], *, timeout_s: float | None = None
    ) -> dict[str, dict[str, Row] | StoreError]:
        """`get_many` of several entities in one hop; the error of one that cannot be read stands in its place."""
        found: dict[str, dict[str, Row] | StoreError] = await call(
            self._get_entities, caller, dict(ids), timeout_s, failure=self._failure
        )
        return found

    async def find(
        self, caller: Caller, entity: str, where: Where, limit: int, *, timeout_s: float | None = None
    ) -> list[Row]:
        rows: list[Row] = await call(self._find, caller, entity, where, limit, timeout_s, failure=self._failure)
        return rows

    async def health(self, timeout_s: float) -> None:
        await call(self._health, timeout_s, failure=self._failure)

    async def tenants(self) -> list[str]:
        """Every tenant that has rows."""
        found: list[str] = await call(self._tenants, failure=self._failure)
        return found

    def _failure(self, code: DegradedCode, detail: str) -> RecallError:
        return TransientStoreError("rows (Ray Serve)", self._address, f"{code.value}: {detail}")
