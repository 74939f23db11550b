"""The levels above the rows: the plan of model calls, and one pass a height over all scopes and clusters at once.

A call reads its children from the source of truth, where the pass below has written them; no text moves otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.asking import TASKS
from pipelines.distill_job import Job, Nodes, Report, refusal, text_of
from pipelines.distill_plan import Slice
from pipelines.distill_repair import parts_below
from pipelines.making import Draft
from pipelines.receipts import Failure
from recall.digest.hashes import input_hash, parent_hash, sem_hash, text_hash
from recall.digest.nodes import DIGEST, TENANT_NODE, Node, level1_parts, natural, parent_of_part, texts_of
from recall.digest.routing import RoutingTree
from recall.keys import content_hash
from recall.model_ports import Summary
from recall.rows import Row

WAITING = "waiting-"
_WAITING = pa.schema([*TASKS, pa.field("call", pa.string())])


@dataclass(slots=True)
class Planned:
    """One call as read from the plan, and what its node will be. `old` says whether the node is stored."""

    node: str
    owner: str
    children: list[str]
    content: str
    made_of: str
    scope: str | None
    groups: list[list[str]]
    old: bool
    old_asked: bool


@dataclass(frozen=True, slots=True)
class MakeLevel:
    """Summaries of a slice of calls. `fresh_tree`: sem_hashes have another centre than the stored ones.

    With `bulk` nothing is asked here: calls that need the model are written as a `waiting-` part.
    """

    job: Job
    tree: RoutingTree
    fresh_tree: bool
    bulk: bool = False

    def __call__(self, item: Slice) -> Report:
        part, height, first, last = item
        calls = self.job.run.read_table(part)
        slice_ = calls.filter(pc.equal(calls["height"], height)).slice(first, last - first)
        planned: dict[str, set[str]] = {}
        for row in calls.filter(pc.is_in(calls["owner"], slice_["owner"])).select(["node", "owner"]).to_pylist():
            planned.setdefault(row["owner"], set()).add(row["node"])
        mine = slice_.to_pylist()
        with self.job.rows() as nodes:
            rows = nodes.get(DIGEST, [row["node"] for row in mine] + [c for row in mine for c in row["children"]])
            gone, ready = [], []
            for row in mine:
                dropped, work = self._prepare(nodes, row, rows)
                gone += dropped
                # Parts that hung under the stored node and are not planned any more.
                gone += parts_below(nodes, row["owner"], rows.get(row["node"]), planned[row["owner"]])
                ready += work
            report = nodes.remove(gone)
            if self.bulk:
                waiting = [pair for pair in ready if pair[1].summary is None]
                self._put_waiting(item, waiting)
                ready = [pair for pair in ready if pair[1].summary is not None]
            return report + self.finish(nodes, ready)

    def finish(
        self, nodes: Nodes, work: Sequence[tuple[Planned, Draft]], answers: Mapping[str, Summary] | None = None
    ) -> Report:
        """Ask, guard, embed and write."""
        maker = self.job.maker()
        drafts = [draft for _, draft in work]
        calls = maker.finish(drafts, answers)
        done = [(call, draft) for call, draft in work if draft.summary is not None]
        vectors = maker.embed([str(draft.summary) for _, draft in done])
        meanings = sem_hash(vectors, self.tree.mean) if done else []
        rows = [self._row(call, draft, meaning) for (call, draft), meaning in zip(done, meanings, strict=True)]
        blocked = [(call, draft) for call, draft in work if draft.blocked]
        report = nodes.write(rows) + nodes.remove([call.node for call, _ in blocked if call.old])
        return report + Report(
            calls=calls,
            made=sum(draft.called for draft in drafts),
            asked=sum(draft.asked - call.old_asked for call, draft in done),
            blocked=len(blocked),
            refused=frozenset(refusal(call.node, call.made_of, call.scope) for call, _ in blocked),
            failures=tuple(Failure(DIGEST, draft.node, draft.error) for draft in drafts if draft.error),
        )

    def _prepare(
        self, nodes: Nodes, row: Mapping[str, list[str]], rows: Mapping[str, Row]
    ) -> tuple[list[str], list[tuple[Planned, Draft]]]:
        """The node if it has to go, and what has to be made of it. Children that do not exist are left out."""
        job, node = self.job, str(row["node"])
        children = [rows[child] for child in sorted(row["children"], key=natural) if child in rows]
        old = rows.get(node)
        if not children:
            return [node], []
        groups: dict[str, list[str]] = {}
        for child in children:
            groups.setdefault(str(child.values["summary"]), []).append(child.ref.id)
        level, budget = _level(str(row["owner"])), job.settings.distill.output_budget
        made_of = input_hash(job.recipe, level, budget, [text_hash(text) for text in groups])
        scopes = {child.scope for child in children}
        scope = scopes.pop() if len(scopes) == 1 else None
        content = parent_hash(job.recipe, [str(child.values["content_hash"]) for child in children])
        if old is not None and not job.full and not self.fresh_tree and self._same(old, content, scope, children):
            return [], []
        if refusal(node, made_of, scope) in job.blocked:
            return [node], []
        was_asked = old is not None and bool(old.values["asked"])
        call = Planned(
            node,
            str(row["owner"]),
            [child.ref.id for child in children],
            content,
            made_of,
            scope,
            list(groups.values()),
            old is not None,
            was_asked,
        )
        draft = Draft(node, level, scope, budget, tuple(groups))
        self._known(nodes, draft, made_of, old, call.groups)
        return [], [(call, draft)]

    def _same(self, old: Row, content: str, scope: str | None, children: Sequence[Row]) -> bool:
        stored = (old.values["content_hash"], old.values["recipe"], old.scope, texts_of(old, "child_ids"))
        return stored == (content, self.job.recipe, scope, tuple(child.ref.id for child in children))

    def _known(
        self, nodes: Nodes, draft: Draft, made_of: str, old: Row | None, groups: Sequence[Sequence[str]]
    ) -> None:
        """Give `draft` its summary where none has to be made: what the children say fits, or was summarised before."""
        whole = "\n".join(draft.texts)
        if self.job.maker().tokens(whole) <= draft.budget:
            draft.summary, draft.cited = whole, tuple(range(len(draft.texts)))
        elif not self.job.full:
            same = old if old is not None and old.values["input_hash"] == made_of else nodes.same_input(made_of)
            if same is not None:
                draft.summary, draft.asked = text_of(same, "summary"), bool(same.values["asked"])
                draft.cited = _cited(same, groups)

    def _row(self, call: Planned, draft: Draft, meaning: str) -> Row:
        kind, name, value = level1_parts(call.node)
        summary = str(draft.summary)
        above = () if kind == "tenant" else (TENANT_NODE,)
        node = Node(
            id=call.node,
            level=draft.level,
            kind=kind,
            summary=summary,
            summary_hash=text_hash(summary),
            content_hash=call.content,
            input_hash=call.made_of,
            sem_hash=meaning,
            child_ids=tuple(call.children),
            # Of a part the node that it is a part of: which part of it is read first may change with its siblings.
            parent_ids=(parent_of_part(call.node),) if kind == "part" else above,
            tokens=self.job.maker().tokens(summary),
            recipe=self.job.recipe,
            asked=draft.asked,
            cited_ids=tuple(sorted((c for at in draft.cited for c in call.groups[at]), key=natural)),
            scope_name=name,
            scope_value=value,
        )
        return node.row(self.job.version, self.job.started, call.scope)

    def _put_waiting(self, item: Slice, work: Sequence[tuple[Planned, Draft]]) -> None:
        rows = [
            {
                "task": draft.node,
                "level": draft.level,
                "budget": draft.budget,
                "texts": list(draft.texts),
                "call": json.dumps(asdict(call)),
            }
            for call, draft in work
        ]
        if rows:
            name = f"{WAITING}{item[1]}-{content_hash(list(item))}.parquet"
            self.job.run.put_table(name, pa.Table.from_pylist(rows, schema=_WAITING))


@dataclass(frozen=True, slots=True)
class FinishLevel:
    """What a bulk engine was asked for, made into nodes. `answers` by node."""

    level: MakeLevel
    answers: Mapping[str, Summary]

    def __call__(self, name: str) -> Report:
        job = self.level.job
        work = []
        for row in job.run.read_table(name).to_pylist():
            call = Planned(**json.loads(row["call"]))
            work.append((call, Draft(row["task"], row["level"], call.scope, row["budget"], tuple(row["texts"]))))
        with job.rows() as nodes:
            return self.level.finish(nodes, work, self.answers)


def _level(owner: str) -> int:
    return 2 if owner == TENANT_NODE else 1


def _cited(node: Row, groups: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """What a reused summary draws on; of other children it is not known: all of them."""
    cited = set(texts_of(node, "cited_ids"))
    found = tuple(at for at, group in enumerate(groups) if cited.intersection(group))
    return found or tuple(range(len(groups)))
