"""What `RowReader.find` may ask of a source of truth: conditions on indexed columns that every index can answer."""

from __future__ import annotations

from recall.errors import InvalidFilter
from recall.registry import Entity
from recall.where import Condition, Where

_PATTERNS = frozenset({"like", "ilike"})


def check_indexed(where: Where, entity: Entity) -> None:
    """Raise InvalidFilter unless every condition is on an indexed column, of its type, and not a pattern."""
    if not isinstance(where, Condition):
        for clause in where.clauses:
            check_indexed(clause, entity)
        return
    column = entity.columns.get(where.field)
    if column is None or not column.indexed or column.type != where.kind:
        raise InvalidFilter(where.field, f"not an indexed {where.kind} column of entity {entity.name!r}")
    if where.op in _PATTERNS:
        raise InvalidFilter(where.field, f"{where.op} is not served from an index")
