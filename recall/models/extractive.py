"""The summarizer without a language model: picks the sentences that cover the source best, within a token budget.

Sentences are picked one by one for what they add: nearness to the centroid of the source (Radev et al., 2004), words
that the source repeats and the summary lacks (Nenkova and Vanderwende, 2005), the start of a text; less what is already
said (maximal marginal relevance, Carbonell and Goldstein, SIGIR 1998). Interjections are passed over. What is kept
stays in source order, and every sentence knows the text it came from.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from recall.analysis import index_terms
from recall.model_ports import Embedder, Summary, SummaryTask, Tokenizer
from recall.packing import quarter_bytes

# A sentence ends at a terminator followed by space, at a CJK terminator, or at a line break.
_SENTENCE = re.compile(r"[^\n]+?(?:[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[”」』）]*|(?=\n)|$)", re.DOTALL)
_ENDED = re.compile(r"[.!?…。！？][\"'”’)\]」』）]*$")
MAX_SENTENCES = 512
# Weights beside centrality, fitted on one half of the meetings of QMSum and the conversations of LoCoMo.
_WORDS = 10.0
_START = 0.2
# Share of a text after which its start has lost most of its weight.
_START_LENGTH = 0.1
# Distinct terms that a sentence must have to say something; `Mm .` has one.
_FEWEST_TERMS = 2


@dataclass(frozen=True, slots=True)
class _Sentence:
    source: int
    text: str
    tokens: int
    start: float


class ExtractiveSummarizer:
    """`Summarizer` over any embedder. `diversity`: weight of what is already said, against that of centrality, 1."""

    def __init__(self, embedder: Embedder, *, diversity: float = 0.2, tokenizer: Tokenizer = quarter_bytes) -> None:
        self._embedder = embedder
        self._diversity = diversity
        self._tokenizer = tokenizer
        self.name = f"extractive/3 diversity={diversity} {embedder.name}"

    def summarize(self, tasks: Sequence[SummaryTask]) -> list[Summary]:
        """One summary per task. Sources that fit their budget are kept whole and cost no embedding."""
        split = [self._sentences(task) for task in tasks]
        whole = [
            self._size([one.text for one in found]) <= task.budget for found, task in zip(split, tasks, strict=True)
        ]
        vectors = self._vectors([found for found, fits in zip(split, whole, strict=True) if not fits])
        summaries = []
        for found, task, fits in zip(split, tasks, whole, strict=True):
            kept = found if fits else [found[n] for n in self._pick(found, next(vectors), task.budget)]
            text = _joined(kept) or cut(_joined(found), task.budget, self._tokenizer)
            summaries.append(Summary(text, tuple(sorted({one.source for one in kept}))))
        return summaries

    def _sentences(self, task: SummaryTask) -> list[_Sentence]:
        found: dict[str, _Sentence] = {}
        for source, text in enumerate(task.texts):
            pieces = sentences(text)
            for place, sentence in enumerate(pieces):
                start = math.exp(-place / max(1.0, _START_LENGTH * len(pieces)))
                size = self._tokenizer(sentence.encode()) + 1
                found.setdefault(sentence, _Sentence(source, sentence, size, start))
        distinct = list(found.values())
        # Of a longer source every n-th sentence is looked at, from its start to its end.
        step = max(1.0, len(distinct) / MAX_SENTENCES)
        return [distinct[int(at * step)] for at in range(min(len(distinct), MAX_SENTENCES))]

    def _vectors(self, groups: Sequence[Sequence[_Sentence]]) -> Iterator[np.ndarray]:
        flat = [one.text for group in groups for one in group]
        matrix = self._embedder.embed(flat) if flat else np.zeros((0, self._embedder.dim), np.float32)
        start = 0
        for group in groups:
            yield matrix[start : start + len(group)]
            start += len(group)

    def _pick(self, found: Sequence[_Sentence], vectors: np.ndarray, budget: int) -> list[int]:
        """Positions of the kept sentences, in source order."""
        centroid = vectors.mean(axis=0)
        centroid /= max(float(np.linalg.norm(centroid)), 1e-9)
        worth = vectors @ centroid + _START * np.array([one.start for one in found], np.float32)
        terms = [set(index_terms(one.text)) for one in found]
        holds, weights = _repeated_words(terms)
        said = np.zeros(len(found), dtype=np.float32)
        tokens = np.array([one.tokens for one in found])
        kept: list[int] = []
        open_ = np.array([len(one) >= _FEWEST_TERMS for one in terms])
        if not open_.any():
            open_[:] = True
        while budget > 0:
            open_ &= tokens <= budget
            if not open_.any():
                break
            gain = worth + _WORDS * (holds @ weights) - self._diversity * said
            best = int(np.where(open_, gain, -np.inf).argmax())
            kept.append(best)
            open_[best] = False
            budget -= int(tokens[best])
            said = np.maximum(said, vectors @ vectors[best])
            weights = np.where(holds[best], 0, weights).astype(np.float32)
        return sorted(kept)

    def _size(self, texts: Sequence[str]) -> int:
        return self._tokenizer(" ".join(texts).encode())


def _repeated_words(terms: Sequence[Set[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Which of the terms that several texts share each text holds, (texts, words) bool; their weights, adding up to 1.

    A word weighs the root of the number of texts that hold it: what a source keeps coming back to.
    """
    counts = Counter(term for found in terms for term in found)
    words = {term: place for place, term in enumerate(sorted(term for term, count in counts.items() if count > 1))}
    holds = np.zeros((len(terms), len(words)), dtype=bool)
    for row, found in zip(holds, terms, strict=True):
        row[[words[term] for term in found if term in words]] = True
    weights = np.sqrt(holds.sum(axis=0, dtype=np.float32))
    return holds, weights / max(float(weights.sum()), 1e-9)


def sentences(text: str) -> list[str]:
    """The sentences of `text`, stripped, in order; Latin and CJK terminators and line breaks end one."""
    return [found for match in _SENTENCE.finditer(text) if (found := match.group().strip())]


def cut(text: str, budget: int, tokenizer: Tokenizer) -> str:
    """The longest run of whole sentences from the start of `text` within `budget` tokens; words when none fits."""
    if tokenizer(text.encode()) <= budget:
        return text
    for pieces in (sentences(text), text.split(), list(text)):
        joint = "" if pieces and len(pieces[0]) == 1 and len(pieces) == len(text) else " "
        kept = _longest(pieces, budget, tokenizer, joint)
        if kept:
            return kept
    return ""


def without_torn_end(text: str) -> str:
    """`text` without the sentence that its writer was stopped in; all of it when there is no other."""
    pieces = sentences(text)
    whole = pieces[:-1] if pieces and not _ENDED.search(pieces[-1]) else pieces
    return text[: text.rindex(whole[-1]) + len(whole[-1])] if whole else text


def _longest(pieces: Sequence[str], budget: int, tokenizer: Tokenizer, joint: str) -> str:
    low, high = 0, len(pieces)
    while low < high:
        middle = (low + high + 1) // 2
        if tokenizer(joint.join(pieces[:middle]).encode()) <= budget:
            low = middle
        else:
            high = middle - 1
    return joint.join(pieces[:low])


def _joined(found: Sequence[_Sentence]) -> str:
    return " ".join(one.text for one in found)
