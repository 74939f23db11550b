"""Columns over rows: plain, distinct, grouped; ORDER BY and cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from standins.nebula.evaluation import Compiled, Scope, compile_expression
from standins.nebula.lexer import not_understood
from standins.nebula.syntax import Call, Expr, Yield
from standins.nebula.values import hashable, sort_key

Row = list[object]
AGGREGATES = frozenset({"count", "collect", "sum", "min", "max", "avg"})


def project(
    columns: Yield, scopes: Iterable[Scope], params: Mapping[str, object], enough: int | None = None
) -> list[Row]:
    """One row a scope, or one a group when a column aggregates (the other columns are the key).

    Stops at `enough` rows where that changes nothing.
    """
    if any(_aggregates(column.of) for column in columns.columns):
        return group(None, columns, scopes, params)
    compiled = [compile_expression(column.of, params) for column in columns.columns]
    rows = ([column(scope) for column in compiled] for scope in scopes)
    return list(islice(distinct(rows) if columns.distinct else rows, enough))


def group(
    keys: Sequence[Expr] | None, columns: Yield, scopes: Iterable[Scope], params: Mapping[str, object]
) -> list[Row]:
    plain = [column.of for column in columns.columns if not _aggregates(column.of)]
    compiled = [compile_expression(of, params) for of in (plain if keys is None else keys)]
    groups: dict[tuple[object, ...], list[Scope]] = {}
    for scope in scopes:
        groups.setdefault(tuple(hashable(key(scope)) for key in compiled), []).append(scope)
    if not groups and not compiled:
        groups[()] = []
    outputs = [_output(column.of, params) for column in columns.columns]
    rows = [[output(members) for output in outputs] for members in groups.values()]
    return list(distinct(rows)) if columns.distinct else rows


def distinct(rows: Iterable[Row]) -> Iterator[Row]:
    seen: set[tuple[object, ...]] = set()
    for row in rows:
        key = tuple([hashable(value) for value in row])
        if key not in seen:
            seen.add(key)
            yield row


def ordered(
    pairs: list[tuple[Scope, Row]], keys: Sequence[tuple[Expr, bool]], params: Mapping[str, object]
) -> list[Row]:
    """Rows sorted by expressions over their scopes; `True` in a key means descending."""
    # Stable sorts, the last key first.
    for of, down in reversed(keys):
        key: Compiled = compile_expression(of, params)
        pairs = sorted(pairs, key=lambda pair: sort_key(key(pair[0])), reverse=down)
    return [row for _, row in pairs]


def _aggregates(of: Expr) -> bool:
    return isinstance(of, Call) and of.name in AGGREGATES


def _output(of: Expr, params: Mapping[str, object]) -> Callable[[list[Scope]], object]:
    if not _aggregates(of):
        plain = compile_expression(of, params)
        return lambda members: plain(members[0]) if members else None
    assert isinstance(of, Call)
    if of.star:
        if of.name != "count":
            raise not_understood(f"{of.name}(*)")
        return len
    if len(of.args) != 1:
        raise not_understood(f"{of.name}() of {len(of.args)} arguments")
    inner, name, unique = compile_expression(of.args[0], params), of.name, of.distinct

    def aggregate(members: list[Scope]) -> object:
        values = [value for member in members if (value := inner(member)) is not None]
        if unique:
            values = list({hashable(value): value for value in values}.values())
        if name == "count":
            return len(values)
        if name == "collect":
            return values
        if name == "sum":
            return sum(values)  # type: ignore[arg-type]
        if not values:
            return None
        if name == "avg":
            return sum(values) / len(values)  # type: ignore[arg-type]
        return (min if name == "min" else max)(values, key=sort_key)

    return aggregate
