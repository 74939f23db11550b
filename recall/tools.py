"""The tool table behind HTTP, MCP and CLI: name → request model → handler. No transport, no credentials."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from recall.digest.navigation import Navigator
from recall.engine import Engine
from recall.errors import NotFound
from recall.fused import FusedRecall
from recall.options import RecallSettings
from recall.ports import Channel, GraphWalker, RowReader
from recall.primitives import Primitives
from recall.readonly import check
from recall.registry import Registry
from recall.requests import (
    DigestRequest,
    FusedRequest,
    GetRequest,
    MapRequest,
    RecallRequest,
    Request,
    ResolveRequest,
    SearchRequest,
    SimilarRequest,
    TraverseRequest,
    parse_request,
)
from recall.results import (
    ContextPack,
    DigestMap,
    DigestView,
    FoundRow,
    FusedAnswer,
    Resolved,
    SearchPage,
    SimilarHits,
    TraversedRows,
)
from recall.rows import Caller
from recall.wire import to_json


class Toolbox:
    """Everything that the tools need, assembled once: over open stores in one process, or over Serve handles."""

    def __init__(
        self, registry: Registry, channels: Mapping[str, Channel], rows: RowReader, options: RecallSettings
    ) -> None:
        self.registry = registry
        self.channels = channels
        self.options = options
        self.engine = Engine(registry, channels, rows, options)
        self.fused = FusedRecall(registry, channels, rows, options)
        self.primitives = Primitives(registry, channels, rows, options)
        self.digests = Navigator(registry, rows, options)


Handler = Callable[[Toolbox, Caller, Any, str | None], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `result` is the dataclass that the handler returns."""

    name: str
    description: str
    request: type[Request]
    result: type
    handler: Handler


async def call_tool(
    toolbox: Toolbox, name: str, caller: Caller, body: object, *, request_id: str | None = None
) -> dict[str, Any]:
    """Check `body` against the tool's request model, run it, return the JSON-ready result. Raises RecallError."""
    tool = TOOLS.get(name)
    if tool is None:
        raise NotFound(f"no tool {name!r}; known: {', '.join(TOOLS)}")
    request = parse_request(tool.request, body)
    result = await tool.handler(toolbox, caller, request, request_id)
    return cast(dict[str, Any], to_json(result))


async def _recall(box: Toolbox, caller: Caller, request: RecallRequest, request_id: str | None) -> ContextPack:
    return await box.engine.recall(caller, request, request_id=request_id)


async def _recall_fused(box: Toolbox, caller: Caller, request: FusedRequest, _: str | None) -> FusedAnswer:
    return await box.fused.recall(caller, request)


async def _vector_similar(box: Toolbox, caller: Caller, request: SimilarRequest, _: str | None) -> SimilarHits:
    return SimilarHits(await box.primitives.vector_similar(caller, request))


async def _search(box: Toolbox, caller: Caller, request: SearchRequest, _: str | None) -> SearchPage:
    return SearchPage(await box.primitives.search(caller, request))


async def _graph_traverse(box: Toolbox, caller: Caller, request: TraverseRequest, _: str | None) -> TraversedRows:
    check(request.query)
    graph = cast(GraphWalker, box.channels["graph"])
    timeout_s = (request.timeout_ms or box.options.channel_timeout_ms) / 1000
    rows = await graph.traverse(caller, request.query, request.params, limit=request.limit, timeout_s=timeout_s)
    return TraversedRows(tuple(rows))


async def _get(box: Toolbox, caller: Caller, request: GetRequest, _: str | None) -> FoundRow:
    row = await box.primitives.get(caller, request)
    return FoundRow(row.ref.entity, row.ref.id, row.version, row.values)


async def _map(box: Toolbox, caller: Caller, request: MapRequest, _: str | None) -> DigestMap:
    return await box.digests.map(caller, request)


async def _digest(box: Toolbox, caller: Caller, request: DigestRequest, _: str | None) -> DigestView:
    return await box.digests.digest(caller, request)


async def _resolve(box: Toolbox, caller: Caller, request: ResolveRequest, _: str | None) -> Resolved:
    return await box.digests.resolve(caller, request)


_TABLE = (
    Tool(
        "recall",
        "Answer a question with a ranked context pack that fits a token budget, found by meaning, words and links.",
        RecallRequest,
        ContextPack,
        _recall,
    ),
    Tool(
        "recall_fused",
        "Recall memories by meaning and through links; with date_field, also as a dated timeline.",
        FusedRequest,
        FusedAnswer,
        _recall_fused,
    ),
    Tool(
        "vector_similar",
        "Rows of one entity nearest in meaning to a text.",
        SimilarRequest,
        SimilarHits,
        _vector_similar,
    ),
    Tool(
        "search",
        "Full-text search over one entity, with highlights and stable pages.",
        SearchRequest,
        SearchPage,
        _search,
    ),
    Tool(
        "graph_traverse",
        "Run a read-only openCypher query over your own graph; put values into params.",
        TraverseRequest,
        TraversedRows,
        _graph_traverse,
    ),
    Tool("get", "Read one row by entity and id.", GetRequest, FoundRow, _get),
    Tool(
        "map",
        "List the tree of summaries from the top; subtrees whose hash you know are one line.",
        MapRequest,
        DigestMap,
        _map,
    ),
    Tool(
        "digest",
        "Read one summary with those of its children, the way up, and the rows it stands for.",
        DigestRequest,
        DigestView,
        _digest,
    ),
    Tool(
        "resolve",
        "Find summaries by hash: exactly by content, or near in meaning by sem_hash.",
        ResolveRequest,
        Resolved,
        _resolve,
    ),
)
TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in _TABLE}
