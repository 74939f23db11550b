"""BEIR folders: corpus.jsonl, queries.jsonl and qrels.tsv (or qrels/<split>.tsv)."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from recall.errors import InvalidRequest
from recall.evaluation.readers.files import Record, find_file, read_jsonl, text, texts
from recall.evaluation.readers.queries import Query
from recall.rows import Json, Ref

PASSAGE = "passage"
_CORE = frozenset({"_id", "title", "text", "metadata", "tenant"})


def beir_corpus(paths: Sequence[Path]) -> Iterator[Record]:
    """One `passage` (id, title, text) a document, with its further fields; `metadata` only when it says something.

    A document's own `tenant`, when it has one, becomes the tenant of its row.
    """
    path = find_file(paths, "corpus.jsonl")
    for row in read_jsonl(path):
        tenant = row.get("tenant")
        passage: dict[str, object] = {
            "id": text(row, "_id", path),
            "title": row.get("title") or "",
            "text": row.get("text") or "",
        }
        if row.get("metadata"):
            passage["metadata"] = row["metadata"]
        passage.update({name: value for name, value in row.items() if name not in _CORE})
        yield (str(tenant) if tenant else None), PASSAGE, passage


def beir_queries(folder: Path, *, entity: str = PASSAGE, split: str = "test") -> list[Query]:
    """Questions of a BEIR folder in file order, each with the documents judged relevant to it.

    Questions without any judgement in the split are left out. Fields beyond BEIR's own become `extra`.
    """
    judged = _qrels(folder, split)
    path = find_file([folder], "queries.jsonl")
    return [
        _question(row, path, entity, judged[text(row, "_id", path)])
        for row in read_jsonl(path)
        if text(row, "_id", path) in judged
    ]


def _question(row: dict[str, object], path: Path, entity: str, judged: dict[str, int]) -> Query:
    ranked = sorted(((grade, doc) for doc, grade in judged.items() if grade > 0), key=lambda pair: (-pair[0], pair[1]))
    extra: dict[str, Json] = {
        name: value  # type: ignore[misc]
        for name, value in row.items()
        if name not in ("_id", "text", "tenant", "answer") and value not in ({}, None)
    }
    tenant = row.get("tenant")
    return Query(
        id=text(row, "_id", path),
        text=text(row, "text", path),
        tenant=str(tenant) if tenant else None,
        relevant=tuple(Ref(entity, doc) for _, doc in ranked),
        grades=tuple(grade for grade, _ in ranked),
        answers=texts(row.get("answer")),
        extra=extra,
    )


def _qrels(folder: Path, split: str) -> dict[str, dict[str, int]]:
    """Grade by document by query. The header line is optional; so is a TREC-style second column."""
    flat, nested = folder / "qrels.tsv", folder / "qrels" / f"{split}.tsv"
    path = nested if nested.is_file() else flat
    if not path.is_file():
        raise InvalidRequest(f"no qrels.tsv and no qrels/{split}.tsv in {folder}")
    judged: dict[str, dict[str, int]] = {}
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, cells in enumerate(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE), start=1):
            if not cells or cells[0] == "query-id":
                continue
            if len(cells) not in (3, 4) or not cells[-1].strip().lstrip("-").isdigit():
                raise InvalidRequest(f"{path}:{number}: expected query, document and an integer score, got {cells!r}")
            judged.setdefault(cells[0], {})[cells[-2]] = int(cells[-1])
    return judged
