"""Text to terms: languages, odd input, highlights."""

from __future__ import annotations

import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.analysis import MAX_TERM_BYTES, highlights, index_terms, query_terms, terms
from recall.keys import clean_text

CAFE = "caf\u00e9"
mixed = st.text(st.sampled_from("abpumsAÉe\u0301'’ -_認证系ｶﾞ가한ﬁ\u0130ß😀\ufe0f\n.0"), max_size=40)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("认证", "认证系统使用JWT令牌"),
        ("jwt", "认证系统使用JWT令牌"),
        ("水", "饮用水"),
        ("ＡＢＣ", "ABC"),
        ("ガギ", "ｶﾞｷﾞ"),
        (CAFE, unicodedata.normalize("NFD", CAFE)),
        (CAFE.upper(), CAFE),
        ("pumps", "one pump"),
        ("strasse", "Straße"),
        ("file", "ﬁles"),
        ("boiler", "the boiler's valve"),
        ("O'Brien", "O’Brien"),
        ("हिन्दी", "हिन्दी भाषा"),
        ("a1b2", "A1B2"),
    ],
)
def test_a_query_finds_other_spellings_of_its_words(query: str, text: str) -> None:
    asked = query_terms(query)
    assert asked
    assert set(asked) <= set(index_terms(text))


@pytest.mark.parametrize("text", ["", " \n", "the and of", "😀☀️🎉", "?!", "<>", "___", "'", "\ufe0f"])
def test_texts_without_words_have_no_terms(text: str) -> None:
    assert query_terms(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A OR (B AND", ["b"]),
        ('foo-bar:("', ["foo", "bar"]),
        ("<|endoftext|>", ["endoftext"]),
        ("C:\\repo\\some_file.py", ["c", "repo", "some", "file", "py"]),
        ("WO-10023", ["wo", "10023"]),
        ("认证系统", ["认证", "证系", "系统"]),
    ],
)
def test_query_syntax_is_plain_text(text: str, expected: list[str]) -> None:
    assert query_terms(text) == expected


def test_one_character_of_a_run_is_no_wildcard_for_another_word() -> None:
    assert not set(query_terms("认识")) & set(index_terms("认证系统"))


def test_a_query_is_cut_to_its_first_distinct_terms() -> None:
    words = [f"w{i}" for i in range(5000)]
    assert query_terms(" ".join(["pump", "pumps", *words])) == ["pump", *words[:255]]
    assert index_terms("pump pumps") == ["pump", "pump"]


def test_an_endless_word_is_cut() -> None:
    (term,) = query_terms("é" * 70_000)
    assert len(term.encode()) == MAX_TERM_BYTES


@given(mixed)
def test_what_is_asked_is_found_in_itself(text: str) -> None:
    assert set(query_terms(text)) <= set(index_terms(text))
    assert query_terms(text) == query_terms(clean_text(text))


@given(mixed)
def test_terms_know_where_they_came_from(text: str) -> None:
    for term in terms(text, unigrams=True):
        assert 0 <= term.start < term.end <= len(text)
        assert term.text in index_terms(text[term.start : term.end])


@given(mixed, mixed)
def test_terms_of_two_lines_are_the_terms_of_each(one: str, two: str) -> None:
    assert index_terms(f"{one}\n{two}") == index_terms(one) + index_terms(two)


@given(mixed, mixed)
def test_highlights_are_verbatim_pieces_in_order(text: str, query: str) -> None:
    at = 0
    for piece in highlights(text, frozenset(query_terms(query)), width=8):
        assert piece.count("<em>") == piece.count("</em>") > 0
        plain = piece.replace("<em>", "").replace("</em>", "")
        assert plain in text[at:]
        at = text.index(plain, at) + len(plain)


def test_highlights_mark_words_and_bigrams_and_stay_short() -> None:
    text = f"The pumps in the {CAFE} of 认证系统. " + "word " * 100 + "one more pump"
    found = highlights(text, frozenset(query_terms(f"pump {CAFE} 认证系")))
    assert found[0].startswith(f"The <em>pumps</em> in the <em>{CAFE}</em> of <em>认证系</em>统. word")
    assert found[1].endswith("one more <em>pump</em>")
    assert len(found) == 2
    assert all(len(piece) < 250 for piece in found)
    assert highlights(text, frozenset()) == ()


def test_many_threads_stem_alike() -> None:
    text = " ".join(f"running{i} pumps{i} cities{i}" for i in range(300))
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(index_terms, [text] * 16))
    assert all(answer == answers[0] for answer in answers)
