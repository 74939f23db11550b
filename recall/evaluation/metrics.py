"""Measures of retrieval and of summaries. Pure functions of what was found and what should have been."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import Stemmer

_WORD = re.compile(r"[a-z0-9]+")


def recall_at(k: int, ranked: Sequence[Hashable], relevant: Collection[Hashable]) -> float:
    """Share of the relevant among the first `k`; 0 when nothing is relevant."""
    return len(set(ranked[:k]) & set(relevant)) / len(set(relevant)) if relevant else 0.0


def ndcg_at(k: int, ranked: Sequence[Hashable], grades: Mapping[Hashable, float]) -> float:
    """Normalised discounted cumulative gain (Järvelin and Kekäläinen, 2002) with linear gain, as BEIR reports it."""
    found = sum(grades.get(one, 0.0) / math.log2(rank + 1) for rank, one in enumerate(ranked[:k], 1))
    best = sum(grade / math.log2(rank + 1) for rank, grade in enumerate(sorted(grades.values(), reverse=True)[:k], 1))
    return found / best if best > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a summary shares with a reference, in [0, 1]."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def rouge_words(text: str) -> tuple[str, ...]:
    """Lower-case words of ASCII letters and digits, those of more than three letters stemmed."""
    return tuple(_stem(word) if len(word) > 3 else word for word in _WORD.findall(text.lower()))


def rouge_n(summary: str, reference: str, n: int = 1) -> Overlap:
    """ROUGE-N (Lin, 2004): n-grams in common, each counted as often as both have it."""
    ours, theirs = _grams(rouge_words(summary), n), _grams(rouge_words(reference), n)
    return _overlap((ours & theirs).total(), ours.total(), theirs.total())


def rouge_l(summary: str, reference: str) -> Overlap:
    """ROUGE-L (Lin, 2004): the longest common subsequence of the two texts, sentences not told apart."""
    ours, theirs = rouge_words(summary), rouge_words(reference)
    return _overlap(_common_subsequence(ours, theirs), len(ours), len(theirs))


def _overlap(common: int, ours: int, theirs: int) -> Overlap:
    return Overlap(common / ours if ours else 0.0, common / theirs if theirs else 0.0)


def _grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))


def _common_subsequence(left: Sequence[str], right: Sequence[str]) -> int:
    """Length, by bit-parallel dynamic programming (Hyyrö, 2004): a machine word's worth of cells at a time."""
    places: dict[str, int] = {}
    for at, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << at
    full = (1 << len(left)) - 1
    row = full
    for word in right:
        matches = row & places.get(word, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(left) - row.bit_count()


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    return str(_porter().stemWord(word))


@lru_cache(maxsize=1)
def _porter() -> Stemmer.Stemmer:
    return Stemmer.Stemmer("porter")
