"""What a tree is made of: rows to leaves, and one number over all of them that says whether anything has changed."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.distill_job import Job, Nodes, Report, refusal
from pipelines.distill_leaf import Leaf
from pipelines.making import Maker
from pipelines.rowsource import PageRead
from recall.digest.hashes import input_hash, text_hash
from recall.digest.nodes import entity_node, scope_nodes
from recall.keys import content_hash
from recall.rows import Row
from recall.texts import distill_text


def source_pages(job: Job, nodes: Nodes) -> list[PageRead]:
    """The pages that cover every row that may be summarised."""
    return [
        PageRead(name, page)
        for name, entity in job.registry.entities.items()
        if entity.spec.distill
        for page in nodes.store.pages(job.tenant, name, job.settings.pipeline.rows_per_part)
    ]


def admit(job: Job, maker: Maker, row: Row) -> tuple[Leaf | None, bool]:
    """The leaf of a row, with its guarded text; None when there is nothing to summarise, and whether the guard took it.

    What was refused as a summary (`Job.blocked`) is not this function's business.
    """
    entity = job.registry.entity(row.ref.entity)
    spec = entity.spec.distill
    assert spec is not None
    raw = "" if row.deleted else distill_text(entity, row.values)
    if not raw:
        return None, False
    guarded = maker.admit(raw, row.scope)
    text = guarded.text.strip()
    if guarded.blocked or not text:
        return None, guarded.blocked
    source = text_hash(text)
    made_of = input_hash(job.recipe, 0, spec.budget, [source])
    scopes = scope_nodes(spec.scopes, row.values)
    node = entity_node(row.ref)
    return Leaf(node, *row.ref, row.scope, scopes, source, made_of, job.recipe, spec.budget, text), False


def refused(job: Job, leaf: Leaf) -> bool:
    """Whether the guard has blocked the summary of this very text before."""
    return bool(job.blocked) and refusal(leaf.node, leaf.input_hash, leaf.scope) in job.blocked


def share(*values: object) -> int:
    """What one leaf adds to a fingerprint. Shares are summed, which depends on no order and no layout of pages
    (AdHash: Bellare and Micciancio, EUROCRYPT 1997)."""
    return int(content_hash(values), 16)


def fingerprint(leaf: Leaf) -> int:
    """The share of a row: all that its digest and the places of it are made of."""
    return share(leaf.node, leaf.scope, leaf.input_hash, leaf.scopes)


@dataclass(frozen=True, slots=True)
class Look:
    """The fingerprint of a page of rows. Reads no node and writes nothing."""

    job: Job

    def __call__(self, read: PageRead) -> Report:
        with self.job.rows() as nodes:
            rows = nodes.store.read_page(self.job.tenant, read.entity, read.page)
        maker = self.job.maker()
        admitted = [admit(self.job, maker, row) for row in rows]
        leaves = [leaf for leaf, _ in admitted if leaf is not None]
        told_no = sum(refused(self.job, leaf) for leaf in leaves)
        return Report(
            rows=len(leaves) - told_no,
            blocked=told_no + sum(blocked for _, blocked in admitted),
            fingerprint=sum(map(fingerprint, leaves)),
        )
