"""Hydration: refs to current rows of the source of truth. What is gone, foreign or filtered never reaches an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from recall.errors import StoreError
from recall.ports import RowReader
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


async def hydrate(
    reader: RowReader, caller: Caller, refs: Iterable[Ref], where: Where | None, timeout_s: float
) -> Hydrated:
    """Read `refs`, one batched read per entity side by side. An entity whose read fails is reported, not raised."""
    by_entity: dict[str, list[str]] = {}
    for ref in refs:
        by_entity.setdefault(ref.entity, []).append(ref.id)
    found = await asyncio.gather(*(_read(reader, caller, entity, ids, timeout_s) for entity, ids in by_entity.items()))
    rows: dict[Ref, Row] = {}
    stale: set[Ref] = set()
    filtered: set[Ref] = set()
    failures: dict[str, StoreError] = {}
    for (entity, ids), answer in zip(by_entity.items(), found, strict=True):
        if isinstance(answer, StoreError):
            failures[entity] = answer
            continue
        for row_id in ids:
            row = answer.get(row_id)
            if row is None:
                stale.add(Ref(entity, row_id))
            elif matches(where, row.values):
                rows[row.ref] = row
            else:
                filtered.add(row.ref)
    return Hydrated(rows, frozenset(stale), frozenset(filtered), failures)


async def _read(
    reader: RowReader, caller: Caller, entity: str, ids: list[str], timeout_s: float
) -> dict[str, Row] | StoreError:
    try:
        return await reader.get_many(caller, entity, ids, timeout_s=timeout_s)
    except StoreError as error:
        return error
