"""The knobs of one recall that an operator may turn. Plain values; `recall.settings` reads them from YAML."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from recall.entities import Strict


class GraphLimits(Strict):
    """Bounds of the graph channel: seeds expanded, neighbours per node, incoming edges or not."""

    seeds: int = Field(8, ge=1, le=100)
    fanout: int = Field(64, ge=1)
    max_nodes: int = Field(500, ge=1)
    max_links: int = Field(2000, ge=1)
    reverse: bool = False


class RecallSettings(Strict):
    """Defaults and bounds of one recall. Times in milliseconds."""

    timeout_ms: int = Field(5000, ge=1)
    channel_timeout_ms: int = Field(3000, ge=1)
    hydrate_timeout_ms: int = Field(2000, ge=1)
    strict: bool = False
    fusion: Literal["rrf", "convex"] = "rrf"
    rrf_k: int = Field(60, ge=1)
    weights: dict[str, float] = Field({"vector": 1.0, "search": 1.0, "graph": 1.0})
    graph: GraphLimits = GraphLimits()
    # Import path `module:callable` of a Tokenizer; None counts ceil(bytes / 4).
    tokenizer: str | None = None
