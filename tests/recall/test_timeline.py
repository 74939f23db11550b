"""Dates of memories: what counts as one, and how the timeline reads."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.timeline import parse_date, timeline


@pytest.mark.parametrize("raw", [20240229, "20240229", "2024-02-29"])
def test_the_three_forms_of_a_date(raw):
    assert parse_date(raw) == dt.date(2024, 2, 29)


@pytest.mark.parametrize(
    "raw", [0, 20260231, 20261301, 20240229.0, None, True, "", "2024", "2024-2-9", [20240229], "20240229x", -20240229]
)
def test_anything_else_is_undated(raw):
    assert parse_date(raw) is None


def test_lines_are_oldest_first_with_undated_last_and_ties_in_relevance_order():
    found = timeline([("new", 20250101), ("bare", None), ("first", 20200101), ("second", "2020-01-01")])
    assert found.dated_context == "- [2020-01-01] first\n- [2020-01-01] second\n- [2025-01-01] new\n- bare"
    assert found.now == "2025-01-01"
    assert found.undated == 1


def test_empty_timeline_is_an_empty_text_without_now():
    assert timeline([]).dated_context == ""
    assert timeline([]).now is None


@given(st.dates())
def test_every_calendar_date_round_trips(date):
    if date.year >= 1000:
        assert parse_date(int(date.strftime("%Y%m%d"))) == date
    assert parse_date(date.isoformat()) == date
