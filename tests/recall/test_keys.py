"""Store keys and text hygiene."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.errors import InvalidRequest
from recall.keys import (
    MAX_ID_BYTES,
    check_id,
    check_tenant,
    chunk_key,
    clean_row,
    clean_text,
    compact_json,
    content_hash,
    cut_bytes,
    store_key,
)

any_text = st.text(st.characters(exclude_categories=()), max_size=40)
clean = st.text(max_size=30)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | clean,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(clean, inner, max_size=4),
    max_leaves=10,
)


@given(st.tuples(clean, clean, clean), st.tuples(clean, clean, clean))
def test_two_rows_share_a_key_only_when_they_are_one_row(one: tuple[str, str, str], two: tuple[str, str, str]) -> None:
    assert (store_key(*one) == store_key(*two)) == (one == two)


@given(clean, clean, clean)
def test_moving_a_border_between_the_parts_changes_the_key(tenant: str, entity: str, row_id: str) -> None:
    keys = {
        store_key(tenant + entity, "", row_id),
        store_key(tenant, entity + row_id, ""),
        store_key("", tenant, entity),
    }
    assert len(keys) == len({(tenant + entity, "", row_id), (tenant, entity + row_id, ""), ("", tenant, entity)})


@given(any_text.map(clean_text))
def test_a_key_is_32_hex_digits_whatever_the_id(row_id: str) -> None:
    assert re.fullmatch("[0-9a-f]{32}", store_key("t", "e", row_id))


def test_keys_never_change_between_releases() -> None:
    assert store_key("acme", "asset", "a1") == "4ce1726ea789397d96b70bcf8018aa67"
    assert chunk_key("k" * 32, 3) == "k" * 32 + "-3"


@given(any_text)
def test_cleaned_text_is_nfc_encodable_and_cleaning_is_final(text: str) -> None:
    cleaned = clean_text(text)
    assert "\0" not in cleaned
    assert cleaned.encode().decode() == cleaned
    assert unicodedata.is_normalized("NFC", cleaned)
    assert clean_text(cleaned) == cleaned


@pytest.mark.parametrize(
    ("dirty", "expected"),
    [("a\0b", "ab"), ("\ud800x", "\ufffdx"), ("x\udc00", "x\ufffd"), ("e\u0301", "\u00e9"), ("plain", "plain")],
)
def test_nul_goes_and_half_a_character_is_marked(dirty: str, expected: str) -> None:
    assert clean_text(dirty) == expected


def test_rows_are_cleaned_all_the_way_down() -> None:
    dirty = {"a\0": ["\ud800", {"k\0": "v\0", "n": 1}], "t": ("x\0",), "none": None}
    assert clean_row(dirty) == {"a": ["\ufffd", {"k": "v", "n": 1}], "t": ["x"], "none": None}


@given(clean, st.integers(0, 60))
def test_a_cut_text_is_the_longest_prefix_that_fits(text: str, limit: int) -> None:
    cut = cut_bytes(text, limit)
    assert text.startswith(cut)
    assert len(cut.encode()) <= limit
    if cut != text:
        assert len(text[: len(cut) + 1].encode()) > limit


def test_a_chinese_text_is_cut_between_characters() -> None:
    assert cut_bytes("系" * 400, 1000) == "系" * 333


@given(st.dictionaries(clean, json_values, max_size=5))
def test_the_content_hash_ignores_the_order_of_keys_and_nothing_else(value: dict[str, object]) -> None:
    backwards = dict(reversed(value.items()))
    assert content_hash(value) == content_hash(backwards)
    assert content_hash(value) != content_hash({**value, "one more": 1, "and": 2})


def test_compact_json_keeps_order_and_characters() -> None:
    assert compact_json({"b": "认", "a": [1, None]}) == '{"b":"认","a":[1,null]}'.encode()
    with pytest.raises(ValueError, match="JSON"):
        compact_json(float("nan"))


@pytest.mark.parametrize("tenant", ["a", "A-b_9", "x" * 64, "123e4567-e89b-12d3-a456-426614174000", "main"])
def test_legal_tenants_pass(tenant: str) -> None:
    assert check_tenant(tenant) == tenant


@pytest.mark.parametrize("tenant", ["", "x" * 65, "a b", "a/b", "..", "é", "a\n", "') or true or ('"])
def test_other_tenants_are_refused(tenant: str) -> None:
    with pytest.raises(InvalidRequest, match="tenant"):
        check_tenant(tenant)


@pytest.mark.parametrize("row_id", ["a", "x" * MAX_ID_BYTES, "a|b", "line\nbreak", "系" * 341, " "])
def test_legal_ids_pass(row_id: str) -> None:
    assert check_id(row_id) == row_id


@pytest.mark.parametrize("row_id", ["", "x" * (MAX_ID_BYTES + 1), "系" * 342, "a\0", "\ud800", "e\u0301"])
def test_other_ids_are_refused(row_id: str) -> None:
    with pytest.raises(InvalidRequest, match="row id"):
        check_id(row_id)
