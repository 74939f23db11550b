"""Recursive descent over statements. Whatever is outside this grammar is refused, never guessed."""

from __future__ import annotations

from standins.nebula.expressions import ExpressionParser
from standins.nebula.lexer import EMPTY, SEMANTIC, NgqlError, not_understood, syntax_error, tokenize
from standins.nebula.match_parser import MatchRules
from standins.nebula.schema_parser import SchemaRules
from standins.nebula.syntax import (
    Attr,
    DeleteEdge,
    DeleteTag,
    DeleteVertex,
    EdgeKey,
    Explain,
    Expr,
    FetchEdges,
    FetchVertices,
    Go,
    GroupBy,
    InsertEdge,
    InsertVertex,
    Limit,
    Lookup,
    OrderBy,
    Piped,
    Ref,
    ShortestPath,
    Statement,
    Subgraph,
    UpsertVertex,
    Use,
    Yield,
)

MAX_QUERY_BYTES = 4_194_304
MAX_STATEMENTS = 512


def parse(text: str) -> list[Statement]:
    """The statements of one request, in order. Raises NgqlError as the server would."""
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_QUERY_BYTES:
        raise NgqlError(-1004, f"SyntaxError: Query is too large ({size} > {MAX_QUERY_BYTES}).")
    parser = _Parser(text, tokenize(text))
    statements: list[Statement] = []
    while parser.token.kind != "end":
        if not parser.op(";"):
            statements.append(parser.statement())
            if parser.token.kind != "end" and not parser.is_op(";"):
                raise parser.fail()
    if not statements:
        raise NgqlError(EMPTY, "StatementEmpty: ")
    if len(statements) > MAX_STATEMENTS:
        raise NgqlError(SEMANTIC, f"SemanticError: The maximum number of statements allowed is {MAX_STATEMENTS}")
    return statements


class _Parser(SchemaRules, MatchRules, ExpressionParser):
    def statement(self) -> Statement:
        if self.word("EXPLAIN"):
            return Explain(self.statement())
        first = self._head()
        parts = [first]
        while self.op("|"):
            parts.append(self._pipe_part())
        return parts[0] if len(parts) == 1 else Piped(tuple(parts))

    def _head(self) -> Statement:
        word = self.token.word
        rules = {
            "USE": self._use,
            "CREATE": self.create,
            "ALTER": self.alter,
            "DROP": self.drop,
            "CLEAR": self.clear,
            "DESCRIBE": self.describe,
            "DESC": self.describe,
            "SHOW": self.show,
            "REBUILD": self.rebuild,
            "INSERT": self._insert,
            "UPSERT": self._upsert,
            "DELETE": self._delete,
            "GO": self._go,
            "FETCH": self._fetch,
            "LOOKUP": self._lookup,
            "YIELD": self._yield,
            "MATCH": self.cypher,
            "UNWIND": self.cypher,
            "RETURN": self.cypher,
            "FIND": self._find,
            "GET": self._subgraph,
        }
        if word not in rules:
            raise not_understood(self.token.text) if self.token.kind == "name" else self.fail()
        return rules[word]()

    def _pipe_part(self) -> Statement:
        if self.is_word("ORDER"):
            return OrderBy(self.order_by())
        if self.word("LIMIT"):
            first = self.integer()
            return Limit(first, self.integer()) if self.op(",") else Limit(0, first)
        if self.word("GROUP", "BY"):
            keys = [self.expression()]
            while self.op(","):
                keys.append(self.expression())
            self.need_word("YIELD")
            return GroupBy(tuple(keys), self.columns())
        if self.is_word("YIELD"):
            return self._yield()
        if self.is_word("GO"):
            return self._go()
        if self.is_word("FETCH"):
            return self._fetch()
        raise self.fail()

    def order_by(self) -> tuple[tuple[Expr, bool], ...]:
        self.need_word("ORDER", "BY")
        keys = [self._order_key()]
        while self.op(","):
            keys.append(self._order_key())
        return tuple(keys)

    def _order_key(self) -> tuple[Expr, bool]:
        of = self.expression()
        if self.word("DESC") or self.word("DESCENDING"):
            return of, True
        if not self.word("ASC"):
            self.word("ASCENDING")
        return of, False

    def _use(self) -> Statement:
        self.need_word("USE")
        return Use(self.identifier())

    def _yield(self) -> Statement:
        self.need_word("YIELD")
        columns = self.columns()
        return Yield(columns.columns, columns.distinct, self.expression()) if self.word("WHERE") else columns

    # ---- vertices, edges, keys ---------------------------------------------------------------------------------------

    def vid(self) -> object:
        token = self.token
        if token.kind == "ref" and token.text not in ("$-", "$$", "$^"):
            raise syntax_error(token.text, "Parameter is not supported in vid")
        if self.op("-"):
            return -self.integer()
        if token.kind in ("string", "int"):
            return self.advance().value
        raise self.fail()

    def vids(self) -> tuple[object, ...]:
        found = [self.vid()]
        while self.op(","):
            found.append(self.vid())
        return tuple(found)

    def vids_or_input(self) -> tuple[object, ...] | Attr:
        if self.token.kind == "ref" and self.token.text == "$-":
            self.advance()
            self.need_op(".")
            return Attr(Ref("$-"), self.identifier())
        return self.vids()

    def edge_key(self) -> EdgeKey:
        src = self.vid()
        self.need_op("->")
        dst = self.vid()
        rank = 0
        if self.op("@"):
            sign = -1 if self.op("-") else 1
            rank = sign * self.integer()
        return EdgeKey(src, dst, rank)

    def identifiers(self) -> tuple[str, ...]:
        names = [self.identifier()]
        while self.op(","):
            names.append(self.identifier())
        return tuple(names)

    def if_not_exists(self) -> bool:
        return self.word("IF", "NOT", "EXISTS")

    # ---- writing -----------------------------------------------------------------------------------------------------

    def _insert(self) -> Statement:
        self.need_word("INSERT")
        edge = self.word("EDGE")
        if not edge:
            self.need_word("VERTEX")
        unless_there = self.if_not_exists()
        name = self.identifier()
        self.need_op("(")
        names = () if self.is_op(")") else self.identifiers()
        self.need_op(")")
        if not edge and self.is_op(","):
            raise not_understood("INSERT VERTEX of several tags")
        if not self.word("VALUES"):
            self.need_word("VALUE")
        if edge:
            return InsertEdge(name, unless_there, names, self._rows(self.edge_key))
        return InsertVertex(name, unless_there, names, self._rows(self.vid))

    def _rows(self, key):  # type: ignore[no-untyped-def]
        rows = []
        while True:
            of = key()
            self.need_op(":")
            self.need_op("(")
            values: list[Expr] = []
            if not self.is_op(")"):
                values.append(self.literal_or_expression())
                while self.op(","):
                    values.append(self.literal_or_expression())
            self.need_op(")")
            rows.append((of, tuple(values)))
            if not self.op(","):
                return tuple(rows)

    def _upsert(self) -> Statement:
        self.need_word("UPSERT", "VERTEX", "ON")
        tag = self.identifier()
        vid = self.vid()
        self.need_word("SET")
        assignments = [self._assignment()]
        while self.op(","):
            assignments.append(self._assignment())
        when = self.expression() if self.word("WHEN") else None
        returning = self.columns() if self.word("YIELD") else None
        return UpsertVertex(tag, vid, tuple(assignments), when, returning)

    def _assignment(self) -> tuple[str, Expr]:
        name = self.identifier()
        if not self.op("="):
            raise self.fail()
        return name, self.expression()

    def _delete(self) -> Statement:
        self.need_word("DELETE")
        if self.word("VERTEX"):
            return DeleteVertex(self.vids(), self.word("WITH", "EDGE"))
        if self.word("EDGE"):
            edge = self.identifier()
            keys = [self.edge_key()]
            while self.op(","):
                keys.append(self.edge_key())
            return DeleteEdge(edge, tuple(keys))
        self.need_word("TAG")
        tags = self.identifiers()
        self.need_word("FROM")
        return DeleteTag(tags, self.vids())

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _go(self) -> Statement:
        self.need_word("GO")
        steps = self._steps()
        self.need_word("FROM")
        start = self.vids_or_input()
        self.need_word("OVER")
        over = None if self.op("*") else self.identifiers()
        direction = "in" if self.word("REVERSELY") else "both" if self.word("BIDIRECT") else "out"
        where = self.expression() if self.word("WHERE") else None
        columns = self.columns() if self.word("YIELD") else None
        limits = None
        if columns is not None and self.word("LIMIT"):
            self.need_op("[")
            found = [self.integer()]
            while self.op(","):
                found.append(self.integer())
            self.need_op("]")
            limits = tuple(found)
        return Go(steps, start, over, direction, where, columns, limits)

    def _steps(self) -> tuple[int, int]:
        if self.token.kind != "int":
            return 1, 1
        first = self.integer()
        last = self.integer() if self.word("TO") else None
        if not self.word("STEPS"):
            self.need_word("STEP")
        return (first, first) if last is None else (first, last)

    def _fetch(self) -> Statement:
        self.need_word("FETCH", "PROP", "ON")
        names = None if self.op("*") else self.identifiers()
        if names is not None and len(names) == 1 and self.peek().text == "->":
            keys = [self.edge_key()]
            while self.op(","):
                keys.append(self.edge_key())
            self.need_word("YIELD")
            return FetchEdges(names[0], tuple(keys), self.columns())
        vids = self.vids_or_input()
        self.need_word("YIELD")
        return FetchVertices(names, vids, self.columns())

    def _lookup(self) -> Statement:
        self.need_word("LOOKUP", "ON")
        tag = self.identifier()
        where = self.expression() if self.word("WHERE") else None
        self.need_word("YIELD")
        return Lookup(tag, where, self.columns())

    def _find(self) -> Statement:
        self.need_word("FIND")
        if not self.word("SHORTEST", "PATH"):
            raise not_understood("FIND without SHORTEST PATH")
        self.need_word("FROM")
        start = self.vids()
        self.need_word("TO")
        end = self.vids()
        self.need_word("OVER")
        over = None if self.op("*") else self.identifiers()
        self.need_word("UPTO")
        upto = self.integer()
        self.need_word("STEPS", "YIELD", "PATH", "AS")
        return ShortestPath(start, end, over, upto, self.identifier())

    def _subgraph(self) -> Statement:
        self.need_word("GET", "SUBGRAPH")
        steps = self.integer()
        self.need_word("STEPS", "FROM")
        start = self.vids()
        if not self.word("OUT"):
            raise not_understood("GET SUBGRAPH without OUT")
        out = self.identifiers()
        self.need_word("YIELD", "VERTICES", "AS")
        vertices = self.identifier()
        self.need_op(",")
        self.need_word("EDGES", "AS")
        return Subgraph(steps, start, out, (vertices, self.identifier()))
