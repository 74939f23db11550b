"""Fusion: several ranked lists in, one total order out. Pure: no store, no clock, no Ray.

`rrf` is Reciprocal Rank Fusion (Cormack, Clarke, Büttcher, SIGIR 2009); `convex` a convex combination of scaled scores
(Bruch, Gai, Ingber, TOIS 2023). Per item only the best rank of a channel counts, and channels are summed in name order,
so the result does not depend on the order in which channels answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Literal

from recall.results import Candidate, Contribution
from recall.rows import Ref

Fusion = Literal["rrf", "convex"]
Answers = Mapping[str, Sequence[Candidate]]
Weights = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Distinct refs by (fused score desc, entity, id), with their scores."""

    refs: tuple[Ref, ...]
    scores: Mapping[Ref, float]

    def scored(self) -> Iterator[tuple[Ref, float]]:
        """(ref, score) in order."""
        return ((ref, self.scores[ref]) for ref in self.refs)


def fuse(method: Fusion, answers: Answers, weights: Weights, rrf_k: int = 60) -> Ranking:
    """`rrf` or `convex` by name."""
    return rrf(answers, weights, rrf_k) if method == "rrf" else convex(answers, weights)


def rrf(answers: Answers, weights: Weights, k: int = 60) -> Ranking:
    """score(ref) = Σ over channels of weight / (k + rank), ranks 1-based."""
    scores: dict[Ref, float] = {}
    for name in sorted(answers):
        weight, candidates = weights.get(name, 1.0), answers[name]
        shares = _reciprocal(candidates, weight, k)
        if len(shares) < len(candidates):
            shares = _reciprocal(best_only(candidates), weight, k)
        if not scores:
            scores = shares
            continue
        for ref, share in shares.items():
            scores[ref] = scores.get(ref, 0.0) + share
    return _ranking(scores)


def convex(answers: Answers, weights: Weights) -> Ranking:
    """score(ref) = Σ over channels of weight · scaled score; a channel that did not return the ref adds 0."""
    scores: dict[Ref, float] = {}
    for name in sorted(answers):
        weight = weights.get(name, 1.0)
        candidates = best_only(answers[name])
        scale = _scale(name, candidates)
        for candidate in candidates:
            ref = candidate.ref
            scores[ref] = scores.get(ref, 0.0) + weight * scale(candidate.score)
    return _ranking(scores)


def contributions(
    method: Fusion, answers: Answers, weights: Weights, refs: Iterable[Ref], rrf_k: int = 60
) -> dict[Ref, tuple[Contribution, ...]]:
    """Each channel's share in the fused score of each of `refs`, in channel order; the shares sum to the score."""
    wanted = dict.fromkeys(refs)
    parts: dict[Ref, list[Contribution]] = {ref: [] for ref in wanted}
    for name in sorted(answers):
        weight = weights.get(name, 1.0)
        candidates = best_only(answers[name])
        scale = _scale(name, candidates)
        for candidate in candidates:
            if candidate.ref in wanted:
                share = weight / (rrf_k + candidate.rank) if method == "rrf" else weight * scale(candidate.score)
                parts[candidate.ref].append(Contribution(name, candidate.rank, candidate.score, share))
    return {ref: tuple(found) for ref, found in parts.items()}


def best_only(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """`candidates` with only the best rank of each ref; unchanged when refs are distinct, as channels promise."""
    if len({candidate.ref for candidate in candidates}) == len(candidates):
        return candidates
    best: dict[Ref, Candidate] = {}
    for candidate in candidates:
        known = best.get(candidate.ref)
        if known is None or candidate.rank < known.rank:
            best[candidate.ref] = candidate
    return sorted(best.values(), key=lambda candidate: candidate.rank)


def _reciprocal(candidates: Sequence[Candidate], weight: float, k: int) -> dict[Ref, float]:
    return {one.ref: weight / (k + one.rank) for one in candidates}


def _scale(channel: str, candidates: Sequence[Candidate]) -> Callable[[float], float]:
    """Score → [0, 1] for this query: cosine (cos+1)/2 ÷ best, BM25 ÷ best, graph as it is (already in [0, 1])."""
    if channel == "graph" or not candidates:
        return lambda score: score
    top = max(candidate.score for candidate in candidates)
    if channel == "vector":
        return lambda score: (score + 1) / (top + 1) if top > -1 else 0.0
    return lambda score: max(score, 0.0) / top if top > 0 else 0.0


def _ranking(scores: dict[Ref, float]) -> Ranking:
    # Sorting by the bare float is several times faster than by (-score, ref); ties are put right afterwards.
    ordered = sorted(scores.items(), key=itemgetter(1), reverse=True)
    refs = [ref for ref, _ in ordered]
    start = 0
    for position, ((_, above), (_, score)) in enumerate(pairwise(ordered), 1):
        if score != above:
            if position - start > 1:
                refs[start:position] = sorted(refs[start:position])
            start = position
    refs[start:] = sorted(refs[start:])
    return Ranking(tuple(refs), scores)
