"""Recall in one process, without a server: settings to an open toolbox. For the CLI, MCP over stdio and notebooks."""

from __future__ import annotations

from dataclasses import dataclass

from recall.channels import GraphChannel, SearchChannel, VectorChannel
from recall.models import LocalEncoder, open_embedder
from recall.planes import Planes, open_planes, plane_context
from recall.ports import Channel
from recall.registry import Registry
from recall.settings import Settings, load_registry
from recall.tools import Toolbox


@dataclass(frozen=True, slots=True)
class Local:
    """Open stores and the tools over them. `close` when done."""

    settings: Settings
    registry: Registry
    planes: Planes
    toolbox: Toolbox

    async def close(self) -> None:
        await self.planes.close()


def open_local(settings: Settings) -> Local:
    """Open everything that `settings` names; no store is contacted yet. Raises ConfigError."""
    registry = load_registry(settings)
    context = plane_context(settings, registry)
    planes = open_planes(settings, context)
    encoder = LocalEncoder(open_embedder(settings.embedder))
    channels: dict[str, Channel] = {
        "vector": VectorChannel(planes.vector, encoder),
        "search": SearchChannel(planes.search),
        "graph": GraphChannel(planes.graph, registry, settings.recall.graph),
    }
    return Local(settings, registry, planes, Toolbox(registry, channels, planes.rows, settings.recall))
