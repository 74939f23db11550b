"""Filters as OpenSearch queries that match exactly the rows that satisfy them. Pure; talks to no server.

Two kinds of condition need an answer of the server first (`Lookup`): patterns that its automata cannot hold, and
strings too long to be terms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from recall.planes.likes import like_shape
from recall.planes.opensearch_schema import LONGEST, stored_value, too_long
from recall.where import AllOf, Condition, Where

Query = dict[str, Any]
# Far below the terms that one query may hold (65,536).
_TERMS = 32_768
# In bytes. Servers refuse automata of more than 1,000 states, and regular expressions of more than 1,000 characters.
_LARGEST = 900
# Bytes squared. From 66,000 on servers give up making an automaton deterministic.
_COSTLIEST = 40_000
# How the first bytes of a longer value compare: where these are equal, the value is greater.
_RANGES = {"gt": "gte", "gte": "gte", "lt": "lt", "lte": "lt"}
_CASED = range(0x1_F000)


@dataclass(frozen=True, slots=True)
class Lookup:
    """What the server found out about a condition: distinct `values` that satisfy it, `keys` of rows with long ones."""

    values: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


NOTHING_FOUND = Lookup()


def needs_values(condition: Condition) -> bool:
    """Whether the distinct values have to be read, because no automaton can stand for the pattern or the range."""
    operand = str(condition.value)
    if condition.kind == "string" and condition.op in _RANGES:
        return _size(operand) > _LARGEST
    if condition.op == "ilike":
        return _size(_regular(operand)) > _LARGEST or _too_complex(operand)
    if condition.op != "like":
        return False
    shape = like_shape(operand)
    if shape.kind in ("infix", "other"):
        return _too_complex(operand)
    return shape.kind == "prefix" and _LARGEST < _size(shape.text) <= LONGEST


def _too_complex(pattern: str) -> bool:
    _, run, tail = pattern.partition("%")
    if _size(pattern) > _LARGEST:
        return True
    # What follows a `%` may begin anywhere: the automaton follows every beginning, and each `_` doubles them.
    return bool(run) and _size(tail) ** 2 * 2 ** min(tail.count("_"), 32) > _COSTLIEST


def _size(text: str) -> int:
    return len(text.encode())


def needs_long(condition: Condition) -> bool:
    """Whether rows with a too long value have to be compared one by one."""
    if condition.kind != "string" or condition.op == "isnull":
        return False
    if condition.op in ("like", "ilike"):
        shape = like_shape(str(condition.value))
        return condition.op == "ilike" or shape.kind != "equal" or too_long(shape.text)
    if condition.op in _RANGES:
        return needs_values(condition)
    values = condition.value if isinstance(condition.value, tuple) else (condition.value,)
    return any(too_long(str(value)) for value in values)


def conditions(where: Where) -> Iterator[Condition]:
    if isinstance(where, Condition):
        yield where
    else:
        for clause in where.clauses:
            yield from conditions(clause)


def filter_query(where: Where, found: Mapping[Condition, Lookup]) -> Query:
    """A query, to be used in filter context, for `where`; `found` holds what was looked up."""
    if isinstance(where, Condition):
        return _condition(where, found.get(where, NOTHING_FOUND))
    clauses = [filter_query(clause, found) for clause in where.clauses]
    return all_of(clauses) if isinstance(where, AllOf) else any_of(clauses)


def all_of(clauses: Sequence[Query], *, but: Sequence[Query] = ()) -> Query:
    return {"bool": {"filter": list(clauses), "must_not": list(but)}}


def any_of(clauses: Sequence[Query]) -> Query:
    return {"bool": {"should": list(clauses), "minimum_should_match": 1}}


def term(name: str, value: object) -> Query:
    return {"term": {name: {"value": value}}}


def one_of(name: str, values: Iterable[object]) -> Query:
    """`name` is one of `values`, however many."""
    wanted = list(values)
    parts = [wanted[first : first + _TERMS] for first in range(0, len(wanted), _TERMS)] or [[]]
    queries: list[Query] = [{"terms": {name: part}} for part in parts]
    return queries[0] if len(queries) == 1 else any_of(queries)


def is_long(column: str) -> Query:
    return term("long", column)


def _condition(condition: Condition, found: Lookup) -> Query:
    name = condition.column
    present: Query = {"exists": {"field": name}}
    if condition.op == "isnull":
        return all_of([], but=[present]) if condition.value else present
    if condition.kind == "string":
        return _string(condition, found, name, present)
    values = _operands(condition)
    if condition.op in ("eq", "in"):
        return one_of(name, values)
    if condition.op in ("ne", "notin"):
        return all_of([present], but=[one_of(name, values)])
    return {"range": {name: {condition.op: values[0]}}}


def _operands(condition: Condition) -> list[Any]:
    values = condition.value if isinstance(condition.value, tuple) else (condition.value,)
    return [stored_value(condition.kind, value) for value in values]


def _string(condition: Condition, found: Lookup, name: str, present: Query) -> Query:
    """Short values by term; long ones by their first bytes where these decide, else by the keys that were looked up."""
    long = is_long(condition.column)
    looked_up = [one_of("key", found.keys)] if found.keys else []
    op = condition.op
    if op in ("eq", "in", "ne", "notin"):
        equal = one_of(name, [value for value in _operands(condition) if not too_long(value)])
        if op in ("eq", "in"):
            return any_of([all_of([equal], but=[long]), *looked_up])
        if needs_long(condition):
            return any_of([all_of([present], but=[equal, long]), *looked_up])
        return any_of([all_of([present], but=[equal]), all_of([long])])
    if op in ("like", "ilike"):
        return any_of([all_of([_like(condition, found, name)], but=[long]), *looked_up])
    return _range(condition, found, long, looked_up)


def _range(condition: Condition, found: Lookup, long: Query, looked_up: list[Query]) -> Query:
    name, op, operand = condition.column, condition.op, str(condition.value)
    if needs_values(condition):
        return any_of([all_of([one_of(name, found.values)], but=[long]), *looked_up])
    short = all_of([{"range": {name: {op: operand}}}], but=[long])
    return any_of([short, all_of([{"range": {name: {_RANGES[op]: operand}}}, long])])


def _like(condition: Condition, found: Lookup, name: str) -> Query:
    pattern = str(condition.value)
    if needs_values(condition):
        return one_of(name, found.values)
    if condition.op == "ilike":
        return {"regexp": {name: {"value": _regular(pattern), "flags": "NONE", "max_determinized_states": 100_000}}}
    shape = like_shape(pattern)
    if shape.kind in ("equal", "prefix") and too_long(shape.text):
        return one_of(name, [])
    if shape.kind == "equal":
        return term(name, shape.text)
    if shape.kind == "anything":
        return {"exists": {"field": name}}
    if shape.kind == "prefix":
        return {"prefix": {name: {"value": shape.text}}}
    return {"wildcard": {name: {"value": _wildcard(pattern)}}}


def _wildcard(pattern: str) -> str:
    parts = {"%": "*", "_": "?"}
    return "".join(parts.get(char) or re.sub(r"([*?\\])", r"\\\1", literal) for char, literal in _pieces(pattern))


def _regular(pattern: str) -> str:
    """A Lucene regular expression that matches the pattern in any case, as Python's `re.IGNORECASE` sees case."""
    parts = {"%": ".*", "_": "."}
    return "".join(parts.get(char) or _any_case(literal) for char, literal in _pieces(pattern))


def _pieces(pattern: str) -> Iterator[tuple[str, str]]:
    """`("%", "")` and `("_", "")` for what stands for other text, `("", character)` for what stands for itself."""
    chars = iter(pattern)
    for char in chars:
        if char in "%_":
            yield char, ""
        else:
            yield "", next(chars, "\\") if char == "\\" else char


@lru_cache(maxsize=1024)
def _any_case(char: str) -> str:
    same = [other for other in _case_groups().get(_case_key(char), ()) if re.fullmatch(re.escape(char), other, re.I)]
    return "(" + "|".join(_literal(each) for each in sorted({char, *same})) + ")"


def _literal(char: str) -> str:
    return char if char.isalnum() or ord(char) > 0x7F else f"\\{char}"


@cache
def _case_groups() -> Mapping[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for code in _CASED:
        char = chr(code)
        if not 0xD800 <= code < 0xE000 and (char.lower() != char or char.upper() != char):
            groups.setdefault(_case_key(char), []).append(char)
    return {key: tuple(group) for key, group in groups.items()}


def _case_key(char: str) -> str:
    # The first character, because `İ` becomes an `i` with a mark of its own.
    return char.lower()[0].upper()
