"""What the embedded search and graph planes share: a folder per tenant and index version, one writer, own threads.

Knows no store and no schema; decides which records of a batch may be written.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from recall.errors import IndexMissing, TerminalStoreError, TransientStoreError
from recall.keys import check_tenant, store_key
from recall.rows import Tombstone

T = TypeVar("T")
LOCK = "writer.lock"
_LASTING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS})


@dataclass(frozen=True, slots=True)
class TenantFolders:
    """`{root}/{tenant}/{version}/`. `marker` is the file that exists once a folder holds an index."""

    store: str
    root: Path
    version: str
    marker: str

    def path(self, tenant: str) -> Path:
        """Folder of the tenant's index of this version, existing or not."""
        return self.root / check_tenant(tenant) / self.version

    def find(self, tenant: str) -> Path | None:
        """The folder, or None when the tenant has no index of this version."""
        path = self.path(tenant)
        return path if (path / self.marker).exists() else None

    def loaded(self, tenant: str) -> Path:
        """The folder; raises IndexMissing when there is no index of this version."""
        path = self.find(tenant)
        if path is None:
            detail = f"tenant {tenant!r} has no index {self.version}: run `recall backfill --tenant {tenant}`"
            raise IndexMissing(self.store, str(self.path(tenant)), detail)
        return path

    def drop_outdated(self, tenant: str) -> None:
        """Remove the tenant's indexes of other versions, except the one that was written last."""
        with self.mapped(self.path(tenant)):
            others = [path for path in self.path(tenant).parent.iterdir() if path.name != self.version]
            others.sort(key=self._written, reverse=True)
        for path in others[1:]:
            shutil.rmtree(path, ignore_errors=True)

    def _written(self, path: Path) -> float:
        marker = path / self.marker
        return marker.stat().st_mtime if marker.exists() else 0.0

    def check(self) -> None:
        """Raise TerminalStoreError when the root cannot be read."""
        with self.mapped(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            next(self.root.iterdir(), None)

    @contextmanager
    def mapped(self, path: Path) -> Iterator[None]:
        """File errors as StoreError: a full disk and a missing right need somebody, the rest may pass."""
        try:
            yield
        except OSError as error:
            kind = TerminalStoreError if error.errno in _LASTING else TransientStoreError
            raise kind(self.store, str(path), str(error)) from error

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Be the one process that writes `path`; raises TransientStoreError when another one is.

        The lock is the kernel's: it is gone when its holder dies.
        """
        with self.mapped(path):
            path.mkdir(parents=True, exist_ok=True)
            handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock(handle, path)
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int, path: Path) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            detail = "another process is writing here: wait until it is done, then try again"
            raise TransientStoreError(self.store, str(path), detail) from None


class Threads:
    """The adapter's own threads behind an asynchronous face."""

    def __init__(self, store: str, size: int) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(size, thread_name_prefix=store.split()[0])

    async def run(self, address: str, timeout_s: float | None, work: Callable[[], T]) -> T:
        """`work()` on a thread; TransientStoreError when it takes longer than `timeout_s` (it then ends unheard)."""
        if timeout_s is not None and timeout_s <= 0:
            raise TransientStoreError(self._store, address, "the deadline passed before the query began; try again")
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            detail = f"no answer within {timeout_s:.3g} s; try again or allow more time"
            raise TransientStoreError(self._store, address, detail) from None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a version gate compares. Buried: a tombstone, which outranks its own version."""

    version: int
    buried: bool

    def outranked_by(self, stored: Stamp | None) -> bool:
        """Whether a write with this stamp is older than what is stored."""
        if stored is None or self.version > stored.version:
            return False
        return self.version < stored.version or (stored.buried and not self.buried)


def newest_rows(table: pa.Table) -> dict[str, int]:
    """Row key → position in `table` of its highest version, of those the last."""
    best: dict[str, int] = {}
    versions: list[int] = table["version"].to_pylist()
    for position, key in enumerate(table["row_key"].to_pylist()):
        if key not in best or versions[position] >= versions[best[key]]:
            best[key] = position
    return best


def admitted_rows(table: pa.Table, stored: Mapping[str, Stamp]) -> tuple[pa.Table, int]:
    """The rows of `table` that may be written, one per key and in key order, and how many keys were stale."""
    best = newest_rows(table)
    versions = table["version"].to_pylist()
    states = zip(table["live"].to_pylist(), table["hash"].to_pylist(), strict=True)
    buried = [not live and not digest for live, digest in states]
    kept = [
        position
        for key, position in sorted(best.items())
        if not Stamp(versions[position], buried[position]).outranked_by(stored.get(key))
    ]
    return table.take(pa.array(kept, pa.int64())), len(best) - len(kept)


def tombstone_rows(tenant: str, tombstones: Sequence[Tombstone], schema: pa.Schema) -> pa.Table:
    """Deletes as records of `schema`: not live, hash "", every other column null or empty."""
    rows = [
        {
            "row_key": store_key(tenant, tombstone.ref.entity, tombstone.ref.id),
            "entity": tombstone.ref.entity,
            "id": tombstone.ref.id,
            "version": tombstone.version,
            "hash": "",
            "live": False,
            "text": "",
        }
        for tombstone in tombstones
    ]
    names = set(schema.names)
    return pa.Table.from_pylist([{k: v for k, v in row.items() if k in names} for row in rows], schema=schema)
