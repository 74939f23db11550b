"""First loads of a tenant by Milvus' import of Parquet files: written where the server reads, imported, counted.

An import never replaces: it is only begun for a tenant that has no record, and no import under way, in its collection.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from pymilvus import BulkInsertState
from pymilvus.client.call_context import CallContext

from recall.errors import ConfigError, TerminalStoreError, TransientStoreError
from recall.keys import check_tenant, content_hash
from recall.planes.chunks import check_dimension, conform, last_of_each_row, refuse_bad_vectors
from recall.planes.milvus_filters import quoted
from recall.planes.milvus_schema import MilvusLayout
from recall.planes.milvus_session import STORE, MilvusSession, Unsupported
from recall.planes.milvus_writing import MilvusWriter
from recall.planes.opening import PlaneContext
from recall.ports import WriteFailure, WriteReport
from recall.settings import MilvusSettings

# The server reads a row group at a time into memory.
_GROUP_BYTES = 32 * 2**20
_FAILED = {BulkInsertState.ImportFailed, BulkInsertState.ImportFailedAndCleaned}
_ENDED = {*_FAILED, BulkInsertState.ImportCompleted}
_INSTEAD = "or set planes.vector.bulk.from_rows to null to load by upserts"


@dataclass(slots=True)
class _Load:
    """One load under way: `files` of import jobs by id, what is in them, and rows that a file before held already."""

    tenant: str
    collection: str
    folder: str
    until: float
    files: dict[int, str] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    records: int = 0
    repeated: list[pa.Table] = field(default_factory=list)
    failures: list[WriteFailure] = field(default_factory=list)


class MilvusBulk:
    """`BulkWriter` on Milvus. Synchronous; nothing here answers queries."""

    def __init__(self, settings: MilvusSettings, context: PlaneContext) -> None:
        if settings.bulk.from_rows is None or settings.bulk.uri is None:
            raise ConfigError("planes.vector.bulk: set from_rows and uri to import first loads")
        self._settings, self._bulk = settings, settings.bulk
        self._model = context.model
        self._layout = MilvusLayout(settings, context)
        self._session = MilvusSession(settings)
        self._writer = MilvusWriter(settings, context, self._layout, self._session)
        self._uri, self.bulk_from = settings.bulk.uri, settings.bulk.from_rows

    def bulk_load(self, tenant: str, parts: Iterable[pa.Table]) -> WriteReport | None:
        """Import `parts` unless the tenant has records. TerminalStoreError names the job that failed and why."""
        collection = self._layout.collection(check_tenant(tenant))
        folder = f"{collection}/{content_hash(tenant)[:16]}"
        load = _Load(tenant, collection, folder, time.monotonic() + self._bulk.timeout_s)
        if self._jobs(load):
            # Of a run that was killed: what its jobs bring is not to be brought again.
            self._wait(load)
            self._refresh(load)
        self._clear(load)
        if self._count(load):
            return None
        for table in _merged(parts, self._bulk.file_rows):
            self._submit(load, table)
        self._wait(load)
        if load.files:
            self._refresh(load)
            self._verify(load)
        self._clear(load)
        written, stale, failures = len(load.keys), 0, load.failures
        for table in load.repeated:
            report = self._writer.write(tenant, table)
            written, stale = written + report.written, stale + report.stale
            failures.extend(report.failures)
        return WriteReport(written, stale, tuple(failures))

    async def close(self) -> None:
        await self._session.close()

    def _submit(self, load: _Load, table: pa.Table) -> None:
        check_dimension(table, self._model, f"{STORE} at {self._session.address}")
        arrivals, failures = refuse_bad_vectors(conform(table, self._writer.schema))
        load.failures.extend(failures)
        arrivals = last_of_each_row(arrivals)
        keys = set(arrivals["row_key"].to_pylist())
        if known := keys & load.keys:
            again = pc.is_in(arrivals["row_key"], pa.array(sorted(known)))
            load.repeated.append(arrivals.filter(again))
            arrivals = arrivals.filter(pc.invert(again))
        if not arrivals.num_rows:
            return
        path = self._put(load, self._layout.import_table(load.tenant, arrivals))
        job = self._import("do_bulk_insert", load.collection, "", [path])
        load.files[job] = path
        load.keys |= keys
        load.records += arrivals.num_rows

    def _running(self, load: _Load) -> list[BulkInsertState]:
        """Jobs of this load, or of one before it, that have not ended. Raises for one of this load that failed."""
        states = [self._import("get_bulk_insert_state", job) for job in load.files]
        for state in states:
            if state.state in _FAILED:
                reason = state.failed_reason or "no reason given"
                detail = f"import job {state.task_id} of {load.files[state.task_id]} failed: {reason}"
                raise TerminalStoreError(STORE, self._session.address, f"{detail}; mend it and run again, {_INSTEAD}")
        # A call that was repeated over a lost connection may have started a job whose id is not known.
        states += [state for state in self._jobs(load) if state.task_id not in load.files]
        return [state for state in states if state.state not in _ENDED]

    def _jobs(self, load: _Load) -> list[BulkInsertState]:
        """Jobs that the server remembers of this tenant; of the collection, where it does not say of which files."""
        jobs = self._import("list_bulk_insert_tasks", 0, load.collection)
        return [job for job in jobs if load.folder in job.infos.get(BulkInsertState.IMPORT_FILES, load.folder)]

    def _wait(self, load: _Load) -> None:
        while running := self._running(load):
            shown = ", ".join(f"{job.task_id} ({job.state_name}, {job.progress} %)" for job in running[:5])
            self._pause(load, f"import jobs still running: {shown}")

    def _refresh(self, load: _Load) -> None:
        """Have the server look for imported rows now; by itself it does so every minute or so."""
        timeout = self._settings.write_timeout_s
        self._session.call(lambda client: client.refresh_load(load.collection, timeout=timeout))

    def _verify(self, load: _Load) -> None:
        while (found := self._count(load)) < load.records:
            self._pause(load, f"{found:,} of {load.records:,} imported chunks can be found")
        if found > load.records:
            where, timeout = self._records(load), self._settings.write_timeout_s
            self._session.call(lambda client: client.delete(load.collection, filter=where, timeout=timeout))
            detail = f"{found:,} chunks came of {load.records:,}, so that a file was imported twice"
            detail = f"{detail}; the tenant's chunks were removed, run again"
            raise TransientStoreError(STORE, self._session.address, detail)

    def _pause(self, load: _Load, what: str) -> None:
        if time.monotonic() + self._bulk.poll_s > load.until:
            detail = f"{what} after planes.vector.bulk.timeout_s = {self._bulk.timeout_s:g}"
            raise TransientStoreError(STORE, self._session.address, f"{detail}; run again, {_INSTEAD}")
        time.sleep(self._bulk.poll_s)

    def _count(self, load: _Load) -> int:
        rows = self._session.call(
            lambda client: client.query(
                load.collection,
                filter=self._records(load),
                output_fields=["count(*)"],
                consistency_level="Strong",
                timeout=self._settings.write_timeout_s,
            )
        )
        return int(rows[0]["count(*)"])

    def _records(self, load: _Load) -> str:
        """Expression of what the tenant has in the collection, its marker left out."""
        return f"tenant == {quoted(load.tenant)} and key != {quoted(self._layout.marker_key(load.tenant))}"

    def _import(self, method: str, *arguments: Any) -> Any:
        # MilvusClient has no calls for imports of its own; those of the older interface warn that it goes.
        timeout, context = self._settings.write_timeout_s, CallContext(db_name=self._settings.db)
        try:
            return self._session.call(
                lambda client: getattr(client._get_connection(), method)(*arguments, timeout=timeout, context=context)
            )
        except Unsupported as error:
            raise Unsupported(
                STORE, error.address, f"no import of files here: take another server, {_INSTEAD}"
            ) from error

    # ---- files ----

    def _put(self, load: _Load, table: pa.Table) -> str:
        """Write one import file; what the server calls it."""
        name = f"{load.folder}/{uuid.uuid4().hex}.parquet"
        rows = max(1, _GROUP_BYTES * table.num_rows // table.nbytes)
        with self._storage() as (system, root):
            system.create_dir(f"{root}/{load.folder}", recursive=True)
            pq.write_table(table, f"{root}/{name}", filesystem=system, row_group_size=rows)
            inside = root if system.type_name == "local" else root.partition("/")[2]
        seen = inside if self._bulk.server_path is None else self._bulk.server_path.rstrip("/")
        return f"{seen}/{name}" if seen else name

    def _clear(self, load: _Load) -> None:
        """Remove the files of jobs that have ended."""
        with self._storage() as (system, root):
            folder = f"{root}/{load.folder}"
            if system.get_file_info(folder).type is not fs.FileType.NotFound:
                system.delete_dir(folder)

    @contextmanager
    def _storage(self) -> Iterator[tuple[fs.FileSystem, str]]:
        try:
            system, root = fs.FileSystem.from_uri(self._uri)
            yield system, root.rstrip("/")
        except (OSError, pa.ArrowException) as error:
            address = self._uri.partition("?")[0]
            detail = f"cannot keep import files: {error}; make planes.vector.bulk.uri a writable place, {_INSTEAD}"
            raise TerminalStoreError(STORE, address, detail) from error


def _merged(parts: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """`parts` joined to tables of at least `rows` records; the last one may have fewer."""
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(table.num_rows for table in waiting) >= rows:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
