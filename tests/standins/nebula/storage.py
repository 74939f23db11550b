"""Spaces, schemas, vertices, edges and tag indexes, with the delay between a definition and its use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from standins.nebula.lexer import EXECUTION, SEMANTIC, NgqlError, not_understood
from standins.nebula.syntax import EdgeKey, Prop
from standins.nebula.values import Edge, Vertex

_LONG_VID = "The VID must be a 64-bit integer or a string fitting space vertex id length limit."
_KINDS = {
    "string": (str,),
    "int64": (int,),
    "double": (int, float),
    "float": (int, float),
    "bool": (bool, int),
}


def storage_error(text: str) -> NgqlError:
    return NgqlError(EXECUTION, f"Storage Error: {text}")


@dataclass(slots=True)
class Schema:
    props: dict[str, Prop]
    visible_at: float = 0.0

    def row(self, names: tuple[str, ...], values: list[object]) -> dict[str, object]:
        """A whole row: what is not named takes its default, else null."""
        if len(names) != len(values):
            raise NgqlError(SEMANTIC, "SemanticError: Column count doesn't match value count.")
        for name in names:
            if name not in self.props:
                raise NgqlError(SEMANTIC, f"SemanticError: Unknown column `{name}' in schema")
        given = dict(zip(names, values, strict=True))
        return {prop.name: self._value(prop, given) for prop in self.props.values()}

    def _value(self, prop: Prop, given: dict[str, object]) -> object:
        if prop.name not in given:
            if not prop.has_default and not prop.nullable:
                raise storage_error("The not null field doesn't have a default value.")
            return prop.default
        value = given[prop.name]
        if value is None:
            if not prop.nullable:
                raise storage_error("The not null field cannot be null.")
            return None
        return checked(prop, value)


def checked(prop: Prop, value: object) -> object:
    """`value` as a property of this type stores it."""
    if prop.kind.startswith("fixed_string("):
        if not isinstance(value, str):
            raise storage_error("The data type does not meet the requirements. Use the correct type of data.")
        return value.encode()[: int(prop.kind[13:-1])].decode(errors="ignore")
    if not isinstance(value, _KINDS[prop.kind]) or (isinstance(value, bool) and prop.kind != "bool"):
        raise storage_error("The data type does not meet the requirements. Use the correct type of data.")
    if prop.kind == "bool":
        return bool(value)
    return float(value) if prop.kind in ("double", "float") else value  # type: ignore[arg-type]


@dataclass(slots=True)
class Index:
    """Holds the rows that were written since it became visible, or at its last rebuild."""

    tag: str
    fields: tuple[tuple[str, int | None], ...]
    visible_at: float
    vids: set[object] = field(default_factory=set)


@dataclass(slots=True)
class Space:
    name: str
    vid_bytes: int | None
    visible_at: float
    tags: dict[str, Schema] = field(default_factory=dict)
    edges: dict[str, Schema] = field(default_factory=dict)
    indexes: dict[str, Index] = field(default_factory=dict)
    vertices: dict[object, dict[str, dict[str, object]]] = field(default_factory=dict)
    outgoing: dict[object, dict[tuple[str, int, object], dict[str, object]]] = field(default_factory=dict)
    incoming: dict[object, dict[tuple[str, int, object], None]] = field(default_factory=dict)
    jobs: int = 0

    # ---- schema ------------------------------------------------------------------------------------------------------

    def tag(self, name: str) -> Schema:
        return self._schema(self.tags, name)

    def edge_type(self, name: str) -> Schema:
        return self._schema(self.edges, name)

    def _schema(self, among: dict[str, Schema], name: str) -> Schema:
        schema = among.get(name)
        if schema is None or schema.visible_at > time.monotonic():
            raise NgqlError(SEMANTIC, f"SemanticError: No schema found for `{name}'")
        return schema

    def over(self, names: tuple[str, ...] | None) -> tuple[str, ...]:
        """Edge types of an OVER clause, each one known and visible."""
        now = time.monotonic()
        for name in names or ():
            if name not in self.edges or self.edges[name].visible_at > now:
                raise NgqlError(SEMANTIC, f"SemanticError: {name} not found in space [{self.name}].")
        return names if names is not None else tuple(self.edges)

    def check_vid(self, vid: object) -> object:
        if self.vid_bytes is None:
            if not isinstance(vid, int):
                raise storage_error(_LONG_VID)
        elif not isinstance(vid, str):
            raise NgqlError(EXECUTION, f"Wrong vertex id type: {vid}")
        elif len(vid.encode()) > self.vid_bytes:
            raise storage_error(_LONG_VID)
        return vid

    # ---- writing -----------------------------------------------------------------------------------------------------

    def put_vertex(self, vid: object, tag: str, props: dict[str, object], *, keep: bool = False) -> None:
        tags = self.vertices.setdefault(self.check_vid(vid), {})
        if not (keep and tag in tags):
            tags[tag] = props
        now = time.monotonic()
        for index in self.indexes.values():
            if index.tag == tag and index.visible_at <= now:
                index.vids.add(vid)

    def drop_tags(self, vid: object, tags: tuple[str, ...] | None = None) -> None:
        held = self.vertices.get(vid, {})
        for tag in tags if tags is not None else tuple(held):
            held.pop(tag, None)
            for index in self.indexes.values():
                if index.tag == tag:
                    index.vids.discard(vid)
        if not held:
            self.vertices.pop(vid, None)

    def put_edge(self, key: EdgeKey, name: str, props: dict[str, object], *, keep: bool = False) -> None:
        src, dst = self.check_vid(key.src), self.check_vid(key.dst)
        held = self.outgoing.setdefault(src, {})
        if not (keep and (name, key.rank, dst) in held):
            held[(name, key.rank, dst)] = props
        self.incoming.setdefault(dst, {})[(name, key.rank, src)] = None

    def drop_edge(self, key: EdgeKey, name: str) -> None:
        self.outgoing.get(key.src, {}).pop((name, key.rank, key.dst), None)
        self.incoming.get(key.dst, {}).pop((name, key.rank, key.src), None)

    def drop_edges_of(self, vid: object) -> None:
        for name, rank, dst in list(self.outgoing.get(vid, {})):
            self.drop_edge(EdgeKey(vid, dst, rank), name)
        for name, rank, src in list(self.incoming.get(vid, {})):
            self.drop_edge(EdgeKey(src, vid, rank), name)

    def clear(self) -> None:
        for held in (self.vertices, self.outgoing, self.incoming):
            held.clear()
        for index in self.indexes.values():
            index.vids.clear()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def vertex(self, vid: object) -> Vertex:
        return Vertex(vid, self.vertices.get(vid, {}))

    def tag_prop(self, vid: object, tag: str, name: str) -> object:
        held = self.vertices.get(vid)
        return None if held is None or tag not in held else held[tag].get(name)

    def links(self, vid: object, names: tuple[str, ...], direction: str) -> Iterator[tuple[Edge, object]]:
        """Edges at `vid` and the vertex each one reaches."""
        wanted = frozenset(names)
        if direction in ("out", "both"):
            for (name, rank, dst), props in self.outgoing.get(vid, {}).items():
                if name in wanted:
                    yield Edge(vid, dst, name, rank, props), dst
        if direction in ("in", "both"):
            for name, rank, src in self.incoming.get(vid, {}):
                if name in wanted:
                    props = self.outgoing[src][(name, rank, vid)]
                    yield Edge(src, vid, name, rank, props, backwards=True), src

    def index_for(self, tag: str, fields: set[str]) -> Index | None:
        """A visible index of `tag` whose first field is asked for."""
        now = time.monotonic()
        for index in self.indexes.values():
            if index.tag == tag and index.visible_at <= now and (not fields or index.fields[0][0] in fields):
                return index
        return None

    def rebuild(self, name: str) -> int:
        index = self.indexes.get(name)
        if index is None:
            raise NgqlError(EXECUTION, f"Index not existed: `{name}'")
        if index.visible_at > time.monotonic():
            raise not_understood("a rebuild before the index is visible")
        index.vids = {vid for vid, tags in self.vertices.items() if index.tag in tags}
        self.jobs += 1
        return self.jobs
