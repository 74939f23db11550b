"""Results as JSON-ready values. The one place that decides how a dataclass looks outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from recall.rows import Ref


def to_json(value: Any) -> Any:
    """`value` as dicts, lists and scalars. A None field of a dataclass is left out; nulls of a row stay."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Ref):
        return {"entity": value.entity, "id": value.id}
    if is_dataclass(value) and not isinstance(value, type):
        shown = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: to_json(item) for name, item in shown.items() if item is not None}
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form")
