"""The one strict conversion from outside values into field types."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.fields import FILTERABLE_TYPES, FieldType, canonical_datetime, convert, filter_column

offsets = st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)))
aware = st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=offsets)  # noqa: DTZ001

GOOD: list[tuple[FieldType, object, object]] = [
    ("string", "", ""),
    ("int", -(2**63), -(2**63)),
    ("float", 3, 3.0),
    ("bool", False, False),
    ("date", dt.date(2026, 1, 2), "2026-01-02"),
    ("date", "2026-01-02", "2026-01-02"),
    ("datetime", "2026-01-02T03:04:05+02:00", "2026-01-02T01:04:05.000000Z"),
    ("datetime", dt.datetime(2026, 1, 2, 3), "2026-01-02T03:00:00.000000Z"),  # noqa: DTZ001
    ("datetime", "0999-01-01T00:00:00Z", "0999-01-01T00:00:00.000000Z"),
    ("json", {"a": (1, None)}, {"a": [1, None]}),
    ("strings", ("a", ""), ["a", ""]),
]
BAD: list[tuple[FieldType, object]] = [
    ("string", 3),
    ("string", b"x"),
    ("int", "3"),
    ("int", True),
    ("int", 3.0),
    ("int", 2**63),
    ("float", "1.5"),
    ("float", True),
    ("float", float("inf")),
    ("float", float("nan")),
    ("bool", 1),
    ("bool", "true"),
    ("date", dt.datetime(2026, 1, 2)),  # noqa: DTZ001
    ("date", "yesterday"),
    ("date", 20260102),
    ("datetime", "noon"),
    ("datetime", "0001-01-01T00:00:00+05:00"),
    ("datetime", 0),
    ("json", {"a": float("nan")}),
    ("json", object()),
    ("strings", "abc"),
    ("strings", ["a", 1]),
]


@pytest.mark.parametrize(("kind", "value", "expected"), GOOD)
def test_values_of_the_type_are_taken(kind: FieldType, value: object, expected: object) -> None:
    assert convert(value, kind) == expected
    assert type(convert(value, kind)) is type(expected)


@pytest.mark.parametrize(("kind", "value"), BAD)
def test_other_values_are_refused_naming_the_type(kind: FieldType, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{kind}|list of strings|JSON"):
        convert(value, kind)


@pytest.mark.parametrize("kind", get_args(FieldType))
def test_null_is_null_in_every_type(kind: FieldType) -> None:
    assert convert(None, kind) is None
    if kind not in ("string", "json"):
        assert convert("", kind, from_text=True) is None


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("string", "", ""),
        ("string", "3", "3"),
        ("int", "-7", -7),
        ("float", "1e3", 1000.0),
        ("bool", " TRUE ", True),
        ("bool", "0", False),
        ("json", '{"a": [1]}', {"a": [1]}),
        ("strings", '["a"]', ["a"]),
        ("date", "2026-01-02", "2026-01-02"),
    ],
)
def test_text_is_parsed_where_every_value_is_text(kind: FieldType, text: str, expected: object) -> None:
    assert convert(text, kind, from_text=True) == expected


@pytest.mark.parametrize(
    ("kind", "text"), [("int", "3.0"), ("bool", "yes"), ("json", "{"), ("json", "[" * 100_000), ("float", "1e999")]
)
def test_text_of_another_type_is_refused(kind: FieldType, text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        convert(text, kind, from_text=True)


@given(aware, aware)
def test_the_order_of_canonical_datetimes_is_the_order_of_time(one: dt.datetime, two: dt.datetime) -> None:
    assert (canonical_datetime(one) < canonical_datetime(two)) == (one < two)
    assert len(canonical_datetime(one)) == 27


@given(aware)
def test_a_canonical_datetime_converts_to_itself(moment: dt.datetime) -> None:
    text = canonical_datetime(moment)
    assert convert(text, "datetime") == text
    assert dt.datetime.fromisoformat(text) == moment


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)
    )
)
def test_json_survives_conversion_as_itself_and_as_text(value: Any) -> None:
    assert convert(value, "json") == value
    if value is not None:
        assert convert(json.dumps(value), "json", from_text=True) == value


def test_filter_columns_of_two_types_never_share_a_name() -> None:
    assert len({filter_column("cost", kind) for kind in sorted(FILTERABLE_TYPES)}) == len(FILTERABLE_TYPES)  # type: ignore[arg-type]
