"""A small inverted index with BM25 scores, in memory. Terms in, scores out; knows no text and no tenant."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

K1 = 1.2
B = 0.75


class TermIndex:
    """Postings of documents under string keys."""

    def __init__(self) -> None:
        self._postings: dict[str, dict[str, int]] = {}
        self._terms: dict[str, Counter[str]] = {}
        self._total = 0

    def put(self, key: str, terms: Sequence[str]) -> None:
        """Index the document `key`, replacing its former terms."""
        self.drop(key)
        counts = Counter(terms)
        self._terms[key] = counts
        self._total += counts.total()
        for term, count in counts.items():
            self._postings.setdefault(term, {})[key] = count

    def drop(self, key: str) -> None:
        """Forget the document `key`, if it is there."""
        counts = self._terms.pop(key, None)
        if counts is None:
            return
        self._total -= counts.total()
        for term in counts:
            postings = self._postings[term]
            del postings[key]
            if not postings:
                del self._postings[term]

    def scores(self, terms: Sequence[str]) -> dict[str, float]:
        """BM25 of every document that holds at least one of the distinct `terms`; summed in the order of `terms`."""
        size = len(self._terms)
        mean = self._total / size if size else 1.0
        scores: dict[str, float] = {}
        for term in terms:
            postings = self._postings.get(term, {})
            idf = math.log1p((size - len(postings) + 0.5) / (len(postings) + 0.5))
            for key, count in postings.items():
                norm = K1 * (1 - B + B * self._terms[key].total() / (mean or 1.0))
                scores[key] = scores.get(key, 0.0) + idf * count * (K1 + 1) / (count + norm)
        return scores
