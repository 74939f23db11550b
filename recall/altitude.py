"""Altitude: which layer of the digest tree answers, and what then stands for what. Pure.

A digest and a row it covers are never both chosen. Coverage is the stored tree's: the parents of a row's level-0 node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from recall.digest.nodes import DIGEST, TENANT_NODE, parent_of_part
from recall.packing import fits, pack
from recall.results import Altitude, Degraded, DegradedCode
from recall.rows import Ref

_NEEDS_DIGESTS: frozenset[Altitude] = frozenset({"scope", "tenant", "mixed"})


@dataclass(frozen=True, slots=True)
class Entry:
    """A candidate of the pack: a row or a digest, and its fused score."""

    ref: Ref
    score: float


class TokenSizes(Protocol):
    """Sizes in tokens of candidates and of the nodes above them; whoever measures them lazily is asked for few."""

    def __getitem__(self, ref: Ref, /) -> int: ...


@dataclass(frozen=True, slots=True)
class Tree:
    """What the engine read of the digest tree for one request.

    `parents`: level-1 node ids of each covered row; `level1`: ids of level-1 nodes; `leaves`: the level-0 node of each
    covered row; `sources`: the row of each level-0 node; `root`: whether the tenant has a root.
    """

    parents: Mapping[Ref, tuple[str, ...]] = field(default_factory=dict)
    level1: Set[str] = frozenset()
    leaves: Mapping[Ref, str] = field(default_factory=dict)
    sources: Mapping[str, Ref] = field(default_factory=dict)
    root: bool = False

    def level1_of(self, ref: Ref) -> tuple[str, ...]:
        """Level-1 nodes that stand for a candidate: parents of a row, or what a digest hit itself points to."""
        if ref.entity != DIGEST:
            return tuple(node for node in self.parents.get(ref, ()) if node in self.level1)
        source = self.sources.get(ref.id)
        if source is not None:
            return self.level1_of(source)
        node = parent_of_part(ref.id)
        return (node,) if node in self.level1 else ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """What goes to the packer, in order; `covered` rows are represented by a digest among them."""

    altitude: Altitude
    entries: tuple[Entry, ...]
    covered: int = 0
    degraded: Degraded | None = None


def choose(altitude: Altitude, entries: Sequence[Entry], tree: Tree, sizes: TokenSizes, budget: int) -> Chosen:
    """The entries of the pack at `altitude`, from candidates (rows and digest hits) in fused order.

    `auto` takes the lowest layer that fits `budget`: rows, else level-1 digests, else the root. Without digests every
    altitude is `entity`, and those that needed them say so.
    """
    rows = tuple(entry for entry in entries if entry.ref.entity != DIGEST)
    if altitude == "entity":
        return Chosen("entity", rows)
    if not tree.root and not tree.level1:
        return _without_digests(altitude, rows)
    if altitude == "scope":
        return _scope(entries, tree)
    if altitude == "tenant":
        return _tenant(rows, tree)
    if altitude == "mixed":
        return _mixed(entries, rows, tree, sizes, budget)
    if _fit(rows, sizes, budget):
        return Chosen("entity", rows)
    scope = _scope(entries, tree)
    return scope if _fit(scope.entries, sizes, budget) else _tenant(rows, tree)


def _without_digests(requested: Altitude, rows: tuple[Entry, ...]) -> Chosen:
    if requested not in _NEEDS_DIGESTS:
        return Chosen("entity", rows)
    detail = f"altitude {requested} was asked for, but the tenant has no digests; rows were returned"
    return Chosen("entity", rows, degraded=Degraded(DIGEST, DegradedCode.NO_DIGESTS, detail))


def _scope(entries: Sequence[Entry], tree: Tree) -> Chosen:
    """Level-1 digests in the order of their best candidate; rows without one stay where they are."""
    placed: dict[Ref, Entry] = {}
    covered = 0
    for entry in entries:
        nodes = tree.level1_of(entry.ref)
        is_row = entry.ref.entity != DIGEST
        if not nodes and is_row:
            placed[entry.ref] = entry
        covered += bool(nodes) and is_row
        for node in nodes:
            placed.setdefault(Ref(DIGEST, node), Entry(Ref(DIGEST, node), entry.score))
    return Chosen("scope", tuple(placed.values()), covered)


def _tenant(rows: Sequence[Entry], tree: Tree) -> Chosen:
    """The root, then the rows that it does not cover."""
    if not tree.root:
        return _without_digests("tenant", tuple(rows))
    uncovered = tuple(entry for entry in rows if entry.ref not in tree.parents)
    score = max((entry.score for entry in rows), default=0.0)
    root = Entry(Ref(DIGEST, TENANT_NODE), score)
    return Chosen("tenant", (root, *uncovered), len(rows) - len(uncovered))


def _mixed(entries: Sequence[Entry], rows: Sequence[Entry], tree: Tree, sizes: TokenSizes, budget: int) -> Chosen:
    """The longest run of top rows that leaves room for one digest per parent of what is left out.

    Rows keep half of the budget, whatever the digests need: what a row says of itself is worth more than what stands
    for it. Where one digest per parent is too much, the run that leaves the fewest candidates out is taken. A parent of
    a kept row cannot stand for a left-out one, so such a row is represented by its own level-0 digest where that is
    shorter than the row and still fits.
    """
    reach, chosen, covered = -1, tuple[Entry, ...](), set[Ref]()
    for count in range(_run(rows, sizes, budget), _run(rows, sizes, budget // 2) - 1, -1):
        kept, rest = rows[:count], rows[count:]
        digests = _standing_for(rest, entries, tree, {node for row in kept for node in tree.level1_of(row.ref)})
        fitting = _fitting(digests, sizes, budget - _size(kept, sizes))
        below = _covered(rest, fitting, tree)
        complete = len(fitting) == len(digests)
        if complete or count + len(below) > reach:
            reach, chosen, covered = count + len(below), (*kept, *fitting), below
        if complete:
            break
    said = {entry.ref for entry in chosen} | covered
    shorter = _shorter([row for row in rows if row.ref not in said], tree, sizes)
    leaves = _fitting(shorter, sizes, budget - _size(chosen, sizes))
    return Chosen("mixed", (*chosen, *leaves), len(covered) + len(leaves))


def _run(rows: Sequence[Entry], sizes: TokenSizes, budget: int) -> int:
    """How many of the top rows fit `budget` before one does not."""
    return len(pack("prefix", (sizes[row.ref] for row in rows), budget).kept)


def _standing_for(left_out: Sequence[Entry], entries: Sequence[Entry], tree: Tree, blocked: Set[str]) -> list[Entry]:
    """One level-1 digest per left-out candidate, none of them `blocked`, in the order of their best candidate."""
    waiting = {entry.ref for entry in left_out} | {entry.ref for entry in entries if entry.ref.entity == DIGEST}
    ordered = [entry for entry in entries if entry.ref in waiting]
    nodes_of = {entry.ref: set(tree.level1_of(entry.ref)) for entry in ordered}
    chosen: dict[str, Entry] = {}
    for entry in ordered:
        if nodes_of[entry.ref] & chosen.keys():
            continue
        # A node that also covers something already represented would say it twice.
        said = set().union(*(nodes for nodes in nodes_of.values() if nodes & chosen.keys())) if chosen else set()
        free = [node for node in tree.level1_of(entry.ref) if node not in blocked and node not in said]
        if free:
            chosen[free[0]] = Entry(Ref(DIGEST, free[0]), entry.score)
    return list(chosen.values())


def _covered(rows: Sequence[Entry], chosen: Sequence[Entry], tree: Tree) -> set[Ref]:
    nodes = {entry.ref.id for entry in chosen if entry.ref.entity == DIGEST}
    return {row.ref for row in rows if nodes & set(tree.level1_of(row.ref))}


def _shorter(rows: Sequence[Entry], tree: Tree, sizes: TokenSizes) -> list[Entry]:
    """The level-0 digests of `rows` that are shorter than their row."""
    leaves = [(row, Ref(DIGEST, tree.leaves[row.ref])) for row in rows if row.ref in tree.leaves]
    return [Entry(leaf, row.score) for row, leaf in leaves if sizes[leaf] < sizes[row.ref]]


def _fitting(entries: Sequence[Entry], sizes: TokenSizes, budget: int) -> list[Entry]:
    kept = pack("fill", (sizes[entry.ref] for entry in entries), budget).kept
    return [entries[position] for position in kept]


def _fit(entries: Sequence[Entry], sizes: TokenSizes, budget: int) -> bool:
    return fits((sizes[entry.ref] for entry in entries), budget)


def _size(entries: Sequence[Entry], sizes: TokenSizes) -> int:
    return sum(sizes[entry.ref] for entry in entries)
