"""Parts of a run: which there are, and work on several of them at once. Knows nothing of what is in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.distill_job import Job, Report


def parts(job: Job, *kinds: str) -> list[str]:
    """Names of the run's parts of these kinds."""
    return [name for name in job.run.names() if name.startswith(kinds)]


@dataclass(frozen=True, slots=True)
class Several:
    """`work` on each of several parts: a part may be too small to be a piece of work by itself."""

    work: Callable[[str], Any]

    def __call__(self, names: Sequence[str]) -> list[Any]:
        return [self.work(name) for name in names]


@dataclass(frozen=True, slots=True)
class Summed:
    """`work` on each of several parts, and the sum of its reports."""

    work: Callable[[str], Report]

    def __call__(self, names: Sequence[str]) -> Report:
        return sum((self.work(name) for name in names), Report())


@dataclass(frozen=True, slots=True)
class Joined:
    """`read` of several parts as one table."""

    read: Callable[[str], pa.Table]

    def __call__(self, names: Sequence[str]) -> pa.Table:
        return pa.concat_tables([self.read(name) for name in names])


def bundles(job: Job, names: Sequence[str]) -> list[list[str]]:
    """`names` of parts, in bundles of about `rows_per_part` rows."""
    found: list[list[str]] = []
    size = most = job.settings.pipeline.rows_per_part
    for name in names:
        count = job.run.rows(name)
        if size + count > most:
            found.append([])
            size = 0
        found[-1].append(name)
        size += count
    return found
