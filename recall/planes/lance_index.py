"""One tenant's vector indexes on disk: a directory of LanceDB tables, a catalog that names the model of each, a lock.

Knows nothing of rows or queries.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
from filelock import FileLock, Timeout

from recall.errors import IndexMissing, ModelMismatch, TerminalStoreError, TransientStoreError
from recall.planes.opening import ModelId

STORE = "vector plane (LanceDB)"
_CATALOG = "indexes.json"
_PRIMARY_KEY = b"lance-schema:unenforced-primary-key:position"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One index version. `born` and `finished` are positions in the tenant's history; not finished: still loading.

    `optimized`: table version after the last optimisation; `indexed`: there is a vector index to walk.
    """

    version: str
    model: str
    dim: int
    born: int
    finished: int | None = None
    optimized: int = 0
    indexed: bool = False

    @property
    def model_id(self) -> ModelId:
        return ModelId(self.model, self.dim)

    @property
    def table(self) -> str:
        return f"chunks_{self.version}"


def index_to_read(entries: Sequence[IndexEntry], version: str, model: ModelId, address: str) -> IndexEntry:
    """The index that answers for `version`: that one, or while it is still loading the last finished one.

    Raises IndexMissing when there is none, ModelMismatch when only an index of another model could answer.
    """
    own = next((entry for entry in entries if entry.version == version), None)
    finished = sorted((e for e in entries if e.finished is not None), key=lambda e: e.finished or 0, reverse=True)
    if own is not None and (own.finished is not None or not finished):
        return own
    if not entries:
        raise IndexMissing(STORE, address, "no index of this tenant; run `recall backfill`")
    for entry in finished:
        if entry.model_id == model:
            return entry
    known = finished or sorted(entries, key=lambda e: e.born, reverse=True)
    if known[0].model_id == model:
        raise IndexMissing(STORE, address, f"index {known[0].version} was never finished; run `recall backfill`")
    raise ModelMismatch(str(model), str(known[0].model_id), f"{STORE} at {address}")


def after_finish(entries: Sequence[IndexEntry], version: str) -> tuple[list[IndexEntry], list[IndexEntry]]:
    """(kept, dropped) once `version` is finished: it and the one finished before it stay, what is older goes."""
    clock = max(max(entry.born, entry.finished or 0) for entry in entries)
    own = next(entry for entry in entries if entry.version == version)
    others = sorted((e for e in entries if e.version != version), key=lambda e: e.finished or 0, reverse=True)
    previous = next((entry for entry in others if entry.finished is not None), None)
    if own.finished is None or (previous and (previous.finished or 0) > own.finished):
        own = replace(own, finished=clock + 1)
    since = (previous.finished or 0) if previous else 0
    kept = [e for e in others if e is previous or (e.finished is None and e.born > since)]
    return [own, *kept], [e for e in others if e not in kept]


class TenantIndexes:
    """The directory of one tenant. Readers need no lock; everything that writes holds `locked()`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = str(directory)
        self._guard = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._entries: tuple[IndexEntry, ...] = ()
        self._tables: dict[tuple[str, int], Any] = {}
        self._connection: Any = None

    @property
    def entries(self) -> tuple[IndexEntry, ...]:
        """The catalog as it is on disk now; empty for a tenant that was never loaded."""
        path = self.directory / _CATALOG
        with self._guard:
            try:
                status = path.stat()
            except FileNotFoundError:
                return ()
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp != self._stamp:
                raw = json.loads(path.read_text(encoding="utf-8"))
                self._entries, self._stamp = tuple(IndexEntry(**entry) for entry in raw["indexes"]), stamp
                self._tables = {key: t for key, t in self._tables.items() if key in self._known()}
            return self._entries

    def _known(self) -> set[tuple[str, int]]:
        return {(entry.version, entry.born) for entry in self._entries}

    def entry(self, version: str) -> IndexEntry | None:
        return next((entry for entry in self.entries if entry.version == version), None)

    def table(self, entry: IndexEntry) -> Any:
        """The open table of `entry`; it sees every commit of other processes. IndexMissing when it is gone."""
        with self._guard:
            key = (entry.version, entry.born)
            if key not in self._tables:
                if not (self.directory / f"{entry.table}.lance").is_dir():
                    raise IndexMissing(STORE, self.address, f"index {entry.version} was dropped; run `recall backfill`")
                self._tables[key] = self._database().open_table(entry.table)
            return self._tables[key]

    def forget(self) -> None:
        """Close every open table, so that the next use opens it again."""
        with self._guard:
            self._tables = {}

    @contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """Hold the tenant's write lock, across threads and processes; the system frees it when its holder dies."""
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.directory / ".lock")
        try:
            lock.acquire(timeout=timeout_s)
        except Timeout:
            detail = f"another writer has held the tenant for {timeout_s:g} s; wait for it or stop it"
            raise TransientStoreError(STORE, self.address, detail) from None
        try:
            yield
        finally:
            lock.release()

    def create(self, version: str, model: ModelId, schema: pa.Schema) -> IndexEntry:
        """The index `version`, made when it is missing; columns that its table lacks are added. Needs the lock."""
        entry = self.entry(version)
        if entry is not None and (entry.model_id != model):
            raise ModelMismatch(str(model), str(entry.model_id), f"{STORE} at {self.address}")
        born = 1 + max((max(e.born, e.finished or 0) for e in self.entries), default=0)
        wanted = entry or IndexEntry(version, model.name, model.dim, born)
        table = self._open_or_create(wanted.table, schema)
        held = table.schema
        if _PRIMARY_KEY not in (held.field("key").metadata or {}):
            table.set_unenforced_primary_key("key")
        if added := [field for field in schema if field.name not in held.names]:
            table.add_columns(added)
        if entry is None:
            self.save([*self.entries, wanted])
        return wanted

    def _open_or_create(self, name: str, schema: pa.Schema) -> Any:
        try:
            return self._database().open_table(name)
        except (ValueError, RuntimeError) as error:
            if "not found" not in str(error).lower():
                raise
        # A creation that was killed half-way leaves a directory without a version.
        shutil.rmtree(self.directory / f"{name}.lance", ignore_errors=True)
        return self._database().create_table(name, schema=schema)

    def save(self, entries: Sequence[IndexEntry]) -> None:
        """Replace the catalog in one step. Needs the lock."""
        text = json.dumps({"indexes": [asdict(entry) for entry in entries]}, indent=1)
        draft = self.directory / f"{_CATALOG}.new"
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, self.directory / _CATALOG)

    def update(self, entry: IndexEntry) -> None:
        """Replace the catalog's entry of the same version. Needs the lock."""
        self.save([entry if e.version == entry.version else e for e in self.entries])

    def finish(self, version: str) -> None:
        """Make `version` the one that answers and drop what is older than the one before it. Needs the lock."""
        kept, dropped = after_finish(self.entries, version)
        if not dropped and set(kept) == set(self.entries):
            return
        for entry in dropped:
            shutil.rmtree(self.directory / f"{entry.table}.lance", ignore_errors=True)
        self.save(kept)

    def _database(self) -> Any:
        if self._connection is None:
            # Without an interval of zero a reader never sees the commits of another process.
            self._connection = lancedb.connect(self.directory, read_consistency_interval=timedelta(0))
        return self._connection


@contextmanager
def lance_errors(address: str) -> Iterator[None]:
    """The border: what LanceDB or the file system raises becomes a StoreError naming the directory."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, pa.ArrowException) as error:
        detail = " ".join(str(error).split("\n", 1)[0].split())[:500]
        lowered = str(error).lower()
        if "not found" in lowered and ("_versions" in lowered or "table '" in lowered or ".lance" in lowered):
            raise IndexMissing(
                STORE, address, f"files of the index are gone ({detail}); run `recall backfill`"
            ) from None
        if "conflict" in lowered or "timeout" in lowered or "timed out" in lowered:
            raise TransientStoreError(STORE, address, detail) from error
        if "no space left" in lowered:
            raise TransientStoreError(STORE, address, f"the disk is full: free some space ({detail})") from error
        raise TerminalStoreError(STORE, address, detail) from error
