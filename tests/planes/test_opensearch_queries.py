"""What the OpenSearch plane sends, without a server: any case, costs of patterns, names, the cut of long queries."""

from __future__ import annotations

import re

import pytest

from recall.analysis import MAX_TERMS, query_terms
from recall.planes.conformance.data import conformance_registry
from recall.planes.opensearch_analysis import analysis, query_text
from recall.planes.opensearch_filters import conditions, filter_query, needs_long, needs_values
from recall.planes.opensearch_schema import OpenSearchLayout
from recall.settings import OpenSearchSettings
from recall.where import Condition, parse_where

REGISTRY = conformance_registry()


def condition(op: str, value: str) -> Condition:
    where = parse_where({"title": {op: value}}, {"item": REGISTRY.entity("item").filter_fields})
    assert isinstance(where, Condition)
    return where


def layout(**settings: object) -> OpenSearchLayout:
    return OpenSearchLayout(OpenSearchSettings(kind="opensearch", **settings), REGISTRY)


def test_any_case_is_what_the_regular_expressions_of_python_take_for_it() -> None:
    cased = [char for code in range(0x11_0000) if (char := chr(code)).lower() != char or char.upper() != char]
    everything = "".join(cased)
    for char in cased:
        (clause,) = filter_query(condition("ilike", f"{char}%"), {})["bool"]["should"]
        expression = clause["bool"]["filter"][0]["regexp"]["s_title"]["value"]
        allowed = set(expression.removesuffix(".*").strip("()").split("|"))
        # What reaches a filter is NFC: some signs have become letters.
        assert allowed == set(re.findall(re.escape(condition("eq", char).value), everything, re.I)), char  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "pattern", "expected"),
    [
        ("like", "pump%", False),
        ("like", "%" + "x" * 190 + "%", False),
        ("like", "%" + "x" * 300 + "%", True),
        ("like", "%_____x", False),
        ("like", "%" + "_" * 20 + "x", True),
        ("like", "_" * 800, False),
        ("like", "_" * 1000, True),
        ("like", "系" * 400 + "_", True),
        ("like", "y" * 5000, False),
        ("like", "y" * 5000 + "%", True),
        ("ilike", "pump%", False),
        ("ilike", "p" * 300, True),
        ("gt", "x" * 900, False),
        ("gt", "x" * 901, True),
        ("eq", "x" * 901, False),
    ],
)
def test_patterns_and_ranges_that_servers_refuse_are_resolved_by_value(op: str, pattern: str, expected: bool) -> None:
    assert needs_values(condition(op, pattern)) is expected


def test_equality_of_ordinary_values_asks_the_server_once() -> None:
    for op in ("eq", "ne", "gt", "lte"):
        assert not needs_long(condition(op, "open"))
        assert not needs_values(condition(op, "open"))
    assert [each.op for each in conditions(condition("eq", "open"))] == ["eq"]


def test_query_text_ends_with_the_last_term_that_counts() -> None:
    words = [f"w{number}" for number in range(5000)]
    assert query_text(" ".join(words)).split() == words[:MAX_TERMS]
    assert query_text("pump " + "filler " * 5000).startswith("pump filler")
    assert query_terms(query_text("认证系统" * 500)) == query_terms("认证系统" * 500)
    assert query_text("cafe\u0301 ＡＢＣ\x00 \ud800") == "caf\u00e9 ABC \ufffd"


def test_analysers_use_nothing_but_what_every_server_carries() -> None:
    known = {"mapping", "pattern_replace", "stemmer", "stop", "cjk_bigram", "limit", "custom"}
    sections = analysis()
    assert {part["type"] for section in sections.values() for part in section.values()} == known


def test_tenants_never_share_a_name() -> None:
    names = layout(isolation="dedicated")
    indexes = {names.index(tenant) for tenant in ("A", "a", "a-b", "a_b", "write", "A-B")}
    assert len(indexes) == 6
    assert all(index == index.lower() for index in indexes)
    assert names.is_alias_of(names.version_alias("a-b"), "a-b")
    assert not names.is_alias_of(names.version_alias("a-b"), "b")
    assert not layout(index="recall2").is_alias_of(names.stable_alias("a"), "a")


def test_only_other_versions_of_the_same_tenants_index_may_be_dropped() -> None:
    shared, own = layout(), layout(isolation="dedicated")
    assert not shared.may_drop(shared.index("a"), "a")
    assert shared.may_drop("recall-00000000", "a")
    assert not shared.may_drop(own.index("a"), "a")
    assert not own.may_drop(own.index("a"), "a")
    assert own.may_drop(own.index("a").replace(own.version, "00000000"), "a")
    assert not own.may_drop(own.index("b").replace(own.version, "00000000"), "a")
    assert not own.may_drop("recall-00000000", "a")


def test_an_exception_overrides_the_isolation_of_one_tenant() -> None:
    names = layout(tenants={"big": "dedicated"})
    assert names.index("big") != names.index("small")
    assert names.routing("big") is None
    assert names.routing("small") == "small"
    assert "filter" in names.alias_options("small")
