"""Meetings and conversations as tenants to distil: turns, what they belong to, references, and measures of digests."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recall.evaluation.readers import Query, beir_corpus, beir_queries, locomo, locomo_queries, qmsum_meetings
from recall.models.extractive import sentences


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance, its speaker named in its text. `scope`: the session or topic that it belongs to."""

    id: str
    text: str
    scope: str


@dataclass(slots=True)
class Talk:
    """One conversation or meeting: turns in order, questions whose evidence is turns, reference summaries.

    A reference is a text and the ids of the turns that it is about.
    """

    id: str
    turns: list[Turn] = field(default_factory=list)
    questions: list[Query] = field(default_factory=list)
    references: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    @property
    def held_out(self) -> bool:
        """Whether this talk is of the half that nothing is fitted on."""
        return bool(hashlib.md5(self.id.encode(), usedforsecurity=False).digest()[0] % 2)


def locomo_talks(folder: Path) -> list[Talk]:
    """LoCoMo: sessions as scopes, session summaries as references, questions of the categories 1 to 4."""
    talks: dict[str, Talk] = {}
    about: dict[str, str] = {}
    for tenant, entity, row in locomo([folder / "locomo.json"]):
        talk = talks.setdefault(str(tenant), Talk(str(tenant)))
        if entity == "session":
            about[str(row["id"])] = str(row["summary"] or "")
        else:
            talk.turns.append(Turn(str(row["id"]), f"{row['speaker']}: {row['text']}", str(row["session"])))
    for talk in talks.values():
        for scope in dict.fromkeys(turn.scope for turn in talk.turns):
            if about[scope]:
                talk.references.append((about[scope], tuple(turn.id for turn in talk.turns if turn.scope == scope)))
    for query in locomo_queries([folder / "locomo.json"]):
        if query.relevant and query.kind != "adversarial":
            talks[str(query.tenant)].questions.append(query)
    return list(talks.values())


def qmsum_talks(folder: Path) -> list[Talk]:
    """QMSum: topics as scopes; an answer is the reference summary of the turns that it was written from."""
    topics = {
        f"{meeting.id}:{number}": topic.name
        for meeting in qmsum_meetings(folder)
        for topic in reversed(meeting.topics)
        for first, last in topic.spans
        for number in range(first, last + 1)
    }
    talks: dict[str, Talk] = {}
    for tenant, _, row in beir_corpus([folder]):
        talk = talks.setdefault(str(tenant), Talk(str(tenant)))
        talk.turns.append(Turn(str(row["id"]), str(row["text"]), topics.get(str(row["id"]), "other")))
    for query in beir_queries(folder):
        ids = {ref.id for ref in query.relevant}
        talk = talks[str(query.tenant)]
        talk.questions.append(query)
        talk.references.append((" ".join(query.answers), tuple(turn.id for turn in talk.turns if turn.id in ids)))
    return list(talks.values())


def share_cited(gold: Collection[str], cited: Collection[str]) -> float:
    """Share of the gold rows that a digest draws on; 0 when there are none."""
    return len(set(gold) & set(cited)) / len(set(gold)) if gold else 0.0


def share_said(evidence: str, said: Iterable[str]) -> float:
    """How much of a text stands in others word for word, sentence by sentence, in characters."""
    texts = list(said)
    pieces = sentences(evidence)
    total = sum(map(len, pieces))
    return sum(len(piece) for piece in pieces if any(piece in text for text in texts)) / total if total else 0.0


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
