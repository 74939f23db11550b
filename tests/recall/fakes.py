"""Channels and rows that do what a test says, for the engine's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from recall.errors import StoreError
from recall.hydration import read_entities
from recall.ports import ChannelQuery
from recall.registry import Registry
from recall.results import Candidate, ChannelAnswer, PathStep, Walk
from recall.rows import Caller, Ref, Row

CALLER = Caller("acme")


def registry() -> Registry:
    return Registry.parse(
        {
            "entities": {
                "site": {"columns": {"name": "string"}, "search": {"fields": ["name"]}},
                "asset": {
                    "columns": {
                        "name": "string",
                        "status": {"type": "string", "filterable": True},
                        "site_id": "string",
                        "secret": "string",
                    },
                    "search": {"fields": ["name"]},
                    "embed": {"fields": ["name"]},
                    "edges": [{"field": "site_id", "rel": "LOCATED_AT", "target": "site"}],
                },
                "note": {
                    "columns": {"text": "string", "private": "string"},
                    "search": {"fields": ["text"]},
                    "embed": {"fields": ["text"]},
                    "pack_fields": ["text"],
                },
            }
        }
    )


def row(entity: str, id_: str, **values: object) -> Row:
    return Row(Ref(entity, id_), 1, {"id": id_, **values})


class FakeRows:
    """A row reader over a dict; counts its calls."""

    def __init__(self, *rows: Row, delay_s: float = 0.0, error: Exception | None = None) -> None:
        self.rows = {one.ref: one for one in rows}
        self.delay_s = delay_s
        self.error = error
        self.calls: list[tuple[str, int]] = []

    async def get_many(
        self, caller: Caller, entity: str, ids: Sequence[str], *, timeout_s: float | None = None
    ) -> dict[str, Row]:
        self.calls.append((entity, len(ids)))
        await asyncio.sleep(self.delay_s)
        if self.error:
            raise self.error
        return {id_: self.rows[Ref(entity, id_)] for id_ in ids if Ref(entity, id_) in self.rows}


class FakeEntities(FakeRows):
    """Rows behind a hop: counts the calls, whatever the number of entities."""

    def __init__(self, *rows: Row, error: StoreError | None = None) -> None:
        super().__init__(*rows)
        self.hops: list[dict[str, int]] = []
        self.hop_error = error

    async def get_entities(
        self, caller: Caller, ids: Mapping[str, Sequence[str]], *, timeout_s: float | None = None
    ) -> dict[str, dict[str, Row] | StoreError]:
        self.hops.append({entity: len(wanted) for entity, wanted in ids.items()})
        if self.hop_error:
            raise self.hop_error
        return await read_entities(self, caller, ids, timeout_s)


# Payloads that `measure` was given.
MEASURED: list[bytes] = []


def measure(payload: bytes) -> int:
    """A tokenizer that remembers what it measured; everything has 50 tokens."""
    MEASURED.append(payload)
    return 50


class FakeChannel:
    """A channel with a fixed list of refs; remembers its queries."""

    def __init__(
        self,
        *refs: Ref,
        scores: Sequence[float] = (),
        error: BaseException | None = None,
        delay_s: float = 0.0,
        truncated: bool = False,
        paths: Mapping[Ref, tuple[PathStep, ...]] | None = None,
    ) -> None:
        self.refs = refs
        self.scores = scores or [1.0 / rank for rank in range(1, len(refs) + 1)]
        self.error, self.delay_s, self.truncated, self.paths = error, delay_s, truncated, paths or {}
        self.queries: list[ChannelQuery] = []
        self.cancelled = 0

    async def search(self, query: ChannelQuery) -> ChannelAnswer:
        self.queries.append(query)
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error:
            raise self.error
        window = self.refs[query.offset : query.offset + query.limit]
        found = tuple(
            Candidate(ref, rank, self.scores[rank - 1], path=self.paths.get(ref, ()))
            for rank, ref in enumerate(window, query.offset + 1)
        )
        return ChannelAnswer(found, self.truncated, exhausted=query.offset + query.limit >= len(self.refs))

    async def walk(self, query: ChannelQuery) -> Walk:
        self.queries.append(query)
        if self.error:
            raise self.error
        return Walk()
