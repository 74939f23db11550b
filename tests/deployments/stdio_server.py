"""A process that answers MCP on stdin and stdout from memory planes; started by the stdio tests."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import corpus

from deployments.mcp import serve_stdio
from recall.channels import GraphChannel, SearchChannel, VectorChannel
from recall.models import LocalEncoder, open_embedder
from recall.rows import Caller
from recall.settings import load_registry
from recall.tools import Toolbox


async def main(folder: Path) -> None:
    chosen = corpus.settings(folder, "memory")
    planes = corpus.open_loaded(chosen, "acme", "globex")
    registry = load_registry(chosen)
    channels = {
        "vector": VectorChannel(planes.vector, LocalEncoder(open_embedder(chosen.embedder))),
        "search": SearchChannel(planes.search),
        "graph": GraphChannel(planes.graph, registry, chosen.recall.graph),
    }
    await serve_stdio(Toolbox(registry, channels, planes.rows, chosen.recall), Caller("acme"))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
