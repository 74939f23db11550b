"""Ports: what the core asks of stores, models and channels. Protocols and the values they exchange; no implementation.

Reading is asynchronous and carries `timeout_s`; writing is synchronous, because only pipelines write. Every store
raises `TransientStoreError` or `TerminalStoreError` and nothing of its client library. Every read is confined to its
caller's tenant (and scope) inside the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from recall.errors import StoreError
from recall.registry import Step
from recall.results import ChannelAnswer, Walk
from recall.rows import Caller, Json, Ref, Row, Tombstone
from recall.where import Where

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


# ---- writing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteFailure:
    """One record that was not written. `transient` failures may be sent again; others go to the dead-letter file."""

    key: str
    reason: str
    transient: bool


@dataclass(frozen=True, slots=True)
class WriteReport:
    """Outcome of one write, counted in rows (not chunks). `stale` rows lost to a newer stored version."""

    written: int = 0
    stale: int = 0
    failures: tuple[WriteFailure, ...] = ()


class PlaneWriter(Protocol):
    """The writing half that the vector, search and graph planes share. `tenant` is always explicit.

    Records are Arrow tables of `recall.schema`. A row is replaced as a whole: its old chunks (edges) disappear. A
    write older than the stored version is ignored and counted as stale; the same version again is the same store. A
    record with `live = false` is a tombstone (hash "") or a row without text (its own hash): found by nothing, but it
    keeps its version and hash. Duplicates inside a table: the highest version wins, then the last.
    """

    # How many processes may write one tenant at once; None for any number.
    max_writers: int | None

    def prepare(self, tenant: str) -> None:
        """Create what must exist before the first write. Idempotent."""

    def upsert(self, tenant: str, table: pa.Table) -> WriteReport: ...

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport: ...

    def hashes(self, tenant: str, keys: Sequence[str]) -> dict[str, str]:
        """Stored content hash by row key; absent keys are left out."""

    def finish(self, tenant: str) -> None:
        """After a load: make everything visible, build or optimise indexes. Idempotent."""


class PlaneReader(Protocol):
    """The reading half that every plane shares."""

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        """Live rows by entity; empty for an unknown tenant."""

    async def health(self, *, timeout_s: float | None = None) -> None:
        """Return when the store answers, raise StoreError when it does not."""

    async def close(self) -> None: ...


# ---- source of truth -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Page:
    """A half-open key range `after < id ≤ upto` of one entity; None means unbounded."""

    after: str | None
    upto: str | None


class RowReader(Protocol):
    """What hydration needs of the source of truth; all that the engine sees of it."""

    async def get_many(
        self, caller: Caller, entity: str, ids: Sequence[str], *, timeout_s: float | None = None
    ) -> dict[str, Row]:
        """Live rows by id; missing, deleted and foreign ones are left out. `ids` may have any length."""

    async def find(
        self, caller: Caller, entity: str, where: Where, limit: int, *, timeout_s: float | None = None
    ) -> list[Row]:
        """The first `limit` live rows in id order that satisfy `where`, which names indexed columns only.

        Served from an index. Raises InvalidFilter for a column without one, or for `like` and `ilike`.
        """


@runtime_checkable
class EntitiesReader(Protocol):
    """What a row reader behind a network hop can do besides: make the hop once for several entities."""

    async def get_entities(
        self, caller: Caller, ids: Mapping[str, Sequence[str]], *, timeout_s: float | None = None
    ) -> Mapping[str, Mapping[str, Row] | StoreError]:
        """`get_many` of each entity; the error of one that cannot be read stands in its place."""


class RowStore(RowReader, PlaneReader, Protocol):
    """The source of truth: the only store whose contents reach an answer."""

    def pages(self, tenant: str, entity: str, size: int) -> list[Page]:
        """Key ranges of about `size` rows that cover the entity, tombstones included; readable in parallel."""

    def read_page(self, tenant: str, entity: str, page: Page) -> list[Row]:
        """Rows of a page in id order, tombstones included (`deleted`)."""

    def prepare(self) -> None:
        """Create the tables that do not exist yet. Raises ConfigError when one exists with other columns."""

    def upsert(self, tenant: str, rows: Sequence[Row]) -> WriteReport:
        """Write rows unless a newer version is stored; rows equal to the stored ones stay untouched."""

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport: ...

    def tenants(self) -> list[str]: ...

    def lease(self, tenant: str, purpose: str) -> AbstractContextManager[None]:
        """Hold the tenant for one writing job; raises Busy naming the holder. Freed when the holder dies."""


# ---- vector plane --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """Nearest neighbours of `vector` (float32, L2-normalised) among live chunks. `limit` counts chunks."""

    caller: Caller
    entities: tuple[str, ...]
    vector: np.ndarray
    limit: int
    where: Where | None = None


@dataclass(frozen=True, slots=True)
class VectorHit:
    """One chunk: cosine similarity in [-1, 1]; `start`/`end` are character offsets into the row's embed text."""

    ref: Ref
    score: float
    ordinal: int
    start: int
    end: int
    version: int


class VectorStore(PlaneWriter, PlaneReader, Protocol):
    async def search(self, query: VectorQuery, *, timeout_s: float | None = None) -> list[VectorHit]:
        """At most `limit` chunks by (score desc, ref, ordinal); that order also decides ties at the cut.

        Raises IndexMissing for a tenant that was never loaded, ModelMismatch when its index is of another model.
        """

    async def get(
        self, caller: Caller, refs: Sequence[Ref], *, timeout_s: float | None = None
    ) -> dict[Ref, np.ndarray]:
        """Stored vectors, one (chunks, dim) float32 array in chunk order per live ref."""


# ---- search plane --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """BM25 over the search text. `text` is data, never query syntax; at most 256 terms of it count."""

    caller: Caller
    entities: tuple[str, ...]
    text: str
    limit: int
    offset: int = 0
    where: Where | None = None
    highlight: bool = False


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One row. `highlights` are fragments of the search text with matches between `<em>` and `</em>`."""

    ref: Ref
    score: float
    version: int
    highlights: tuple[str, ...] = ()


class SearchStore(PlaneWriter, PlaneReader, Protocol):
    async def search(self, query: SearchQuery, *, timeout_s: float | None = None) -> list[SearchHit]:
        """Ranks offset+1 … offset+limit of the total order (score desc, ref); pages never overlap.

        A text without any searchable term finds nothing. Raises IndexMissing for a tenant that was never loaded.
        """


# ---- graph plane ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NeighbourQuery:
    """One hop from all `sources` at once. `where` applies to the rows reached; at most `fanout` links a source."""

    caller: Caller
    sources: tuple[Ref, ...]
    steps: tuple[Step, ...]
    fanout: int
    where: Where | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """`source` → `target` as walked; with `reverse` the stored edge runs the other way."""

    source: Ref
    rel: str
    target: Ref
    reverse: bool


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Links by (source, rel, target). `degree`: live links of each source over the steps asked for, before `fanout`
    and after `where`; `truncated`: some source had more than `fanout`."""

    links: tuple[Link, ...]
    degree: Mapping[Ref, int]
    truncated: bool


class GraphStore(PlaneReader, Protocol):
    """Nodes are rows, labelled by entity; edges belong to the row that declares them and are replaced with it."""

    max_writers: int | None

    def prepare(self, tenant: str) -> None: ...

    def upsert(self, tenant: str, nodes: pa.Table, edges: pa.Table) -> WriteReport:
        """Replace each node of `nodes` and the edges it owns by those of `edges` with that owner.

        An edge may end at a node that is not loaded yet; it is followed once that node is live.
        """

    def delete(self, tenant: str, tombstones: Sequence[Tombstone]) -> WriteReport: ...

    def hashes(self, tenant: str, keys: Sequence[str]) -> dict[str, str]: ...

    def finish(self, tenant: str) -> None: ...

    async def neighbours(self, query: NeighbourQuery, *, timeout_s: float | None = None) -> Neighbours: ...

    async def traverse(
        self, caller: Caller, query: str, params: Mapping[str, Json], *, limit: int, timeout_s: float
    ) -> list[dict[str, Json]]:
        """Run a query that passed `recall.readonly`, confined to the tenant's own graph; at most `limit` rows.

        Raises Forbidden where the store cannot confine it, InvalidRequest when the query is wrong.
        """


# ---- channels ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChannelQuery:
    """What the engine asks of any channel. `seeds`, `hops` and `reverse` concern the graph channel only."""

    caller: Caller
    text: str
    entities: tuple[str, ...]
    limit: int
    where: Where | None = None
    seeds: tuple[Ref, ...] = ()
    hops: int = 1
    reverse: bool = False
    offset: int = 0
    highlight: bool = False
    timeout_s: float | None = None


class Channel(Protocol):
    """One way of finding candidates. Raises ChannelError, InvalidRequest or StoreError, nothing else."""

    async def search(self, query: ChannelQuery) -> ChannelAnswer: ...


class GraphWalker(Channel, Protocol):
    """The graph channel's further abilities, used by `recall_fused` and `graph_traverse`."""

    async def walk(self, query: ChannelQuery) -> Walk: ...

    async def traverse(
        self, caller: Caller, query: str, params: Mapping[str, Json], *, limit: int, timeout_s: float
    ) -> list[dict[str, Json]]: ...
