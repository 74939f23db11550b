"""GO, FETCH, LOOKUP, pipes, shortest paths and subgraphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from standins.nebula.aggregation import Row, group, ordered, project
from standins.nebula.evaluation import Scope, compile_expression
from standins.nebula.lexer import EXECUTION, SEMANTIC, NgqlError, not_understood
from standins.nebula.storage import Space
from standins.nebula.syntax import (
    Attr,
    Binary,
    Column,
    Expr,
    FetchEdges,
    FetchVertices,
    Go,
    GroupBy,
    Limit,
    Lookup,
    Name,
    OrderBy,
    Piped,
    ShortestPath,
    Show,
    Statement,
    Subgraph,
    Yield,
)
from standins.nebula.values import Edge, Path

if TYPE_CHECKING:
    from standins.nebula.running import Catalogue

Params = Mapping[str, object]


@dataclass(slots=True)
class Answer:
    columns: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def inputs(self) -> list[dict[str, object]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class _NoSpace:
    """Stands for the space where none is in use: fine for `YIELD 1`, an error for anything that looks something up."""

    def vertex(self, vid: object) -> object:
        raise NgqlError(SEMANTIC, "SemanticError: Space was not chosen.")

    def tag_prop(self, vid: object, tag: str, name: str) -> object:
        raise NgqlError(SEMANTIC, "SemanticError: Space was not chosen.")


def read(space: Space | None, statement: Statement, params: Params, catalogue: Catalogue) -> Answer:
    if isinstance(statement, Piped):
        answer = None
        for part, following in zip(statement.parts, (*statement.parts[1:], None), strict=True):
            enough = following.offset + following.count if isinstance(following, Limit) else None
            answer = _Reader(space, params, catalogue, answer, enough).run(part)
        assert answer is not None
        return answer
    return _Reader(space, params, catalogue, None).run(statement)


class _Reader:
    def __init__(
        self,
        space: Space | None,
        params: Params,
        catalogue: Catalogue,
        piped: Answer | None,
        enough: int | None = None,
    ) -> None:
        # `enough`: rows after which a LIMIT looks no further.
        self._enough = enough
        self._maybe = space
        self._params = params
        self._catalogue = catalogue
        self._piped = piped

    @property
    def space(self) -> Space:
        if self._maybe is None:
            raise NgqlError(SEMANTIC, "SemanticError: Space was not chosen.")
        return self._maybe

    def run(self, statement: Statement) -> Answer:
        if isinstance(statement, Go):
            return self._go(statement)
        if isinstance(statement, FetchVertices):
            return self._fetch(statement)
        if isinstance(statement, FetchEdges):
            return self._fetch_edges(statement)
        if isinstance(statement, Lookup):
            return self._lookup(statement)
        if isinstance(statement, Yield):
            return self._yield(statement)
        if isinstance(statement, ShortestPath):
            return self._shortest(statement)
        if isinstance(statement, Subgraph):
            return self._subgraph(statement)
        if isinstance(statement, Show) and statement.what == "SPACES":
            return Answer(["Name"], [[name] for name in sorted(self._catalogue.spaces)])
        return self._pipe_part(statement)

    def _pipe_part(self, statement: Statement) -> Answer:
        if self._piped is None:
            raise not_understood(type(statement).__name__)
        if isinstance(statement, Limit):
            kept = self._piped.rows[statement.offset : statement.offset + statement.count]
            return Answer(self._piped.columns, kept)
        pairs = list(zip(self._inputs(), self._piped.rows, strict=True))
        if isinstance(statement, OrderBy):
            return Answer(self._piped.columns, ordered(pairs, statement.keys, self._params))
        if isinstance(statement, GroupBy):
            rows = group(statement.keys, statement.columns, (scope for scope, _ in pairs), self._params)
            return Answer(_names(statement.columns), rows)
        raise not_understood(f"a pipe into {type(statement).__name__}")

    def _inputs(self) -> list[Scope]:
        assert self._piped is not None
        lookup = self._maybe if self._maybe is not None else _NoSpace()
        return [Scope(lookup, input=row) for row in self._piped.inputs()]  # type: ignore[arg-type]

    def _yield(self, statement: Yield) -> Answer:
        lookup = self._maybe if self._maybe is not None else _NoSpace()
        scopes = self._inputs() if self._piped is not None else [Scope(lookup)]  # type: ignore[arg-type]
        if statement.where is not None:
            test = compile_expression(statement.where, self._params)
            scopes = [scope for scope in scopes if test(scope) is True]
        return Answer(_names(statement), project(statement, scopes, self._params))

    # ---- GO ----------------------------------------------------------------------------------------------------------

    def _go(self, statement: Go) -> Answer:
        names = self.space.over(statement.over)
        if statement.columns is None:
            raise NgqlError(SEMANTIC, "SemanticError: Missing yield clause.")
        _known_tags(self.space, statement.where, names)
        test = compile_expression(statement.where, self._params) if statement.where is not None else None
        scopes = (scope for scope in self._steps(statement, names) if test is None or test(scope) is True)
        return Answer(_names(statement.columns), project(statement.columns, scopes, self._params, self._enough))

    def _steps(self, statement: Go, names: tuple[str, ...]) -> Iterator[Scope]:
        frontier, inputs = self._start(statement.start)
        first, last = statement.steps
        by_type = _mentions(statement.where, names) or any(_mentions(c.of, names) for c in statement.columns.columns)
        if inputs is not None and last > 1:
            raise not_understood("several steps from piped vertices")
        if statement.limits is not None and (len(statement.limits) != last or len(frontier) != 1 or last != 1):
            raise not_understood("a limit per step of several vertices or steps")
        for step in range(1, last + 1):
            reached: dict[object, None] = {}
            count = 0
            for vid in frontier:
                for edge, other in self.space.links(vid, names, statement.direction):
                    if statement.limits is not None and count >= statement.limits[0]:
                        break
                    count += 1
                    reached[other] = None
                    if step >= first:
                        for row in inputs[vid] if inputs is not None else ({},):
                            props = {name: _Props(edge, name) for name in names} if by_type else _NO_NAMES
                            yield Scope(self.space, props, edge, vid, other, row)
            frontier = list(reached)

    def _start(
        self, start: tuple[object, ...] | Attr
    ) -> tuple[list[object], dict[object, list[dict[str, object]]] | None]:
        if not isinstance(start, Attr):
            return [self.space.check_vid(vid) for vid in dict.fromkeys(start)], None
        if self._piped is None or start.name not in self._piped.columns:
            raise NgqlError(SEMANTIC, f"SemanticError: `$-.{start.name}', not exist prop `{start.name}'")
        by_vid: dict[object, list[dict[str, object]]] = {}
        for row in self._piped.inputs():
            by_vid.setdefault(row[start.name], []).append(row)
        return list(by_vid), by_vid

    # ---- FETCH and LOOKUP --------------------------------------------------------------------------------------------

    def _fetch(self, statement: FetchVertices) -> Answer:
        for tag in statement.tags or ():
            self.space.tag(tag)
        vids, _ = self._start(statement.vids)
        scopes = []
        for vid in vids:
            vertex = self.space.vertex(vid)
            held = [tag for tag in vertex.tags if statement.tags is None or tag in statement.tags]
            if held:
                scopes.append(Scope(self.space, {"vertex": vertex}))
        return Answer(_names(statement.columns), project(statement.columns, scopes, self._params))

    def _fetch_edges(self, statement: FetchEdges) -> Answer:
        self.space.edge_type(statement.edge)
        scopes = []
        for key in statement.keys:
            props = self.space.outgoing.get(key.src, {}).get((statement.edge, key.rank, key.dst))
            if props is not None:
                scopes.append(Scope(self.space, edge=Edge(key.src, key.dst, statement.edge, key.rank, props)))
        return Answer(_names(statement.columns), project(statement.columns, scopes, self._params))

    def _lookup(self, statement: Lookup) -> Answer:
        self.space.tag(statement.tag)
        fields = set(_fields_of(statement.where, statement.tag)) if statement.where is not None else set()
        index = self.space.index_for(statement.tag, fields)
        if index is None:
            raise NgqlError(EXECUTION, "There is no index to use at runtime")
        test = compile_expression(statement.where, self._params) if statement.where is not None else None
        scopes = []
        for vid in index.vids:
            vertex = self.space.vertex(vid)
            scope = Scope(self.space, {"vertex": vertex, statement.tag: vertex.tags.get(statement.tag, {})})
            if test is None or test(scope) is True:
                scopes.append(scope)
        return Answer(_names(statement.columns), project(statement.columns, scopes, self._params))

    # ---- paths and subgraphs -----------------------------------------------------------------------------------------

    def _shortest(self, statement: ShortestPath) -> Answer:
        names = self.space.over(statement.over)
        rows: list[Row] = []
        for start in statement.start:
            for end in statement.end:
                rows += [[path] for path in self._paths(start, end, names, statement.upto)]
        return Answer([statement.name], rows)

    def _paths(self, start: object, end: object, names: tuple[str, ...], upto: int) -> list[Path]:
        paths = [Path((self.space.vertex(start),), ())]
        for _ in range(upto):
            paths = [
                Path((*path.vertices, self.space.vertex(other)), (*path.edges, edge))
                for path in paths
                for edge, other in self.space.links(path.vertices[-1].vid, names, "out")
                if other not in {vertex.vid for vertex in path.vertices}
            ]
            found = [path for path in paths if path.vertices[-1].vid == end]
            if found:
                return found
        return []

    def _subgraph(self, statement: Subgraph) -> Answer:
        names = self.space.over(statement.out)
        seen = dict.fromkeys(statement.start)
        frontier = list(statement.start)
        rows: list[Row] = []
        for step in range(statement.steps + 1):
            edges = [edge for vid in frontier for edge, _ in self.space.links(vid, names, "out")]
            shown = edges if step < statement.steps else [edge for edge in edges if edge.dst in seen]
            rows.append([[self.space.vertex(vid) for vid in frontier], shown])
            frontier = [vid for vid in dict.fromkeys(edge.dst for edge in edges) if vid not in seen]
            seen.update(dict.fromkeys(frontier))
            if not frontier:
                break
        return Answer(list(statement.names), rows)


_NO_NAMES: dict[str, object] = {}


class _Props(dict):  # type: ignore[type-arg]
    """Properties of the edge under the name of its type, null under the others: `LIKES.weight`."""

    def __init__(self, edge: Edge, name: str) -> None:
        super().__init__(edge.props if edge.name == name else {})


def _names(columns: Yield) -> list[str]:
    return [column.name for column in columns.columns]


def _fields_of(of: Expr | Column, tag: str) -> Iterator[str]:
    """Properties of `tag` that a LOOKUP condition compares; ANDs only, as the server."""
    if isinstance(of, Binary) and of.op == "AND":
        yield from _fields_of(of.left, tag)
        yield from _fields_of(of.right, tag)
    elif isinstance(of, Binary) and isinstance(of.left, Attr) and isinstance(of.left.of, Name):
        if of.left.of.name != tag:
            raise NgqlError(SEMANTIC, f"SemanticError: Schema name error: {of.left.of.name}")
        yield of.left.name
    else:
        raise NgqlError(SEMANTIC, "SemanticError: Expression not supported yet")


def _mentions(of: object, names: tuple[str, ...]) -> bool:
    """Whether an expression reads an edge property by the name of the edge type."""
    if isinstance(of, Name):
        return of.name in names
    if isinstance(of, (tuple, list)):
        return any(_mentions(item, names) for item in of)
    return any(
        _mentions(getattr(of, part), names) for part in ("of", "left", "right", "args", "items") if hasattr(of, part)
    )


def _known_tags(space: Space, of: object, names: tuple[str, ...]) -> None:
    """A tag that a GO condition reads has to exist."""
    if isinstance(of, Attr) and isinstance(of.of, Attr) and not isinstance(of.of.of, Attr):
        space.tag(of.of.name)
    for part in ("left", "right", "of"):
        inner = getattr(of, part, None)
        if inner is not None and not isinstance(of, Attr):
            _known_tags(space, inner, names)
