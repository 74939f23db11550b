"""Filters as nGQL conditions on the row reached. What nGQL cannot say exactly becomes a wider condition, and is decided
on the columns that come back; a condition never rejects a row that matches."""

from __future__ import annotations

from dataclasses import dataclass

from recall.fields import FieldType
from recall.planes.likes import like_shape
from recall.planes.nebula_text import literal, quoted
from recall.registry import Entity, FilterColumn
from recall.where import AllOf, Condition, Where

_OPERATORS = {"eq": "==", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_FAMILY: dict[FieldType, str] = {
    "string": "text",
    "date": "text",
    "datetime": "text",
    "int": "number",
    "float": "number",
    "bool": "bool",
}


@dataclass(frozen=True, slots=True)
class Pushed:
    """`text` as a condition; with `exact` false the rows it lets through still have to be tested."""

    text: str
    exact: bool = True


def push_down(where: Where, entity: Entity, vertex: str = "$$") -> Pushed:
    """`where` as a condition on the entity's tag of `vertex`."""
    if isinstance(where, Condition):
        return _condition(where, entity, vertex)
    parts = [push_down(clause, entity, vertex) for clause in where.clauses]
    joined = (" AND " if isinstance(where, AllOf) else " OR ").join(part.text for part in parts)
    return Pushed(f"({joined})", all(part.exact for part in parts))


def columns_of(where: Where, entity: Entity) -> tuple[FilterColumn, ...]:
    """The entity's columns that `where` reads, sorted."""
    if isinstance(where, Condition):
        found = _column(where, entity)
        return () if found is None else (found,)
    union = {column.column: column for clause in where.clauses for column in columns_of(clause, entity)}
    return tuple(union[name] for name in sorted(union))


def _column(condition: Condition, entity: Entity) -> FilterColumn | None:
    return next((column for column in entity.filter_columns if column.field == condition.field), None)


def _condition(condition: Condition, entity: Entity, vertex: str) -> Pushed:
    found = _column(condition, entity)
    if found is None:
        return Pushed(literal(condition.op == "isnull" and condition.value is True))
    column = f"{vertex}.{quoted(entity.name)}.{quoted(found.column)}"
    op, value = condition.op, condition.value
    if op == "isnull":
        return Pushed(f"{column} IS NULL" if value else f"{column} IS NOT NULL")
    if _FAMILY[found.kind] != _FAMILY[condition.kind]:
        return Pushed("false")
    if op in ("like", "ilike"):
        return _like(column, str(value), ignore_case=op == "ilike")
    if "float" in (found.kind, condition.kind):
        return _float(column, condition, mixed=found.kind != condition.kind)
    if isinstance(value, tuple):
        items = f"[{', '.join(literal(item) for item in value)}]"
        return Pushed(f"{column} IN {items}" if op == "in" else f"({column} IS NOT NULL AND {column} NOT IN {items})")
    if op == "ne":
        return Pushed(f"({column} IS NOT NULL AND {column} != {literal(value)})")
    return Pushed(f"{column} {_OPERATORS[op]} {literal(value)}")


def _float(column: str, condition: Condition, *, mixed: bool) -> Pushed:
    """The server takes numbers within 1e-8 for equal, so only the bounds that this widens are pushed."""
    op, value = condition.op, condition.value
    if mixed or op in ("ne", "notin"):
        return Pushed(f"{column} IS NOT NULL", exact=False)
    if isinstance(value, tuple):
        return Pushed(f"{column} IN [{', '.join(literal(item) for item in value)}]", exact=False)
    operator = {"gt": ">=", "lt": "<="}.get(op, _OPERATORS.get(op, "=="))
    return Pushed(f"{column} {operator} {literal(value)}", exact=False)


def _like(column: str, pattern: str, *, ignore_case: bool) -> Pushed:
    if ignore_case:
        # Case folding of the server stops at ASCII; ours does not.
        return Pushed(f"{column} IS NOT NULL", exact=False)
    shape = like_shape(pattern)
    if shape.kind == "equal":
        return Pushed(f"{column} == {literal(shape.text)}")
    if shape.kind == "prefix":
        return Pushed(f"{column} STARTS WITH {literal(shape.text)}")
    if shape.kind == "infix":
        return Pushed(f"{column} CONTAINS {literal(shape.text)}")
    return Pushed(f"{column} IS NOT NULL", exact=shape.kind == "anything")
