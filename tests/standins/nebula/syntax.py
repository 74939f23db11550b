"""The tree that the parser builds: expressions, then statements. Nouns only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Const:
    value: object


@dataclass(frozen=True, slots=True)
class Param:
    name: str


@dataclass(frozen=True, slots=True)
class Name:
    """A bare word: a MATCH variable, a tag or edge type before a dot, `vertex`, `edge`, or an alias."""

    name: str


@dataclass(frozen=True, slots=True)
class Ref:
    """`$$` (reached vertex), `$^` (start vertex) or `$-` (input row)."""

    name: str


@dataclass(frozen=True, slots=True)
class Attr:
    of: Expr
    name: str


@dataclass(frozen=True, slots=True)
class Sub:
    of: Expr
    index: Expr


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    args: tuple[Expr, ...]
    distinct: bool = False
    star: bool = False


@dataclass(frozen=True, slots=True)
class Unary:
    op: str
    of: Expr


@dataclass(frozen=True, slots=True)
class Binary:
    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Items:
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Comprehension:
    """`[x IN list WHERE test | result]`; `kind` is "list", or "all", "any", "none", "single" for the predicates."""

    kind: str
    variable: str
    source: Expr
    test: Expr | None
    result: Expr | None


Expr = Const | Param | Name | Ref | Attr | Sub | Call | Unary | Binary | Items | Comprehension


@dataclass(frozen=True, slots=True)
class Column:
    of: Expr
    name: str


@dataclass(frozen=True, slots=True)
class Yield:
    columns: tuple[Column, ...]
    distinct: bool = False
    where: Expr | None = None


# ---- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prop:
    name: str
    kind: str
    nullable: bool
    default: object = None
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class CreateSpace:
    name: str
    if_not_exists: bool
    options: dict[str, object]


@dataclass(frozen=True, slots=True)
class DropSpace:
    name: str
    if_exists: bool
    clear: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    name: str


@dataclass(frozen=True, slots=True)
class CreateSchema:
    """CREATE TAG or CREATE EDGE."""

    edge: bool
    name: str
    if_not_exists: bool
    props: tuple[Prop, ...]


@dataclass(frozen=True, slots=True)
class AlterSchema:
    edge: bool
    name: str
    added: tuple[Prop, ...]


@dataclass(frozen=True, slots=True)
class Describe:
    what: str
    name: str


@dataclass(frozen=True, slots=True)
class Show:
    what: str
    argument: object = None


@dataclass(frozen=True, slots=True)
class CreateIndex:
    name: str
    tag: str
    if_not_exists: bool
    fields: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, slots=True)
class RebuildIndex:
    name: str


@dataclass(frozen=True, slots=True)
class EdgeKey:
    src: object
    dst: object
    rank: int


@dataclass(frozen=True, slots=True)
class InsertVertex:
    tag: str
    if_not_exists: bool
    names: tuple[str, ...]
    rows: tuple[tuple[object, tuple[Expr, ...]], ...]


@dataclass(frozen=True, slots=True)
class InsertEdge:
    edge: str
    if_not_exists: bool
    names: tuple[str, ...]
    rows: tuple[tuple[EdgeKey, tuple[Expr, ...]], ...]


@dataclass(frozen=True, slots=True)
class UpsertVertex:
    tag: str
    vid: object
    assignments: tuple[tuple[str, Expr], ...]
    when: Expr | None
    returning: Yield | None


@dataclass(frozen=True, slots=True)
class DeleteVertex:
    vids: tuple[object, ...]
    with_edge: bool


@dataclass(frozen=True, slots=True)
class DeleteEdge:
    edge: str
    keys: tuple[EdgeKey, ...]


@dataclass(frozen=True, slots=True)
class DeleteTag:
    tags: tuple[str, ...]
    vids: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Go:
    steps: tuple[int, int]
    start: tuple[object, ...] | Attr
    over: tuple[str, ...] | None
    direction: str
    where: Expr | None
    columns: Yield | None
    limits: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class FetchVertices:
    tags: tuple[str, ...] | None
    vids: tuple[object, ...] | Attr
    columns: Yield


@dataclass(frozen=True, slots=True)
class FetchEdges:
    edge: str
    keys: tuple[EdgeKey, ...]
    columns: Yield


@dataclass(frozen=True, slots=True)
class Lookup:
    tag: str
    where: Expr | None
    columns: Yield


@dataclass(frozen=True, slots=True)
class OrderBy:
    keys: tuple[tuple[Expr, bool], ...]


@dataclass(frozen=True, slots=True)
class Limit:
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class GroupBy:
    keys: tuple[Expr, ...]
    columns: Yield


@dataclass(frozen=True, slots=True)
class NodePattern:
    variable: str | None
    labels: tuple[str, ...]
    props: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, slots=True)
class EdgePattern:
    """`direction`: out, in or both. `hops` is None for a plain single edge (its variable is an edge, not a list)."""

    variable: str | None
    types: tuple[str, ...]
    direction: str
    hops: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Unwind:
    source: Expr
    variable: str


@dataclass(frozen=True, slots=True)
class Match:
    path: str | None
    nodes: tuple[NodePattern, ...]
    edges: tuple[EdgePattern, ...]
    where: Expr | None


@dataclass(frozen=True, slots=True)
class Cypher:
    """UNWIND and MATCH clauses, then RETURN with its ORDER BY, SKIP and LIMIT."""

    clauses: tuple[Unwind | Match, ...]
    columns: Yield
    order: tuple[tuple[Expr, bool], ...] = ()
    skip: Expr | None = None
    limit: Expr | None = None


@dataclass(frozen=True, slots=True)
class ShortestPath:
    start: tuple[object, ...]
    end: tuple[object, ...]
    over: tuple[str, ...] | None
    upto: int
    name: str


@dataclass(frozen=True, slots=True)
class Subgraph:
    steps: int
    start: tuple[object, ...]
    out: tuple[str, ...]
    names: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Explain:
    of: Statement


@dataclass(frozen=True, slots=True)
class Piped:
    parts: tuple[Statement, ...] = field(default=())


Statement = (
    CreateSpace
    | DropSpace
    | Use
    | CreateSchema
    | AlterSchema
    | Describe
    | Show
    | CreateIndex
    | RebuildIndex
    | InsertVertex
    | InsertEdge
    | UpsertVertex
    | DeleteVertex
    | DeleteEdge
    | DeleteTag
    | Go
    | FetchVertices
    | FetchEdges
    | Lookup
    | OrderBy
    | Limit
    | GroupBy
    | Yield
    | Cypher
    | ShortestPath
    | Subgraph
    | Explain
    | Piped
)
