"""Milvus expressions: a value is one literal, whatever it holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from milvus_lite.search.filter.tokens import TokenKind, tokenize

from recall.planes.conformance.data import AWKWARD_IDS, INJECTION
from recall.planes.milvus_filters import MAX_BYTES, NEVER, expression, one_of, quoted, unresolved
from recall.where import Condition, parse_where

FIELDS = {
    "title": "string",
    "amount": "int",
    "cost": "float",
    "active": "bool",
    "due": "date",
}


def shown(raw: dict[str, object], **values: list[str]) -> str:
    where = parse_where(raw, {"item": FIELDS})  # type: ignore[dict-item]
    assert where is not None
    return expression(where, {condition: values[condition.op] for condition in unresolved(where)})


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("\\")
@example('"\\"')
@example("foo\\\n\r\t")
@example(INJECTION)
def test_a_quoted_text_is_one_literal_with_that_value(value: str) -> None:
    tokens = tokenize(quoted(value))
    assert [token.kind for token in tokens] == [TokenKind.STRING, TokenKind.EOF]
    assert tokens[0].value == value


@given(st.lists(st.sampled_from([*AWKWARD_IDS, '"]', "] or true or [", "\\"]), min_size=1))
def test_a_list_holds_its_values_and_nothing_else(values: list[str]) -> None:
    tokens = tokenize(one_of("title", values))
    assert [token.value for token in tokens if token.kind is TokenKind.STRING] == values
    assert not any(token.kind in (TokenKind.OR, TokenKind.AND, TokenKind.BOOL) for token in tokens)


def test_a_text_longer_than_a_field_is_cut_where_it_is_stored_and_asked_for() -> None:
    assert len(tokenize(quoted("系" * 30_000))[0].value.encode()) <= MAX_BYTES
    assert one_of("title", []) == NEVER


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"title": "a"}, '(has_s_title == true and s_title == "a")'),
        ({"title": {"isnull": True}}, "(has_s_title == false)"),
        ({"title": {"isnull": False}}, "(has_s_title == true)"),
        ({"active": {"ne": True}}, "(has_b_active == true and b_active != true)"),
        ({"cost": {"gte": 3}}, "(has_f_cost == true and f_cost >= 3.0)"),
        ({"amount": {"in": [1, 2]}}, "(has_i_amount == true and (i_amount in [1,2]))"),
        ({"title": {"like": "ab%"}}, '(has_s_title == true and (s_title >= "ab" and s_title < "ac"))'),
        ({"title": {"like": "%"}}, '(has_s_title == true and key != "")'),
        ({"title": {"like": "50\\%"}}, '(has_s_title == true and s_title == "50%")'),
        ({"or": [{"amount": 1}, {"due": "2026-01-02"}]},
         '((has_i_amount == true and i_amount == 1) or (has_d_due == true and d_due == "2026-01-02"))'),
    ],
)  # fmt: skip
def test_operators_are_spelled_as_the_server_spells_them(raw: dict[str, object], expected: str) -> None:
    assert shown(raw) == expected


@pytest.mark.parametrize("op", ["eq", "ne", "gt", "gte", "lt", "lte"])
def test_the_least_integer_is_never_written_out(op: str) -> None:
    # 9223372036854775808, the digits behind the sign, is no 64-bit number, and servers read the sign last.
    assert "9223372036854775808" not in shown({"amount": {op: -(2**63)}})
    for op_in in ("in", "notin"):
        assert "9223372036854775808" not in shown({"amount": {op_in: [-(2**63), 5]}})
        assert "[" not in shown({"amount": {op_in: [-(2**63)]}})


def test_patterns_that_no_server_decides_become_the_values_that_match() -> None:
    assert shown({"title": {"like": "%b%"}}, like=["abc", 'x"b']) == (
        '(has_s_title == true and s_title in ["abc","x\\"b"])'
    )
    assert shown({"title": {"ilike": "b"}}, ilike=[]) == f"(has_s_title == true and {NEVER})"
    nested: dict[str, Any] = {"or": [{"title": {"ilike": "a"}}, {"amount": 1, "title": {"like": "_"}}]}
    found = list(unresolved(parse_where(nested, {"item": FIELDS})))  # type: ignore[dict-item]
    assert [(c.op, c.value) for c in found if isinstance(c, Condition)] == [("ilike", "a"), ("like", "_")]
