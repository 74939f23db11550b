"""`RowReader.find` in SQL: conditions on indexed columns as a WHERE clause, values always bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from recall.planes.sql_tables import Readable
from recall.where import AllOf, Condition, Where

_TESTS: Mapping[str, Callable[[Any, Any], sa.ColumnElement[bool]]] = {
    "eq": lambda column, value: column == value,
    "ne": lambda column, value: column != value,
    "gt": lambda column, value: column > value,
    "gte": lambda column, value: column >= value,
    "lt": lambda column, value: column < value,
    "lte": lambda column, value: column <= value,
    "in": lambda column, values: column.in_(values),
    "notin": lambda column, values: column.not_in(values),
    "isnull": lambda column, null: column.is_(None) if null else column.is_not(None),
}


def satisfies(table: Readable, where: Where) -> sa.ColumnElement[bool]:
    """`where`, checked by `recall.planes.indexed`, on the columns of `table`."""
    if isinstance(where, Condition):
        return _TESTS[where.op](table.column(where.field), where.value)
    clauses = [satisfies(table, clause) for clause in where.clauses]
    return sa.and_(*clauses) if isinstance(where, AllOf) else sa.or_(*clauses)
