"""Measures, on examples worked out by hand and against plain definitions."""

from __future__ import annotations

import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.evaluation.digests import Talk, share_cited, share_said
from recall.evaluation.metrics import ndcg_at, recall_at, rouge_l, rouge_n, rouge_words

words = st.lists(st.sampled_from(["cat", "mat", "sat", "on", "the", "dog"]), max_size=12)


def test_rouge_counts_stemmed_words_in_common() -> None:
    found = rouge_n("The cats sat.", "the cat was sitting on the mat")
    # `cats` is `cat`, `sat` is not `sitting`.
    assert (found.precision, found.recall) == (pytest.approx(2 / 3), pytest.approx(2 / 7))
    assert found.f1 == pytest.approx(2 * (2 / 3) * (2 / 7) / (2 / 3 + 2 / 7))
    assert rouge_n("police killed the gunman", "the gunman police killed", 2).recall == pytest.approx(2 / 3)


def test_rouge_l_takes_the_longest_common_subsequence() -> None:
    found = rouge_l("police kill the gunman", "police killed the gunman")
    assert found.f1 == 1.0
    assert rouge_l("the gunman kill police", "police killed the gunman").recall == pytest.approx(0.5)


@pytest.mark.parametrize("measure", [rouge_n, rouge_l])
def test_nothing_shares_nothing(measure) -> None:
    assert measure("", "").f1 == measure("a", "").f1 == measure("", "b").f1 == measure("!?", "…").f1 == 0.0


@given(words, words)
def test_the_bit_parallel_subsequence_is_the_plain_one(left: list[str], right: list[str]) -> None:
    @cache
    def longest(at: int, other: int) -> int:
        if at == len(left) or other == len(right):
            return 0
        if left[at] == right[other]:
            return 1 + longest(at + 1, other + 1)
        return max(longest(at + 1, other), longest(at, other + 1))

    found = rouge_l(" ".join(left), " ".join(right))
    assert found.recall == pytest.approx(longest(0, 0) / len(right) if right else 0.0)
    assert found.precision == pytest.approx(longest(0, 0) / len(left) if left else 0.0)


@given(words, words)
def test_rouge_is_symmetric_and_one_only_for_the_same_words(left: list[str], right: list[str]) -> None:
    ours, theirs = rouge_n(" ".join(left), " ".join(right)), rouge_n(" ".join(right), " ".join(left))
    assert (ours.precision, ours.recall) == (theirs.recall, theirs.precision)
    assert (ours.f1 == pytest.approx(1.0)) == (bool(left) and sorted(left) == sorted(right))


def test_short_words_are_not_stemmed() -> None:
    assert rouge_words("His Was RUNNING, 3.5%") == ("his", "was", "run", "3", "5")


def test_recall_and_ndcg_of_a_ranking() -> None:
    assert recall_at(2, ["a", "b", "c"], {"b", "c"}) == 0.5
    assert recall_at(3, ["a"], set()) == 0.0
    grades = {"a": 1.0, "b": 1.0, "z": 0.0}
    assert ndcg_at(10, ["b", "a"], grades) == 1.0
    assert ndcg_at(10, ["x", "a"], grades) == pytest.approx((1 / math.log2(3)) / (1 + 1 / math.log2(3)))
    assert ndcg_at(1, ["x", "a"], grades) == 0.0
    assert ndcg_at(10, ["x"], {}) == 0.0


def test_what_a_digest_cites_and_says() -> None:
    assert share_cited(["1", "2", "2"], {"2", "3"}) == 0.5
    assert share_cited([], {"2"}) == 0.0
    evidence = "Ann: I sold it. To Bob."
    assert share_said(evidence, ["… To Bob. …"]) == pytest.approx(7 / 22)
    assert share_said(evidence, ["Ann: I sold it.", "To Bob."]) == 1.0
    assert share_said(evidence, []) == share_said("", ["x"]) == 0.0


def test_talks_are_halved_by_their_name_alone() -> None:
    held_out = {name for name in map(str, range(100)) if Talk(name).held_out}
    assert 35 < len(held_out) < 65
    assert held_out == {name for name in map(str, range(100)) if Talk(name).held_out}
