"""Reading the digest tree by hand: `map`, `digest` and `resolve`. By id, level by level, or from an index; never all.

A caller that keeps the content hashes it has seen pays for what changed since: a known subtree is one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from recall.asking import Deadline
from recall.digest.hashes import MAX_DISTANCE, NO_SEM_HASH, bands, hamming
from recall.digest.nodes import DIGEST, TENANT_NODE, natural, scope_node, source_of, texts_of
from recall.errors import NotFound
from recall.options import RecallSettings
from recall.ports import RowReader
from recall.registry import Registry
from recall.requests import DigestRequest, MapRequest, ResolveRequest
from recall.results import Abstract, DigestMap, DigestView, MapLine, Resolved, ResolvedNode
from recall.rows import Caller, Ref, Row
from recall.where import AnyOf, Condition, Where

# Candidates read for one sem_hash: of nodes with random hashes, one in fourteen shares a band.
MOST_CANDIDATES = 20_000


class Navigator:
    """The three tools over a row reader. Holds no store and no state between requests."""

    def __init__(self, registry: Registry, rows: RowReader, options: RecallSettings) -> None:
        self._registry = registry
        self._rows = rows
        self._options = options

    async def map(self, caller: Caller, request: MapRequest) -> DigestMap:
        """One line a node, from the top, level by level; a subtree whose hash is known is one line and is not read.

        The cost follows what changed: children are read of changed nodes only. `truncated` when `limit` cut it.
        """
        deadline = self._deadline()
        known, seen = set(request.known_hashes), set[str]()
        lines: list[MapLine] = []
        frontier = await self._starts(caller, request.scope, deadline)
        while frontier:
            rows = await self._get(caller, frontier, deadline)
            below: list[str] = []
            for row in rows.values():
                if len(lines) == request.limit:
                    return DigestMap(tuple(lines), truncated=True)
                unchanged = row.values["content_hash"] in known
                lines.append(_line(row, unchanged=unchanged))
                if not unchanged:
                    below += texts_of(row, "child_ids")
            seen |= rows.keys()
            frontier = [node for node in dict.fromkeys(below) if node not in seen]
        return DigestMap(tuple(lines))

    async def digest(self, caller: Caller, request: DigestRequest) -> DigestView:
        """A node with the summaries of its children and the way up. Raises NotFound."""
        deadline = self._deadline()
        found = await self._get(caller, [request.node_id], deadline)
        if request.node_id not in found:
            raise NotFound(f"no digest {request.node_id!r}; `map` lists those that there are")
        row = found[request.node_id]
        children = await self._get(caller, texts_of(row, "child_ids"), deadline)
        above = await self._above(caller, row, deadline)
        beneath = await self._beneath(caller, row, request.rows, deadline) if request.rows else ()
        cited = set(texts_of(row, "cited_ids"))
        return DigestView(
            node=_line(row, unchanged=False),
            summary=str(row.values["summary"]),
            children=tuple(_abstract(child, cited=child.ref.id in cited) for child in children.values()),
            parents=tuple(_abstract(parent, cited=False) for parent in above),
            rows=beneath,
        )

    async def resolve(self, caller: Caller, request: ResolveRequest) -> Resolved:
        """The nodes with a content hash, or those within 8 bits of a sem_hash, nearest first.

        Raises NotFound for an unknown content hash; a sem_hash may have no neighbour.
        """
        deadline = self._deadline()
        if len(request.hash) != len(NO_SEM_HASH):
            where = Condition("content_hash", "string", "eq", request.hash)
            exact = await self._find(caller, where, request.limit, deadline)
            if not exact:
                raise NotFound(f"no digest has the content hash {request.hash}")
            return Resolved(tuple(_resolved(row, 0) for row in exact))
        if request.hash == NO_SEM_HASH:
            return Resolved(())
        tests = tuple(Condition(f"band_{at}", "int", "eq", band) for at, band in enumerate(bands(request.hash)))
        candidates = await self._find(caller, AnyOf(tests), MOST_CANDIDATES, deadline)
        said = [row for row in candidates if row.values["sem_hash"] != NO_SEM_HASH]
        near = [(hamming(request.hash, str(row.values["sem_hash"])), row.ref.id, row) for row in said]
        close = sorted((one for one in near if one[0] <= MAX_DISTANCE), key=lambda one: one[:2])
        cut = len(candidates) == MOST_CANDIDATES or len(close) > request.limit
        return Resolved(tuple(_resolved(row, distance) for distance, _, row in close[: request.limit]), truncated=cut)

    async def _starts(self, caller: Caller, scope: str | None, deadline: Deadline) -> list[str]:
        """Ids where a map begins: the root, or the nodes that `scope` names (a node id, a scope value, name:value)."""
        if scope is None:
            if caller.scope is None or await self._get(caller, [TENANT_NODE], deadline):
                return [TENANT_NODE]
            # Whoever is confined to a scope does not see the root of all scopes.
            return self._scope_nodes(caller.scope)
        wanted = [scope] if scope.startswith("digest:") else self._scope_nodes(scope)
        found = list(await self._get(caller, wanted, deadline))
        if not found:
            raise NotFound(f"no digest of scope {scope!r}; `map` without a scope begins at the root")
        return found

    def _scope_nodes(self, value: str) -> list[str]:
        specs = [entity.spec.distill for entity in self._registry.entities.values()]
        names = sorted({name for spec in specs if spec for name in spec.scopes})
        head, colon, tail = value.partition(":")
        named = [scope_node(head, tail)] if colon and head in names else []
        return named + [scope_node(name, value) for name in names]

    async def _above(self, caller: Caller, row: Row, deadline: Deadline) -> list[Row]:
        """Parents, their parents, and so on: nearest first."""
        found: dict[str, Row] = {}
        frontier = list(texts_of(row, "parent_ids"))
        while frontier:
            rows = await self._get(caller, frontier, deadline)
            found |= rows
            frontier = [
                parent for one in rows.values() for parent in texts_of(one, "parent_ids") if parent not in found
            ]
        return list(found.values())

    async def _beneath(self, caller: Caller, row: Row, limit: int, deadline: Deadline) -> tuple[Ref, ...]:
        """The first `limit` source rows under a node."""
        refs: dict[Ref, None] = {}
        frontier = [row]
        while frontier and len(refs) < limit:
            refs |= {source_of(one): None for one in frontier if one.values["level"] == 0}
            below = [child for one in frontier for child in texts_of(one, "child_ids")]
            frontier = list((await self._get(caller, below, deadline)).values())
        return tuple(sorted(refs, key=lambda ref: (ref.entity, natural(ref.id))))[:limit]

    async def _get(self, caller: Caller, ids: Iterable[str], deadline: Deadline) -> dict[str, Row]:
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return {}
        return await self._rows.get_many(caller, self._entity(), wanted, timeout_s=deadline.left())

    async def _find(self, caller: Caller, where: Where, limit: int, deadline: Deadline) -> Sequence[Row]:
        return await self._rows.find(caller, self._entity(), where, limit, timeout_s=deadline.left())

    def _deadline(self) -> Deadline:
        return Deadline(self._options.timeout_ms / 1000)

    def _entity(self) -> str:
        if not self._registry.has_digests:
            raise NotFound("there are no digests: no entity declares `distill`")
        return DIGEST


def _line(row: Row, *, unchanged: bool) -> MapLine:
    values = row.values
    return MapLine(
        id=row.ref.id,
        level=int(str(values["level"])),
        kind=str(values["kind"]),
        scope=_scope(row),
        content_hash=str(values["content_hash"]),
        sem_hash=str(values["sem_hash"]),
        tokens=int(str(values["tokens"])),
        unchanged=unchanged,
    )


def _scope(row: Row) -> str | None:
    name = row.values["scope_name"]
    return None if name is None else f"{name}:{row.values['scope_value']}"


def _abstract(row: Row, *, cited: bool) -> Abstract:
    return Abstract(row.ref.id, str(row.values["kind"]), _scope(row), str(row.values["summary"]), cited)


def _resolved(row: Row, distance: int) -> ResolvedNode:
    return ResolvedNode(_line(row, unchanged=False), distance, str(row.values["summary"]))
