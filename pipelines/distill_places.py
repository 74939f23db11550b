"""From summaries of rows to nodes with a place: fit and grow the routing tree, settle clusters, write level 0.

The driver sees counts and a bounded sample; vectors of a leaf meet in one process only when the leaf has to be split.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.distill_job import Job, Report
from pipelines.distill_leaf import KEPT, MADE, VECTOR, Leaf, get_leaves, to_matrix
from pipelines.distill_parts import Joined, Several, bundles, parts
from pipelines.distill_source import share
from pipelines.flow import Flow, Grouping
from recall.digest.hashes import leaf_hash, sem_hash, text_hash
from recall.digest.nodes import DIGEST, TENANT_NODE, Node
from recall.digest.rollup import spread
from recall.digest.routing import RoutingTree, cluster_id
from recall.rows import Json, Ref, Row

TREE = "routing.npz"
MEMBERS = "members-"
MEMBER = pa.schema([("parent", pa.string()), ("node", pa.string()), ("key", pa.string()), ("tokens", pa.int64())])
_SPLIT = pa.schema([("path", pa.string()), ("members", pa.int64()), ("tree", pa.binary())])
# Vectors that are looked at to split one leaf; a leaf that is still too full is split again.
MOST_VECTORS = 4096
_MOST_ROUNDS = 16


def fit_tree(flow: Flow, job: Job) -> RoutingTree:
    """A routing tree on a sample of the run's summaries, which depends on the set of rows only. Stores it."""
    names = parts(job, MADE)
    settings = job.settings.distill
    total = sum(job.run.rows(name) for name in names)
    share = 1.0 if total <= settings.sample else settings.sample / total
    sampled = flow.each(bundles(job, names), Several(Sample(job, share)), job="sample")
    found = sorted(pair for bundle in sampled for pairs in bundle for pair in pairs)
    # A small sample of many rows may hold none of them; the tree then grows from a single leaf.
    vectors = np.stack([np.frombuffer(raw, np.float32) for _, raw in found]) if found else job.maker().embed([])
    tree = RoutingTree.fit(vectors, settings.max_fan_in)
    job.home.put(TREE, tree.dump())
    route(flow, job, tree)
    return tree


def stored_tree(job: Job) -> RoutingTree | None:
    """The tree of this recipe, if it was fitted."""
    return RoutingTree.load(job.home.read(TREE)) if TREE in job.home.names() else None


def grow_tree(flow: Flow, job: Job, tree: RoutingTree) -> Counter[str]:
    """Split leaves that outgrew the fan-in, until none is left that can be split. Returns the members of each leaf."""
    fan_in = job.settings.distill.max_fan_in
    counts = count_leaves(job)
    for _ in range(_MOST_ROUNDS):
        full = tree.overfull(counts, fan_in)
        if not full:
            break
        grouping = Grouping(Joined(Overfull(job, full)), "path", GrowLeaf(tree, fan_in), _splits)
        for splits in flow.grouped(bundles(job, parts(job, KEPT, MADE)), grouping, job="grow"):
            for path, members, raw in splits:
                tree.graft(path, raw, members)
        job.home.put(TREE, tree.dump())
        route(flow, job, tree)
        counts = count_leaves(job)
    return counts


def route(flow: Flow, job: Job, tree: RoutingTree) -> None:
    """Give every leaf of the run its path in `tree`."""
    for _ in flow.each(bundles(job, parts(job, KEPT, MADE)), Several(Route(job, tree)), job="route"):
        pass


def count_leaves(job: Job) -> Counter[str]:
    """Rows by leaf path. Reads one short column."""
    counts: Counter[str] = Counter()
    for name in parts(job, KEPT, MADE):
        counts.update(path for path in job.run.read_table(name, ["routing"])["routing"].to_pylist() if path is not None)
    return counts


def _chance(node: str) -> float:
    """A number in [0, 1) that belongs to the node: samples do not depend on the order or the layout of parts."""
    return int.from_bytes(hashlib.blake2b(node.encode(), digest_size=7).digest(), "big") / 2**56


@dataclass(frozen=True, slots=True)
class Sample:
    """Vectors of about `share` of a part's leaves, by node."""

    job: Job
    share: float

    def __call__(self, name: str) -> list[tuple[str, bytes]]:
        part = self.job.run.read_table(name, ["node", VECTOR])
        nodes = part["node"].to_pylist()
        chosen = [at for at, node in enumerate(nodes) if self.share >= 1 or _chance(node) < self.share]
        vectors = _vectors(self.job, part, chosen)
        return [(nodes[at], vector.tobytes()) for at, vector in zip(chosen, vectors, strict=True)]


def _vectors(job: Job, part: pa.Table, wanted: Sequence[int]) -> np.ndarray:
    """Vectors of the leaves at `wanted`; those of kept rows are made again from the stored summary."""
    # Typed, because of a part in which nothing is wanted.
    places = pa.array(wanted, pa.int64())
    if VECTOR in part.column_names:
        return to_matrix(part[VECTOR].take(places))
    ids = part["node"].take(places).to_pylist()
    with job.rows() as nodes:
        found = nodes.get(DIGEST, ids)
    return job.maker().embed([str(found[node].values["summary"]) if node in found else "" for node in ids])


@dataclass(frozen=True, slots=True)
class Route:
    """The path of each leaf of a part that has none in `tree`; the part is replaced."""

    job: Job
    tree: RoutingTree

    def __call__(self, name: str) -> None:
        part = self.job.run.read_table(name)
        paths, fresh = part["routing"].to_pylist(), VECTOR in part.column_names
        lost = [at for at, path in enumerate(paths) if self._lost(path, fresh)]
        if not lost:
            return
        found = _vectors(self.job, part, lost)
        for at, vector, path in zip(lost, found, self.tree.route(found), strict=True):
            paths[at] = path if vector.any() else None
        place = part.column_names.index("routing")
        self.job.run.put_table(name, part.set_column(place, "routing", pa.array(paths, pa.string())))

    def _lost(self, path: str | None, fresh: bool) -> bool:
        # A kept row without a path has no vector; a new one has not been routed yet.
        return fresh if path is None else not self.tree.is_leaf(path)


@dataclass(frozen=True, slots=True)
class Overfull:
    """Vectors of a part's leaves in the overfull leaves of the tree, at most about MOST_VECTORS each."""

    job: Job
    full: Mapping[str, int]

    def __call__(self, name: str) -> pa.Table:
        stored = [VECTOR] if name.startswith(MADE) else []
        part = self.job.run.read_table(name, ["node", "routing", *stored])
        paths, nodes = part["routing"].to_pylist(), part["node"].to_pylist()
        wanted = [at for at, path in enumerate(paths) if self._wanted(path, nodes[at])]
        found = _vectors(self.job, part, wanted) if wanted else np.zeros((0, 1), np.float32)
        return pa.table(
            {
                "path": pa.array([paths[at] for at in wanted], pa.string()),
                "members": pa.array([self.full[paths[at]] for at in wanted], pa.int64()),
                "vector": pa.array([vector.tobytes() for vector in found], pa.binary()),
            }
        )

    def _wanted(self, path: str | None, node: str) -> bool:
        count = 0 if path is None else self.full.get(path, 0)
        return count > 0 and (count <= MOST_VECTORS or _chance(node) < MOST_VECTORS / count)


@dataclass(frozen=True, slots=True)
class GrowLeaf:
    """Split one leaf of the tree by the vectors in it."""

    tree: RoutingTree
    fan_in: int

    def __call__(self, group: pa.Table) -> pa.Table:
        path, members = group["path"][0].as_py(), group["members"][0].as_py()
        vectors = np.stack([np.frombuffer(raw, np.float32) for raw in group["vector"].to_pylist()])
        # In a sampled leaf fewer vectors stand for all members.
        most = max(1, self.fan_in * len(vectors) // members)
        copy = RoutingTree(self.tree.dim, self.tree.mean)
        copy.grow(path, vectors, most)
        return pa.table({"path": [path], "members": [members], "tree": [copy.dump()]}, schema=_SPLIT)


def _splits(table: pa.Table) -> list[tuple[str, int, bytes]]:
    return [(row["path"], row["members"], row["tree"]) for row in table.to_pylist()]


@dataclass(frozen=True, slots=True)
class PlaceLeaves:
    """The nodes of a part whose content, scope or place differs from what is stored; and who is under whom.

    `clusters`: path of the cluster by leaf path.
    """

    job: Job
    tree: RoutingTree
    clusters: Mapping[str, str]

    def __call__(self, name: str) -> Report:
        leaves, vectors = get_leaves(self.job, name)
        parents = [self._parents(leaf) for leaf in leaves]
        hashes = [leaf_hash(leaf.recipe, leaf.source_hash, above) for leaf, above in zip(leaves, parents, strict=True)]
        meanings = [leaf.old_sem_hash for leaf in leaves] if vectors is None else sem_hash(vectors, self.tree.mean)
        changed = [at for at, leaf in enumerate(leaves) if self._differs(leaf, hashes[at], meanings[at])]
        report = Report()
        if changed:
            with self.job.rows() as nodes:
                stored = {} if vectors is not None else nodes.get(DIGEST, [leaves[at].node for at in changed])
                rows = []
                for at in changed:
                    if vectors is not None:
                        rows.append(self._made(leaves[at], parents[at], hashes[at], str(meanings[at])))
                    elif leaves[at].node in stored:
                        rows.append(self._moved(stored[leaves[at].node], leaves[at], parents[at], hashes[at]))
                report = nodes.write(rows)
        self._put_members(name, leaves, parents)
        old = {parent for at in changed for parent in leaves[at].old_parents}
        return report + Report(
            asked=sum(leaves[at].asked - leaves[at].old_asked for at in changed),
            affected=frozenset(old.union(*(parents[at] for at in changed))),
            parents=frozenset(parent for above in parents for parent in above if parent != TENANT_NODE),
            orphans=tuple(
                (leaf.node, leaf.tokens) for leaf, above in zip(leaves, parents, strict=True) if TENANT_NODE in above
            ),
            # All that the levels above are made of, and planned by.
            fingerprint=sum(
                share(leaf.node, content, leaf.routing, leaf.tokens, leaf.scope)
                for leaf, content in zip(leaves, hashes, strict=True)
            ),
        )

    def _parents(self, leaf: Leaf) -> list[str]:
        cluster = None if leaf.routing is None else self.clusters.get(leaf.routing)
        above = sorted([*leaf.scopes, *([] if cluster is None else [cluster_id(cluster)])])
        return above or [TENANT_NODE]

    def _differs(self, leaf: Leaf, content: str, meaning: str | None) -> bool:
        now = (content, leaf.scope, leaf.routing, meaning)
        if now != (leaf.old_hash, leaf.old_scope, leaf.old_routing, leaf.old_sem_hash):
            return True
        return leaf.summary is not None and text_hash(leaf.summary) != leaf.old_summary_hash

    def _made(self, leaf: Leaf, parents: Sequence[str], content: str, meaning: str) -> Row:
        return leaf_node(leaf, parents, content, meaning).row(self.job.version, self.job.started, leaf.scope)

    def _moved(self, stored: Row, leaf: Leaf, parents: Sequence[str], content: str) -> Row:
        """The stored node with other parents."""
        values: dict[str, Json] = {
            **stored.values,
            "parent_ids": list(parents),
            "content_hash": content,
            "routing": leaf.routing,
            "updated_at": self.job.started,
        }
        return Row(stored.ref, self.job.version, values, leaf.scope)

    def _put_members(self, name: str, leaves: Sequence[Leaf], parents: Sequence[Sequence[str]]) -> None:
        members = [
            {
                "parent": parent,
                "node": leaf.node,
                "key": (leaf.routing or "") + spread(leaf.node),
                "tokens": leaf.tokens,
            }
            for leaf, above in zip(leaves, parents, strict=True)
            for parent in above
            if parent != TENANT_NODE
        ]
        if members:
            self.job.run.put_table(MEMBERS + name, pa.Table.from_pylist(members, schema=MEMBER))


def leaf_node(leaf: Leaf, parents: Sequence[str], content: str, meaning: str) -> Node:
    summary = str(leaf.summary)
    return Node(
        id=leaf.node,
        level=0,
        kind="entity",
        summary=summary,
        summary_hash=text_hash(summary),
        content_hash=content,
        input_hash=leaf.input_hash,
        sem_hash=meaning,
        child_ids=(),
        parent_ids=tuple(parents),
        tokens=leaf.tokens,
        recipe=leaf.recipe,
        asked=leaf.asked,
        source=Ref(leaf.entity, leaf.id),
        source_hash=leaf.source_hash,
        routing=leaf.routing,
    )
