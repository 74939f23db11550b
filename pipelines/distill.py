"""`recall distill`: bring the digest tree of a tenant up to its rows, then the digests into the planes.

Every pass writes its nodes into the source of truth before the next begins, so a killed run goes on where it stopped:
by row at level 0, by level above (`_SUCCESS`), by slice of calls inside one. A node whose summary failed stands by its
last one, or is left out; what is above it is hashed over what it was made of, so the next run repairs it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pipelines.asking import BulkSummarizer
from pipelines.backfill import run_backfill
from pipelines.deadletters import DeadLetters
from pipelines.distill_bulk import ask_leaves, ask_level
from pipelines.distill_job import Job, Nodes, OpenModels, Report, bury
from pipelines.distill_leaf import GONE, KEPT, MADE, PENDING
from pipelines.distill_leaves import MakeLeaves, ReadLeaves, sharing, summaries_of
from pipelines.distill_levels import MakeLevel
from pipelines.distill_marks import Marks, is_mark
from pipelines.distill_parts import Joined, Summed, bundles, parts
from pipelines.distill_places import MEMBERS, TREE, PlaceLeaves, fit_tree, grow_tree, stored_tree
from pipelines.distill_plan import PlanCalls, PutPlan, ReadMembers, plan_root, slices
from pipelines.distill_repair import FindOrphans, Recover, RemoveLeaves, RemoveTree
from pipelines.distill_source import Look, source_pages
from pipelines.distill_summary import STATE, DistillSummary, Progress, State
from pipelines.engine_summaries import open_bulk
from pipelines.flow import Flow, Grouping, InlineFlow, RayFlow
from pipelines.rowsource import PageRead
from pipelines.runs import new_run
from pipelines.storage import Folder
from recall.digest.clusters import settle
from recall.digest.nodes import DIGEST, TENANT_NODE
from recall.digest.recipe import recipe
from recall.digest.routing import RoutingTree
from recall.errors import ConfigError
from recall.keys import check_tenant
from recall.registry import Registry
from recall.settings import Settings

FOLDER = "distill"
REFUSED = "refused.json"
# Pages that one process looks through in about the time that Ray takes to start.
FEW_PAGES = 64


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
    engine = bulk or open_bulk(settings)
    # A bulk engine needs Ray for the least of its work.
    spread = RayFlow(settings, few=0) if engine else RayFlow(settings)
    with DeadLetters(letters_path) as letters, spread:
        distill = Distill(job, base, flow or spread, engine, letters, on_progress or _unheard)
        total, state = distill.execute(dry_run=dry_run)
        seconds = time.perf_counter() - started - spread.startup_s
        filled = None
        # A tenant that never had a digest has none in a plane.
        if load and not dry_run and state.version and not state.loaded:
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
        seconds=seconds,
        startup_seconds=spread.startup_s,
        dry_run=dry_run,
        dead_letters=letters.address,
        backfill=filled,
    )


def _unheard(progress: Progress) -> None:
    """Nobody asked."""


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
            pages = source_pages(self.job, nodes)
            if dry_run:
                self._read(pages, stored_tree(self.job), dry_run=True)
                return self.total, state
            if not pages and not nodes.count():
                return self.total, state
            if self._nothing_new(nodes, pages, state):
                return self.total, state
            with nodes.store.lease(self.job.tenant, "distill"):
                # Another run may have ended while this one waited or looked.
                return self._run(nodes, pages, State.of(self.base))

    def _nothing_new(self, nodes: Nodes, pages: Sequence[PageRead], state: State) -> bool:
        """Whether the rows are those that the stored tree was made of. Rows written meanwhile are for the next run."""
        if not self._stands(state) or nodes.count() != state.nodes:
            return False
        # Few rows are looked at sooner than Ray would start.
        flow = InlineFlow() if len(pages) <= FEW_PAGES else self.flow
        before = self.total
        seen = self._each("look", pages, Look(self.job), flow)
        if _hex(seen) == state.fingerprint:
            return True
        self.total = before
        return False

    def _stands(self, state: State) -> bool:
        """Whether the last run was complete and of this recipe."""
        return state.complete and state.recipe == self.job.recipe and not self.job.full

    def _run(self, nodes: Nodes, pages: Sequence[PageRead], state: State) -> tuple[Report, State]:
        self._recover()
        tree = stored_tree(self.job)
        read = self._read(pages, tree)
        trusted = self._stands(state) and (nodes.count(), read.stored) == (state.nodes, state.leaves)
        if trusted and not read.changed:
            # The rows differ where the tree has nothing: a row went whose summary the guard had blocked.
            state = replace(state, fingerprint=_hex(read))
            state.put(self.base)
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
        state = self._leave(nodes, asked, _hex(read))
        return self.total, state

    # ---- passes ----------------------------------------------------------------------------------------------------

    def _each(self, step: str, items: Iterable, work: Callable, flow: Flow | None = None) -> Report:
        waiting = list(items)
        total = Report()
        reports = (flow or self.flow).each(waiting, work, job=f"distill {self.job.tenant}: {step}")
        for done, report in enumerate(reports, 1):
            total += report
            bury(self.letters, report.failures)
            self.on_progress(Progress(step, done, len(waiting)))
        self.total += total
        return total

    def _read(self, pages: Sequence[PageRead], tree: RoutingTree | None, *, dry_run: bool = False) -> Report:
        return self._each("read", pages, ReadLeaves(self.job, tree, dry_run))

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
            self._levels(planned.heights, MakeLevel(self.job, tree, fresh), _hex(placed))
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

    def _levels(self, heights: Counter[tuple[str, int]], level: MakeLevel, placed: str) -> None:
        """One pass a height. A height that a killed run finished above the same leaves is not looked at again."""
        size = self.job.settings.distill.batch
        marks = Marks(self.job.home)
        if self.job.full:
            marks.clear()
        finished = marks.of(placed)
        for height in sorted({height for _, height in heights} - finished):
            step = f"level {height}"
            made = self._each(step, slices(heights, height, size), replace(level, bulk=self.bulk is not None))
            if self.bulk is not None:
                waiting, finish = ask_level(self.job, height, level, self.bulk)
                made += self._each(step, waiting, finish)
            if made.failures:
                # What is above is made of what there is, and made again when this is repaired.
                placed = ""
            if placed:
                marks.put(height, placed)

    # ---- what outlives a run ---------------------------------------------------------------------------------------

    def _refused(self) -> frozenset[str]:
        if self.job.full or REFUSED not in self.job.home.names():
            return frozenset()
        return frozenset(json.loads(self.job.home.read(REFUSED)))

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
            if home != self.job.home:
                Marks(home).clear()

    def _leave(self, nodes: Nodes, asked: int, fingerprint: str) -> State:
        leaves = sum(self.job.run.rows(name) for name in parts(self.job, KEPT, MADE))
        state = State(
            recipe=self.job.recipe,
            version=self.job.version,
            complete=not self.total.failures,
            nodes=nodes.count(),
            leaves=leaves,
            asked=asked + self.total.asked,
            fingerprint=fingerprint,
        )
        if self.total.refused - self.job.blocked:
            self.job.home.put(REFUSED, json.dumps(sorted(self.total.refused | self.job.blocked)).encode())
        state.put(self.base)
        self._discard()
        return state

    def _discard(self) -> None:
        """Parts hold texts of rows: they go with the run, and so do the marks of its levels."""
        if self.job.run.names():
            self.job.run.remove()
        Marks(self.job.home).clear()


def _runs(home: Folder) -> list[str]:
    """Runs that were killed: others leave nothing."""
    return [name for name in home.names() if name not in (REFUSED, TREE) and not is_mark(name)]


def _hex(report: Report) -> str:
    return f"{report.fingerprint:x}"
