"""The port between distillation and engines that summarise a whole level at once. Knows no engine.

A bulk summarizer maps a Dataset of tasks to a Dataset of answers, in any order, one answer a task. It never raises for
a row: what failed for good has an `error` and an empty summary. Texts, stores and the tree are not its business.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
from ray.data import Dataset

TASKS = pa.schema(
    [
        pa.field("task", pa.string(), nullable=False),
        # Chooses the prompt: 0 a row, 1 a scope or cluster, 2 the tenant.
        pa.field("level", pa.int32(), nullable=False),
        # Tokens that the summary may have.
        pa.field("budget", pa.int32(), nullable=False),
        pa.field("texts", pa.list_(pa.string()), nullable=False),
    ]
)
ANSWERS = pa.schema(
    [
        pa.field("task", pa.string(), nullable=False),
        pa.field("summary", pa.string()),
        # Positions of the texts that the summary draws on.
        pa.field("cited", pa.list_(pa.int32())),
        pa.field("error", pa.string()),
    ]
)


class BulkSummarizer(Protocol):
    """Summarises every task of a Dataset with the columns of TASKS; the answers have those of ANSWERS."""

    def __call__(self, tasks: Dataset) -> Dataset: ...
