"""Level 0 of the digest tree: rows to summaries with their vectors, row by row. Knows no cluster and no other level.

Parts of a run: `kept-` rows whose summary stands, `pending-` rows that need one, `made-` rows that got it, `gone-`
nodes to be removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pyarrow as pa

from pipelines.distill_job import Job, Nodes, Report, refusal, text_of, texts_of
from pipelines.making import Draft
from pipelines.receipts import Failure
from pipelines.rowsource import PageRead
from recall.digest.hashes import NO_SEM_HASH, input_hash, text_hash
from recall.digest.nodes import DIGEST, entity_node, level1_parts, scope_nodes
from recall.digest.routing import RoutingTree
from recall.keys import content_hash
from recall.model_ports import Summary
from recall.rows import Row
from recall.texts import distill_text

KEPT, PENDING, MADE, GONE = "kept-", "pending-", "made-", "gone-"


@dataclass(slots=True)
class Leaf:
    """A row on its way to its node. `text` is the guarded source; `old_*` is what is stored of the node."""

    node: str
    entity: str
    id: str
    scope: str | None
    scopes: list[str]
    source_hash: str
    input_hash: str
    recipe: str
    budget: int
    text: str | None = None
    summary: str | None = None
    asked: bool = False
    tokens: int = 0
    routing: str | None = None
    old_hash: str | None = None
    old_scope: str | None = None
    old_routing: str | None = None
    old_summary_hash: str | None = None
    old_sem_hash: str | None = None
    old_parents: list[str] = field(default_factory=list)
    old_asked: bool = False

    @property
    def stored(self) -> bool:
        return self.old_hash is not None

    @property
    def moved(self) -> bool:
        """Whether the row has other scope values than its node."""
        return self.scopes != [parent for parent in self.old_parents if level1_parts(parent)[0] == "scope"]


_STRING = pa.string()
_KINDS = {"scopes": pa.list_(_STRING), "old_parents": pa.list_(_STRING), "budget": pa.int64(), "tokens": pa.int64()}
_KINDS |= {"asked": pa.bool_(), "old_asked": pa.bool_()}
SCHEMA = pa.schema([(name, _KINDS.get(name, _STRING)) for name in Leaf.__dataclass_fields__])


def put_leaves(job: Job, name: str, leaves: Sequence[Leaf], vectors: np.ndarray | None = None) -> None:
    """Write a part, with one vector a leaf where there are any."""
    if not leaves:
        return
    table = pa.Table.from_pylist([asdict(leaf) for leaf in leaves], schema=SCHEMA)
    if vectors is not None:
        flat = pa.array(vectors.astype(np.float32, copy=False).ravel())
        table = table.append_column("vector", pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]))
    job.run.put_table(name, table)


def get_leaves(job: Job, name: str, first: int = 0, last: int | None = None) -> tuple[list[Leaf], np.ndarray | None]:
    """The leaves first … last of a part, and their vectors."""
    table = job.run.read_table(name)
    table = table.slice(first, None if last is None else last - first)
    vectors = None
    if "vector" in table.column_names:
        column = table["vector"].combine_chunks()
        vectors = column.flatten().to_numpy(zero_copy_only=False).reshape(table.num_rows, -1)
        table = table.drop_columns(["vector"])
    return [Leaf(**row) for row in table.to_pylist()], vectors


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
            kept, pending, gone, blocked = self._sort(nodes, rows, stored)
        name = content_hash([read.entity, read.page.after, read.page.upto]) + ".parquet"
        if not self.dry_run:
            put_leaves(job, KEPT + name, kept)
            put_leaves(job, PENDING + name, pending)
            if gone:
                job.run.put(GONE + name + ".json", json.dumps(gone).encode())
        waiting = {leaf.input_hash for leaf in pending if leaf.summary is None}
        return Report(
            rows=len(kept) + len(pending),
            stored=len(stored),
            changed=len(pending) + len(gone) + sum(leaf.moved for leaf in kept),
            blocked=blocked,
            calls=len(waiting) if self.dry_run else 0,
        )

    def _sort(
        self, nodes: Nodes, rows: Sequence[Row], stored: Mapping[str, Row]
    ) -> tuple[list[Leaf], list[Leaf], list[str], int]:
        kept: list[Leaf] = []
        pending: list[Leaf] = []
        gone: list[str] = []
        blocked = 0
        for row in rows:
            old = stored.get(entity_node(row.ref))
            text, refused = self._text(row)
            leaf = self._leaf(row, text, old) if text else None
            if leaf is not None and refusal(leaf.node, leaf.input_hash, leaf.scope) in self.job.blocked:
                leaf, refused = None, True
            blocked += refused
            if leaf is None:
                if old is not None:
                    gone.append(old.ref.id)
            elif self._stands(leaf, old):
                kept.append(leaf)
            else:
                pending.append(self._known(nodes, leaf, old))
        return kept, pending, gone, blocked

    def _text(self, row: Row) -> tuple[str, bool]:
        """The guarded source text, and whether the guard took it away."""
        raw = "" if row.deleted else distill_text(self.job.registry.entity(row.ref.entity), row.values)
        if not raw:
            return "", False
        guarded = self.job.maker().admit(raw, row.scope)
        return ("", True) if guarded.blocked else (guarded.text.strip(), False)

    def _leaf(self, row: Row, text: str, old: Row | None) -> Leaf:
        spec = self.job.registry.entity(row.ref.entity).spec.distill
        assert spec is not None
        source = text_hash(text)
        made_of = input_hash(self.job.recipe, 0, spec.budget, [source])
        scopes = scope_nodes(spec.scopes, row.values)
        node = entity_node(row.ref)
        leaf = Leaf(
            node, row.ref.entity, row.ref.id, row.scope, scopes, source, made_of, self.job.recipe, spec.budget, text
        )
        return leaf if old is None else _with_old(leaf, old)

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

    def _known(self, nodes: Nodes, leaf: Leaf, old: Row | None) -> Leaf:
        """With a summary where none has to be made: a short text's is itself, an equal text has one already."""
        maker = self.job.maker()
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
