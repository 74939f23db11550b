"""Text analysis of the search plane: text to terms, the same for what is indexed and what is asked.

NFKC and case folding (so `ＡＢＣ` finds `ABC`), English stop words and Snowball stemming, bigrams for scripts that are
written without spaces. Pure; knows no store and no query syntax.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import Stemmer

from recall.keys import cut_bytes

MAX_TERMS = 256
# Longest term any store has to keep; longer runs (base64, hashes of hashes) are cut on a code-point border.
MAX_TERM_BYTES = 256
ENGLISH_STOP_WORDS = frozenset(
    (
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "but",
        "by",
        "for",
        "if",
        "in",
        "into",
        "is",
        "it",
        "no",
        "not",
        "of",
        "on",
        "or",
        "such",
        "that",
        "the",
        "their",
        "then",
        "there",
        "these",
        "they",
        "this",
        "to",
        "was",
        "will",
        "with",
    )
)
# Han, Hiragana, Katakana, Hangul and their extensions: words are not separated, so bigrams stand in for them.
_CJK = (
    "\u1100-\u11ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_STEMMING = threading.Lock()
# Stands for "no combining character": a class in a pattern must not be empty.
_NO_MARKS = "\u0300"
_EM_OPEN, _EM_CLOSE = "<em>", "</em>"


class Term(NamedTuple):
    """One searchable term; `start`/`end` are character offsets of its source in the text as given."""

    text: str
    start: int
    end: int


def index_terms(text: str) -> list[str]:
    """Terms under which `text` is found, in order, repeated as often as they occur.

    A CJK run yields its single characters and its bigrams, so that a query of one character finds it too.
    """
    return [term.text for term in terms(text, unigrams=True)]


def query_terms(text: str, limit: int = MAX_TERMS) -> list[str]:
    """The first `limit` distinct terms of a query; empty when nothing in it is searchable.

    Stop words are left out, so a query of nothing else finds nothing. A CJK run asks for its bigrams alone, which is
    stricter than its characters.
    """
    found: dict[str, None] = {}
    for term in terms(text, unigrams=False):
        found.setdefault(term.text)
        if len(found) == limit:
            break
    return list(found)


def terms(text: str, *, unigrams: bool) -> Iterator[Term]:
    """Terms of `text` with offsets into it; `unigrams` adds the single characters of longer CJK runs."""
    folded, starts, ends = _fold(text)
    for run in _runs(_marks(folded)).finditer(folded):
        if run.lastgroup == "cjk":
            for first, last in _grams(run.start(), run.end(), unigrams=unigrams):
                yield Term(folded[first:last], starts[first], ends[last - 1])
        elif (word := _word(run.group())) is not None:
            yield Term(word, starts[run.start()], ends[run.end() - 1])


def highlights(text: str, wanted: Collection[str], *, fragments: int = 3, width: int = 160) -> tuple[str, ...]:
    """Up to `fragments` pieces of `text`, about `width` characters each, with wanted terms between `<em>` and `</em>`.

    Pieces are in text order and do not overlap; apart from the marks each is a verbatim part of `text`.
    """
    spans = _merged([(term.start, term.end) for term in terms(text, unigrams=True) if term.text in wanted])
    pieces: list[str] = []
    last = 0
    while spans and len(pieces) < fragments:
        first = _word_border(text, max(last, spans[0][0] - width // 4))
        last = max(first + width, spans[0][1])
        # A span that crosses the right border opens the next piece.
        last = min([last, len(text), *(start for start, end in spans if start < last < end)])
        inside = [span for span in spans if span[1] <= last]
        pieces.append(_marked(text, first, last, inside))
        spans = spans[len(inside) :]
    return tuple(pieces)


def _fold(text: str) -> tuple[str, Sequence[int], Sequence[int]]:
    """NFKC and casefold of `text`; for each resulting character, start and end of what it came from in `text`."""
    if text.isascii():
        return text.lower(), range(len(text)), range(1, len(text) + 1)
    if any(map(_joins, set(text))):
        borders = list(_clusters(text))
        pieces = [_folded(text[start:end]) for start, end in borders]
    else:
        pieces = list(map(_folded, text))
        if all(len(piece) == 1 for piece in pieces):
            return "".join(pieces), range(len(text)), range(1, len(text) + 1)
        borders = [(at, at + 1) for at in range(len(text))]
    starts = [start for (start, _), piece in zip(borders, pieces, strict=True) for _ in piece]
    ends = [end for (_, end), piece in zip(borders, pieces, strict=True) for _ in piece]
    return "".join(pieces), starts, ends


@lru_cache(maxsize=65_536)
def _folded(cluster: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", cluster).casefold())


def _clusters(text: str) -> Iterator[tuple[int, int]]:
    """Half-open ranges of a base character with the marks that compose with it; normalising each normalises all."""
    start = 0
    for index in range(1, len(text)):
        if not _joins(text[index]):
            yield start, index
            start = index
    if text:
        yield start, len(text)


def _joins(char: str) -> bool:
    """Whether normalising may merge `char` with the one before: marks, Hangul vowels and finals, voicing marks."""
    return unicodedata.combining(char) != 0 or "\u1160" <= char <= "\u11ff" or char in "\uff9e\uff9f"


def _grams(start: int, end: int, *, unigrams: bool) -> Iterator[tuple[int, int]]:
    if end - start == 1:
        yield start, end
        return
    for index in range(start, end):
        if unigrams:
            yield index, index + 1
        if index + 1 < end:
            yield index, index + 2


@lru_cache(maxsize=16)
def _runs(marks: str) -> re.Pattern[str]:
    """CJK runs and words. `marks` are the combining characters that words of this text contain; `re` has no class."""
    letter = rf"[^\W_{_CJK}]"
    return re.compile(rf"(?P<cjk>[{_CJK}]+)|(?P<word>{letter}(?:{letter}|[{marks}'’](?={letter})|[{marks}])*)")


def _marks(text: str) -> str:
    if text.isascii():
        return _NO_MARKS
    return "".join(sorted(char for char in set(text) if unicodedata.category(char)[0] == "M")) or _NO_MARKS


def _word(word: str) -> str | None:
    plain = word.replace("’", "'")
    bare = plain.removesuffix("'s")
    if bare in ENGLISH_STOP_WORDS:
        return None
    return cut_bytes(bare if len(bare) > MAX_TERM_BYTES else _stem(bare), MAX_TERM_BYTES)


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    # A Snowball stemmer has state of its own: one thread at a time.
    with _STEMMING:
        stemmed: str = _stemmer().stemWord(word)
    return stemmed


@cache
def _stemmer() -> Stemmer.Stemmer:
    return Stemmer.Stemmer("english", 0)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _word_border(text: str, index: int) -> int:
    """`index`, or the start of the next word when it falls inside one of ordinary length."""
    if index == 0 or text[index - 1].isspace():
        return index
    for later in range(index, min(index + 24, len(text))):
        if text[later].isspace():
            return later + 1
    return index


def _marked(text: str, start: int, end: int, spans: list[tuple[int, int]]) -> str:
    parts: list[str] = []
    at = start
    for first, last in spans:
        parts += [text[at:first], _EM_OPEN, text[first:last], _EM_CLOSE]
        at = last
    return "".join([*parts, text[at:end]])
