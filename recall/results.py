"""What comes out: candidates of channels, fused items, packs. Frozen dataclasses; `to_json` happens at the edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from recall.rows import Json, Ref, Shipped


class DegradedCode(StrEnum):
    """Closed vocabulary of what can be less than asked for (recall semantics §7)."""

    NO_EMBEDDER = "no_embedder"
    EMBED_FAILED = "embed_failed"
    EMBED_TIMEOUT = "embed_timeout"
    CHANNEL_FAILED = "channel_failed"
    CHANNEL_TIMEOUT = "channel_timeout"
    CHANNEL_OVERLOADED = "channel_overloaded"
    HYDRATE_FAILED = "hydrate_failed"
    NO_DIGESTS = "no_digests"
    GRAPH_TRUNCATED = "graph_truncated"
    MODEL_MISMATCH = "model_mismatch"


@dataclass(frozen=True, slots=True)
class Match(Shipped):
    """Where a candidate matched: a chunk (character offsets into the row's embed text) or highlighted fragments."""

    chunk: int | None = None
    start: int | None = None
    end: int | None = None
    highlights: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PathStep(Shipped):
    """One step of a walk: the relation, the direction it was followed in, and the row it arrived at."""

    rel: str
    reverse: bool
    ref: Ref


@dataclass(frozen=True, slots=True)
class Candidate(Shipped):
    """A ref found by one channel. `rank` is 1-based; `score` is the channel's own and not comparable across channels.

    `path` starts at the seed (relation "") and is empty outside the graph channel.
    """

    ref: Ref
    rank: int
    score: float
    match: Match | None = None
    path: tuple[PathStep, ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelAnswer:
    """Distinct refs in rank order. `exhausted`: the channel has no further candidates beyond these."""

    candidates: tuple[Candidate, ...] = ()
    truncated: bool = False
    exhausted: bool = True


@dataclass(frozen=True, slots=True)
class Via:
    """The last link by which a walk reached a node at its least hop; `degree` counts the links of `source`."""

    source: Ref
    rel: str
    reverse: bool
    degree: int


@dataclass(frozen=True, slots=True)
class WalkedNode:
    """A node at its least hop (≥ 1). `via` lists every link that reached it there, `path` one of least length."""

    ref: Ref
    hop: int
    via: tuple[Via, ...]
    path: tuple[PathStep, ...]
    passes: bool = True


@dataclass(frozen=True, slots=True)
class Walk:
    """Breadth-first walk in visiting order, seeds left out. `population`: live rows by entity, for idf weights."""

    nodes: tuple[WalkedNode, ...] = ()
    truncated: bool = False
    population: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Degraded:
    """One way in which the answer is less than asked for."""

    channel: str
    code: DegradedCode
    detail: str


@dataclass(frozen=True, slots=True)
class ChannelReport:
    """What one channel did for this request. `ms` is wall time as the engine saw it."""

    ms: float
    candidates: int
    truncated: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """Candidates that left before packing: no live row, failed `filters`, or represented by a digest."""

    stale: int = 0
    filtered: int = 0
    covered: int = 0


@dataclass(frozen=True, slots=True)
class Contribution:
    """One channel's share in an item. The `contribution`s of an item sum to its `score`."""

    channel: str
    rank: int
    score: float
    contribution: float


@dataclass(frozen=True, slots=True)
class Explain:
    contributions: tuple[Contribution, ...]
    path: tuple[PathStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Matched:
    """The best piece of evidence of an item, readable: the chunk's text, or highlighted fragments."""

    channel: str
    text: str
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class ContextItem:
    """One hydrated row of a pack. `tokens` is the cost of `row` as emitted."""

    entity: str
    id: str
    row: Mapping[str, Json]
    score: float
    source: tuple[str, ...]
    tokens: int
    matched: Matched | None = None
    explain: Explain | None = None


Altitude = Literal["auto", "entity", "scope", "tenant", "mixed"]


@dataclass(frozen=True, slots=True)
class ContextPack:
    """The answer of `recall`. `tokens` never exceeds the budget; `omitted` counts candidates that did not fit."""

    items: tuple[ContextItem, ...]
    omitted: int
    tokens: int
    warnings: tuple[str, ...]
    degraded: tuple[Degraded, ...]
    channels: Mapping[str, ChannelReport]
    dropped: Dropped
    altitude: Altitude
    request_id: str


@dataclass(frozen=True, slots=True)
class Memory:
    """One row of `recall_fused`: `score` is the raw cosine, `fused_score` what it was ranked by."""

    id: str
    content: str
    metadata: Mapping[str, Json]
    score: float
    fused_score: float
    channels: tuple[str, ...]
    hop: int | None = None
    path: tuple[PathStep, ...] = ()
    explain: Explain | None = None


@dataclass(frozen=True, slots=True)
class FusedAnswer:
    """The answer of `recall_fused`. `dated_context` is set when `date_field` was; `now` when a memory is dated."""

    memories: tuple[Memory, ...]
    truncated: bool = False
    undated: int = 0
    dated_context: str | None = None
    now: str | None = None
    warnings: tuple[str, ...] = ()
    degraded: tuple[Degraded, ...] = ()


@dataclass(frozen=True, slots=True)
class SimilarHit:
    entity: str
    id: str
    score: float
    matched: Matched | None = None


@dataclass(frozen=True, slots=True)
class SearchResult:
    entity: str
    id: str
    rank: int
    score: float
    highlights: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SimilarHits:
    hits: tuple[SimilarHit, ...]


@dataclass(frozen=True, slots=True)
class SearchPage:
    hits: tuple[SearchResult, ...]


@dataclass(frozen=True, slots=True)
class TraversedRows:
    """Rows of a graph query, by the names of its RETURN clause."""

    rows: tuple[Mapping[str, Json], ...]


@dataclass(frozen=True, slots=True)
class FoundRow:
    entity: str
    id: str
    version: int
    row: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class MapLine:
    """One node of the digest tree. `scope`: `name:value` of a scope node; `unchanged`: nothing beneath it is listed."""

    id: str
    level: int
    kind: str
    scope: str | None
    content_hash: str
    sem_hash: str
    tokens: int
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class DigestMap:
    """Nodes from the top, level by level."""

    nodes: tuple[MapLine, ...]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Abstract:
    """A relative of a digest and what it says. `cited`: the digest draws on it."""

    id: str
    kind: str
    scope: str | None
    summary: str
    cited: bool = False


@dataclass(frozen=True, slots=True)
class DigestView:
    """A digest, its children, the way up (nearest first) and, where asked for, rows beneath it."""

    node: MapLine
    summary: str
    children: tuple[Abstract, ...]
    parents: tuple[Abstract, ...]
    rows: tuple[Ref, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedNode:
    """A node and by how many bits its sem_hash differs (0 for a content hash)."""

    node: MapLine
    distance: int
    summary: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """Nodes of a hash, nearest first."""

    matches: tuple[ResolvedNode, ...]
    truncated: bool = False
