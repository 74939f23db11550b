"""Neighbours: one GO for all sources of a step kind; only a hub costs further statements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from recall.keys import store_key
from recall.planes.nebula_filters import columns_of, push_down
from recall.planes.nebula_pool import Work
from recall.planes.nebula_session import Row
from recall.planes.nebula_text import chunks, literal, quoted, vid_list
from recall.ports import Link, NeighbourQuery, Neighbours
from recall.registry import Entity, Registry
from recall.rows import Ref
from recall.where import matches

# Sources of one statement; a walk expands a few hundred at most.
_SOURCES = 1000


@dataclass(frozen=True)
class StepKind:
    """All relations that lead from one entity to another in one direction, asked for in one statement."""

    source: str
    target: Entity
    reverse: bool
    rels: tuple[str, ...]
    query: NeighbourQuery

    @cached_property
    def exact(self) -> bool:
        return self.query.where is None or push_down(self.query.where, self.target).exact

    @cached_property
    def _condition(self) -> str:
        parts = [*self._confined("$^", self.source), *self._confined("$$", self.target.name)]
        if self.query.where is not None:
            parts.append(push_down(self.query.where, self.target).text)
        return " AND ".join(parts)

    def _confined(self, vertex: str, tag: str) -> Iterator[str]:
        # The tag is there while the row is live; the keys already keep tenants apart, this is the second lock.
        caller = self.query.caller
        yield f"{vertex}.{quoted(tag)}.{quoted('tenant')} == {literal(caller.tenant)}"
        if caller.scope is not None:
            yield f"{vertex}.{quoted(tag)}.{quoted('scope')} == {literal(caller.scope)}"

    def go(self, vids: Sequence[str]) -> str:
        """Every link of `vids`: columns source vid, relation, target id, then the fields that decide the filter."""
        fields = [f", $$.{quoted(self.target.name)}.{quoted(name)} AS f{i}" for i, name in enumerate(self._decisive)]
        return (
            f"{self._from(vids)} YIELD DISTINCT id($^) AS s, type(edge) AS rel, "
            f"$$.{quoted(self.target.name)}.{quoted('rid')} AS rid{''.join(fields)}"
        )

    def degrees(self, vids: Sequence[str]) -> str:
        return (
            f"{self._from(vids)} YIELD DISTINCT id($^) AS s, type(edge) AS rel, id($$) AS d "
            "| GROUP BY $-.s YIELD $-.s AS s, count(*) AS degree"
        )

    def first_of(self, vid: str) -> str:
        """The first `fanout` links of one hub, in the order of the port."""
        return f"{self.go([vid])} | ORDER BY $-.rel ASC, $-.rid ASC | LIMIT {self.query.fanout}"

    def _from(self, vids: Sequence[str]) -> str:
        over = ", ".join(quoted(rel) for rel in self.rels)
        direction = " REVERSELY" if self.reverse else ""
        return f"GO FROM {vid_list(vids)} OVER {over}{direction} WHERE {self._condition}"

    @cached_property
    def _decisive(self) -> tuple[str, ...]:
        where = self.query.where
        return () if where is None or self.exact else tuple(c.column for c in columns_of(where, self.target))

    def passing(self, rows: Iterable[Row]) -> list[Row]:
        """Rows that satisfy the filter, where the server could not tell."""
        where = self.query.where
        if where is None or self.exact:
            return list(rows)
        fields = [column.field for column in columns_of(where, self.target)]
        return [row for row in rows if matches(where, dict(zip(fields, row[3:], strict=True)))]


class NeighbourReader:
    def __init__(self, registry: Registry, read_rows: int) -> None:
        self._registry = registry
        self._read_rows = read_rows

    def read(self, work: Work, query: NeighbourQuery) -> Neighbours:
        sources = sorted(set(query.sources))
        links: dict[Ref, set[Link]] = {}
        degree: dict[Ref, int] = {}
        for kind in self._kinds(query):
            vids = {_vid(query, ref): ref for ref in sources if ref.entity == kind.source}
            for part in chunks(list(vids), _SOURCES):
                found, counts = self._links(work, kind, part)
                for vid, rel, target in found:
                    source = vids[vid]
                    link = Link(source, rel, Ref(kind.target.name, target), kind.reverse)
                    links.setdefault(source, set()).add(link)
                for vid, count in counts.items():
                    degree[vids[vid]] = degree.get(vids[vid], 0) + count
        kept: list[Link] = []
        for source in sources:
            mine = sorted(links.get(source, ()), key=lambda link: (link.rel, link.target, link.reverse))
            kept += mine[: query.fanout]
        return Neighbours(tuple(kept), degree, any(count > query.fanout for count in degree.values()))

    def _kinds(self, query: NeighbourQuery) -> list[StepKind]:
        grouped: dict[tuple[str, str, bool], set[str]] = {}
        present = {ref.entity for ref in query.sources}
        for step in query.steps:
            if step.source in present:
                grouped.setdefault((step.source, step.target, step.reverse), set()).add(step.rel)
        return [
            StepKind(source, self._registry.entity(target), reverse, tuple(sorted(rels)), query)
            for (source, target, reverse), rels in sorted(grouped.items())
        ]

    def _links(self, work: Work, kind: StepKind, vids: Sequence[str]) -> tuple[list[Row], dict[str, int]]:
        """(source vid, relation, target id) rows and the number of links a source has; of a hub only the first."""
        rows = work.execute(f"{kind.go(vids)} | LIMIT {self._read_rows + 1}") if vids else []
        if len(rows) <= self._read_rows:
            return _counted(kind.passing(rows))
        if not kind.exact:
            # Counting needs every row here, because only we can tell which of them match.
            return _counted(kind.passing(work.execute(kind.go(vids))))
        counts: dict[str, int] = dict(work.execute(kind.degrees(vids)))
        rows = []
        for part in self._packed(counts):
            alone = len(part) == 1 and counts[part[0]] > kind.query.fanout
            rows += work.execute(kind.first_of(part[0]) if alone else kind.go(part))
        return [row[:3] for row in rows], counts

    def _packed(self, counts: dict[str, int]) -> Iterator[list[str]]:
        """Sources put together so that no statement returns more than about `read_rows` rows."""
        part: list[str] = []
        size = 0
        for vid, count in sorted(counts.items(), key=lambda pair: pair[1]):
            if part and size + count > self._read_rows:
                yield part
                part, size = [], 0
            part.append(vid)
            size += count
        if part:
            yield part


def _counted(rows: list[Row]) -> tuple[list[Row], dict[str, int]]:
    distinct = list(dict.fromkeys(row[:3] for row in rows))
    counts: dict[str, int] = {}
    for vid, _, _ in distinct:
        counts[vid] = counts.get(vid, 0) + 1
    return distinct, counts


def _vid(query: NeighbourQuery, ref: Ref) -> str:
    return store_key(query.caller.tenant, ref.entity, ref.id)
