"""What the vector, search and graph planes in memory share: versioned records and the gate in front of them.

Exact and complete, in one process. Knows nothing of vectors, terms or edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from recall.errors import IndexMissing, TransientStoreError
from recall.keys import store_key
from recall.planes.opening import PlaneContext
from recall.ports import WriteReport
from recall.registry import Registry
from recall.rows import Caller, Json, Ref, Tombstone
from recall.where import Where, matches

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Record(Generic[C]):
    """One row of a plane. `values` are its filterable fields by name; a tombstone has the hash ""."""

    ref: Ref
    version: int
    hash: str
    live: bool
    scope: str | None
    values: Mapping[str, Json]
    content: C | None = None

    @property
    def buried(self) -> bool:
        return not self.live and self.hash == ""


def read_record(row: Mapping[str, Any], registry: Registry, content: C) -> Record[C]:
    """A record from the identity and filter columns of an Arrow row."""
    columns = registry.entity(row["entity"]).filter_columns
    values = {column.field: row[column.column] for column in columns}
    ref = Ref(row["entity"], row["id"])
    return Record(ref, row["version"], row["hash"], row["live"], row["scope"], values, content)


def newest(records: Iterable[tuple[str, Record[C]]]) -> dict[str, Record[C]]:
    """One record per key: the highest version, of those the last."""
    best: dict[str, Record[C]] = {}
    for key, record in records:
        if key not in best or record.version >= best[key].version:
            best[key] = record
    return best


class VersionedRecords(Generic[C]):
    """Tenant → row key → newest record. `name` is the plane, for error messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tenants: dict[str, dict[str, Record[C]]] = {}

    def prepare(self, tenant: str) -> None:
        self._tenants.setdefault(tenant, {})

    def put(self, tenant: str, records: Mapping[str, Record[C]]) -> tuple[list[str], WriteReport]:
        """Store what is not stale; the keys that were stored, and the counts."""
        stored = self._tenants.setdefault(tenant, {})
        fresh = [key for key, record in records.items() if not _outranked(record, stored.get(key))]
        stored.update((key, records[key]) for key in fresh)
        return fresh, WriteReport(written=len(fresh), stale=len(records) - len(fresh))

    def tombs(self, tenant: str, tombstones: Sequence[Tombstone]) -> dict[str, Record[C]]:
        """Tombstones as records, to be `put`."""
        return newest(
            (store_key(tenant, t.ref.entity, t.ref.id), Record(t.ref, t.version, "", False, None, {}))
            for t in tombstones
        )

    def hashes(self, tenant: str, keys: Sequence[str]) -> dict[str, str]:
        stored = self._tenants.get(tenant, {})
        return {key: stored[key].hash for key in keys if key in stored}

    def count(self, tenant: str) -> dict[str, int]:
        return dict(Counter(record.ref.entity for record in self._tenants.get(tenant, {}).values() if record.live))

    def live(self, tenant: str) -> Iterator[Record[C]]:
        """Live records; raises IndexMissing for a tenant that was never prepared."""
        return (record for record in self.loaded(tenant).values() if record.live)

    def get(self, tenant: str, ref: Ref) -> Record[C] | None:
        """The live record of `ref`."""
        record = self._tenants.get(tenant, {}).get(store_key(tenant, ref.entity, ref.id))
        return record if record is not None and record.live else None

    def loaded(self, tenant: str) -> Mapping[str, Record[C]]:
        try:
            return self._tenants[tenant]
        except KeyError:
            raise IndexMissing(
                self.name, "memory", f"tenant {tenant!r} was never loaded: run `recall backfill --tenant {tenant}`"
            ) from None

    def check_deadline(self, timeout_s: float | None) -> None:
        """Memory answers at once or, when the deadline has passed already, not at all."""
        if timeout_s is not None and timeout_s <= 0:
            raise TransientStoreError(self.name, "memory", "the deadline passed before the query began; try again")


def _outranked(record: Record[Any], stored: Record[Any] | None) -> bool:
    if stored is None or record.version > stored.version:
        return False
    return record.version < stored.version or (stored.buried and not record.buried)


def visible(record: Record[Any], caller: Caller, where: Where | None) -> bool:
    """Whether a live record is inside the caller's scope and satisfies the filter."""
    return (caller.scope is None or record.scope == caller.scope) and matches(where, record.values)


class MemoryPlane(Generic[C]):
    """What the three memory planes share: the records, and everything that needs nothing else."""

    max_writers: int | None = 1

    def __init__(self, context: PlaneContext, name: str) -> None:
        self._registry = context.registry
        self._records: VersionedRecords[C] = VersionedRecords(name)

    def prepare(self, tenant: str) -> None:
        self._records.prepare(tenant)

    def hashes(self, tenant: str, keys: Sequence[str]) -> dict[str, str]:
        return self._records.hashes(tenant, keys)

    def finish(self, tenant: str) -> None:
        """Every write is visible at once."""

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        self._records.check_deadline(timeout_s)
        return self._records.count(tenant)

    async def health(self, *, timeout_s: float | None = None) -> None:
        self._records.check_deadline(timeout_s)

    async def close(self) -> None:
        """Nothing to release."""
