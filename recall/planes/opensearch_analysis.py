"""How OpenSearch turns text into terms: the analysers of `recall.analysis` in the server's own words.

English words are stemmed, scripts without spaces become bigrams, compatibility forms are folded, all in one field and
with nothing but the analysers that every server carries (no ICU).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Any

from recall.analysis import ENGLISH_STOP_WORDS, MAX_TERMS, terms
from recall.keys import clean_text

# Raise it with any change of what is in this module: the index version follows from it.
RECIPE = 1
INDEXING, ASKING = "recall_text", "recall_query"
# Marks that the standard tokenizer keeps inside words and `recall.analysis` does not.
_JOINERS = "._:,;·\u2024\u2027\u203f\u2040\u2054\ufe13\ufe33\ufe34\ufe4d\ufe4e\ufe4f\ufe52\ufe55\uff0e\uff1a\uff3f"
# Written without spaces, and not told apart from Latin letters by the standard tokenizer.
_HANGUL = r"\p{IsHangul}"
_OTHER = r"[\p{L}\p{N}&&[^\p{IsHangul}\p{IsHan}\p{IsHiragana}\p{IsKatakana}]]"
# Blocks whose folding is left to `cjk_width`, or that nobody searches for: Cherokee, Arabic presentation forms.
_UNFOLDED = (range(0x13A0, 0x1400), range(0xAB70, 0xABC0), range(0xFB50, 0xFF00), range(0xFF00, 0xFFF0))


def analysis() -> Mapping[str, Any]:
    """The `analysis` section of an index's settings."""
    shared = ["lowercase", "recall_possessive", "recall_stop", "recall_porter2"]
    return {
        "char_filter": {
            "recall_fold": {"type": "mapping", "mappings": _mappings()},
            # The group is the letter behind the border: so highlights of the word before it end where it ends.
            "recall_hangul": {
                "type": "pattern_replace",
                "pattern": f"(?<={_OTHER})({_HANGUL})|(?<={_HANGUL})({_OTHER})",
                "replacement": " $1$2",
            },
        },
        "filter": {
            "recall_possessive": {"type": "stemmer", "language": "possessive_english"},
            "recall_stop": {"type": "stop", "stopwords": sorted(ENGLISH_STOP_WORDS)},
            "recall_porter2": {"type": "stemmer", "language": "porter2"},
            "recall_grams": {"type": "cjk_bigram", "output_unigrams": True},
            "recall_bigrams": {"type": "cjk_bigram"},
            "recall_limit": {"type": "limit", "max_token_count": MAX_TERMS},
        },
        "analyzer": {
            INDEXING: _analyzer(["cjk_width", "recall_grams", *shared]),
            ASKING: _analyzer(["cjk_width", "recall_bigrams", *shared, "unique", "recall_limit"]),
        },
    }


def query_text(text: str) -> str:
    """`text` as it is sent: clean, compatibility forms folded, cut behind its last term that can count."""
    folded = unicodedata.normalize("NFKC", clean_text(text))
    seen: set[str] = set()
    for term in terms(folded, unigrams=False):
        seen.add(term.text)
        if len(seen) == MAX_TERMS:
            return folded[: term.end]
    return folded


def _analyzer(filters: list[str]) -> dict[str, Any]:
    return {
        "type": "custom",
        "char_filter": ["recall_fold", "recall_hangul"],
        "tokenizer": "standard",
        "filter": filters,
    }


@cache
def _mappings() -> list[str]:
    """Single characters whose compatibility folding is more than lower case, and joiners as spaces."""
    rules = [f"{_escaped(mark)} => \\u0020" for mark in _JOINERS] + ["\u2019 => '"]
    for code in range(0x80, 0x1_0000):
        if 0xD800 <= code < 0xE000 or any(code in block for block in _UNFOLDED):
            continue
        char = chr(code)
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", char).casefold())
        if folded != char.lower() and folded.isalnum() and unicodedata.normalize("NFC", char) == char:
            rules.append(f"{char} => {folded}")
    return rules


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}"
