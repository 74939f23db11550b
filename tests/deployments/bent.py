"""Deployments that misbehave on request, put in the place of the real ones by the tests of a running service."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ray import serve

from deployments.replicas import StoreReplica
from recall.ports import ChannelQuery
from recall.results import Candidate, ChannelAnswer
from recall.rows import Ref


@serve.deployment
class BentSearch:
    """Answers at once; "slow" takes half a minute, "busy" takes a second. Counts what was cancelled."""

    def __init__(self) -> None:
        self._seen = {"started": 0, "cancelled": 0}

    async def search(self, query: ChannelQuery) -> ChannelAnswer:
        if "slow" in query.text:
            self._seen["started"] += 1
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self._seen["cancelled"] += 1
                raise
        if "busy" in query.text:
            await asyncio.sleep(1)
        return ChannelAnswer((Candidate(Ref("asset", "a1"), 1, 1.0),))

    async def health(self, timeout_s: float) -> None:
        pass

    async def seen(self) -> dict[str, int]:
        return self._seen


class Noted:
    """A store that writes into a folder what is asked of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def count(self, tenant: str, *, timeout_s: float | None = None) -> dict[str, int]:
        return {}

    async def health(self, *, timeout_s: float | None = None) -> None:
        (self._folder / f"health within {timeout_s}").touch()

    async def close(self) -> None:
        (self._folder / "closed").touch()


@serve.deployment
class NotedReplica(StoreReplica[Noted]):
    """A replica in front of a Noted store."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Noted(folder))
