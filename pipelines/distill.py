"""`recall distill`: bring the digest tree of a tenant up to its rows, then the digests into the planes.

Every pass writes its nodes into the source of truth before the next begins, so a killed run goes on where it stopped:
by row at level 0, by slice of calls above. A node whose summary failed stands by its last one, or is left out; what is
above it is hashed over what it was made of, so the next run repairs it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pipelines.asking import BulkSummarizer
from pipelines.backfill import run_backfill
from pipelines.context import ray_session
from pipelines.deadletters import DeadLetters
from pipelines.distill_bulk import ask_leaves, ask_level
from pipelines.distill_job import Job, Nodes, OpenModels, Report, bury
from pipelines.distill_leaves import GONE, KEPT, MADE, PENDING, MakeLeaves, ReadLeaves, sharing, summaries_of
from pipelines.distill_levels import MakeLevel
from pipelines.distill_parts import Joined, Summed, bundles, parts
from pipelines.distill_places import MEMBERS, TREE, PlaceLeaves, fit_tree, grow_tree, stored_tree
from pipelines.distill_plan import PlanCalls, PutPlan, ReadMembers, plan_root, slices
from pipelines.distill_repair import FindOrphans, Recover, RemoveLeaves, RemoveTree
from pipelines.distill_summary import STATE, DistillSummary, Progress, State
from pipelines.engine_summaries import open_bulk
from pipelines.flow import Flow, Grouping, RayFlow
from pipelines.rowsource import PageRead
from pipelines.runs import new_run
from pipelines.storage import Folder
from recall.digest.clusters import settle
from recall.digest.nodes import DIGEST, TENANT_NODE
from recall.digest.recipe import recipe
from recall.digest.routing import RoutingTree
from recall.errors import ConfigError
from recall.keys import check_tenant, compact_json
from recall.registry import Registry
from recall.settings import Settings

FOLDER = "distill"
REFUSED = "refused.json"
SUCCESS = "_SUCCESS"


def run_distill(  # noqa: PLR0913 - the options of the command
    settings: Settings,
    registry: Registry,
    tenant: str,
    *,
    full: bool = False,
    dry_run: bool = False,
    load: bool = True,
    on_progress: Callable[[Progress], None] | None = None,
    open_models: OpenModels | None = None,
    bulk: BulkSummarizer | None = None,
    flow: Flow | None = None,
) -> DistillSummary:
    """Summarise what changed in `tenant`, up to the root. `full` makes every summary anew; `load` fills the planes.

    Raises ConfigError when no entity is distilled or a setting is wrong, Busy when another job holds the tenant.
    `open_models` and `bulk` replace the models that the settings name, `flow` replaces Ray.
    """
    if not registry.has_digests:
        raise ConfigError("no entity declares `distill`: say what to summarise in the entity file")
    if settings.embedder.kind == "none":
        raise ConfigError("distillation needs an embedder: set `embedder`")
    started = time.perf_counter()
    made_by = recipe(settings.distill, registry, settings.embedder.model_name, settings.recall.tokenizer)
    base = Folder.of_runs(settings) / check_tenant(tenant) / FOLDER
    run = new_run()
    home = base / made_by
    job = Job(settings, registry, tenant, made_by, 0, "", home, home / run, full, open_models=open_models)
    letters_path = settings.data_path("dead_letters") / f"distill-{tenant}-{run}.jsonl"
    with ray_session(settings) if flow is None else nullcontext():
        ready = time.perf_counter()
        with DeadLetters(letters_path) as letters:
            engine = bulk or open_bulk(settings)
            distill = Distill(job, base, flow or RayFlow(settings), engine, letters, on_progress or (lambda _: None))
            total, state = distill.execute(dry_run=dry_run)
        filled = None
        if load and not dry_run and not state.loaded:
            filled = run_backfill(settings, registry, tenant, entities=(DIGEST,))
            if not filled.errors and not filled.failed:
                replace(state, loaded=True).put(base)
    return DistillSummary(
        tenant=tenant,
        run=run,
        rows=total.rows,
        changed=total.changed,
        calls=total.calls,
        saved=max(0, state.asked - total.made),
        written=total.written,
        removed=total.removed,
        blocked=total.blocked,
        failed=len(total.failures),
        depth=max((height for _, height in total.heights), default=0),
        seconds=time.perf_counter() - ready,
        startup_seconds=ready - started,
        dry_run=dry_run,
        dead_letters=letters.address,
        backfill=filled,
    )


@dataclass(slots=True)
class Distill:
    """One run, pass by pass."""

    job: Job
    base: Folder
    flow: Flow
    bulk: BulkSummarizer | None
    letters: DeadLetters
    on_progress: Callable[[Progress], None]
    total: Report = field(default_factory=Report)

    def execute(self, *, dry_run: bool) -> tuple[Report, State]:
        """What was done, and what it left."""
        state = State.of(self.base)
        self.job = replace(
            self.job,
            version=max(time.time_ns() // 1000, state.version + 1),
            started=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            blocked=self._refused(),
        )
        with self.job.rows() as nodes:
            nodes.store.prepare()
            if dry_run:
                self._read(nodes, stored_tree(self.job), dry_run=True)
                return self.total, state
            with nodes.store.lease(self.job.tenant, "distill"):
                return self._run(nodes, state)

    def _run(self, nodes: Nodes, state: State) -> tuple[Report, State]:
        self._recover()
        tree = stored_tree(self.job)
        self._read(nodes, tree)
        trusted = (
            state.complete and state.recipe == self.job.recipe and not self.job.full and self._agrees(nodes, state)
        )
        if trusted and not self.total.changed:
            self._discard()
            return self.total, state
        replace(state, recipe=self.job.recipe, version=self.job.version, complete=False).put(self.base)
        scanned = Report() if trusted else self._scan(nodes)
        asked = state.asked if trusted else scanned.asked
        self._make_leaves(tree)
        fresh = tree is None
        if fresh and parts(self.job, MADE):
            tree = fit_tree(self.flow, self.job)
        placed = self._place(tree)
        affected = placed.affected if trusted else None
        self._roll_up(tree, placed, affected, scanned.upper, fresh=fresh)
        state = self._leave(nodes, asked)
        return self.total, state

    # ---- passes ----------------------------------------------------------------------------------------------------

    def _each(self, step: str, items: Iterable, work: Callable) -> Report:
        waiting = list(items)
        total = Report()
        for done, report in enumerate(self.flow.each(waiting, work, job=f"distill {self.job.tenant}: {step}"), 1):
            total += report
            bury(self.letters, report.failures)
            self.on_progress(Progress(step, done, len(waiting)))
        self.total += total
        return total

    def _read(self, nodes: Nodes, tree: RoutingTree | None, *, dry_run: bool = False) -> None:
        size = self.job.settings.pipeline.rows_per_part
        pages = [
            PageRead(name, page)
            for name, entity in self.job.registry.entities.items()
            if entity.spec.distill
            for page in nodes.store.pages(self.job.tenant, name, size)
        ]
        self._each("read", pages, ReadLeaves(self.job, tree, dry_run))

    def _scan(self, nodes: Nodes) -> Report:
        """Every stored node, when what is stored cannot be told from the last run."""
        pages = nodes.store.pages(self.job.tenant, DIGEST, self.job.settings.pipeline.rows_per_part)
        kept = self.total
        found = self._each("scan", pages, FindOrphans(self.job))
        # What a scan counts is stored, not changed by it.
        self.total = kept + replace(found, asked=0, upper=frozenset())
        return found

    def _make_leaves(self, tree: RoutingTree | None) -> None:
        names = parts(self.job, PENDING)
        shared_by = sharing(self.job, names)
        answers = ask_leaves(self.job, names, shared_by, self.bulk) if self.bulk and names else None
        work = MakeLeaves(self.job, tree, shared_by, answers=answers)
        pieces = [piece for name in names for piece in self._pieces(name)]
        self._each("summarise rows", pieces, work)
        if shared_by:
            self._each(
                "share summaries",
                pieces,
                replace(work, shared=summaries_of(self.job, parts(self.job, MADE), set(shared_by.values()))),
            )

    def _pieces(self, name: str) -> list[tuple[str, int, int]]:
        size, count = self.job.settings.distill.batch, self.job.run.rows(name)
        return [(name, first, min(first + size, count)) for first in range(0, count, size)]

    def _place(self, tree: RoutingTree | None) -> Report:
        removed = self._each("remove rows", parts(self.job, GONE), RemoveLeaves(self.job))
        if tree is None:
            return removed
        counts = grow_tree(self.flow, self.job, tree)
        clusters = settle(counts, self.job.settings.distill.noise_floor)
        names = bundles(self.job, parts(self.job, KEPT, MADE))
        placed = self._each("place rows", names, Summed(PlaceLeaves(self.job, tree, clusters)))
        return removed + placed

    def _roll_up(
        self,
        tree: RoutingTree | None,
        placed: Report,
        affected: frozenset[str] | None,
        upper: frozenset[str],
        *,
        fresh: bool,
    ) -> None:
        planned = self._plan(affected)
        if affected is None or affected:
            above = max((height for _, height in planned.heights), default=0)
            planned += plan_root(self.job, sorted(placed.parents), placed.orphans, above)
        self.total += replace(planned, upper=frozenset())
        if tree is not None:
            self._levels(planned.heights, MakeLevel(self.job, tree, fresh))
        vanished = upper - planned.upper if affected is None else affected - placed.parents - {TENANT_NODE}
        if not placed.parents and not placed.orphans:
            vanished |= {TENANT_NODE}
        self._each("remove nodes", sorted(vanished), RemoveTree(self.job))

    def _plan(self, affected: frozenset[str] | None) -> Report:
        planned = Report()
        if affected is not None and not affected:
            return planned
        read = Joined(ReadMembers(self.job, affected))
        grouping = Grouping(read, "parent", PlanCalls(self.job), PutPlan(self.job))
        names = bundles(self.job, parts(self.job, MEMBERS))
        for report in self.flow.grouped(names, grouping, job=f"distill {self.job.tenant}: plan"):
            planned += report
        return planned

    def _levels(self, heights: Counter[tuple[str, int]], level: MakeLevel) -> None:
        size = self.job.settings.distill.batch
        for height in sorted({height for _, height in heights}):
            before = self.total
            step = f"level {height}"
            self._each(step, slices(heights, height, size), replace(level, bulk=self.bulk is not None))
            if self.bulk is not None:
                waiting, finish = ask_level(self.job, height, level, self.bulk)
                self._each(step, waiting, finish)
            made = {"calls": self.total.calls - before.calls, "written": self.total.written - before.written}
            self.job.run.put(f"level-{height}{SUCCESS}", compact_json(made))

    # ---- what outlives a run ---------------------------------------------------------------------------------------

    def _refused(self) -> frozenset[str]:
        if self.job.full or REFUSED not in self.job.home.names():
            return frozenset()
        return frozenset(json.loads(self.job.home.read(REFUSED)))

    def _agrees(self, nodes: Nodes, state: State) -> bool:
        """Whether the last run was complete, and as many nodes are stored as it left, all of level 0 with a row."""
        if not state.complete or state.recipe != self.job.recipe:
            return False
        stored = nodes.count()
        return (stored, self.total.stored) == (state.nodes, state.leaves)

    def _recover(self) -> None:
        """Take over the summaries of rows that killed runs had made; what they wrote above is in its place already."""
        runs = _runs(self.job.home)
        made = [(run, part) for run in runs for part in (self.job.home / run).names() if part.startswith(MADE)]
        kept = self.total
        self._each("recover", made, Recover(self.job))
        self.total = kept
        for home in [self.base / name for name in self.base.names() if name != STATE]:
            # Those of other recipes are of no use; parts hold texts of rows.
            for run in _runs(home):
                (home / run).remove()

    def _leave(self, nodes: Nodes, asked: int) -> State:
        leaves = sum(self.job.run.rows(name) for name in parts(self.job, KEPT, MADE))
        state = State(
            recipe=self.job.recipe,
            version=self.job.version,
            complete=not self.total.failures,
            nodes=nodes.count(),
            leaves=leaves,
            asked=asked + self.total.asked,
        )
        if self.total.refused - self.job.blocked:
            self.job.home.put(REFUSED, json.dumps(sorted(self.total.refused | self.job.blocked)).encode())
        state.put(self.base)
        self._discard()
        return state

    def _discard(self) -> None:
        """Parts hold texts of rows: they go with the run."""
        if self.job.run.names():
            self.job.run.remove()


def _runs(home: Folder) -> list[str]:
    """Runs that were killed: others leave nothing."""
    return [name for name in home.names() if name not in (REFUSED, TREE)]
