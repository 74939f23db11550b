"""Expressions compiled to closures over a scope, with three-valued logic. Aggregates live in `aggregation`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from standins.nebula.lexer import SEMANTIC, NgqlError, not_understood
from standins.nebula.syntax import (
    Attr,
    Binary,
    Call,
    Comprehension,
    Const,
    Expr,
    Items,
    Name,
    Param,
    Ref,
    Sub,
    Unary,
)
from standins.nebula.values import Edge, Path, Vertex, equal, less


class Lookup(Protocol):
    def vertex(self, vid: object) -> Vertex: ...

    def tag_prop(self, vid: object, tag: str, name: str) -> object: ...


@dataclass(slots=True)
class Scope:
    """What one row offers: named values, the edge and its ends (GO), the piped input row, the space to look up in."""

    space: Lookup
    names: dict[str, object] = field(default_factory=dict)
    edge: Edge | None = None
    start: object = None
    reached: object = None
    input: Mapping[str, object] = field(default_factory=dict)


Compiled = Callable[[Scope], object]


def compile_expression(of: Expr, params: Mapping[str, object]) -> Compiled:
    return _Compiler(params).compile(of)


class _Compiler:
    def __init__(self, params: Mapping[str, object]) -> None:
        self._params = params

    def compile(self, of: Expr) -> Compiled:
        if isinstance(of, Const):
            value = of.value
            return lambda scope: value
        if isinstance(of, Param):
            return self._param(of)
        if isinstance(of, Name):
            return _name(of.name)
        if isinstance(of, Ref):
            return _ref(of.name)
        if isinstance(of, Attr):
            return self._attr(of)
        if isinstance(of, Sub):
            return self._sub(of)
        if isinstance(of, Call):
            return self._call(of)
        if isinstance(of, Unary):
            return self._unary(of)
        if isinstance(of, Binary):
            return self._binary(of)
        if isinstance(of, Items):
            items = [self.compile(item) for item in of.items]
            return lambda scope: [item(scope) for item in items]
        return self._comprehension(of)

    def _param(self, of: Param) -> Compiled:
        if of.name not in self._params:
            raise NgqlError(SEMANTIC, f"SemanticError: Undefined parameters: {of.name}")
        value = self._params[of.name]
        return lambda scope: value

    def _attr(self, of: Attr) -> Compiled:
        name = of.name
        if isinstance(of.of, Ref) and of.of.name == "$-":
            return lambda scope: scope.input.get(name)
        if isinstance(of.of, Attr) and isinstance(of.of.of, (Ref, Name)):
            tag = of.of.name
            if of.of.of == Ref("$$"):
                return lambda scope: scope.space.tag_prop(scope.reached, tag, name)
            if of.of.of == Ref("$^"):
                return lambda scope: scope.space.tag_prop(scope.start, tag, name)
            owner = self.compile(of.of.of)
            return lambda scope: _tag_prop(owner(scope), tag, name)
        owner = self.compile(of.of)
        return lambda scope: _plain_prop(owner(scope), name)

    def _sub(self, of: Sub) -> Compiled:
        owner, index = self.compile(of.of), self.compile(of.index)

        def subscript(scope: Scope) -> object:
            items, at = owner(scope), index(scope)
            if isinstance(items, dict):
                return items.get(at)
            if not isinstance(items, list) or not isinstance(at, int) or not -len(items) <= at < len(items):
                return None
            return items[at]

        return subscript

    def _call(self, of: Call) -> Compiled:
        if of.name not in FUNCTIONS:
            raise not_understood(f"{of.name}()")
        function = FUNCTIONS[of.name]
        args = [self.compile(arg) for arg in of.args]
        if len(args) == 1:
            only = args[0]
            return lambda scope: function(only(scope))
        raise not_understood(f"{of.name}() of {len(args)} arguments")

    def _unary(self, of: Unary) -> Compiled:
        inner = self.compile(of.of)
        if of.op == "NOT":
            return lambda scope: None if (value := inner(scope)) is None else not value
        if of.op == "IS NULL":
            return lambda scope: inner(scope) is None
        if of.op == "IS NOT NULL":
            return lambda scope: inner(scope) is not None
        return lambda scope: None if (value := inner(scope)) is None else -value  # type: ignore[operator]

    def _binary(self, of: Binary) -> Compiled:
        left, right = self.compile(of.left), self.compile(of.right)
        if of.op == "AND":
            return lambda scope: _both(left(scope), right, scope)
        if of.op == "OR":
            return lambda scope: _either(left(scope), right, scope)
        if of.op not in _OPERATORS:
            raise not_understood(of.op)
        operator = _OPERATORS[of.op]
        return lambda scope: operator(left(scope), right(scope))

    def _comprehension(self, of: Comprehension) -> Compiled:
        source, name = self.compile(of.source), of.variable
        test = self.compile(of.test) if of.test is not None else None
        result = self.compile(of.result) if of.result is not None else None

        def passing(scope: Scope) -> list[Scope]:
            items = source(scope)
            inner = [Scope(scope.space, {**scope.names, name: item}) for item in (items or [])]  # type: ignore[attr-defined]
            return [one for one in inner if test is None or test(one) is True]

        if of.kind == "list":
            return lambda scope: [result(one) if result else one.names[name] for one in passing(scope)]
        kind = of.kind

        def predicate(scope: Scope) -> bool:
            total = source(scope)
            found = len(passing(scope))
            wanted = {"all": found == len(total or []), "any": found > 0, "none": found == 0}  # type: ignore[arg-type]
            return wanted.get(kind, found == 1)

        return predicate


def _name(name: str) -> Compiled:
    if name == "edge":
        return lambda scope: scope.names.get("edge", scope.edge)
    return lambda scope: scope.names[name] if name in scope.names else scope.input.get(name)


def _ref(name: str) -> Compiled:
    if name == "$$":
        return lambda scope: scope.space.vertex(scope.reached)
    if name == "$^":
        return lambda scope: scope.space.vertex(scope.start)
    raise not_understood(name)


def _tag_prop(owner: object, tag: str, name: str) -> object:
    if isinstance(owner, Vertex):
        return owner.tags.get(tag, {}).get(name)
    inner = _plain_prop(owner, tag)
    return _plain_prop(inner, name)


def _plain_prop(owner: object, name: str) -> object:
    if isinstance(owner, dict):
        return owner.get(name)
    if isinstance(owner, Edge):
        return owner.props.get(name)
    # `v.prop` without a tag is always null.
    return None


def _both(left: object, right: Compiled, scope: Scope) -> object:
    if left is False:
        return False
    second = right(scope)
    if second is False:
        return False
    return None if left is None or second is None else True


def _either(left: object, right: Compiled, scope: Scope) -> object:
    if left is True:
        return True
    second = right(scope)
    if second is True:
        return True
    return None if left is None or second is None else False


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _in(left: object, right: object) -> bool | None:
    if left is None or not isinstance(right, list):
        return None
    if isinstance(left, str):
        return left in right
    return any(equal(left, item) for item in right)


def _text(test: Callable[[str, str], bool]) -> Callable[[object, object], bool | None]:
    return lambda left, right: test(left, right) if isinstance(left, str) and isinstance(right, str) else None


def _order(left: object, right: object, *, swap: bool, negate: bool) -> bool | None:
    found = less(right, left) if swap else less(left, right)
    return None if found is None else found is not negate


def _add(left: object, right: object) -> object:
    return None if left is None or right is None else left + right  # type: ignore[operator]


def _subtract(left: object, right: object) -> object:
    return None if left is None or right is None else left - right  # type: ignore[operator]


_contains = _text(lambda left, right: right in left)
_starts = _text(str.startswith)
_ends = _text(str.endswith)
_OPERATORS: dict[str, Callable[[object, object], object]] = {
    "==": equal,
    "!=": lambda left, right: _not(equal(left, right)),
    "<": lambda left, right: _order(left, right, swap=False, negate=False),
    "<=": lambda left, right: _order(left, right, swap=True, negate=True),
    ">": lambda left, right: _order(left, right, swap=True, negate=False),
    ">=": lambda left, right: _order(left, right, swap=False, negate=True),
    "=~": _text(lambda left, right: re.fullmatch(right, left) is not None),
    "IN": _in,
    "NOT IN": lambda left, right: _not(_in(left, right)),
    "CONTAINS": _contains,
    "NOT CONTAINS": lambda left, right: _not(_contains(left, right)),
    "STARTS WITH": _starts,
    "NOT STARTS WITH": lambda left, right: _not(_starts(left, right)),
    "ENDS WITH": _ends,
    "NOT ENDS WITH": lambda left, right: _not(_ends(left, right)),
    "+": _add,
    "-": _subtract,
}


def _id(value: object) -> object:
    return value.vid if isinstance(value, Vertex) else None


def _properties(value: object) -> object:
    if isinstance(value, Edge):
        return value.props
    if isinstance(value, Vertex):
        return {name: item for props in value.tags.values() for name, item in props.items()}
    return None


def _edge_part(name: str) -> Callable[[object], object]:
    return lambda value: getattr(value, name) if isinstance(value, Edge) else None


def _tags(value: object) -> object:
    return list(value.tags) if isinstance(value, Vertex) else None


def _size(value: object) -> object:
    return len(value.encode()) if isinstance(value, str) else len(value) if isinstance(value, list) else None


FUNCTIONS: dict[str, Callable[[object], object]] = {
    "id": _id,
    "properties": _properties,
    "tags": _tags,
    "labels": _tags,
    "src": _edge_part("src"),
    "dst": _edge_part("dst"),
    "type": _edge_part("name"),
    "rank": _edge_part("rank"),
    "nodes": lambda value: list(value.vertices) if isinstance(value, Path) else None,
    "relationships": lambda value: list(value.edges) if isinstance(value, Path) else None,
    "length": lambda value: len(value.edges) if isinstance(value, Path) else None,
    "size": _size,
    "lower": lambda value: value.lower() if isinstance(value, str) else None,
    "upper": lambda value: value.upper() if isinstance(value, str) else None,
}
