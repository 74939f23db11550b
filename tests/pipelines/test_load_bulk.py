"""The load stage and a plane's fast way in: when it is asked, and that upserts follow when it declines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from tenant import Tenant, note

from recall.ports import WriteReport

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]
ROWS = 60


@dataclass
class FastWay:
    """Takes what it is given, or says that the tenant has records already."""

    bulk_from: int
    takes: bool
    asked: int = 0
    ids: list[str] = field(default_factory=list)
    closed: bool = False

    def bulk_load(self, tenant: str, parts: Iterable[pa.Table]) -> WriteReport | None:
        self.asked += 1
        if not self.takes:
            return None
        self.ids = [row_id for part in parts for row_id in part["id"].to_pylist()]
        return WriteReport(len(self.ids))

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def tenant(tmp_path: Path) -> Tenant:
    tenant = Tenant(tmp_path)
    tenant.put(*(note(i) for i in range(ROWS)))
    return tenant


def opened(way: FastWay, monkeypatch: pytest.MonkeyPatch) -> FastWay:
    monkeypatch.setattr("pipelines.lanes.open_bulk", lambda settings, context: way)
    return way


@pytest.mark.parametrize(("bulk_from", "takes", "asked"), [(ROWS + 1, True, 0), (ROWS, False, 1)])
def test_small_loads_and_later_ones_are_upserts(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, bulk_from: int, takes: bool, asked: int
) -> None:
    way = opened(FastWay(bulk_from, takes), monkeypatch)
    summary = tenant.backfill(["vector"])
    assert not summary.errors
    assert (way.asked, way.ids, way.closed) == (asked, [], True)
    assert tenant.contents_of("vector")[0] == {"note": ROWS}


def test_a_large_first_load_goes_in_by_the_fast_way_alone(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    way = opened(FastWay(ROWS, True), monkeypatch)
    (lane,) = tenant.backfill(["vector"]).lanes
    assert sorted(way.ids, key=int) == [str(i) for i in range(ROWS)]
    assert lane.loaded.written == ROWS
    assert tenant.contents_of("vector")[0] == {}


def test_planes_without_a_fast_way_are_not_asked_for_one(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    way = opened(FastWay(1, True), monkeypatch)
    assert not tenant.backfill(["search", "graph"]).errors
    assert way.asked == 0
    assert tenant.contents_of("search")[0] == {"note": ROWS}
