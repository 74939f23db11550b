"""The plan of model calls above the rows: by node in a distributed group-by over light columns, the root at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.distill_job import Job, Report
from recall.digest.nodes import TENANT_NODE, level1_parts
from recall.digest.recipe import limits
from recall.digest.rollup import Call, Child, plan, spread
from recall.digest.routing import cluster_path
from recall.keys import content_hash

PLAN = "plan-"
CALLS = pa.schema(
    [
        ("node", pa.string()),
        ("owner", pa.string()),
        ("height", pa.int64()),
        ("children", pa.list_(pa.string())),
    ]
)
# A part of the plan, a height, and which of the calls there.
Slice = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class ReadMembers:
    """Who is under whom, from a part; only under the `affected` nodes, where it is known which they are."""

    job: Job
    affected: frozenset[str] | None

    def __call__(self, name: str) -> pa.Table:
        table = self.job.run.read_table(name)
        if self.affected is None:
            return table
        return table.filter(pc.is_in(table["parent"], pa.array(sorted(self.affected), pa.string())))


@dataclass(frozen=True, slots=True)
class PlanCalls:
    """The model calls of one node, from its members."""

    job: Job

    def __call__(self, members: pa.Table) -> pa.Table:
        owner = members["parent"][0].as_py()
        children = [Child(row["node"], row["key"], row["tokens"]) for row in members.to_pylist()]
        return calls_table(owner, plan(owner, children, limits(self.job.settings.distill)))


@dataclass(frozen=True, slots=True)
class PutPlan:
    """Write calls as a part. All calls of a node are in one part."""

    job: Job

    def __call__(self, calls: pa.Table) -> Report:
        if not calls.num_rows:
            return Report()
        name = f"{PLAN}{content_hash(calls['node'].to_pylist())}.parquet"
        self.job.run.put_table(name, calls)
        heights = Counter((name, height) for height in calls["height"].to_pylist())
        return Report(heights=heights, upper=frozenset(calls["node"].to_pylist()))


def calls_table(owner: str, calls: Iterable[Call], above: int = 0) -> pa.Table:
    """Calls of one owner, `above` the heights of others."""
    rows = [
        {"node": call.id, "owner": owner, "height": call.height + above, "children": list(call.children)}
        for call in calls
    ]
    return pa.Table.from_pylist(rows, schema=CALLS)


def plan_root(job: Job, level1: Iterable[str], orphans: Iterable[tuple[str, int]], above: int) -> Report:
    """Plan the root over the level-1 nodes, and over rows that are under none. Their summaries count as full ones, so
    that the plan does not change with their texts."""
    budget = job.settings.distill.output_budget
    children = [Child(node, _root_key(node), budget) for node in level1]
    children += [Child(node, "0" + spread(node), tokens) for node, tokens in orphans]
    return PutPlan(job)(calls_table(TENANT_NODE, plan(TENANT_NODE, children, limits(job.settings.distill)), above))


def _root_key(node: str) -> str:
    # Scopes on one side; clusters on the other, near ones together.
    return "1" + cluster_path(node) + spread(node) if level1_parts(node)[0] == "cluster" else "0" + spread(node)


def slices(heights: Mapping[tuple[str, int], int], height: int, size: int) -> list[Slice]:
    """The calls of one height, `size` at a time."""
    return [
        (part, height, first, min(first + size, count))
        for (part, at), count in sorted(heights.items())
        if at == height
        for first in range(0, count, size)
    ]
