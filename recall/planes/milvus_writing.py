"""Writing to Milvus: collections, the version gate by reading first, whole rows, the tenant's marker.

Synchronous; nothing here answers queries. Two writers of one row have to take turns (the tenant's lease sees to it).
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recall.errors import IndexMissing, StoreError
from recall.keys import chunk_key
from recall.planes.chunks import StoredRow, check_dimension, conform, gate, last_of_each_row, refuse_bad_vectors
from recall.planes.milvus_filters import one_of
from recall.planes.milvus_schema import Marker, MilvusLayout
from recall.planes.milvus_session import STORE, MilvusSession
from recall.planes.opening import ModelId, PlaneContext
from recall.ports import WriteReport
from recall.schema import vector_schema
from recall.settings import MilvusSettings

_KEYS_PER_READ = 4_000
# Requests under way at once: the client packs one while the server works on the other.
_IN_FLIGHT = 2
# How Milvus Lite calls itself. Rows that it has not sealed cost it half a second a query.
_LITE = "milvus_lite"
_GATE_FIELDS = ["row_key", "version", "live", "hash", "chunks"]


class MilvusWriter:
    def __init__(self, settings: MilvusSettings, context: PlaneContext, layout: MilvusLayout, session: MilvusSession):
        self._settings = settings
        self._model = context.model
        self._layout = layout
        self._session = session
        self._schema = vector_schema(context.registry, context.model.dim)
        self._ready: set[str] = set()
        # Tenants whose marker is known, by collection and tenant: whether it says finished.
        self._marked: dict[tuple[str, str], bool] = {}
        self._unsealed: dict[str, int] = {}

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def prepare(self, tenant: str) -> None:
        """Create and load the collection, and mark the tenant as being loaded."""
        collection = self._layout.collection(tenant)
        self._create(collection)
        if self._is_finished(collection, tenant) is None:
            self._mark(collection, tenant, finished=False)

    def write(self, tenant: str, table: pa.Table) -> WriteReport:
        collection = self._layout.collection(tenant)
        check_dimension(table, self._model, f"{STORE} at {self._session.address}")
        arrivals, failures = refuse_bad_vectors(conform(table, self._schema))
        if not arrivals.num_rows:
            return WriteReport(failures=failures)
        if (collection, tenant) not in self._marked:
            self.prepare(tenant)
        arrivals = last_of_each_row(arrivals)
        admitted = gate(arrivals, self._stored(collection, pc.unique(arrivals["row_key"]).to_pylist()))
        # Old chunks first: a writer killed in between leaves a shorter old row, never one that is too long.
        for keys in _slices(admitted.leftovers, _KEYS_PER_READ):
            self._call("delete", collection, ids=keys)
        self._upsert(collection, tenant, admitted.table)
        self._unsealed[collection] = self._unsealed.get(collection, 0) + admitted.table.num_rows
        return WriteReport(admitted.rows, admitted.stale, failures)

    def _upsert(self, collection: str, tenant: str, table: pa.Table) -> None:
        """Write whole rows. First chunks last: they say what is stored, and of a row cut off nothing may say so."""
        first = pc.equal(table["ordinal"], 0)
        later = table.filter(pc.invert(first))
        records = self._layout.rows(tenant, pa.concat_tables([later, table.filter(first)]))
        with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="milvus") as threads:
            for part in (itertools.islice(records, later.num_rows), records):
                slices = _slices(part, self._settings.batch_rows)
                for _ in threads.map(lambda rows: self._call("upsert", collection, data=rows), slices):
                    pass

    def hashes(self, tenant: str, keys: Sequence[str]) -> dict[str, str]:
        collection = self._layout.collection(tenant)
        try:
            return {row["row_key"]: row["hash"] for row in self._first_chunks(collection, keys, ["row_key", "hash"])}
        except IndexMissing:
            return {}

    def finish(self, tenant: str) -> None:
        """Seal a large load, mark the tenant as finished, move the alias, drop outdated collections of its own."""
        collection = self._layout.collection(tenant)
        self._create(collection)
        written = self._unsealed.pop(collection, 0)
        if written >= self._settings.flush_rows or (written and self._server_version.startswith(_LITE)):
            self._call("flush", collection)
        previous = self._swing_alias(collection, tenant)
        if not self._is_finished(collection, tenant) or previous not in (None, collection):
            self._mark(collection, tenant, finished=True)
        if self._settings.isolation == "dedicated":
            self._drop_others(tenant, {collection, previous})
        # A strong read returns when every write before it can be read.
        self._read_marker(collection, tenant)

    def _create(self, collection: str) -> None:
        if collection in self._ready:
            return
        if not self._call("has_collection", collection):
            schema, indexes = self._layout.schema(self._server_version), self._layout.index_params()
            try:
                self._call(
                    "create_collection",
                    collection,
                    schema=schema,
                    index_params=indexes,
                    consistency_level=self._settings.consistency,
                )
            except StoreError:
                # Another writer was faster.
                if not self._call("has_collection", collection):
                    raise
        self._call("load_collection", collection)
        self._ready.add(collection)

    @cached_property
    def _server_version(self) -> str:
        version: str = self._session.call(lambda client: client.get_server_version())
        return version

    def _stored(self, collection: str, keys: Sequence[str]) -> dict[str, StoredRow]:
        found = {}
        for row in self._first_chunks(collection, keys, _GATE_FIELDS):
            tombstone = not row["live"] and row["hash"] == ""
            found[row["row_key"]] = StoredRow(row["version"], tombstone, row["chunks"])
        return found

    def _first_chunks(self, collection: str, keys: Sequence[str], fields: list[str]) -> Iterator[dict[str, Any]]:
        # What a strong read has seen is there for every read behind it.
        level = "Strong"
        for part in _slices(keys, _KEYS_PER_READ):
            wanted = one_of("key", (chunk_key(key, 0) for key in part))
            yield from self._call("query", collection, filter=wanted, output_fields=fields, consistency_level=level)
            level = "Session"

    def _is_finished(self, collection: str, tenant: str) -> bool | None:
        """What the tenant's marker says; None without one."""
        if (collection, tenant) not in self._marked:
            marker = self._read_marker(collection, tenant)
            if marker is None:
                return None
            self._marked[collection, tenant] = marker.finished
        return self._marked[collection, tenant]

    def _read_marker(self, collection: str, tenant: str) -> Marker | None:
        wanted = one_of("key", [self._layout.marker_key(tenant)])
        fields = ["id", "hash", "version"]
        rows = self._call("query", collection, filter=wanted, output_fields=fields, consistency_level="Strong")
        return read_marker(rows)

    def _mark(self, collection: str, tenant: str, *, finished: bool) -> None:
        marker = Marker(self._model, finished, time.time_ns() // 1_000_000)
        self._call("upsert", collection, data=[self._layout.marker_row(tenant, marker)])
        self._marked[collection, tenant] = finished

    def _swing_alias(self, collection: str, tenant: str) -> str | None:
        """Point the tenant's alias at `collection`; the collection that it pointed at before, None for none."""
        alias = self._layout.alias(tenant)
        try:
            previous = str(self._session.call(lambda client: client.describe_alias(alias))["collection_name"])
        except StoreError:
            self._session.call(lambda client: client.create_alias(collection, alias))
            return None
        if previous != collection:
            self._session.call(lambda client: client.alter_alias(collection, alias))
        return previous

    def _drop_others(self, tenant: str, kept: set[str | None]) -> None:
        """Drop the tenant's own collections but `kept`; does nothing while the alias has not moved."""
        if len(kept - {None}) < 2:
            return
        for name in self._session.call(lambda client: client.list_collections()):
            if name not in kept and self._layout.is_version(name, tenant):
                self._call("drop_collection", name)

    def _call(self, method: str, collection: str, **arguments: Any) -> Any:
        arguments.setdefault("timeout", self._settings.write_timeout_s)
        try:
            return self._session.call(lambda client: getattr(client, method)(collection, **arguments))
        except IndexMissing:
            self._ready.discard(collection)
            self._marked = {key: done for key, done in self._marked.items() if key[0] != collection}
            raise


def read_marker(rows: Sequence[dict[str, Any]]) -> Marker | None:
    """The marker among the answers of a query for it."""
    for row in rows:
        model = json.loads(row["id"])
        return Marker(ModelId(model["model"], model["dim"]), row["hash"] == "finished", row["version"])
    return None


def _slices(items: Any, size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while part := list(itertools.islice(rest, size)):
        yield part
