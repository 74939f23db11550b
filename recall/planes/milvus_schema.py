"""What a Milvus collection of chunks looks like: names, fields, indexes, and rows made of Arrow records.

Derived from the registry and the settings; contacts no server.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pymilvus import DataType, MilvusClient

from recall.fields import FieldType
from recall.keys import MAX_ID_BYTES, chunk_key, compact_json, content_hash, cut_bytes, store_key
from recall.planes.milvus_filters import MAX_BYTES, flag, quoted
from recall.planes.opening import ModelId, PlaneContext
from recall.settings import MilvusSettings

_TYPES: dict[FieldType, Any] = {
    "int": DataType.INT64,
    "float": DataType.DOUBLE,
    "bool": DataType.BOOL,
}
_EMPTY: dict[FieldType, object] = {"int": 0, "float": 0.0, "bool": False}
_DEFAULT_BUILD: Mapping[str, Mapping[str, int]] = {"HNSW": {"M": 16, "efConstruction": 200}}
# The first line of servers where an upsert finds the right partition; 2.3 hides upserted rows from their own tenant.
_PARTITIONED_FROM = (2, 5)


@dataclass(frozen=True, slots=True)
class Marker:
    """The record that says that a tenant is loaded in a collection. `since`: milliseconds of its last finish."""

    model: ModelId
    finished: bool
    since: int


class MilvusLayout:
    """Collections of one registry and model. A new filterable column makes a new collection, as a new model does."""

    def __init__(self, settings: MilvusSettings, context: PlaneContext) -> None:
        self._settings = settings
        self._model = context.model
        self._filters = context.registry.filter_columns
        columns = [column.column for column in self._filters]
        self.version = content_hash([context.registry.vector_version(str(context.model)), columns])[:12]

    def collection(self, tenant: str) -> str:
        return f"{self._settings.collection}_{self.version}{self._suffix(tenant)}"

    def alias(self, tenant: str) -> str:
        """Name under which the collection finished last is found by tools that do not know versions."""
        return f"{self._settings.collection}_current{self._suffix(tenant)}"

    def is_version(self, name: str, tenant: str) -> bool:
        """Whether `name` is a collection of any index version that may hold `tenant`."""
        pattern = rf"{self._settings.collection}_[0-9a-f]{{12}}{self._suffix(tenant)}"
        return re.fullmatch(pattern, name) is not None

    def _suffix(self, tenant: str) -> str:
        # Tenant ids may hold characters, and have a length, that names of collections may not.
        return f"_{content_hash(tenant)[:16]}" if self._settings.isolation == "dedicated" else ""

    def schema(self, server_version: str) -> Any:
        """Collection schema for a server of this version."""
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", DataType.VARCHAR, max_length=64, is_primary=True)
        partitioned = self._settings.isolation == "shared" and _partitions(server_version)
        schema.add_field("tenant", DataType.VARCHAR, max_length=64, is_partition_key=partitioned)
        for name, size in (("row_key", 64), ("entity", 64), ("id", MAX_ID_BYTES), ("scope", MAX_BYTES), ("hash", 64)):
            schema.add_field(name, DataType.VARCHAR, max_length=size)
        for name in ("version", "ordinal", "start", "end", "chunks"):
            schema.add_field(name, DataType.INT64)
        schema.add_field("live", DataType.BOOL)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self._model.dim)
        for column in self._filters:
            if column.kind in _TYPES:
                schema.add_field(column.column, _TYPES[column.kind])
            else:
                schema.add_field(column.column, DataType.VARCHAR, max_length=MAX_BYTES)
            schema.add_field(flag(column.column), DataType.BOOL)
        return schema

    def index_params(self) -> Any:
        index = self._settings.index
        params = MilvusClient.prepare_index_params()
        build = {**_DEFAULT_BUILD.get(index.kind, {}), **index.params}
        params.add_index("vector", index_type=index.kind, metric_type="COSINE", params=build)
        return params

    def search_params(self, wanted: int) -> dict[str, Any]:
        """Parameters of a search for `wanted` chunks: graph indexes look at more candidates than they return."""
        index = self._settings.index
        width = max(200, 2 * wanted)
        breadth = {"HNSW": {"ef": width}, "DISKANN": {"search_list": width}, "GPU_CAGRA": {"itopk_size": width}}
        return {"metric_type": "COSINE", "params": {**breadth.get(index.kind, {}), **index.search}}

    def marker_key(self, tenant: str) -> str:
        return chunk_key(store_key(tenant, "", ""), 0)

    def marker_row(self, tenant: str, marker: Marker) -> dict[str, Any]:
        row: dict[str, Any] = {column.column: _EMPTY.get(column.kind, "") for column in self._filters}
        row |= {flag(column.column): False for column in self._filters}
        model = compact_json({"model": marker.model.name, "dim": marker.model.dim}).decode()
        row |= {"key": self.marker_key(tenant), "tenant": tenant, "row_key": store_key(tenant, "", ""), "entity": ""}
        row |= {"id": model, "scope": "", "hash": "finished" if marker.finished else "loading", "live": False}
        row |= {"version": marker.since, "ordinal": 0, "start": 0, "end": 0, "chunks": 1}
        return row | {"vector": self._nowhere()}

    def rows(self, tenant: str, table: pa.Table) -> Iterator[dict[str, Any]]:
        """Records of `table`, whole rows only, as the client takes them."""
        columns = self._columns(tenant, table)
        for place, vector in enumerate(self._vectors(table)):
            yield {name: values[place] for name, values in columns.items()} | {"vector": vector}

    def import_table(self, tenant: str, table: pa.Table) -> pa.Table:
        """Records of `table`, whole rows only, as the server imports them: the collection's columns and types."""
        vectors = np.fromiter(self._vectors(table), np.dtype((np.float32, self._model.dim)), table.num_rows)
        offsets = np.arange(table.num_rows + 1, dtype=np.int32) * self._model.dim
        columns = {name: pa.array(values) for name, values in self._columns(tenant, table).items()}
        return pa.table(columns | {"vector": pa.ListArray.from_arrays(offsets, vectors.ravel())})

    def _columns(self, tenant: str, table: pa.Table) -> dict[str, list[Any]]:
        """What the collection holds of `table`, without the vectors; no value is null."""
        columns = {name: table[name].to_pylist() for name in table.column_names if name != "vector"}
        counts = Counter(columns["row_key"])
        columns["tenant"] = [tenant] * table.num_rows
        columns["chunks"] = [counts[key] for key in columns["row_key"]]
        # A null scope and an empty one are told apart by the sign in front.
        columns["scope"] = ["" if scope is None else scope_text(scope) for scope in columns["scope"]]
        for column in self._filters:
            values = columns[column.column]
            columns[flag(column.column)] = [value is not None for value in values]
            columns[column.column] = [_stored(column.kind, value) for value in values]
        return columns

    def _vectors(self, table: pa.Table) -> Iterator[np.ndarray]:
        for chunk in table["vector"].chunks:
            vectors = np.tile(self._nowhere(), (len(chunk), 1))
            present = chunk.is_valid().to_numpy(zero_copy_only=False)
            values = chunk.drop_null().flatten().to_numpy(zero_copy_only=False)
            vectors[present] = values.reshape(-1, self._model.dim)
            yield from vectors

    def _nowhere(self) -> np.ndarray:
        """A vector for records that nothing may find: the server wants one in every record."""
        vector = np.zeros(self._model.dim, np.float32)
        vector[0] = 1.0
        return vector


def scope_text(scope: str) -> str:
    """A scope as it is stored."""
    return cut_bytes(f"={scope}", MAX_BYTES)


def confined(tenant: str, scope: str | None) -> str:
    """Expression of the live records of a tenant, or of one scope in it."""
    narrow = f" and scope == {quoted(scope_text(scope))}" if scope is not None else ""
    return f"tenant == {quoted(tenant)} and live == true{narrow}"


def _stored(kind: FieldType, value: object) -> object:
    if value is None:
        return _EMPTY.get(kind, "")
    return cut_bytes(value, MAX_BYTES) if isinstance(value, str) else value


def _partitions(server_version: str) -> bool:
    numbers = re.search(r"v?(\d+)\.(\d+)", server_version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= _PARTITIONED_FROM
