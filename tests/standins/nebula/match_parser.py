"""Grammar of UNWIND … MATCH … RETURN: one pattern a MATCH, bounded repeats only."""

from __future__ import annotations

from standins.nebula.expressions import ExpressionParser
from standins.nebula.lexer import not_understood
from standins.nebula.syntax import Cypher, EdgePattern, Expr, Match, NodePattern, Statement, Unwind


class MatchRules(ExpressionParser):
    def cypher(self) -> Statement:
        clauses: list[Unwind | Match] = []
        while not self.word("RETURN"):
            if self.word("UNWIND"):
                source = self.expression()
                self.need_word("AS")
                clauses.append(Unwind(source, self.identifier()))
            elif self.word("MATCH"):
                clauses.append(self._match())
            elif self.is_word("OPTIONAL") or self.is_word("WITH"):
                raise not_understood(self.token.text)
            else:
                raise self.fail()
        columns = self.columns()
        order = self.order_by() if self.is_word("ORDER") else ()
        skip = self.expression() if self.word("SKIP") else None
        limit = self.expression() if self.word("LIMIT") else None
        return Cypher(tuple(clauses), columns, order, skip, limit)

    def order_by(self) -> tuple[tuple[Expr, bool], ...]:
        raise NotImplementedError

    def _match(self) -> Match:
        path = None
        if self.peek().text == "=" and self.token.kind in ("name", "quoted"):
            path = self.identifier()
            self.need_op("=")
        nodes = [self._node()]
        edges: list[EdgePattern] = []
        while self.is_op("-") or self.is_op("<-"):
            edges.append(self._edge())
            nodes.append(self._node())
        if self.is_op(","):
            raise not_understood("MATCH of several patterns")
        where = self.expression() if self.word("WHERE") else None
        return Match(path, tuple(nodes), tuple(edges), where)

    def _node(self) -> NodePattern:
        self.need_op("(")
        variable = self.identifier() if self.token.kind in ("name", "quoted") else None
        labels: list[str] = []
        while self.op(":"):
            labels.append(self.identifier())
        props: list[tuple[str, Expr]] = []
        if self.op("{"):
            while True:
                name = self.identifier()
                self.need_op(":")
                props.append((name, self.expression()))
                if not self.op(","):
                    break
            self.need_op("}")
        self.need_op(")")
        return NodePattern(variable, tuple(labels), tuple(props))

    def _edge(self) -> EdgePattern:
        backwards = self.op("<-")
        if not backwards:
            self.need_op("-")
        variable, types, hops = None, (), None
        if self.op("["):
            if self.token.kind in ("name", "quoted"):
                variable = self.identifier()
            types = self._types() if self.op(":") else ()
            if self.op("*"):
                hops = self._hops()
            self.need_op("]")
        forwards = self.op("->")
        if not forwards:
            self.need_op("-")
        if backwards and forwards:
            raise self.fail()
        return EdgePattern(variable, types, "in" if backwards else "out" if forwards else "both", hops)

    def _types(self) -> tuple[str, ...]:
        types = [self.identifier()]
        while self.op("|"):
            self.op(":")
            types.append(self.identifier())
        return tuple(types)

    def _hops(self) -> tuple[int, int]:
        if self.token.kind != "int" and not self.is_op(".."):
            raise not_understood("a repeat without bounds")
        first = 1 if self.is_op("..") else self.integer()
        if not self.op(".."):
            return first, first
        if self.token.kind != "int":
            raise not_understood("a repeat without an upper bound")
        return first, self.integer()
