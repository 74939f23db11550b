"""The filter language: JSON → a typed tree that adapters translate and the engine evaluates on hydrated rows.

Nulls: a null (or absent) value satisfies only `isnull: true`; `ne` and `notin` do not match it. That is what SQL does,
and what every store can be made to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from recall.errors import InvalidFilter
from recall.fields import FieldType, convert, filter_column
from recall.keys import clean_text
from recall.rows import Json

Op = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "notin", "like", "ilike", "isnull"]
Scalar = bool | int | float | str
OPS: tuple[str, ...] = get_args(Op)
MAX_CLAUSES = 256
MAX_VALUES = 1000
_ORDERED = frozenset({"gt", "gte", "lt", "lte"})
# `%` as a regular expression. No escaped literal contains it, for re.escape escapes the dot.
_ANY = ".*"
_TEXTUAL = frozenset({"like", "ilike"})


@dataclass(frozen=True, slots=True)
class Condition:
    """`field op value`. `value` is a tuple for `in`/`notin`, a bool for `isnull`, else one scalar of type `kind`."""

    field: str
    kind: FieldType
    op: Op
    value: Scalar | tuple[Scalar, ...]

    @property
    def column(self) -> str:
        """Physical column in the vector and search planes."""
        return filter_column(self.field, self.kind)


@dataclass(frozen=True, slots=True)
class AllOf:
    clauses: tuple[Where, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    clauses: tuple[Where, ...]


Where = Condition | AllOf | AnyOf

# What one entity lets a caller filter on: field name → type, or None when declared but not filterable.
FilterFields = Mapping[str, FieldType | None]


def parse_where(raw: Mapping[str, object] | None, entities: Mapping[str, FilterFields]) -> Where | None:
    """Check `raw` against the filterable fields of every requested entity and return the typed tree.

    A field must be declared by at least one of `entities`; rows of an entity without it have a null there.
    Raises InvalidFilter naming the field: unknown, not filterable, unknown operator, empty list, wrong type.
    """
    if not raw:
        return None
    budget = [MAX_CLAUSES]
    return _parse_object(raw, entities, budget)


def _parse_object(raw: Mapping[str, object], entities: Mapping[str, FilterFields], budget: list[int]) -> Where:
    clauses: list[Where] = []
    for name, value in raw.items():
        budget[0] -= 1
        if budget[0] < 0:
            raise InvalidFilter(name, f"more than {MAX_CLAUSES} clauses")
        if name == "or":
            clauses.append(_parse_or(value, entities, budget))
        else:
            clauses.extend(_parse_field(name, value, entities))
    return clauses[0] if len(clauses) == 1 else AllOf(tuple(clauses))


def _parse_or(value: object, entities: Mapping[str, FilterFields], budget: list[int]) -> Where:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise InvalidFilter("or", "expected a non-empty list of filter objects")
    parts: list[Where] = []
    for item in value:
        if not isinstance(item, Mapping) or not item:
            raise InvalidFilter("or", f"expected a non-empty filter object, got {item!r}")
        parts.append(_parse_object(item, entities, budget))
    return AnyOf(tuple(parts))


def _parse_field(name: str, value: object, entities: Mapping[str, FilterFields]) -> list[Where]:
    kinds = _kinds(name, entities)
    tests = value if isinstance(value, Mapping) else {"eq": value}
    if not tests:
        raise InvalidFilter(name, "expected a value or an object of operators, got {}")
    return [_per_kind(name, kinds, op, operand) for op, operand in tests.items()]


def _kinds(name: str, entities: Mapping[str, FilterFields]) -> list[FieldType]:
    declaring = {entity: fields[name] for entity, fields in entities.items() if name in fields}
    if not declaring:
        known = sorted({field for fields in entities.values() for field, kind in fields.items() if kind})
        raise InvalidFilter(name, f"unknown field of {', '.join(entities)}; filterable: {', '.join(known) or '(none)'}")
    for entity, kind in declaring.items():
        if kind is None:
            raise InvalidFilter(name, f"not declared filterable in entity {entity!r}")
    return sorted({kind for kind in declaring.values() if kind is not None})


def _per_kind(name: str, kinds: Sequence[FieldType], op: str, operand: object) -> Where:
    parts: tuple[Where, ...] = tuple(_condition(name, kind, op, operand) for kind in kinds)
    if len(parts) == 1:
        return parts[0]
    # Two entities declare the field with two types: a row has a value in one of the two columns only.
    return AllOf(parts) if op == "isnull" and operand is True else AnyOf(parts)


def _condition(name: str, kind: FieldType, op: str, operand: object) -> Condition:
    if op not in OPS:
        raise InvalidFilter(name, f"unknown operator {op!r}; known: {' '.join(OPS)}")
    if op == "isnull":
        if not isinstance(operand, bool):
            raise InvalidFilter(name, f"isnull takes true or false, got {operand!r}")
        return Condition(name, kind, "isnull", operand)
    if op in ("in", "notin"):
        return Condition(name, kind, op, _values(name, kind, operand))  # type: ignore[arg-type]
    if op in _TEXTUAL and kind != "string":
        raise InvalidFilter(name, f"{op} needs a string field, this one is {kind}")
    if op in _ORDERED and kind == "bool":
        raise InvalidFilter(name, f"{op} does not apply to a bool field")
    return Condition(name, kind, op, _scalar(name, kind, operand))  # type: ignore[arg-type]


def _values(name: str, kind: FieldType, operand: object) -> tuple[Scalar, ...]:
    if not isinstance(operand, Sequence) or isinstance(operand, str):
        raise InvalidFilter(name, f"expected a list, got {operand!r}")
    if not operand:
        raise InvalidFilter(name, "an empty list matches nothing; leave the clause out instead")
    if len(operand) > MAX_VALUES:
        raise InvalidFilter(name, f"at most {MAX_VALUES} values, got {len(operand)}")
    return tuple(dict.fromkeys(_scalar(name, kind, item) for item in operand))


def _scalar(name: str, kind: FieldType, operand: object) -> Scalar:
    if operand is None:
        raise InvalidFilter(name, "null is not a value; use isnull")
    try:
        value = convert(operand, kind)
    except ValueError as error:
        raise InvalidFilter(name, str(error)) from None
    if value is None or isinstance(value, (list, dict)):
        raise InvalidFilter(name, f"expected {kind}, got {operand!r}")
    # Stored text is clean: what NFC or a lone surrogate would hide from a comparison must not reach a store either.
    return clean_text(value) if isinstance(value, str) else value


def matches(where: Where | None, values: Mapping[str, Json]) -> bool:
    """Whether a hydrated row's `values` satisfy `where`. An absent field counts as null."""
    if where is None:
        return True
    if isinstance(where, AllOf):
        return all(matches(clause, values) for clause in where.clauses)
    if isinstance(where, AnyOf):
        return any(matches(clause, values) for clause in where.clauses)
    return _holds(where, values.get(where.field))


def _holds(condition: Condition, value: Json) -> bool:
    op, operand = condition.op, condition.value
    if op == "isnull":
        return (value is None) == operand
    if not _typed(value, condition.kind):
        return False
    if op == "in" or op == "notin":
        assert isinstance(operand, tuple)
        return (value in operand) == (op == "in")
    if op in _TEXTUAL:
        return like_pattern(str(operand), ignore_case=op == "ilike").fullmatch(str(value)) is not None
    return _compare(op, value, operand)


def _typed(value: Json, kind: FieldType) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind in ("int", "float"):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, str)


def _compare(op: Op, value: Json, operand: object) -> bool:
    if op == "eq":
        return value == operand
    if op == "ne":
        return value != operand
    if op == "gt":
        return value > operand  # type: ignore[operator]
    if op == "gte":
        return value >= operand  # type: ignore[operator]
    if op == "lt":
        return value < operand  # type: ignore[operator]
    return value <= operand  # type: ignore[operator]


@lru_cache(maxsize=256)
def like_pattern(pattern: str, *, ignore_case: bool = False) -> re.Pattern[str]:
    """SQL LIKE compiled for Python, whose backtracking engine takes exponential time for `like_regex`.

    A `%` may stop at the first place where the text up to the next `%` fits, and never has to be tried again: an
    atomic group. Only the text behind the last one is tied to the end.
    """
    first, *middle = like_regex(pattern).split(_ANY)
    body = first
    if middle:
        body += "".join(f"(?>.*?{part})" for part in middle[:-1]) + ".*" + middle[-1]
    return re.compile(body, re.DOTALL | (re.IGNORECASE if ignore_case else 0))


def like_regex(pattern: str) -> str:
    """SQL LIKE (`%` any run, `_` one character, `\\` escapes) as a regular expression body, every literal escaped."""
    out: list[str] = []
    chars = iter(pattern)
    for char in chars:
        if char == "\\":
            out.append(re.escape(next(chars, "\\")))
        elif char == "%":
            out.append(_ANY)
        elif char == "_":
            out.append(".")
        else:
            out.append(re.escape(char))
    return "".join(out)
