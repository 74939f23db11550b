"""From bytes to JSON: what is refused, and that nothing else escapes."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.bodies import MAX_NESTING, check_nesting, parse_json
from deployments.problems import Json, RequestProblem

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(values)
def test_honest_json_comes_through_unchanged(value: object) -> None:
    assert parse_json(json.dumps(value).encode()) == value


@given(st.binary())
def test_any_bytes_are_json_or_a_problem(raw: bytes) -> None:
    with suppress(RequestProblem):
        parse_json(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b'{"a": NaN}',
        b"[Infinity]",
        b"\xff\xfe{\x00}\x00",
        b'{"a": "\xc3\x28"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"1" * 10_000,
        b"[" * (MAX_NESTING + 1) + b"]" * (MAX_NESTING + 1),
    ],
)
def test_malformed_json_is_a_400(raw: bytes) -> None:
    with pytest.raises(RequestProblem) as caught:
        parse_json(raw)
    assert (caught.value.status, caught.value.reason) == (400, "invalid_json")


def test_nesting_up_to_the_bound_is_accepted() -> None:
    check_nesting(parse_json(b"[" * MAX_NESTING + b"]" * MAX_NESTING))


@given(st.text(alphabet=st.characters(categories=("Cs", "L", "N"))))
def test_answers_encode_whatever_a_caller_sent(text: str) -> None:
    shown = json.loads(Json({"message": text}).body)["message"]
    assert len(shown) == len(text)
