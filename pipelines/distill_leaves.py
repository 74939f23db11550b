"""Level 0 of the digest tree: rows to summaries with their vectors, row by row. Knows no cluster and no other level."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np

from pipelines.distill_job import Job, Nodes, Report, refusal, text_of
from pipelines.distill_leaf import GONE, KEPT, MADE, PENDING, Leaf, get_leaves, put_leaves
from pipelines.distill_source import admit, fingerprint, refused
from pipelines.making import Draft, Maker
from pipelines.receipts import Failure
from pipelines.rowsource import PageRead
from recall.digest.hashes import NO_SEM_HASH
from recall.digest.nodes import DIGEST, entity_node, texts_of
from recall.digest.routing import RoutingTree
from recall.keys import content_hash
from recall.model_ports import Summary
from recall.rows import Row


@dataclass(slots=True)
class _Sorted:
    """Rows of a page by what has to be done: nothing, a summary to make, a node to remove."""

    kept: list[Leaf] = field(default_factory=list)
    pending: list[Leaf] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    blocked: int = 0
    fingerprint: int = 0


@dataclass(frozen=True, slots=True)
class ReadLeaves:
    """Rows of a page, against what is stored of them. `tree` is None before it is fitted: then all need a vector."""

    job: Job
    tree: RoutingTree | None
    dry_run: bool = False

    def __call__(self, read: PageRead) -> Report:
        job = self.job
        with job.rows() as nodes:
            rows = nodes.store.read_page(job.tenant, read.entity, read.page)
            stored = nodes.get(DIGEST, [entity_node(row.ref) for row in rows])
            sorted_ = self._sort(nodes, rows, stored)
        name = content_hash([read.entity, read.page.after, read.page.upto]) + ".parquet"
        if not self.dry_run:
            put_leaves(job, KEPT + name, sorted_.kept)
            put_leaves(job, PENDING + name, sorted_.pending)
            if sorted_.gone:
                job.run.put(GONE + name + ".json", json.dumps(sorted_.gone).encode())
        waiting = {leaf.input_hash for leaf in sorted_.pending if leaf.summary is None}
        moved = sum(leaf.moved for leaf in sorted_.kept)
        return Report(
            rows=len(sorted_.kept) + len(sorted_.pending),
            stored=len(stored),
            changed=len(sorted_.pending) + len(sorted_.gone) + moved,
            blocked=sorted_.blocked,
            calls=len(waiting) if self.dry_run else 0,
            fingerprint=sorted_.fingerprint,
        )

    def _sort(self, nodes: Nodes, rows: Sequence[Row], stored: Mapping[str, Row]) -> _Sorted:
        found, maker = _Sorted(), self.job.maker()
        for row in rows:
            old = stored.get(entity_node(row.ref))
            leaf, blocked = admit(self.job, maker, row)
            if leaf is not None:
                found.fingerprint += fingerprint(leaf)
                if refused(self.job, leaf):
                    leaf, blocked = None, True
            found.blocked += blocked
            if leaf is None:
                if old is not None:
                    found.gone.append(old.ref.id)
                continue
            if old is not None:
                leaf = _with_old(leaf, old)
            if self._stands(leaf, old):
                found.kept.append(leaf)
            else:
                found.pending.append(self._known(nodes, maker, leaf, old))
        return found

    def _stands(self, leaf: Leaf, old: Row | None) -> bool:
        """Whether the stored summary and its place in the routing tree are those of this text."""
        if old is None or self.tree is None or self.job.full or old.values["input_hash"] != leaf.input_hash:
            return False
        routing = text_of(old, "routing")
        # A summary without a vector has no place, and an equal scope has passed the guard already.
        if leaf.scope != leaf.old_scope or (routing is not None and not self.tree.is_leaf(routing)):
            return False
        if routing is None and old.values["sem_hash"] != NO_SEM_HASH:
            return False
        leaf.text, leaf.routing = None, routing
        leaf.asked, leaf.tokens = leaf.old_asked, int(str(old.values["tokens"]))
        return True

    def _known(self, nodes: Nodes, maker: Maker, leaf: Leaf, old: Row | None) -> Leaf:
        """With a summary where none has to be made: a short text's is itself, an equal text has one already."""
        assert leaf.text is not None
        if maker.tokens(leaf.text) <= leaf.budget:
            leaf.summary = leaf.text
        elif not self.job.full:
            same = old if old is not None and old.values["input_hash"] == leaf.input_hash else None
            same = same or nodes.same_input(leaf.input_hash)
            if same is not None:
                leaf.summary, leaf.asked = text_of(same, "summary"), bool(same.values["asked"])
        return leaf


def _with_old(leaf: Leaf, old: Row) -> Leaf:
    return replace(
        leaf,
        old_hash=text_of(old, "content_hash"),
        old_scope=old.scope,
        old_routing=text_of(old, "routing"),
        old_summary_hash=text_of(old, "summary_hash"),
        old_sem_hash=text_of(old, "sem_hash"),
        old_parents=list(texts_of(old, "parent_ids")),
        old_asked=bool(old.values["asked"]),
    )


@dataclass(frozen=True, slots=True)
class MakeLeaves:
    """Summaries and vectors of a slice of a `pending-` part: item (part, first, last).

    `first_of`: of the texts that several rows share, the row that is asked. Without it their summaries are in
    `shared`, by input, and the rows that were asked are done. `answers` come from a bulk engine.
    """

    job: Job
    tree: RoutingTree | None
    first_of: Mapping[str, str]
    shared: Mapping[str, str] | None = None
    answers: Mapping[str, Summary] | None = None

    def __call__(self, item: tuple[str, int, int]) -> Report:
        job, maker = self.job, self.job.maker()
        name, first, last = item
        leaves = [leaf for leaf in get_leaves(job, name, first, last)[0] if self._mine(leaf)]
        drafts = [self._draft(leaf) for leaf in leaves]
        calls = maker.finish(drafts, self.answers)
        stale = self._fall_back([(leaf, draft) for leaf, draft in zip(leaves, drafts, strict=True) if draft.error])
        done = [(leaf, draft) for leaf, draft in zip(leaves, drafts, strict=True) if draft.summary is not None]
        for leaf, draft in done:
            leaf.summary, leaf.asked, leaf.text = draft.summary, draft.asked, None
            leaf.tokens = maker.tokens(str(draft.summary))
        vectors = maker.embed([str(leaf.summary) for leaf, _ in done])
        self._route([leaf for leaf, _ in done], vectors)
        turn = "" if self.shared is None else "shared"
        put_leaves(job, f"{MADE}{first}{turn}-{name}", [leaf for leaf, _ in done], vectors)
        gone = [leaf.node for leaf, draft in zip(leaves, drafts, strict=True) if draft.blocked and leaf.stored]
        if gone:
            job.run.put(f"{GONE}{first}{turn}-{name}.json", json.dumps(gone).encode())
        blocked = [leaf for leaf, draft in zip(leaves, drafts, strict=True) if draft.blocked]
        return Report(
            calls=calls,
            made=sum(draft.called for draft in drafts),
            blocked=len(blocked),
            refused=frozenset(refusal(leaf.node, leaf.input_hash, leaf.scope) for leaf in blocked),
            failures=tuple(Failure(leaf.entity, leaf.id, reason) for leaf, reason in stale),
        )

    def _mine(self, leaf: Leaf) -> bool:
        follows = leaf.summary is None and self.first_of.get(leaf.input_hash, leaf.node) != leaf.node
        return follows == (self.shared is not None)

    def _draft(self, leaf: Leaf) -> Draft:
        draft = Draft(leaf.node, 0, leaf.scope, leaf.budget, (str(leaf.text),), leaf.summary, leaf.asked)
        if self.shared is not None and leaf.input_hash in self.shared:
            draft.summary, draft.asked = self.shared[leaf.input_hash], True
        return draft

    def _fall_back(self, failed: Sequence[tuple[Leaf, Draft]]) -> list[tuple[Leaf, str]]:
        """A row whose summary failed stands by the one it has, if the guard still lets it pass; else it has none.

        The node keeps the hash of what it was made of, so that the next run tries again.
        """
        reasons = [(leaf, str(draft.error)) for leaf, draft in failed]
        old_ones = [(leaf, draft) for leaf, draft in failed if leaf.stored]
        if old_ones:
            with self.job.rows() as nodes:
                stored = nodes.get(DIGEST, [leaf.node for leaf, _ in old_ones])
            again = []
            for leaf, draft in old_ones:
                if (old := stored.get(leaf.node)) is None:
                    continue
                draft.summary, draft.asked, draft.called = text_of(old, "summary"), leaf.old_asked, False
                leaf.source_hash = str(text_of(old, "source_hash"))
                leaf.input_hash = str(text_of(old, "input_hash"))
                leaf.recipe = str(text_of(old, "recipe"))
                again.append(draft)
            self.job.maker().finish(again)
        return reasons

    def _route(self, leaves: Sequence[Leaf], vectors: np.ndarray) -> None:
        if self.tree is None or not leaves:
            return
        for leaf, vector, path in zip(leaves, vectors, self.tree.route(vectors), strict=True):
            leaf.routing = path if vector.any() else None


def sharing(job: Job, names: Sequence[str]) -> dict[str, str]:
    """Of each text that several rows of `pending-` parts need a summary of: the row that is asked, by input."""
    rows: dict[str, list[str]] = {}
    for name in names:
        for row in job.run.read_table(name, ["node", "input_hash", "summary"]).to_pylist():
            if row["summary"] is None:
                rows.setdefault(row["input_hash"], []).append(row["node"])
    return {made_of: min(nodes) for made_of, nodes in rows.items() if len(nodes) > 1}


def summaries_of(job: Job, names: Sequence[str], asked: AbstractSet[str]) -> dict[str, str]:
    """Summaries of the rows `asked` in `made-` parts, by input."""
    found: dict[str, str] = {}
    for name in names:
        for row in job.run.read_table(name, ["node", "input_hash", "summary"]).to_pylist():
            if row["node"] in asked:
                found[row["input_hash"]] = row["summary"]
    return found
