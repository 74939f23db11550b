"""HotpotQA (and 2WikiMultihopQA) JSON: questions that bring their ten paragraphs and name the supporting sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from recall.errors import InvalidRequest
from recall.evaluation.readers.files import Record, expand, read_json_objects, text, texts
from recall.evaluation.readers.queries import Query
from recall.rows import Ref


def hotpotqa_passages(paths: Sequence[Path]) -> Iterator[Record]:
    """One `passage` (id = title, title, text, sentences) a paragraph; a title is read once, where it first appears."""
    seen: set[str] = set()
    for path in expand(paths, ".json"):
        for question in read_json_objects(path):
            for title, sentences in _paragraphs(question, path):
                if title not in seen:
                    seen.add(title)
                    row: dict[str, object] = {
                        "id": title,
                        "title": title,
                        "text": "".join(sentences).strip(),
                        "sentences": sentences,
                    }
                    yield None, "passage", row


def hotpotqa_queries(paths: Sequence[Path]) -> list[Query]:
    """Questions with the passages of their supporting facts; `kind` is "bridge" or "comparison".

    `extra.paragraphs`: `[title, sentences]` of the question's own paragraphs; `extra.facts`: `[title, sentence number]`
    of the supporting sentences that exist (the published key names a few that do not).
    """
    found: list[Query] = []
    for path in expand(paths, ".json"):
        for item in read_json_objects(path):
            found.append(_question(item, path))
    return found


def _question(item: dict[str, object], path: Path) -> Query:
    paragraphs = _paragraphs(item, path)
    lengths = {title: len(sentences) for title, sentences in paragraphs}
    facts = [(title, number) for title, number in _facts(item) if 0 <= number < lengths.get(title, 0)]
    titles = list(dict.fromkeys(title for title, _ in facts))
    return Query(
        id=text(item, "_id", path),
        text=text(item, "question", path),
        tenant=None,
        relevant=tuple(Ref("passage", title) for title in titles),
        grades=(1,) * len(titles),
        answers=texts(item.get("answer")),
        kind=str(item.get("type") or ""),
        extra={
            "paragraphs": [[title, list(sentences)] for title, sentences in paragraphs],
            "facts": [[title, number] for title, number in facts],
        },
    )


def _paragraphs(item: dict[str, object], path: Path) -> list[tuple[str, list[str]]]:
    context = item.get("context")
    if not isinstance(context, list):
        raise InvalidRequest(f"{path}: question {item.get('_id')!r} has no `context` list")
    return [(str(title), [str(sentence) for sentence in sentences]) for title, sentences in context]


def _facts(item: dict[str, object]) -> list[tuple[str, int]]:
    facts = item.get("supporting_facts") or []
    return [(str(title), int(number)) for title, number in facts] if isinstance(facts, list) else []
