"""QMSum meetings: topics with the turns they span and whole-meeting reference summaries.

Turns and questions of the set come in BEIR form, with a tenant per meeting: see `beir_corpus` and `beir_queries`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recall.errors import InvalidRequest
from recall.evaluation.readers.files import find_file, read_jsonl, text


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and the turns it spans: inclusive ranges of 0-based turn numbers."""

    name: str
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Meeting:
    """One meeting (a tenant). `summaries` are (request, reference summary) pairs about the whole of it."""

    id: str
    topics: tuple[Topic, ...]
    summaries: tuple[tuple[str, str], ...]


def qmsum_meetings(folder: Path) -> list[Meeting]:
    """Meetings of a folder in file order."""
    path = find_file([folder], "meetings.jsonl")
    return [_meeting(row, path) for row in read_jsonl(path)]


def _meeting(row: dict[str, object], path: Path) -> Meeting:
    name = text(row, "_id", path)
    topics, general = row.get("topics") or [], row.get("general") or []
    if not isinstance(topics, list) or not isinstance(general, list):
        raise InvalidRequest(f"{path}: `topics` and `general` of {name} must be lists")
    return Meeting(
        id=name,
        topics=tuple(
            Topic(str(topic["topic"]), tuple((int(first), int(last)) for first, last in topic["relevant_text_span"]))
            for topic in topics
        ),
        summaries=tuple((str(item["query"]), str(item["answer"])) for item in general),
    )
