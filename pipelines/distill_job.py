"""One distillation as its workers see it: whose rows, which recipe, where its files are. Opens nothing until asked."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import lru_cache

from pipelines.deadletters import DeadLetters
from pipelines.making import Maker
from pipelines.receipts import Failure
from pipelines.retries import Result, patiently, write_with_retries
from pipelines.storage import Folder
from recall.digest.nodes import DIGEST
from recall.keys import content_hash
from recall.model_ports import Embedder, Summarizer
from recall.planes.opening import open_rows, plane_context
from recall.ports import RowStore, WriteReport
from recall.registry import Registry
from recall.rows import Caller, Ref, Row, Tombstone
from recall.settings import Settings
from recall.where import Condition

OpenModels = Callable[[Settings], tuple[Embedder, Summarizer | None]]


@dataclass(frozen=True, slots=True)
class Job:
    """`home` keeps what outlives a run: the routing tree and what the guard blocked; `run` holds the parts of this one.

    `version`: of every node that this run writes. `full`: no stored summary is trusted. `open_models` replaces the
    models that the settings name.
    """

    settings: Settings
    registry: Registry
    tenant: str
    recipe: str
    version: int
    started: str
    home: Folder
    run: Folder
    full: bool = False
    blocked: frozenset[str] = frozenset()
    open_models: OpenModels | None = None

    @property
    def caller(self) -> Caller:
        return Caller(self.tenant)

    @contextmanager
    def rows(self) -> Iterator[Nodes]:
        """The source of truth, open for one piece of work."""
        store = open_rows(self.settings, plane_context(self.settings, self.registry))
        # One event loop for all reads: stores and their clients bind to the first that they meet.
        with asyncio.Runner() as loop:
            try:
                yield Nodes(self, store, loop)
            finally:
                loop.run(store.close())

    def maker(self) -> Maker:
        """The models of this process: a worker keeps those that it opened last."""
        return _maker(pickle.dumps((self.settings, self.tenant, self.open_models)))


@lru_cache(maxsize=1)
def _maker(packed: bytes) -> Maker:
    settings, tenant, open_models = pickle.loads(packed)
    return Maker(settings, tenant, open_models)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The source of truth as a distillation uses it: rows and nodes of one tenant, with retries."""

    job: Job
    store: RowStore
    loop: asyncio.Runner

    def get(self, entity: str, ids: Iterable[str]) -> dict[str, Row]:
        """Live rows by id."""
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return {}
        return self._patiently(lambda: self.loop.run(self.store.get_many(self.job.caller, entity, wanted)))

    def count(self) -> int:
        """Live nodes of the tenant."""
        return self.loop.run(self.store.count(self.job.tenant)).get(DIGEST, 0)

    def same_input(self, input_hash: str) -> Row | None:
        """A node whose summary was made of the same input."""
        where = Condition("input_hash", "string", "eq", input_hash)
        found = self._patiently(lambda: self.loop.run(self.store.find(self.job.caller, DIGEST, where, 1)))
        return found[0] if found else None

    def write(self, rows: Sequence[Row]) -> Report:
        """Upsert the nodes that differ from what is stored in more than the time of writing."""
        stored = self.get(DIGEST, [row.ref.id for row in rows])
        return self._write([row for row in rows if not _equal(row, stored.get(row.ref.id))])

    def remove(self, ids: Iterable[str]) -> Report:
        """Tombstones for nodes that are stored and live."""
        stored = self.get(DIGEST, ids)
        if not stored:
            return Report()
        tombs = [Tombstone(Ref(DIGEST, node), self.job.version) for node in sorted(stored)]
        self._patiently(lambda: self.store.delete(self.job.tenant, tombs))
        return Report(removed=len(stored), asked=-sum(bool(row.values["asked"]) for row in stored.values()))

    def _write(self, rows: Sequence[Row]) -> Report:
        if not rows:
            return Report()

        def write(keys: frozenset[str] | None) -> WriteReport:
            # The source of truth names a failed row by its id.
            return self.store.upsert(self.job.tenant, [r for r in rows if keys is None or r.ref.id in keys])

        done = write_with_retries(write, self.job.settings.pipeline.write_retries)
        failures = tuple(Failure(DIGEST, failure.key, failure.reason) for failure in done.failures)
        return Report(written=done.written, failures=failures)

    def _patiently(self, call: Callable[[], Result]) -> Result:
        return patiently(call, self.job.settings.pipeline.write_retries)


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker did. Reports add up: numbers and tuples are joined, sets united.

    `rows`: source rows with a text. `calls`: sent to the summarizer, repetitions included; `made`: summaries it made.
    `asked`: by how much the number of stored summaries that a model made has changed. `refused`: what the guard
    blocked, for the next run. `affected`: nodes whose children changed; `parents`: nodes that have children;
    `orphans`: rows under no such node, as (node, tokens). `heights`: model calls planned, by part and height.
    `fingerprint`: of the rows that were read, or of the leaves that were placed; a sum, so in any order.
    """

    rows: int = 0
    fingerprint: int = 0
    stored: int = 0
    changed: int = 0
    blocked: int = 0
    calls: int = 0
    made: int = 0
    asked: int = 0
    written: int = 0
    removed: int = 0
    failures: tuple[Failure, ...] = ()
    refused: frozenset[str] = frozenset()
    affected: frozenset[str] = frozenset()
    parents: frozenset[str] = frozenset()
    orphans: tuple[tuple[str, int], ...] = ()
    upper: frozenset[str] = frozenset()
    leaves: Counter[str] = field(default_factory=Counter)
    heights: Counter[tuple[str, int]] = field(default_factory=Counter)

    def __add__(self, other: Report) -> Report:
        sums = []
        for one in fields(Report):
            left, right = getattr(self, one.name), getattr(other, one.name)
            sums.append(left | right if isinstance(left, frozenset) else left + right)
        return Report(*sums)


def _equal(row: Row, stored: Row | None) -> bool:
    if stored is None or stored.scope != row.scope:
        return False
    return {**stored.values, "updated_at": None} == {**row.values, "updated_at": None}


def refusal(node: str, input_hash: str, scope: str | None) -> str:
    """What is remembered of a summary that the guard blocked: it is not asked for again until something changes."""
    return content_hash([node, input_hash, scope])[:16]


def text_of(row: Row, name: str) -> str | None:
    """A text column of a stored node."""
    value = row.values.get(name)
    return None if value is None else str(value)


def bury(letters: DeadLetters, failures: Sequence[Failure]) -> None:
    """Failures as dead letters."""
    for failure in failures:
        letters.add({"job": "distill", "entity": failure.entity, "id": failure.id, "reason": failure.reason})
