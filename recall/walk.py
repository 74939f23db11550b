"""Breadth-first walks over the graph plane: one batched store query per hop, bounded in width, paths remembered.

Knows the registry's steps and the GraphStore port; decides nothing about ranking.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from recall.options import GraphLimits
from recall.ports import ChannelQuery, GraphStore, Link, NeighbourQuery, Neighbours
from recall.registry import Registry, Step
from recall.results import PathStep, Via, Walk, WalkedNode
from recall.rows import Ref
from recall.where import Where


@dataclass(slots=True)
class _Reached:
    hop: int
    path: tuple[PathStep, ...]
    passes: bool
    via: list[Via] = field(default_factory=list)


async def walk(store: GraphStore, registry: Registry, query: ChannelQuery, limits: GraphLimits) -> Walk:
    """Nodes within `query.hops` of `query.seeds`, each at its least hop, in visiting order.

    Seeds are expanded in the order given. A seed that another seed reaches is reported (it is evidence) but not
    expanded twice. `query.where` marks nodes as passing; others are walked through all the same.
    """
    walker = _Walker(store, registry, query, limits)
    frontier = tuple(dict.fromkeys(query.seeds))
    for hop in range(1, query.hops + 1):
        if not frontier or walker.full:
            break
        frontier = await walker.expand(frontier, hop, last=hop == query.hops)
    nodes = tuple(
        WalkedNode(ref, reached.hop, tuple(reached.via), reached.path, reached.passes)
        for ref, reached in walker.nodes.items()
    )
    return Walk(nodes, walker.truncated)


class _Walker:
    def __init__(self, store: GraphStore, registry: Registry, query: ChannelQuery, limits: GraphLimits) -> None:
        self.nodes: dict[Ref, _Reached] = {}
        self.truncated = False
        self._links = 0
        self._store, self._registry, self._query = store, registry, query
        self._limits = limits
        self._roots = {seed: (PathStep("", False, seed),) for seed in query.seeds}

    @property
    def full(self) -> bool:
        return len(self.nodes) >= self._limits.max_nodes or self._links >= self._limits.max_links

    async def expand(self, frontier: tuple[Ref, ...], hop: int, *, last: bool) -> tuple[Ref, ...]:
        """Follow all links out of `frontier`; return what is to be expanded next, in visiting order."""
        steps = self._steps(frontier)
        if not steps:
            return ()
        where = self._query.where
        passing = await self._neighbours(frontier, steps, where)
        links, degree = list(passing.links), dict(passing.degree)
        accepted = {link.target for link in passing.links}
        if where is not None and not last:
            everything = await self._neighbours(frontier, steps, None)
            degree = dict(everything.degree)
            known = set(links)
            links += [link for link in everything.links if link not in known]
        return self._visit(frontier, links, degree, accepted, hop)

    def _visit(
        self, frontier: tuple[Ref, ...], links: Iterable[Link], degree: dict[Ref, int], accepted: set[Ref], hop: int
    ) -> tuple[Ref, ...]:
        by_source: dict[Ref, list[Link]] = {}
        for link in links:
            by_source.setdefault(link.source, []).append(link)
        following: list[Ref] = []
        for source in frontier:
            for link in by_source.get(source, ()):
                if self.full:
                    self.truncated = True
                    return tuple(following)
                if self._arrive(link, degree.get(source, 1), link.target in accepted, hop):
                    following.append(link.target)
        return tuple(following)

    def _arrive(self, link: Link, degree: int, passes: bool, hop: int) -> bool:
        """Record one link; whether its target is new and to be expanded."""
        path = self._path(link.source)
        target = link.target
        if path[0].ref == target:
            return False
        via = Via(link.source, link.rel, link.reverse, degree)
        reached = self.nodes.get(target)
        if reached is None:
            reached = _Reached(hop, (*path, PathStep(link.rel, link.reverse, target)), passes)
            self.nodes[target] = reached
            is_new = target not in self._roots
        elif reached.hop != hop:
            return False
        else:
            is_new = False
        reached.via.append(via)
        self._links += 1
        return is_new

    def _path(self, ref: Ref) -> tuple[PathStep, ...]:
        # A seed is expanded from itself, even when another seed has reached it.
        return self._roots[ref] if ref in self._roots else self.nodes[ref].path

    def _steps(self, frontier: tuple[Ref, ...]) -> tuple[Step, ...]:
        entities = sorted({ref.entity for ref in frontier})
        return tuple(step for entity in entities for step in self._registry.steps(entity, reverse=self._query.reverse))

    async def _neighbours(self, sources: tuple[Ref, ...], steps: tuple[Step, ...], where: Where | None) -> Neighbours:
        query = NeighbourQuery(self._query.caller, sources, steps, self._limits.fanout, where)
        found = await self._store.neighbours(query, timeout_s=self._query.timeout_s)
        self.truncated |= found.truncated
        return found
