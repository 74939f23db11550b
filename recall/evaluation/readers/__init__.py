"""Readers of public data sets in the forms their authors publish: rows to import, questions with their evidence.

A row reader takes files or folders and yields `(tenant, entity, row)`; tenant None means the importing command's own.
Readers look at files only; they never open a store.
"""

from recall.evaluation.readers.beir import beir_corpus, beir_queries
from recall.evaluation.readers.files import Record
from recall.evaluation.readers.hotpotqa import hotpotqa_passages, hotpotqa_queries
from recall.evaluation.readers.locomo import LOCOMO_CATEGORIES, locomo, locomo_queries
from recall.evaluation.readers.musique import musique_graph, musique_queries, phrase_id
from recall.evaluation.readers.qmsum import Meeting, Topic, qmsum_meetings
from recall.evaluation.readers.queries import Query
from recall.evaluation.readers.timeqa import timeqa_paragraphs, timeqa_queries

__all__ = [
    "LOCOMO_CATEGORIES",
    "Meeting",
    "Query",
    "Record",
    "Topic",
    "beir_corpus",
    "beir_queries",
    "hotpotqa_passages",
    "hotpotqa_queries",
    "locomo",
    "locomo_queries",
    "musique_graph",
    "musique_queries",
    "phrase_id",
    "qmsum_meetings",
    "timeqa_paragraphs",
    "timeqa_queries",
]
