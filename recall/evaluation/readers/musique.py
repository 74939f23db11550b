"""MuSiQue with OpenIE triples: passages, the phrases they mention, and the facts between phrases."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from recall.errors import InvalidRequest
from recall.evaluation.readers.beir import PASSAGE, beir_corpus, beir_queries
from recall.evaluation.readers.files import Record, find_file, read_jsonl, text
from recall.evaluation.readers.queries import Query
from recall.keys import MAX_ID_BYTES, clean_text, content_hash, cut_bytes

Fact = tuple[str, str, str]


def phrase_id(phrase: str) -> str:
    """Identity of a phrase: NFKC, case-folded, white space collapsed, cut to what an id may hold; "" for none."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", clean_text(phrase)).casefold())
    return cut_bytes(" ".join(folded.split()), MAX_ID_BYTES).rstrip()


def musique_graph(paths: Sequence[Path]) -> Iterator[Record]:
    """`passage` (id, title, text, mentions), `phrase` (id, name) and `fact` (id, head, predicate, tail).

    `mentions` are phrase ids, in order of appearance: the extracted entities of a passage and both ends of its triples.
    A triple that has not exactly three non-empty parts is no fact, as its authors count; its ends are still mentioned.
    A phrase is called by its first spelling; a fact stated by several passages is one row.
    """
    graph = find_file(paths, "triples.jsonl")
    mentions: dict[str, tuple[str, ...]] = {}
    names: dict[str, str] = {}
    facts: dict[Fact, None] = {}
    for row in read_jsonl(graph):
        phrases, stated = _extracted(row, graph)
        for phrase in phrases:
            names.setdefault(phrase_id(phrase), " ".join(clean_text(phrase).split()))
        mentions[text(row, "_id", graph)] = tuple(dict.fromkeys(map(phrase_id, phrases)))
        facts.update(dict.fromkeys(stated))
    for tenant, entity, passage in beir_corpus(paths):
        yield tenant, entity, {**passage, "mentions": list(mentions.get(str(passage["id"]), ()))}
    for name_id, name in names.items():
        yield None, "phrase", {"id": name_id, "name": name}
    for fact in facts:
        head, predicate, tail = fact
        yield None, "fact", {"id": content_hash(list(fact)), "head": head, "predicate": predicate, "tail": tail}


def _extracted(row: dict[str, object], path: Path) -> tuple[list[str], list[Fact]]:
    """Phrases and facts of one passage."""
    entities, triples = row.get("entities") or [], row.get("triples") or []
    if not isinstance(entities, list) or not isinstance(triples, list):
        raise InvalidRequest(f"{path}: `entities` and `triples` must be lists, passage {row.get('_id')!r}")
    phrases = [str(entity) for entity in entities]
    facts: list[Fact] = []
    for triple in triples:
        if not isinstance(triple, list) or len(triple) < 2:
            continue
        head, tail = str(triple[0]), str(triple[-1])
        phrases += [head, tail]
        fact = (phrase_id(head), " ".join(clean_text(str(triple[1])).split()), phrase_id(tail))
        if len(triple) == 3 and all(fact):
            facts.append(fact)
    return [phrase for phrase in phrases if phrase_id(phrase)], facts


def musique_queries(folder: Path) -> list[Query]:
    """Questions with their supporting passages; `kind` is "2hop", "3hop" or "4hop"."""
    found = beir_queries(folder, entity=PASSAGE)
    return [replace(question, kind=f"{question.extra.get('hops')}hop") for question in found]
