"""Filters as Milvus expressions. Every value passes through one function that escapes it; pure text, no client.

A null is a flag beside the value, because servers differ in what a comparison with a null means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from recall.fields import FieldType
from recall.keys import cut_bytes
from recall.planes.likes import after_prefix, like_shape
from recall.where import AllOf, AnyOf, Condition, Scalar, Where

# Largest VARCHAR, in bytes. Longer values are cut when they are stored and when they are asked for.
MAX_BYTES = 65_535
NEVER = 'key == ""'
_SYMBOLS = {"eq": "==", "ne": "!=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_LEAST = -(2**63)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"})

# Values of a condition's column that its `like` or `ilike` matches.
Resolved = Mapping[Condition, Sequence[str]]


def flag(column: str) -> str:
    """Field that says whether `column` has a value."""
    return f"has_{column}"


def quoted(value: str) -> str:
    """`value` as a string literal."""
    return f'"{cut_bytes(value, MAX_BYTES).translate(_ESCAPES)}"'


def one_of(field: str, values: Iterable[str]) -> str:
    """`field` is one of these texts."""
    listed = ",".join(quoted(value) for value in values)
    return f"{field} in [{listed}]" if listed else NEVER


def unresolved(where: Where | None) -> Iterator[Condition]:
    """Conditions that the server cannot decide: their matching values have to be read first."""
    if isinstance(where, (AllOf, AnyOf)):
        for clause in where.clauses:
            yield from unresolved(clause)
    elif isinstance(where, Condition) and (
        where.op == "ilike" or (where.op == "like" and like_shape(str(where.value)).kind in ("infix", "other"))
    ):
        yield where


def expression(where: Where, resolved: Resolved) -> str:
    """`where` as an expression in parentheses; `resolved` holds the values of every `unresolved` condition."""
    if isinstance(where, AllOf):
        return f"({' and '.join(expression(clause, resolved) for clause in where.clauses)})"
    if isinstance(where, AnyOf):
        return f"({' or '.join(expression(clause, resolved) for clause in where.clauses)})"
    column = where.column
    if where.op == "isnull":
        return f"({flag(column)} == {'false' if where.value else 'true'})"
    return f"({flag(column)} == true and {_test(where, resolved)})"


def _test(condition: Condition, resolved: Resolved) -> str:
    column, op, value, kind = condition.column, condition.op, condition.value, condition.kind
    if condition in resolved:
        return one_of(column, resolved[condition])
    if op == "like":
        return _like(column, str(value))
    if op in ("in", "notin"):
        assert isinstance(value, tuple)
        return _membership(column, kind, value, inside=op == "in")
    assert not isinstance(value, tuple)
    return _comparison(column, kind, op, value)


def _membership(column: str, kind: FieldType, values: tuple[Scalar, ...], *, inside: bool) -> str:
    listed = ",".join(_literal(kind, value) for value in values if value != _LEAST or kind != "int")
    parts = [f"{column} {'in' if inside else 'not in'} [{listed}]"] if listed else []
    if kind == "int" and _LEAST in values:
        parts.append(_comparison(column, kind, "eq" if inside else "ne", _LEAST))
    return f"({(' or ' if inside else ' and ').join(parts)})"


def _comparison(column: str, kind: FieldType, op: str, value: Scalar) -> str:
    if kind == "int" and value == _LEAST:
        # The server reads the digits before the sign, and 2**63 is no number of 64 bits.
        above = {"gte": "", "gt": f"{column} >= {_LEAST + 1}", "lt": NEVER, "ne": f"{column} >= {_LEAST + 1}"}
        return above.get(op, f"{column} < {_LEAST + 1}") or f"{column} <= {-(_LEAST + 1)}"
    return f"{column} {_SYMBOLS[op]} {_literal(kind, value)}"


def _literal(kind: FieldType, value: Scalar) -> str:
    if kind == "bool":
        return "true" if value else "false"
    if kind == "int":
        return str(int(value))
    if kind == "float":
        return repr(float(value))
    return quoted(str(value))


def _like(column: str, pattern: str) -> str:
    shape = like_shape(pattern)
    if shape.kind == "anything":
        return 'key != ""'
    if shape.kind == "equal":
        return f"{column} == {quoted(shape.text)}"
    above = after_prefix(shape.text)
    starts = f"{column} >= {quoted(shape.text)}"
    return starts if above is None else f"({starts} and {column} < {quoted(above)})"
