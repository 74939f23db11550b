"""`recall import`: files into the source of truth. Checks every row, keeps going past bad ones, counts everything."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pipelines.deadletters import DeadLetters
from pipelines.retries import write_with_retries
from pipelines.sources import Input, RawRecord, is_text, plan_inputs, read_input
from recall.entities import SourceSpec
from recall.errors import InvalidRequest, UnknownEntity
from recall.intake import Intake, RowRejected, excerpt
from recall.keys import check_tenant, store_key
from recall.planes.opening import open_rows, plane_context
from recall.ports import RowStore, WriteReport
from recall.registry import Registry
from recall.rows import Caller, Ref, Row
from recall.settings import Settings

# Rows in memory at once. Larger transactions were no faster on SQLite.
BATCH_ROWS = 2000


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """Counts of one import. `rows` were read; each is written, unchanged, stale, failed, or a duplicate of another.

    A duplicate further away than a batch counts as written too: it replaced the row before it.
    """

    rows: int = 0
    written: int = 0
    unchanged: int = 0
    stale: int = 0
    duplicates: int = 0
    cleaned: int = 0
    failed: int = 0
    ignored: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    seconds: float = 0.0
    dead_letters: str | None = None

    def line(self) -> str:
        """The one line a person reads at the end."""
        parts = [f"{self.rows:,} rows", f"{self.written:,} written", f"{self.unchanged:,} unchanged"]
        for name in ("stale", "duplicates", "cleaned"):
            if count := getattr(self, name):
                parts.append(f"{count:,} {name}")
        parts += [f"{self.failed:,} failed", f"{self.rows / max(self.seconds, 1e-9):,.0f} rows/s"]
        parts.append(f"{self.seconds:.1f} s")
        if self.ignored:
            parts.append(f"columns ignored: {', '.join(self.ignored)}")
        if self.dead_letters:
            parts.append(f"dead letters in {self.dead_letters}")
        return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class Imported:
    """A step of progress: records read so far, and the file being read."""

    rows: int
    file: str


def run_import(
    settings: Settings,
    registry: Registry,
    tenant: str,
    sources: Sequence[str | SourceSpec] = (),
    *,
    dead_letters: Path | None = None,
    on_progress: Callable[[Imported], None] | None = None,
) -> ImportSummary:
    """Read `sources` (strings as `plan_inputs` takes them, or the registry's own) into the rows of `tenant`.

    A row whose tenant column or reader names a tenant: a reader's goes there, a file's must be `tenant`. Bad rows go
    to the dead-letter file and are counted. Raises ConfigError when there is nothing to read, StoreError when the
    store fails.
    """
    base = Path(settings.entities).parent if settings.entities else Path()
    inputs = plan_inputs(registry, sources, base)
    path = dead_letters or settings.data_path("dead_letters") / f"import-{datetime.now(UTC):%Y%m%dT%H%M%S}.jsonl"
    # A plain loop, no Ray: SQLite takes one writer. 100k rows of 200 bytes took 0.5 CPU-s to read, 0.9 to check, 2.1 to
    # compare and write: parallel readers could save a third of that at best, and starting Ray costs more.
    with ExitStack() as stack:
        letters = stack.enter_context(DeadLetters(path))
        loop = stack.enter_context(asyncio.Runner())
        rows = open_rows(settings, plane_context(settings, registry))
        stack.callback(lambda: loop.run(rows.close()))
        rows.prepare()
        seen = stack.enter_context(closing(_Seen()))
        job = _Import(registry, check_tenant(tenant), rows, letters, seen, loop, settings.pipeline.write_retries)
        return job.run(inputs, on_progress or (lambda _: None))


# Rows of one tenant by store key, each with the record it came from.
_Keyed = dict[str, tuple[Row, RawRecord]]


@dataclass(slots=True)
class _Import:
    registry: Registry
    tenant: str
    store: RowStore
    letters: DeadLetters
    seen: _Seen
    loop: asyncio.Runner
    retries: int
    counts: Counter[str] = field(default_factory=Counter)
    version: int = 0
    ignored: set[str] = field(default_factory=set)
    tenants: set[str] = field(default_factory=set)

    def run(self, inputs: Sequence[Input], on_progress: Callable[[Imported], None]) -> ImportSummary:
        started = time.perf_counter()
        for source in inputs:
            self._source(source, on_progress)
        return ImportSummary(
            **self.counts,
            failed=self.letters.count,
            ignored=tuple(sorted(self.ignored)),
            tenants=tuple(sorted(self.tenants)),
            seconds=time.perf_counter() - started,
            dead_letters=self.letters.address,
        )

    def _source(self, source: Input, on_progress: Callable[[Imported], None]) -> None:
        intakes: dict[str, Intake] = {}
        batch: dict[tuple[str, Ref], tuple[Row, RawRecord]] = {}
        self._next_version()
        for raw in read_input(source, lambda names: self._wanted(self._intake(source, source.entity, intakes), names)):
            self.counts["rows"] += 1
            self._take(source, raw, intakes, batch)
            if len(batch) >= BATCH_ROWS:
                self._write(batch)
                on_progress(Imported(self.counts["rows"], raw.file))
        self._write(batch)
        on_progress(Imported(self.counts["rows"], str(source.files[0])))
        for name, intake in intakes.items():
            self.ignored |= {f"{name}.{column}" for column in intake.ignored}

    def _wanted(self, intake: Intake, names: list[str]) -> list[str]:
        columns = intake.fields(names)
        own = intake.entity.spec.tenant
        return [*columns, own] if own in names and own not in columns else columns

    def _intake(self, source: Input, entity: str, intakes: dict[str, Intake]) -> Intake:
        if entity not in intakes:
            intakes[entity] = Intake(
                self.registry.entity(entity),
                rename=source.spec.rename,
                defaults=source.spec.defaults,
                from_text=is_text(source),
            )
        return intakes[entity]

    def _take(
        self,
        source: Input,
        raw: RawRecord,
        intakes: dict[str, Intake],
        batch: dict[tuple[str, Ref], tuple[Row, RawRecord]],
    ) -> None:
        if raw.values is None:
            self._reject(raw, raw.reason)
            return
        try:
            intake = self._intake(source, raw.entity or source.entity, intakes)
            checked = intake.check(raw.values, self.version)
            tenant = self._tenant_of(raw, intake)
        except (RowRejected, UnknownEntity, _ForeignTenant) as error:
            self._reject(raw, str(error))
            return
        self.counts["cleaned"] += int(checked.cleaned)
        key = (tenant, checked.row.ref)
        if key in batch and batch[key][0].version > checked.row.version:
            self.counts["duplicates"] += 1
            return
        self.counts["duplicates"] += int(key in batch)
        batch[key] = (checked.row, raw)

    def _tenant_of(self, raw: RawRecord, intake: Intake) -> str:
        if raw.tenant is not None:
            try:
                return check_tenant(raw.tenant)
            except InvalidRequest as error:
                raise _ForeignTenant(str(error)) from None
        own = intake.entity.spec.tenant
        named = None if own in intake.entity.columns else (raw.values or {}).get(own)
        if named not in (None, "") and str(named) != self.tenant:
            raise _ForeignTenant(f"the row names tenant {str(named)!r}, this import is for {self.tenant!r}")
        return self.tenant

    def _write(self, batch: dict[tuple[str, Ref], tuple[Row, RawRecord]]) -> None:
        by_tenant: dict[str, _Keyed] = {}
        for (tenant, ref), pair in batch.items():
            by_tenant.setdefault(tenant, {})[store_key(tenant, ref.entity, ref.id)] = pair
        batch.clear()
        for tenant, keyed in by_tenant.items():
            self.tenants.add(tenant)
            self.counts["duplicates"] += self.seen.add(keyed)
            changed = self._changed(tenant, keyed)
            report = write_with_retries(self._upsert(tenant, changed), self.retries)
            self.counts["written"] += report.written
            self.counts["stale"] += report.stale
            self.counts["unchanged"] += len(keyed) - report.written - report.stale - len(report.failures)
            for failure in report.failures:
                self._reject(_named(keyed, failure.key), failure.reason)
        self._next_version()

    def _changed(self, tenant: str, keyed: _Keyed) -> _Keyed:
        """Without the rows that have only the time of the import as their version and are stored with these values."""
        by_entity: dict[str, list[str]] = {}
        for row, _ in keyed.values():
            if self.registry.entity(row.ref.entity).spec.version is None:
                by_entity.setdefault(row.ref.entity, []).append(row.ref.id)
        stored = {
            row.ref: row
            for entity, ids in by_entity.items()
            for row in self.loop.run(self.store.get_many(Caller(tenant), entity, ids)).values()
        }
        return {key: pair for key, pair in keyed.items() if not _same(stored.get(pair[0].ref), pair[0])}

    def _upsert(self, tenant: str, keyed: _Keyed) -> Callable[[frozenset[str] | None], WriteReport]:
        return lambda keys: self.store.upsert(
            tenant, [row for key, (row, _) in keyed.items() if keys is None or key in keys or row.ref.id in keys]
        )

    def _next_version(self) -> None:
        """Rows without a version column take the time; a later duplicate must win over an earlier batch."""
        self.version = max(time.time_ns() // 1000, self.version + 1)

    def _reject(self, raw: RawRecord, reason: str) -> None:
        shown = raw.values if raw.values is not None else raw.raw
        self.letters.add({"file": raw.file, "row": raw.place, "reason": excerpt(reason, 1000), "raw": excerpt(shown)})


def _named(keyed: _Keyed, key: str) -> RawRecord:
    """The record that a store calls `key`: its store key, or its id."""
    if key in keyed:
        return keyed[key][1]
    return next(raw for row, raw in keyed.values() if row.ref.id == key)


def _same(stored: Row | None, row: Row) -> bool:
    return stored is not None and stored.values == row.values and stored.scope == row.scope


class _ForeignTenant(ValueError):
    """A row that belongs to another tenant than the one being imported."""


class _Seen:
    """Which keys this import has written: in a temporary file, so that memory stays flat."""

    def __init__(self) -> None:
        # An empty name is SQLite's private temporary database, spilled to disk when it grows.
        self._database = sqlite3.connect("")
        self._database.execute("CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID")

    def add(self, keys: Iterable[str]) -> int:
        """Note hexadecimal `keys`; returns how many were there before."""
        raw = [(bytes.fromhex(key),) for key in keys]
        before = self._database.total_changes
        self._database.executemany("INSERT OR IGNORE INTO seen VALUES (?)", raw)
        return len(raw) - (self._database.total_changes - before)

    def close(self) -> None:
        self._database.close()
