"""Hydration: refs to current rows of the source of truth. What is gone, foreign or filtered never reaches an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from recall.errors import StoreError
from recall.ports import EntitiesReader, RowReader
from recall.results import Degraded, DegradedCode
from recall.rows import Caller, Ref, Row
from recall.where import Where, matches


@dataclass(frozen=True, slots=True)
class Hydrated:
    """Live rows that pass the filter, by ref; refs without a row are stale; `failures` by entity."""

    rows: Mapping[Ref, Row]
    stale: frozenset[Ref]
    filtered: frozenset[Ref]
    failures: Mapping[str, StoreError]

    @property
    def degraded(self) -> tuple[Degraded, ...]:
        return tuple(
            Degraded("rows", DegradedCode.HYDRATE_FAILED, f"{entity}: {error}")
            for entity, error in sorted(self.failures.items())
        )


class Reading:
    """What one request reads of the source of truth: every ref once, and all that is asked for together in one call."""

    def __init__(self, reader: RowReader, caller: Caller) -> None:
        self.rows: dict[Ref, Row] = {}
        self._reader = reader
        self._caller = caller
        self._absent: set[Ref] = set()
        self._failures: dict[str, StoreError] = {}

    async def fetch(self, refs: Iterable[Ref], timeout_s: float) -> None:
        """Read those of `refs` that are not read yet. An entity whose read fails is remembered, not raised."""
        ids: dict[str, list[str]] = {}
        for ref in dict.fromkeys(refs):
            if ref not in self.rows and ref not in self._absent:
                ids.setdefault(ref.entity, []).append(ref.id)
        if not ids:
            return
        for entity, answer in (await self._ask(ids, timeout_s)).items():
            if isinstance(answer, StoreError):
                self._failures[entity] = answer
                continue
            self.rows |= {row.ref: row for row in answer.values()}
            self._absent.update(Ref(entity, row_id) for row_id in ids[entity] if row_id not in answer)

    async def _ask(
        self, ids: Mapping[str, Sequence[str]], timeout_s: float
    ) -> Mapping[str, Mapping[str, Row] | StoreError]:
        if not isinstance(self._reader, EntitiesReader):
            return await read_entities(self._reader, self._caller, ids, timeout_s)
        try:
            return await self._reader.get_entities(self._caller, ids, timeout_s=timeout_s)
        except StoreError as error:
            return dict.fromkeys(ids, error)

    def hydrated(self, refs: Iterable[Ref], where: Where | None) -> Hydrated:
        """What `fetch` found out about `refs`."""
        rows: dict[Ref, Row] = {}
        stale: set[Ref] = set()
        filtered: set[Ref] = set()
        failures: dict[str, StoreError] = {}
        for ref in refs:
            row = self.rows.get(ref)
            if row is not None and matches(where, row.values):
                rows[ref] = row
            elif row is not None:
                filtered.add(ref)
            elif ref in self._absent:
                stale.add(ref)
            else:
                failures[ref.entity] = self._failures[ref.entity]
        return Hydrated(rows, frozenset(stale), frozenset(filtered), failures)


async def hydrate(
    reader: RowReader, caller: Caller, refs: Sequence[Ref], where: Where | None, timeout_s: float
) -> Hydrated:
    """Read `refs` at once. An entity whose read fails is reported, not raised."""
    reading = Reading(reader, caller)
    await reading.fetch(refs, timeout_s)
    return reading.hydrated(refs, where)


async def read_entities(
    reader: RowReader, caller: Caller, ids: Mapping[str, Sequence[str]], timeout_s: float | None
) -> dict[str, dict[str, Row] | StoreError]:
    """Rows by entity and id, one batched read per entity side by side; of an entity that cannot be read, its error."""
    found = await asyncio.gather(*(_read(reader, caller, entity, wanted, timeout_s) for entity, wanted in ids.items()))
    return dict(zip(ids, found, strict=True))


async def _read(
    reader: RowReader, caller: Caller, entity: str, ids: Sequence[str], timeout_s: float | None
) -> dict[str, Row] | StoreError:
    try:
        return await reader.get_many(caller, entity, ids, timeout_s=timeout_s)
    except StoreError as error:
        return error
