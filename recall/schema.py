"""Arrow schemas of what pipelines write into the planes. Filterable columns follow the fixed ones, nullable and typed.

Filter values keep their canonical form: dates and datetimes are text whose order is time order.
"""

from __future__ import annotations

import pyarrow as pa

from recall.fields import FieldType
from recall.registry import Registry

_ARROW: dict[FieldType, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.string(),
    "datetime": pa.string(),
}


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _identity() -> list[pa.Field]:
    return [
        _required("row_key", pa.string()),
        _required("entity", pa.string()),
        _required("id", pa.string()),
        pa.field("scope", pa.string()),
        _required("version", pa.int64()),
        _required("hash", pa.string()),
        _required("live", pa.bool_()),
    ]


def filter_fields(registry: Registry) -> list[pa.Field]:
    """The union of all filterable columns, by physical name."""
    return [pa.field(column.column, _ARROW[column.kind]) for column in registry.filter_columns]


def vector_schema(registry: Registry, dim: int) -> pa.Schema:
    """One record per chunk; `key` = row key + ordinal. A record that is not live has ordinal 0 and a null vector."""
    return pa.schema(
        [
            _required("key", pa.string()),
            *_identity(),
            _required("ordinal", pa.int32()),
            _required("start", pa.int32()),
            _required("end", pa.int32()),
            pa.field("vector", pa.list_(pa.float32(), dim)),
            *filter_fields(registry),
        ]
    )


def document_schema(registry: Registry) -> pa.Schema:
    """One record per row with its search text ("" when not live)."""
    return pa.schema([*_identity(), _required("text", pa.string()), *filter_fields(registry)])


def node_schema(registry: Registry) -> pa.Schema:
    """One record per row that is a node or owns edges."""
    return pa.schema([*_identity(), *filter_fields(registry)])


def edge_schema() -> pa.Schema:
    """One record per edge; `owner` is the row key of the row that declares it."""
    return pa.schema(
        [
            _required("owner", pa.string()),
            _required("source_entity", pa.string()),
            _required("source_id", pa.string()),
            _required("rel", pa.string()),
            _required("target_entity", pa.string()),
            _required("target_id", pa.string()),
            _required("version", pa.int64()),
        ]
    )
