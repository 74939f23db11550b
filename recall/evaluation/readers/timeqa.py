"""TimeQA JSON lines: questions about one entity at different times, each with the page that holds the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from recall.evaluation.readers.files import Record, expand, read_jsonl, text, texts
from recall.evaluation.readers.queries import Query
from recall.rows import Ref


def timeqa_paragraphs(paths: Sequence[Path]) -> Iterator[Record]:
    """One `passage` (id = page|number, title, text) a paragraph; a page asked about many times is read once."""
    seen: set[str] = set()
    for path in expand(paths, ".jsonl"):
        for item in read_jsonl(path):
            page = timeqa_page(text(item, "idx", path))
            paragraphs = item.get("paragraphs")
            if page in seen or not isinstance(paragraphs, list):
                continue
            seen.add(page)
            for number, paragraph in enumerate(paragraphs):
                title, body = str(paragraph.get("title") or ""), str(paragraph.get("text") or "")
                yield None, "passage", {"id": f"{page}|{number}", "title": title.strip(), "text": body.strip()}


def timeqa_queries(paths: Sequence[Path]) -> list[Query]:
    """Questions with their answers (none: unanswerable) and the paragraphs of the page that contain one literally.

    `extra.page` and `extra.context`: the page's name and its whole text.
    """
    found: list[Query] = []
    for path in expand(paths, ".jsonl"):
        for item in read_jsonl(path):
            found.append(_question(item, path))
    return found


def _question(item: dict[str, object], path: Path) -> Query:
    page = timeqa_page(text(item, "idx", path))
    answers = tuple(answer for answer in texts(item.get("targets")) if answer)
    paragraphs = item.get("paragraphs") or []
    holding = [
        number
        for number, paragraph in enumerate(paragraphs if isinstance(paragraphs, list) else [])
        if any(answer in str(paragraph.get("text") or "") for answer in answers)
    ]
    return Query(
        id=text(item, "idx", path),
        text=text(item, "question", path),
        tenant=None,
        relevant=tuple(Ref("passage", f"{page}|{number}") for number in holding),
        grades=(1,) * len(holding),
        answers=answers,
        extra={"page": page, "context": str(item.get("context") or "")},
    )


def timeqa_page(question_id: str) -> str:
    """`/wiki/X#P466#1` → `/wiki/X#P466`: the page and relation that a question's id names."""
    return question_id.rpartition("#")[0] or question_id
