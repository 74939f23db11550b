"""What puts the stored tree right: nodes whose row is gone, nodes no longer planned, summaries of a killed run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from pipelines.distill_job import Job, Nodes, Report
from pipelines.distill_leaf import GONE, Leaf, get_leaves
from pipelines.distill_places import leaf_node
from recall.digest.nodes import DIGEST, entity_node, parent_of_part, source_of, texts_of
from recall.keys import content_hash
from recall.ports import Page
from recall.rows import Ref, Row


@dataclass(frozen=True, slots=True)
class FindOrphans:
    """Nodes of a page of digests whose row is gone without a tombstone, and the ids of all nodes above the rows."""

    job: Job

    def __call__(self, page: Page) -> Report:
        job = self.job
        with job.rows() as nodes:
            live = [row for row in nodes.store.read_page(job.tenant, DIGEST, page) if not row.deleted]
            sources: dict[str, list[str]] = {}
            for row in live:
                if row.values["level"] == 0:
                    source = source_of(row)
                    sources.setdefault(source.entity, []).append(source.id)
            there = {
                entity_node(Ref(entity, row_id))
                for entity, ids in sources.items()
                if entity in job.registry.entities and job.registry.entity(entity).spec.distill
                for row_id in nodes.get(entity, ids)
            }
        gone = [row.ref.id for row in live if row.values["level"] == 0 and row.ref.id not in there]
        if gone:
            job.run.put(GONE + content_hash(["orphans", page.after, page.upto]) + ".json", json.dumps(gone).encode())
        upper = frozenset(row.ref.id for row in live if row.values["level"] != 0)
        asked = sum(bool(row.values["asked"]) for row in live)
        return Report(changed=len(gone), upper=upper, asked=asked)


@dataclass(frozen=True, slots=True)
class RemoveLeaves:
    """Tombstones for the nodes that a `gone-` part lists."""

    job: Job

    def __call__(self, name: str) -> Report:
        with self.job.rows() as nodes:
            ids = json.loads(self.job.run.read(name))
            stored = nodes.get(DIGEST, ids)
            report = nodes.remove(ids)
        return report + Report(affected=frozenset(p for row in stored.values() for p in texts_of(row, "parent_ids")))


@dataclass(frozen=True, slots=True)
class Recover:
    """Summaries that a killed run had made, as provisional nodes: the row finds its summary and asks for none."""

    job: Job

    def __call__(self, address: tuple[str, str]) -> Report:
        run, name = address
        earlier = replace(self.job, run=self.job.home / run)
        leaves, _ = get_leaves(earlier, name)
        with self.job.rows() as nodes:
            stored = nodes.get(DIGEST, [leaf.node for leaf in leaves])
            fresh = [leaf for leaf in leaves if not _holds(stored.get(leaf.node), leaf)]
            return nodes.write([self._provisional(leaf) for leaf in fresh])

    def _provisional(self, leaf: Leaf) -> Row:
        # No content hash yet, so that placing writes it again; a meaning, so that it is not taken for one without.
        node = leaf_node(replace(leaf, routing=None), leaf.scopes, "", "f" * 16)
        return node.row(self.job.version, self.job.started, leaf.scope)


def _holds(row: Row | None, leaf: Leaf) -> bool:
    return row is not None and row.values["input_hash"] == leaf.input_hash


@dataclass(frozen=True, slots=True)
class RemoveTree:
    """Tombstones for a node and its parts."""

    job: Job

    def __call__(self, node: str) -> Report:
        with self.job.rows() as nodes:
            return nodes.remove([node, *parts_below(nodes, node, nodes.get(DIGEST, [node]).get(node), set())])


def parts_below(nodes: Nodes, owner: str, row: Row | None, planned: set[str]) -> list[str]:
    """Parts of `owner` that are stored under `row`, without those of the plan and what is under them."""
    found: list[str] = []
    frontier = [] if row is None else [row]
    while frontier:
        parts = [
            child
            for one in frontier
            for child in texts_of(one, "child_ids")
            if child not in planned and child != owner and parent_of_part(child) == owner
        ]
        found += parts
        frontier = list(nodes.get(DIGEST, parts).values())
    return found
