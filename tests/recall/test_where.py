"""The filter language: what is refused, and what each operator means on a hydrated row."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.errors import InvalidFilter
from recall.where import AllOf, AnyOf, Condition, FilterFields, like_pattern, like_regex, matches, parse_where

FIELDS: Mapping[str, FilterFields] = {
    "asset": {
        "status": "string",
        "cost": "float",
        "amount": "int",
        "active": "bool",
        "due": "date",
        "seen": "datetime",
        "secret": None,
    },
    "site": {"status": "string", "cost": "int", "mixed": "string"},
}
ASSET = {"asset": FIELDS["asset"]}


def holds(raw: Mapping[str, object], **values: Any) -> bool:
    return matches(parse_where(raw, ASSET), values)


@pytest.mark.parametrize("raw", [None, {}])
def test_no_filter_matches_everything(raw: Mapping[str, object] | None) -> None:
    assert parse_where(raw, FIELDS) is None
    assert matches(None, {})


@pytest.mark.parametrize(
    ("raw", "field", "reason"),
    [
        ({"ghost": 1}, "ghost", "unknown field.*status"),
        ({"secret": "x"}, "secret", "not declared filterable"),
        ({"status": {"matches": "x"}}, "status", "unknown operator.*ilike"),
        ({"status": {"in": []}}, "status", "empty list"),
        ({"status": {"notin": []}}, "status", "empty list"),
        ({"status": {"in": "open"}}, "status", "expected a list"),
        ({"status": {"in": ["open", 3]}}, "status", "expected string"),
        ({"status": {"in": [str(i) for i in range(1001)]}}, "status", "at most 1000"),
        ({"status": 3}, "status", "expected string"),
        ({"status": None}, "status", "isnull"),
        ({"status": ["open"]}, "status", "expected string"),
        ({"status": {}}, "status", "expected a value"),
        ({"status": {"isnull": 1}}, "status", "true or false"),
        ({"amount": "3"}, "amount", "expected int"),
        ({"amount": True}, "amount", "expected int"),
        ({"amount": 2**63}, "amount", "64-bit"),
        ({"amount": {"like": "3%"}}, "amount", "needs a string field"),
        ({"active": 1}, "active", "expected bool"),
        ({"active": {"gt": False}}, "active", "does not apply"),
        ({"cost": float("nan")}, "cost", "finite"),
        ({"due": "someday"}, "due", "expected date"),
        ({"or": []}, "or", "non-empty list"),
        ({"or": {"status": "open"}}, "or", "non-empty list"),
        ({"or": [{}]}, "or", "non-empty filter object"),
        ({"or": ["open"]}, "or", "non-empty filter object"),
        ({"or": [{"status": "a"}] * 300}, "status", "more than 256"),
    ],
)
def test_a_wrong_clause_is_refused_naming_its_field(raw: Mapping[str, object], field: str, reason: str) -> None:
    with pytest.raises(InvalidFilter, match=rf"(?s){field}.*({reason})") as caught:
        parse_where(raw, ASSET)
    assert caught.value.field == field


def test_alternatives_nest_only_so_deep_that_nothing_overflows() -> None:
    raw: dict[str, object] = {"status": "open"}
    for _ in range(200):
        raw = {"or": [raw]}
    assert matches(parse_where(raw, ASSET), {"status": "open"})
    for _ in range(5000):
        raw = {"or": [raw]}
    with pytest.raises(InvalidFilter, match="more than 256"):
        parse_where(raw, ASSET)


@pytest.mark.parametrize(
    ("test", "value", "expected"),
    [
        ("open", "open", True),
        ("open", "Open", False),
        ({"ne": "open"}, "closed", True),
        ({"gt": "a"}, "b", True),
        ({"gte": "b", "lt": "c"}, "b", True),
        ({"gte": "b", "lt": "c"}, "c", False),
        ({"in": ["a", "b"]}, "b", True),
        ({"notin": ["a", "b"]}, "c", True),
        ({"like": "a%c_"}, "abbcd", True),
        ({"like": "A%"}, "abc", False),
        ({"ilike": "A%"}, "abc", True),
        ({"like": "50\\%\\_off"}, "50%_off", True),
        ({"like": "50\\%\\_off"}, "50% off", False),
        ({"like": "line1%"}, "line1\nline2", True),
        ({"like": "a.c"}, "abc", False),
        ({"like": "trailing\\"}, "trailing\\", True),
    ],
)
def test_operators_on_text(test: object, value: str, expected: bool) -> None:
    assert holds({"status": test}, status=value) is expected


@pytest.mark.parametrize("test", ["x", {"ne": "x"}, {"in": ["x"]}, {"notin": ["x"]}, {"gt": ""}, {"like": "%"}])
def test_a_null_satisfies_nothing_but_isnull(test: object) -> None:
    for values in ({}, {"status": None}):
        assert not holds({"status": test}, **values)
        assert holds({"status": {"isnull": True}}, **values)
        assert not holds({"status": {"isnull": False}}, **values)


def test_types_are_strict_on_the_row_too() -> None:
    assert not holds({"amount": 3}, amount="3")
    assert not holds({"amount": 1}, amount=True)
    assert not holds({"active": True}, active=1)
    assert not holds({"status": {"ne": "3"}}, status=3)
    assert holds({"amount": 2**53 + 1}, amount=2**53 + 1)
    assert not holds({"amount": 2**53 + 1}, amount=2**53)


def test_clauses_are_anded_and_alternatives_ored() -> None:
    raw = {"status": "open", "or": [{"amount": {"lt": 3}}, {"active": True, "or": [{"cost": 1}, {"cost": 2}]}]}
    assert holds(raw, status="open", amount=2)
    assert holds(raw, status="open", active=True, cost=2.0)
    assert not holds(raw, status="open", active=True, cost=3.0)
    assert not holds(raw, status="closed", amount=2)


def test_dates_and_times_compare_in_canonical_form() -> None:
    assert parse_where({"seen": "2026-01-02T02:00:00+02:00"}, ASSET) == Condition(
        "seen", "datetime", "eq", "2026-01-02T00:00:00.000000Z"
    )
    assert holds({"seen": {"gte": "2026-01-02T00:00:00Z"}}, seen="2026-01-02T00:00:00.000001Z")
    assert holds({"due": {"lt": "2026-02-01"}}, due="2026-01-31")


def test_filter_values_are_as_clean_as_stored_text() -> None:
    assert holds({"status": "cafe\u0301"}, status="caf\u00e9")
    assert holds({"status": {"in": ["x", "\ud800"]}}, status="\ufffd")


def test_a_field_of_two_types_asks_both_columns() -> None:
    both = parse_where({"cost": {"gte": 3}}, FIELDS)
    assert both == AnyOf((Condition("cost", "float", "gte", 3.0), Condition("cost", "int", "gte", 3)))
    assert [condition.column for condition in both.clauses] == ["f_cost", "i_cost"]  # type: ignore[union-attr]
    absent = parse_where({"cost": {"isnull": True}}, FIELDS)
    assert isinstance(absent, AllOf)
    assert matches(absent, {})
    assert not matches(absent, {"cost": 1})
    present = parse_where({"cost": {"isnull": False}}, FIELDS)
    assert matches(present, {"cost": 1})
    assert not matches(present, {})


def test_a_field_of_one_entity_is_null_in_the_others() -> None:
    where = parse_where({"mixed": {"isnull": True}}, FIELDS)
    assert matches(where, {"status": "an asset"})


def _likes(pattern: str, text: str) -> bool:
    """LIKE by its definition, one character at a time."""
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == "%":
        return any(_likes(rest, text[at:]) for at in range(len(text) + 1))
    if head == "\\" and rest:
        head, rest = rest[0], rest[1:]
    elif head == "_":
        return bool(text) and _likes(rest, text[1:])
    return text.startswith(head) and _likes(rest, text[len(head) :])


@given(st.text("ab%_\\.*(", max_size=7), st.text("ab%_\\.*(\n", max_size=8))
def test_like_is_what_sql_defines(pattern: str, text: str) -> None:
    expected = _likes(pattern, text)
    assert (like_pattern(pattern).fullmatch(text) is not None) == expected
    assert (re.fullmatch(like_regex(pattern), text, re.DOTALL) is not None) == expected


def test_a_pattern_of_many_wildcards_takes_no_time() -> None:
    started = time.monotonic()
    assert not holds({"status": {"like": "%a" * 400 + "%b_%"}}, status="a" * 20_000)
    assert time.monotonic() - started < 2


values = st.fixed_dictionaries(
    {},
    optional={
        "status": st.none() | st.sampled_from(["a", "b", "ab", ""]),
        "amount": st.none() | st.integers(-2, 2),
        "active": st.none() | st.booleans(),
    },
)
tests = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(["a", {"ne": "a"}, {"in": ["a", "b"]}, {"like": "a%"}, {"isnull": True}]),
        "amount": st.sampled_from([0, {"gt": 0}, {"lte": 1, "ne": -1}, {"notin": [0, 1]}, {"isnull": False}]),
        "active": st.sampled_from([True, {"ne": True}, {"in": [True, False]}]),
    },
).filter(bool)


@given(tests, tests, values)
def test_and_or_are_those_of_logic(one: dict[str, object], two: dict[str, object], row: dict[str, Any]) -> None:
    assert holds({"or": [one, two]}, **row) == (holds(one, **row) or holds(two, **row))
    assert holds({**one, "or": [two]}, **row) == (holds(one, **row) and holds(two, **row))
    assert holds(one, **row) == all(holds({name: test}, **row) for name, test in one.items())


@given(st.sampled_from(["status", "amount", "active"]), values, st.data())
def test_an_operator_and_its_opposite_divide_the_values_that_are_not_null(
    field: str, row: dict[str, Any], data: st.DataObject
) -> None:
    operand = data.draw(
        {"status": st.sampled_from(["a", "ab"]), "amount": st.integers(-2, 2), "active": st.booleans()}[field]
    )
    pairs = [("eq", "ne", operand), ("in", "notin", [operand])]
    if field != "active":
        pairs += [("gt", "lte", operand), ("lt", "gte", operand)]
    for op, opposite, value in pairs:
        both = (holds({field: {op: value}}, **row), holds({field: {opposite: value}}, **row))
        assert both.count(True) == (row.get(field) is not None)
