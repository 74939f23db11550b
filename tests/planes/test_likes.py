"""LIKE shapes agree with the regular expression that defines LIKE."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recall.planes.likes import after_prefix, like_shape, matching_values
from recall.where import Condition, like_regex

LETTERS = "aAb%_\\é\ud7ff\ue000\U0010ffff\n"


@settings(deadline=None)
@given(st.text(LETTERS, max_size=6), st.text(LETTERS, max_size=6))
@example("\\", "\\")
@example("a\\", "a\\")
@example("%%", "")
@example("a%%", "a")
def test_a_shape_matches_what_the_pattern_matches(pattern: str, text: str) -> None:
    shape = like_shape(pattern)
    expected = re.fullmatch(like_regex(pattern), text, re.DOTALL) is not None
    found = {
        "anything": True,
        "equal": text == shape.text,
        "prefix": text.startswith(shape.text),
        "infix": shape.text in text,
        "other": expected,
    }
    assert found[shape.kind] == expected


@pytest.mark.parametrize(
    ("pattern", "kind", "text"),
    [
        ("", "equal", ""),
        ("50\\%\\_off", "equal", "50%_off"),
        ("pump%", "prefix", "pump"),
        ("%a\\%b%", "infix", "a%b"),
        ("%", "anything", ""),
        ("%end", "other", ""),
        ("a%b", "other", ""),
        ("a_", "other", ""),
    ],
)
def test_simple_patterns_are_recognised(pattern: str, kind: str, text: str) -> None:
    shape = like_shape(pattern)
    assert (shape.kind, shape.text) == (kind, text)


@settings(deadline=None)
@given(st.text(min_size=1, max_size=5), st.text(max_size=5))
@example("\ud7ff", "x")
@example("a\U0010ffff", "")
def test_texts_with_a_prefix_lie_between_it_and_the_one_after_it(prefix: str, text: str) -> None:
    above = after_prefix(prefix)
    inside = prefix <= text and (above is None or text < above)
    assert inside == text.startswith(prefix)


def test_there_is_nothing_above_the_highest_code_point() -> None:
    assert after_prefix("\U0010ffff" * 2) is None
    assert after_prefix("") is None


def test_matching_values_ignores_case_only_for_ilike() -> None:
    values = ["Pump", "pump", "pumps", None]
    assert matching_values(Condition("title", "string", "like", "pum_"), values) == ["pump"]
    assert matching_values(Condition("title", "string", "ilike", "PUM_"), values) == ["Pump", "pump"]
