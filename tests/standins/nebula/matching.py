"""UNWIND … MATCH … RETURN: trails from a start that the WHERE names, or from a scan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from standins.nebula.aggregation import ordered, project
from standins.nebula.evaluation import Scope, compile_expression
from standins.nebula.lexer import EXECUTION, SEMANTIC, NgqlError, not_understood
from standins.nebula.reading import Answer
from standins.nebula.storage import Space
from standins.nebula.syntax import (
    Binary,
    Call,
    Cypher,
    EdgePattern,
    Expr,
    Match,
    Name,
    NodePattern,
    Unwind,
)
from standins.nebula.values import Edge, Path, Vertex

Params = Mapping[str, object]
_REVERSED = {"out": "in", "in": "out", "both": "both"}


def run_cypher(space: Space, statement: Cypher, params: Params) -> Answer:
    scopes: list[Scope] = [Scope(space)]
    for clause in statement.clauses:
        if isinstance(clause, Unwind):
            source = compile_expression(clause.source, params)
            scopes = [
                Scope(space, {**scope.names, clause.variable: item})
                for scope in scopes
                for item in source(scope) or []  # type: ignore[attr-defined]
            ]
        else:
            matcher = _Matcher(space, clause, params)
            scopes = [found for scope in scopes for found in matcher.run(scope)]
    names = [column.name for column in statement.columns.columns]
    rows = project(statement.columns, scopes, params)
    if statement.order:
        # ORDER BY sees the returned columns by their names, as the server asks for.
        pairs = [(Scope(space, dict(zip(names, row, strict=True))), row) for row in rows]
        rows = ordered(pairs, statement.order, params)
    skip = _count(statement.skip, params) or 0
    limit = _count(statement.limit, params)
    return Answer(names, rows[skip:] if limit is None else rows[skip : skip + limit])


def _count(of: Expr | None, params: Params) -> int | None:
    if of is None:
        return None
    value = compile_expression(of, params)(Scope(_Nowhere()))
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise NgqlError(SEMANTIC, "SemanticError: LIMIT should be of type integer")
    return value


class _Nowhere:
    def vertex(self, vid: object) -> Vertex:
        raise not_understood("a vertex in LIMIT")

    def tag_prop(self, vid: object, tag: str, name: str) -> object:
        raise not_understood("a vertex in LIMIT")


class _Matcher:
    def __init__(self, space: Space, match: Match, params: Params) -> None:
        self._space = space
        self._params = params
        self._where = compile_expression(match.where, params) if match.where is not None else None
        self._path = match.path
        seeks = list(_seeks(match.where))
        ends = {match.nodes[0].variable: False, match.nodes[-1].variable: True}
        chosen = next((seek for seek in seeks if seek[0] in ends and seek[0] is not None), None)
        if chosen is None and any(seek[0] is not None for seek in seeks):
            raise not_understood("a MATCH that starts in the middle of its pattern")
        self._backwards = chosen is not None and ends[chosen[0]] and len(match.nodes) > 1
        self._seek = compile_expression(chosen[1], params) if chosen is not None else None
        self._nodes = match.nodes[::-1] if self._backwards else match.nodes
        self._edges = match.edges[::-1] if self._backwards else match.edges
        self._props = [[(n, compile_expression(v, params)) for n, v in node.props] for node in self._nodes]
        for node in self._nodes:
            for label in node.labels:
                space.tag(label)
        for edge in self._edges:
            space.over(edge.types or None)

    def run(self, scope: Scope) -> Iterator[Scope]:
        for start in self._starts(scope):
            if self._fits(start, 0, scope):
                yield from self._extend(scope, 0, (start,), (), {self._nodes[0].variable: start})

    def _starts(self, scope: Scope) -> Iterable[Vertex]:
        if self._seek is not None:
            wanted = self._seek(scope)
            vids = wanted if isinstance(wanted, list) else [wanted]
            return [self._space.vertex(vid) for vid in dict.fromkeys(vids)]
        node = self._nodes[0]
        if not node.labels:
            raise not_understood("a scan without a label")
        if node.props:
            index = self._space.index_for(node.labels[0], {name for name, _ in node.props})
            if index is None:
                text = "Error found in optimization stage: IndexNotFound: No valid index found"
                raise NgqlError(EXECUTION, text)
            return [self._space.vertex(vid) for vid in index.vids]
        return [self._space.vertex(vid) for vid in list(self._space.vertices)]

    def _fits(self, vertex: Vertex, position: int, scope: Scope) -> bool:
        node: NodePattern = self._nodes[position]
        # A vertex without any tag does not exist for MATCH.
        if not vertex.tags or any(label not in vertex.tags for label in node.labels):
            return False
        for name, value in self._props[position]:
            held = [props[name] for props in vertex.tags.values() if name in props]
            if value(scope) not in held:
                return False
        return True

    def _extend(
        self,
        scope: Scope,
        position: int,
        vertices: tuple[Vertex, ...],
        edges: tuple[Edge, ...],
        bound: dict[str | None, object],
    ) -> Iterator[Scope]:
        if position == len(self._edges):
            yield from self._finish(scope, vertices, edges, bound)
            return
        pattern = self._edges[position]
        node = self._nodes[position + 1]
        for steps, end in self._walk(pattern, vertices[-1], edges):
            if not self._fits(end, position + 1, scope):
                continue
            if node.variable in bound and node.variable is not None and bound[node.variable] != end:
                continue
            walked = tuple(edge for edge, _ in steps)
            value: object = walked[0] if pattern.hops is None else list(walked)
            more = {**bound, pattern.variable: value, node.variable: end}
            passed = tuple(vertex for _, vertex in steps)
            yield from self._extend(scope, position + 1, vertices + passed, edges + walked, more)

    def _finish(
        self, scope: Scope, vertices: tuple[Vertex, ...], edges: tuple[Edge, ...], bound: dict[str | None, object]
    ) -> Iterator[Scope]:
        names = {**scope.names, **{name: value for name, value in bound.items() if name is not None}}
        if self._path is not None:
            ends = (vertices[::-1], edges[::-1]) if self._backwards else (vertices, edges)
            names[self._path] = Path(*ends)
        found = Scope(self._space, names)
        if self._where is None or self._where(found) is True:
            yield found

    def _walk(
        self, pattern: EdgePattern, start: Vertex, used: tuple[Edge, ...]
    ) -> Iterator[tuple[list[tuple[Edge, Vertex]], Vertex]]:
        first, last = pattern.hops or (1, 1)
        names = self._space.over(pattern.types or None)
        direction = _REVERSED[pattern.direction] if self._backwards else pattern.direction
        taken = {(edge.src, edge.name, edge.rank, edge.dst) for edge in used}

        def onwards(at: Vertex, steps: list[tuple[Edge, Vertex]]) -> Iterator[tuple[list[tuple[Edge, Vertex]], Vertex]]:
            if len(steps) >= first:
                yield steps, at
            if len(steps) == last:
                return
            seen = taken | {(edge.src, edge.name, edge.rank, edge.dst) for edge, _ in steps}
            for edge, other in self._space.links(at.vid, names, direction):
                if (edge.src, edge.name, edge.rank, edge.dst) not in seen:
                    vertex = self._space.vertex(other)
                    if vertex.tags:
                        yield from onwards(vertex, [*steps, (edge, vertex)])

        return onwards(start, [])


def _seeks(where: Expr | None) -> Iterator[tuple[str | None, Expr]]:
    """`id(v) == x` and `id(v) IN x` among the ANDed conditions."""
    if isinstance(where, Binary) and where.op == "AND":
        yield from _seeks(where.left)
        yield from _seeks(where.right)
    elif isinstance(where, Binary) and where.op in ("==", "IN") and isinstance(where.left, Call):
        call = where.left
        if call.name == "id" and len(call.args) == 1 and isinstance(call.args[0], Name):
            yield call.args[0].name, where.right
