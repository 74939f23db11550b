"""`recall backfill`: bring the planes of a tenant up to its rows. Three independent lanes, each resumable by row."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock

from pipelines.context import ray_session
from pipelines.deadletters import DeadLetters
from pipelines.lanes import Lane, OpenModel
from pipelines.load import load
from pipelines.receipts import Failure, Receipt
from pipelines.rowsource import PageRead, plan_pages
from pipelines.runs import STAGED, Stage, earlier_stages, new_run
from pipelines.sinks import Loaded
from pipelines.staging import stage_rows
from recall.errors import ConfigError, RecallError
from recall.keys import check_tenant
from recall.ports import RowStore
from recall.records import PLANES, Plane, seen_by
from recall.registry import Registry
from recall.settings import Settings


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of one lane: `stage` counts source rows, `recover` and `load` count records."""

    plane: Plane
    step: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class LaneSummary:
    """What one lane did. `recovered`: rows loaded from parts of earlier runs. `seconds` include `stage_seconds`."""

    plane: Plane
    staged: Receipt = field(default_factory=Receipt)
    loaded: Loaded = field(default_factory=Loaded)
    recovered: int = 0
    seconds: float = 0.0
    stage_seconds: float = 0.0
    error: str | None = None

    @property
    def failed(self) -> int:
        return len(self.staged.failures) + len(self.loaded.failures)

    def line(self) -> str:
        """One line for a person."""
        if self.error:
            return f"{self.plane}: failed: {self.error}"
        staged = self.staged
        parts = [
            f"{staged.rows:,} rows in, {staged.changed:,} changed, {staged.unchanged:,} unchanged, "
            f"{self.failed:,} failed, {staged.deleted:,} deleted"
        ]
        if self.recovered:
            parts.append(f"{self.recovered:,} recovered from an earlier run")
        if staged.model_calls:
            parts.append(
                f"{staged.chunks:,} chunks, {staged.tokens / max(self.stage_seconds, 1e-9):,.0f} tokens/s, "
                f"{staged.model_calls:,} model calls"
            )
        parts.append(f"{staged.rows / max(self.seconds, 1e-9):,.0f} rows/s, {self.seconds:.1f} s")
        return f"{self.plane}: " + " · ".join(parts)


@dataclass(frozen=True, slots=True)
class BackfillSummary:
    """Outcome of one backfill. `startup_seconds` is what starting Ray took, not part of `seconds`."""

    tenant: str
    run: str
    lanes: tuple[LaneSummary, ...]
    seconds: float
    startup_seconds: float
    dry_run: bool
    dead_letters: str | None = None

    @property
    def failed(self) -> int:
        """Rows that some plane could not take."""
        return sum(lane.failed for lane in self.lanes)

    @property
    def errors(self) -> tuple[str, ...]:
        """One message per lane that could not finish."""
        return tuple(f"{lane.plane}: {lane.error}" for lane in self.lanes if lane.error)

    def line(self) -> str:
        """The lines a person reads at the end: one per lane, then the whole."""
        lines = [lane.line() for lane in self.lanes]
        whole = f"{'dry run' if self.dry_run else 'backfill'} of {self.tenant}: {self.seconds:.1f} s"
        whole += f" + {self.startup_seconds:.1f} s to start Ray"
        if self.dead_letters:
            whole += f", {self.failed:,} dead letters in {self.dead_letters}"
        return "\n".join([*lines, whole])


def run_backfill(  # noqa: PLR0913 - the options of the command
    settings: Settings,
    registry: Registry,
    tenant: str,
    *,
    planes: Sequence[str] = PLANES,
    entities: Sequence[str] | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    open_model: OpenModel | None = None,
) -> BackfillSummary:
    """Embed, index and link every row of `tenant` (only of `entities`, if given) that the planes hold otherwise.

    Lanes are independent: one that fails is in the summary's `errors`, the others finish. Killed at any point and
    started again, it ends in the same stores; parts that were finished are loaded, not made again. Raises Busy when
    another job holds the tenant, ConfigError for wrong settings.
    """
    lanes = [Lane(plane, check_tenant(tenant), settings, registry, open_model) for plane in _chosen(settings, planes)]
    job = _Backfill(lanes, tenant, entities, limit, dry_run, on_progress or (lambda _: None))
    path = settings.data_path("dead_letters") / f"backfill-{tenant}-{job.run}.jsonl"
    started = time.perf_counter()
    with lanes[0].rows() as rows, DeadLetters(path) as letters:
        rows.prepare()
        if dry_run:
            return job.execute(rows, letters, started)
        with rows.lease(tenant, "backfill"):
            return job.execute(rows, letters, started)


def _chosen(settings: Settings, planes: Sequence[str]) -> list[Plane]:
    if unknown := sorted(set(planes) - set(PLANES)):
        raise ConfigError(f"unknown plane {', '.join(unknown)}; choose from {', '.join(PLANES)}")
    if settings.embedder.kind == "none" and set(planes) == {"vector"}:
        raise ConfigError("the settings name no embedder: set `embedder` to fill the vector plane")
    return [
        plane for plane in PLANES if plane in planes and not (plane == "vector" and settings.embedder.kind == "none")
    ]


@dataclass(slots=True)
class _Backfill:
    lanes: Sequence[Lane]
    tenant: str
    entities: Sequence[str] | None
    limit: int | None
    dry_run: bool
    on_progress: Callable[[Progress], None]
    run: str = field(default_factory=new_run)
    guard: Lock = field(default_factory=Lock)

    def execute(self, rows: RowStore, letters: DeadLetters, started: float) -> BackfillSummary:
        plans = [(lane, plan_pages(lane, rows, self.limit, self.entities)) for lane in self.lanes]
        live = asyncio.run(rows.count(self.tenant))
        with ray_session(self.lanes[0].settings):
            ready = time.perf_counter()
            with ThreadPoolExecutor(len(plans)) as pool:
                waiting = [pool.submit(self._lane, lane, pages, live, letters) for lane, pages in plans]
                done = tuple(future.result() for future in waiting)
            seconds = time.perf_counter() - ready
        return BackfillSummary(self.tenant, self.run, done, seconds, ready - started, self.dry_run, letters.address)

    def _lane(self, lane: Lane, pages: list[PageRead], live: dict[str, int], letters: DeadLetters) -> LaneSummary:
        started = time.perf_counter()
        try:
            done = self._fill(lane, pages, live, letters)
        except RecallError as error:
            done = LaneSummary(lane.plane, error=error.message)
        return replace(done, seconds=time.perf_counter() - started)

    def _fill(self, lane: Lane, pages: list[PageRead], live: dict[str, int], letters: DeadLetters) -> LaneSummary:
        wanted = [count for name, count in live.items() if seen_by(lane.plane, lane.registry.entity(name))]
        counted = _Counted(self, lane.plane, sum(min(count, self.limit or count) for count in wanted))
        if self.dry_run:
            return LaneSummary(lane.plane, stage_rows(lane, pages, None, counted.receipt))
        recovered = self._recover(lane, letters)
        stage = Stage.of(lane, self.run)
        stage.begin(lane)
        started = time.perf_counter()
        staged = stage_rows(lane, pages, stage.folder, lambda receipt: self._staged(lane, receipt, counted, letters))
        done = LaneSummary(lane.plane, staged, recovered=recovered, stage_seconds=time.perf_counter() - started)
        if not stage.parts():
            stage.discard()
            return done
        stage.mark(STAGED, {"rows": staged.rows, "changed": staged.changed, "deleted": staged.deleted})
        loaded = load(lane, stage, counted.step("load"))
        self._bury(lane, loaded.failures, letters)
        return replace(done, loaded=loaded)

    def _recover(self, lane: Lane, letters: DeadLetters) -> int:
        """Load what unfinished runs have staged, or everything ever staged when the plane has lost the tenant.

        From then on the plane's own hashes say what is left to do: by row, whatever the layout of blocks was.
        """
        with lane.store() as store:
            store.prepare(lane.tenant)
        lost = not lane.live()
        recovered = 0
        for stage in earlier_stages(lane, loaded=lost):
            stage.folder.sweep()
            if not stage.parts():
                stage.discard()
                continue
            loaded = load(lane, stage, _Counted(self, lane.plane, 0).step("recover"), missing_only=True)
            self._bury(lane, loaded.failures, letters)
            recovered += loaded.written
        return recovered

    def _staged(self, lane: Lane, receipt: Receipt, counted: _Counted, letters: DeadLetters) -> None:
        self._bury(lane, receipt.failures, letters)
        counted.receipt(receipt)

    def _bury(self, lane: Lane, failures: Sequence[Failure], letters: DeadLetters) -> None:
        with self.guard:
            for failure in failures:
                letters.add({"plane": lane.plane, "entity": failure.entity, "id": failure.id, "reason": failure.reason})

    def report(self, progress: Progress) -> None:
        with self.guard:
            self.on_progress(progress)


@dataclass(slots=True)
class _Counted:
    """Progress of one lane from counted rows."""

    job: _Backfill
    plane: Plane
    total: int
    rows: int = 0

    def receipt(self, receipt: Receipt) -> None:
        self.rows += receipt.rows
        self.job.report(Progress(self.plane, "stage", self.rows, max(self.total, self.rows)))

    def step(self, name: str) -> Callable[[int, int], None]:
        return lambda done, total: self.job.report(Progress(self.plane, name, done, total))
