"""Values as they travel: parameters out, results in. JSON-ready, nothing of the client library outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nebula3.common import ttypes

from recall.planes.nebula_text import Scalar


def to_wire(value: Scalar | Sequence[str]) -> ttypes.Value:
    if value is None:
        return ttypes.Value(nVal=ttypes.NullType.__NULL__)
    if isinstance(value, bool):
        return ttypes.Value(bVal=value)
    if isinstance(value, int):
        return ttypes.Value(iVal=value)
    if isinstance(value, float):
        return ttypes.Value(fVal=value)
    if isinstance(value, str):
        return ttypes.Value(sVal=value.encode())
    return ttypes.Value(lVal=ttypes.NList(values=[to_wire(item) for item in value]))


def from_wire(value: ttypes.Value) -> Any:
    """JSON-ready; a vertex is its properties, an edge its type, ends and properties, a path its vertices and types."""
    kind = value.getType()
    if kind == ttypes.Value.SVAL:
        return plain_text(value.value)
    if kind in (ttypes.Value.BVAL, ttypes.Value.IVAL, ttypes.Value.FVAL):
        return value.value
    if kind == ttypes.Value.LVAL:
        return [from_wire(item) for item in value.value.values]
    if kind == ttypes.Value.MVAL:
        return {plain_text(key): from_wire(item) for key, item in value.value.kvs.items()}
    if kind == ttypes.Value.VVAL:
        return _vertex(value.value)
    if kind == ttypes.Value.EVAL:
        edge = value.value
        ends = (edge.src, edge.dst) if edge.type >= 0 else (edge.dst, edge.src)
        src, dst = (from_wire(end) for end in ends)
        return {"type": plain_text(edge.name), "src": src, "dst": dst, "properties": _props(edge.props)}
    if kind == ttypes.Value.PVAL:
        steps = value.value.steps
        nodes = [_vertex(value.value.src), *(_vertex(step.dst) for step in steps)]
        return {"nodes": nodes, "types": [plain_text(step.name) for step in steps]}
    # Nulls of every kind, and the temporal and geographic types, which no column of ours has.
    return None


def _vertex(vertex: ttypes.Vertex) -> dict[str, Any]:
    tags = {plain_text(tag.name): _props(tag.props) for tag in vertex.tags}
    return {"vid": from_wire(vertex.vid), "tags": tags}


def _props(props: Mapping[bytes, ttypes.Value] | None) -> dict[str, Any]:
    return {plain_text(key): from_wire(item) for key, item in (props or {}).items()}


def plain_text(raw: bytes | str | None) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw or ""
