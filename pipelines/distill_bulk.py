"""Asking a bulk engine for all summaries of a pass at once, and handing the answers back by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import ray

from pipelines.asking import TASKS, BulkSummarizer
from pipelines.context import recall_errors
from pipelines.distill_job import Job
from pipelines.distill_leaf import get_leaves
from pipelines.distill_levels import WAITING, FinishLevel, MakeLevel
from pipelines.storage import Folder
from recall.model_ports import Summary


def ask_leaves(job: Job, names: Sequence[str], first_of: Mapping[str, str], bulk: BulkSummarizer) -> dict[str, Summary]:
    """Answers for the rows that have no summary yet; of rows with the same text only one is asked."""
    return _ask(job, names, LeafTasks(job, first_of), bulk)


def ask_level(job: Job, height: int, level: MakeLevel, bulk: BulkSummarizer) -> tuple[list[str], FinishLevel]:
    """The waiting parts of a height, and the work that finishes them."""
    names = [name for name in job.run.names() if name.startswith(f"{WAITING}{height}-")]
    answers = _ask(job, names, LevelTasks(job.run), bulk) if names else {}
    return names, FinishLevel(level, answers)


@dataclass(frozen=True, slots=True)
class LeafTasks:
    """Tasks of a `pending-` part."""

    job: Job
    first_of: Mapping[str, str]

    def __call__(self, name: str) -> pa.Table:
        leaves, _ = get_leaves(self.job, name)
        rows = [
            {"task": leaf.node, "level": 0, "budget": leaf.budget, "texts": [leaf.text]}
            for leaf in leaves
            if leaf.summary is None and self.first_of.get(leaf.input_hash, leaf.node) == leaf.node
        ]
        return pa.Table.from_pylist(rows, schema=TASKS)


@dataclass(frozen=True, slots=True)
class LevelTasks:
    """Tasks of a `waiting-` part."""

    run: Folder

    def __call__(self, name: str) -> pa.Table:
        return self.run.read_table(name, TASKS.names).cast(TASKS)


def _ask(job: Job, names: Sequence[str], tasks: Callable[[str], pa.Table], bulk: BulkSummarizer) -> dict[str, Summary]:
    with recall_errors(f"summarise for tenant {job.tenant}"):
        read = ray.data.from_items([{"name": name} for name in names], override_num_blocks=len(names))
        asked = read.map_batches(_tasks, fn_kwargs={"tasks": tasks}, batch_size=1).materialize()
        if not asked.count():
            return {}
        return {row["task"]: _summary(row) for row in bulk(asked).iter_rows()}


def _tasks(batch: dict, tasks: Callable[[str], pa.Table]) -> pa.Table:
    return tasks(str(batch["name"][0]))


def _summary(row: Mapping) -> Summary:
    cited = row["cited"]
    return Summary(row["summary"] or "", tuple(int(at) for at in cited) if cited is not None else (), row["error"])
