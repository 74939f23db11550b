"""Filters as LanceDB's typed expressions, in which a value is never text of a query. Reads nothing by itself.

LanceDB's expressions know neither LIKE nor IS NULL; both are built here from what they do know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, TypeAlias

from lancedb.expr import col, func, lit

from recall.planes.likes import after_prefix, like_shape
from recall.where import AllOf, AnyOf, Condition, Where

Expr: TypeAlias = Any
# All values of the condition's column that its `like` or `ilike` matches.
Resolver = Callable[[Condition], Sequence[str]]


def all_of(parts: Iterable[Expr]) -> Expr:
    return _balanced(list(parts), lambda left, right: left & right)


def any_of(parts: Iterable[Expr]) -> Expr:
    return _balanced(list(parts), lambda left, right: left | right)


def _balanced(parts: list[Expr], join: Callable[[Expr, Expr], Expr]) -> Expr:
    """Joined as a tree of small depth, because the engine recurses over it."""
    while len(parts) > 1:
        pairs = [join(*parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def never() -> Expr:
    return lit(True) == lit(False)


def has_value(column: str) -> Expr:
    return col(column) == col(column)


def is_null(column: str) -> Expr:
    """True for a null: `concat` skips nulls, and a comparison with a null is null."""
    return func("concat", (col(column) == col(column)).cast("string"), lit("?")) == lit("?")


def expression(where: Where, columns: Set[str], resolve: Resolver) -> Expr:
    """`where` as an expression over `columns`; a column that the table lacks is null in every row."""
    if isinstance(where, AllOf):
        return all_of(expression(clause, columns, resolve) for clause in where.clauses)
    if isinstance(where, AnyOf):
        return any_of(expression(clause, columns, resolve) for clause in where.clauses)
    if where.column not in columns:
        return ~never() if where.op == "isnull" and where.value else never()
    return _condition(where, resolve)


def _condition(condition: Condition, resolve: Resolver) -> Expr:
    column, op, value = condition.column, condition.op, condition.value
    if op == "isnull":
        return is_null(column) if value else has_value(column)
    if op in ("in", "notin"):
        assert isinstance(value, tuple)
        found = col(column).isin([lit(item) for item in value])
        return found if op == "in" else ~found
    if op == "like":
        return _like(condition, resolve)
    if op == "ilike":
        return _one_of(column, resolve(condition))
    return _COMPARE[op](col(column), lit(value))


_COMPARE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "eq": lambda field, value: field == value,
    "ne": lambda field, value: field != value,
    "gt": lambda field, value: field > value,
    "gte": lambda field, value: field >= value,
    "lt": lambda field, value: field < value,
    "lte": lambda field, value: field <= value,
}


def _like(condition: Condition, resolve: Resolver) -> Expr:
    column, shape = condition.column, like_shape(str(condition.value))
    if shape.kind == "anything":
        return has_value(column)
    if shape.kind == "equal":
        return col(column) == lit(shape.text)
    if shape.kind == "infix":
        return col(column).contains(lit(shape.text))
    if shape.kind == "prefix":
        above = after_prefix(shape.text)
        starts = col(column) >= lit(shape.text)
        return starts if above is None else starts & (col(column) < lit(above))
    return _one_of(column, resolve(condition))


def _one_of(column: str, values: Sequence[str]) -> Expr:
    return col(column).isin([lit(value) for value in values]) if values else never()
