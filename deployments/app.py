"""The application: six deployments, bound together. Numbers of replicas, queues and CPUs are in configs/serve*.yaml.

No `from __future__ import annotations` here: Serve converts a builder's arguments only when its annotation is a class.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from deployments.auth import Gate
from deployments.channels import GraphChannel, SearchChannel, VectorChannel
from deployments.embedder import QueryEmbedder
from deployments.handles import HandleChannel, HandleEncoder, HandleRows, HandleVectors, HandleWalker
from deployments.ingress import Admission, Front, IngressLimits, make_api
from deployments.replicas import CONSTRUCTOR_RETRIES
from deployments.rows import Rows
from deployments.telemetry import Metrics
from recall.errors import ChannelError, RecallError, StoreError
from recall.registry import Registry
from recall.results import DegradedCode
from recall.settings import Settings, load_registry, load_tokens, settings_from_environment
from recall.tools import Toolbox

log = logging.getLogger("ray.serve")

READY_TIMEOUT_S = 2.0
# Tenants whose index is compared with the query model at start-up; a later one is reported per request.
CHECKED_TENANTS = 100
START_TIMEOUT_S = 60.0


class AppArgs(BaseModel):
    """Arguments of `build`; each wins over its environment variable RECALL_CONFIG, RECALL_DATA_DIR, RECALL_ENTITIES."""

    model_config = ConfigDict(extra="forbid")

    config: str | None = None
    data_dir: str | None = None
    entities: str | None = None


def build(args: AppArgs) -> Application:
    """For `serve run deployments.app:build` and the `import_path` of a Serve YAML. Raises ConfigError."""
    settings = settings_from_environment(config=args.config, data_dir=args.data_dir, entities=args.entities)
    return compose(settings, {})


def compose(settings: Settings, numbers: Mapping[str, Mapping[str, Any]]) -> Application:
    """The bound application; `numbers` holds deployment options by deployment name, as in a Serve YAML."""
    log.info("effective settings: %s", settings.model_dump_json())
    registry = load_registry(settings)
    load_tokens(settings.auth)  # A mistake in the tokens should fail here, not in a replica.
    embedder = QueryEmbedder.options(**numbers.get("QueryEmbedder", {})).bind(settings.embedder)
    vector = VectorChannel.options(**numbers.get("VectorChannel", {})).bind(settings, registry, embedder)
    search = SearchChannel.options(**numbers.get("SearchChannel", {})).bind(settings, registry)
    graph = GraphChannel.options(**numbers.get("GraphChannel", {})).bind(settings, registry)
    rows = Rows.options(**numbers.get("Rows", {})).bind(settings, registry)
    parts = {"embedder": embedder, "vector": vector, "search": search, "graph": graph, "rows": rows}
    return Ingress.options(**numbers.get("Ingress", {})).bind(settings, registry, parts)


@serve.deployment(max_constructor_retry_count=CONSTRUCTOR_RETRIES)
@serve.ingress()
class Ingress:
    """HTTP and MCP over the engine, which sees the other deployments as channels and a row reader. Owns no store."""

    async def __init__(self, settings: Settings, registry: Registry, parts: Mapping[str, DeploymentHandle]) -> None:
        self._settings = settings
        self._embedder = HandleEncoder(parts["embedder"])
        self._vector = HandleVectors("vector", parts["vector"])
        self._search = HandleChannel("search", parts["search"])
        self._graph = HandleWalker("graph", parts["graph"])
        self._rows = HandleRows(parts["rows"])
        self._admission = Admission(IngressLimits())
        channels = {"vector": self._vector, "search": self._search, "graph": self._graph}
        self._toolbox = Toolbox(registry, channels, self._rows, settings.recall)
        await self._refuse_other_models()

    def __serve_build_asgi_app__(self) -> FastAPI:
        auth = self._settings.auth
        loopback = None if behind_proxy() else auth.loopback_tenant
        front = Front(
            self._toolbox,
            Gate(load_tokens(auth), loopback),
            self._admission,
            self.readiness,
            Metrics(),
            echo_request_id=False,
            mcp_hosts=auth.mcp_hosts,
        )
        return make_api(front)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        self._admission.limits = IngressLimits.model_validate(user_config)

    async def readiness(self) -> dict[str, RecallError | None]:
        """What every deployment, and through it its store, has to say."""
        checks: dict[str, Awaitable[None]] = {
            "embedder": self._embedder.health(),
            "vector": self._vector.health(READY_TIMEOUT_S),
            "search": self._search.health(READY_TIMEOUT_S),
            "graph": self._graph.health(READY_TIMEOUT_S),
            "rows": self._rows.health(READY_TIMEOUT_S),
        }
        answers = await asyncio.gather(*(_outcome(name, check) for name, check in checks.items()))
        return dict(zip(checks, answers, strict=True))

    async def _refuse_other_models(self) -> None:
        """Raise ModelMismatch, naming both, when queries would be embedded by another model than the index was."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                tenants = await self._rows.tenants()
                await self._vector.check_models(tenants[:CHECKED_TENANTS], START_TIMEOUT_S)
        except (StoreError, TimeoutError) as error:
            # A store that is away must not keep the rest from answering; /readyz and every answer say so.
            log.warning("models of the indexes not compared: %s", error)

    async def check_health(self) -> None:
        """The loop runs."""


async def _outcome(name: str, check: Awaitable[None]) -> RecallError | None:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await check
    except RecallError as error:
        return error
    except TimeoutError:
        return ChannelError(name, DegradedCode.CHANNEL_TIMEOUT, f"no answer within {READY_TIMEOUT_S} s")
    return None


def behind_proxy() -> bool:
    """Whether HAProxy stands in front: it hides the caller's address, so that everyone would look local."""
    return os.environ.get("RAY_SERVE_ENABLE_HA_PROXY", "0") == "1"
