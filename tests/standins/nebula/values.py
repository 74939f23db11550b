"""Graph values, their comparison rules, and their form on the wire."""

from __future__ import annotations

from dataclasses import dataclass, field

from nebula3.common import ttypes

EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Vertex:
    vid: object
    tags: dict[str, dict[str, object]] = field(hash=False, compare=False)


@dataclass(frozen=True, slots=True)
class Edge:
    """In its stored direction; `reached` is the end that a traversal arrived at."""

    src: object
    dst: object
    name: str
    rank: int
    props: dict[str, object] = field(hash=False, compare=False)
    backwards: bool = field(default=False, hash=False, compare=False)


@dataclass(frozen=True, slots=True)
class Path:
    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]


def equal(left: object, right: object) -> bool | None:
    if type(left) is str and type(right) is str:
        return left == right
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        if isinstance(left, int) and isinstance(right, int):
            return left == right
        # The server takes floats within 1e-8 of each other for equal.
        return abs(left - right) < EPSILON
    return type(left) is type(right) and left == right


def less(left: object, right: object) -> bool | None:
    """Whether left < right; None where the two cannot be ordered."""
    if isinstance(left, str) and isinstance(right, str):
        return left < right
    if isinstance(left, bool) or isinstance(right, bool):
        return None
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return abs(left - right) >= EPSILON and left < right
    return None


def hashable(value: object) -> object:
    """Key under which DISTINCT and GROUP BY tell values apart."""
    if type(value) is str:
        return value
    if isinstance(value, list):
        return tuple(hashable(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((name, hashable(item)) for name, item in value.items()))
    if isinstance(value, Vertex):
        return ("vertex", value.vid)
    return (type(value).__name__, value)


def sort_key(value: object) -> tuple[object, ...]:
    """Nulls last, as the server sorts ascending."""
    if value is None:
        return (2, 0)
    if isinstance(value, bool):
        return (0, int(value))
    if isinstance(value, (int, float)):
        return (0, value)
    return (1, value if isinstance(value, str) else repr(value))


def from_wire(value: ttypes.Value) -> object:
    """A parameter's value."""
    kind = value.getType()
    if kind == ttypes.Value.LVAL:
        return [from_wire(item) for item in value.get_lVal().values]
    if kind == ttypes.Value.SVAL:
        raw = value.get_sVal()
        return raw.decode() if isinstance(raw, bytes) else raw
    plain = {
        ttypes.Value.BVAL: ttypes.Value.get_bVal,
        ttypes.Value.IVAL: ttypes.Value.get_iVal,
        ttypes.Value.FVAL: ttypes.Value.get_fVal,
    }
    return plain[kind](value) if kind in plain else None


def to_wire(value: object) -> ttypes.Value:
    if value is None:
        return ttypes.Value(nVal=ttypes.NullType.__NULL__)
    if isinstance(value, bool):
        return ttypes.Value(bVal=value)
    if isinstance(value, int):
        return ttypes.Value(iVal=value)
    if isinstance(value, float):
        return ttypes.Value(fVal=value)
    if isinstance(value, str):
        return ttypes.Value(sVal=value.encode(errors="surrogatepass"))
    if isinstance(value, (list, tuple)):
        return ttypes.Value(lVal=ttypes.NList(values=[to_wire(item) for item in value]))
    if isinstance(value, dict):
        return ttypes.Value(mVal=ttypes.NMap(kvs={name.encode(): to_wire(item) for name, item in value.items()}))
    if isinstance(value, Vertex):
        return ttypes.Value(vVal=_vertex(value))
    if isinstance(value, Edge):
        return ttypes.Value(eVal=_edge(value))
    assert isinstance(value, Path)
    steps = [
        ttypes.Step(
            dst=_vertex(vertex),
            type=-1 if edge.backwards else 1,
            name=edge.name.encode(),
            ranking=edge.rank,
            props=_props(edge.props),
        )
        for vertex, edge in zip(value.vertices[1:], value.edges, strict=True)
    ]
    return ttypes.Value(pVal=ttypes.Path(src=_vertex(value.vertices[0]), steps=steps))


def _vertex(vertex: Vertex) -> ttypes.Vertex:
    tags = [ttypes.Tag(name=name.encode(), props=_props(props)) for name, props in vertex.tags.items()]
    return ttypes.Vertex(vid=to_wire(vertex.vid), tags=tags)


def _edge(edge: Edge) -> ttypes.Edge:
    # A negative type tells the client to swap the ends: it is sent as traversed.
    src, dst = (edge.dst, edge.src) if edge.backwards else (edge.src, edge.dst)
    return ttypes.Edge(
        src=to_wire(src),
        dst=to_wire(dst),
        type=-1 if edge.backwards else 1,
        name=edge.name.encode(),
        ranking=edge.rank,
        props=_props(edge.props),
    )


def _props(props: dict[str, object]) -> dict[bytes, ttypes.Value]:
    return {name.encode(): to_wire(value) for name, value in props.items()}
