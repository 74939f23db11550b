"""Backfills on a real Ray with embedded stores: what changed, what failed, what a kill leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tenant import ENTITIES, Tenant, note, site

from pipelines.runs import earlier_stages
from pipelines.sinks import StoreSink
from recall.errors import Busy, ConfigError
from recall.planes.opening import open_rows, plane_context
from recall.records import PLANES
from recall.rows import Ref

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]
COUNT = 400


def fill(tenant: Tenant, count: int = COUNT) -> Tenant:
    """`count` notes, of which one in all has a year, at three sites."""
    tenant.put(*(note(i, site=f"s{i % 3}", year=1999 if i == 7 else None) for i in range(count)))
    tenant.put(*(site(f"s{i}") for i in range(3)))
    return tenant


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> dict[str, object]:
    """What the planes hold after a backfill that nothing disturbed."""
    tenant = fill(Tenant(tmp_path_factory.mktemp("reference")))
    summary = tenant.backfill()
    assert summary.errors == ()
    assert {lane.plane: lane.staged.changed for lane in summary.lanes} == {
        "vector": COUNT,
        "search": COUNT + 3,
        "graph": COUNT + 3,
    }
    return tenant.contents()


def test_every_row_is_in_its_planes(reference: dict[str, object]) -> None:
    assert reference["vector"][0] == {"note": COUNT}
    assert reference["search"][0] == {"note": COUNT, "site": 3}
    assert reference["graph"][0] == {"note": COUNT, "site": 3}


@pytest.mark.parametrize(
    "at",
    [
        "vector:embed:4",
        "vector:stage:3",
        "vector:load:1",
        "search:stage:2",
        "search:load:1",
        "graph:stage:2",
        "graph:load:1",
    ],
)
def test_killed_and_started_again_ends_in_the_same_stores(
    at: str, tmp_path: Path, reference: dict[str, object]
) -> None:
    tenant = fill(Tenant(tmp_path))
    tenant.start_and_kill(at)
    plane = at.split(":")[0]
    summary = tenant.backfill([plane])
    assert summary.errors == ()
    assert summary.lanes[0].recovered + summary.lanes[0].loaded.written > 0
    assert tenant.contents_of(plane) == reference[plane]
    # Only the batch in flight at the kill may have been embedded twice.
    texts = tenant.model.texts()
    repeated = [text for text, times in texts.items() if times > 1]
    assert len(texts) == (COUNT if plane == "vector" else 0)
    assert texts.total() - len(texts) == len(repeated) <= tenant.rows_per_part


def test_a_killed_run_resumes_with_another_layout_of_parts(tmp_path: Path, reference: dict[str, object]) -> None:
    first = fill(Tenant(tmp_path))
    first.start_and_kill("vector:stage:4")
    other = Tenant(tmp_path, rows_per_part=37, logical_cpus=9)
    (lane,) = other.backfill(["vector"]).lanes
    assert lane.error is None
    assert lane.recovered >= 3 * first.rows_per_part
    assert other.contents_of("vector") == reference["vector"]
    assert sum(times > 1 for times in other.model.texts().values()) <= first.rows_per_part


def test_nothing_changed_means_nothing_embedded_and_nothing_written(tmp_path: Path) -> None:
    tenant = fill(Tenant(tmp_path), 60)
    tenant.backfill()
    runs = sorted((tmp_path / "runs" / "acme").iterdir())
    tenant.model.forget()
    summary = tenant.backfill()
    assert [(lane.staged.changed, lane.loaded.written) for lane in summary.lanes] == [(0, 0)] * len(PLANES)
    assert [lane.staged.unchanged for lane in summary.lanes] == [60, 63, 63]
    assert not tenant.model.texts()
    assert [path for path in runs if any(path.iterdir())] == runs


def test_edits_deletes_and_lost_texts_reach_every_plane(tmp_path: Path) -> None:
    tenant = fill(Tenant(tmp_path), 60)
    tenant.backfill()
    tenant.model.forget()
    tenant.put(note(1, "edited", 2), note(2, "", 2), note(3, version=2, site="s0"))
    tenant.bury(Ref("note", "4"), Ref("note", "5"))
    summary = tenant.backfill()
    by_plane = {lane.plane: (lane.staged.changed, lane.staged.deleted) for lane in summary.lanes}
    assert by_plane == {"vector": (2, 2), "search": (2, 2), "graph": (2, 2)}
    assert list(tenant.model.texts()) == ["edited"]
    counts = {plane: found[0] for plane, found in tenant.contents().items()}
    assert counts["vector"] == {"note": 57}
    assert counts["search"] == {"note": 57, "site": 3}
    assert counts["graph"] == {"note": 58, "site": 3}
    assert [lane.loaded.written for lane in tenant.backfill().lanes] == [0, 0, 0]


def test_a_poisoned_row_is_a_dead_letter_and_the_others_go_on(tmp_path: Path) -> None:
    tenant = fill(Tenant(tmp_path), 60)
    tenant.put(note("bad", "poison here"))
    summary = tenant.backfill()
    assert (summary.failed, summary.errors) == (1, ())
    assert tenant.contents()["vector"][0] == {"note": 60}
    assert tenant.contents()["search"][0] == {"note": 61, "site": 3}
    (letter,) = [json.loads(line) for line in Path(summary.dead_letters).read_text().splitlines()]
    assert letter == {"plane": "vector", "entity": "note", "id": "bad", "reason": "ValueError: poisoned"}
    assert "1 failed" in summary.line()
    assert summary.dead_letters in summary.line()
    tenant.put(note("bad", "healed", 2))
    assert tenant.backfill().failed == 0
    assert tenant.contents()["vector"][0] == {"note": 61}


def test_a_lost_plane_is_refilled_from_parts(tmp_path: Path) -> None:
    tenant = fill(Tenant(tmp_path), 120)
    tenant.backfill(["vector"])
    before = tenant.contents()["vector"]
    tenant.model.forget()
    (tmp_path / "vectors").rename(tmp_path / "lost")
    summary = tenant.backfill(["vector"])
    assert summary.lanes[0].recovered == 120
    assert not tenant.model.texts()
    assert tenant.contents()["vector"] == before


def test_a_dry_run_counts_and_leaves_no_trace(tmp_path: Path) -> None:
    tenant = fill(Tenant(tmp_path), 60)
    before = sorted(tmp_path.rglob("*.parquet"))
    summary = tenant.backfill(dry_run=True)
    assert [lane.staged.changed for lane in summary.lanes] == [60, 63, 63]
    assert not tenant.model.texts()
    assert sorted(tmp_path.rglob("*.parquet")) == before == []
    assert summary.line().splitlines()[-1].startswith("dry run of acme")


def test_a_limit_takes_that_many_rows_of_each_entity(tmp_path: Path) -> None:
    tenant = fill(Tenant(tmp_path), 60)
    summary = tenant.backfill(limit=2)
    assert [lane.staged.changed for lane in summary.lanes] == [2, 4, 4]
    assert [lane.staged.changed for lane in tenant.backfill(limit=55).lanes] == [53, 54, 54]


def test_a_second_backfill_of_the_tenant_is_told_who_holds_it(tmp_path: Path) -> None:
    tenant = fill(Tenant(tmp_path), 5)
    store = open_rows(tenant.settings, plane_context(tenant.settings, tenant.registry))
    with store.lease("acme", "backfill"), pytest.raises(Busy, match="backfill"):
        tenant.backfill()
    assert tenant.backfill().errors == ()


def test_a_lane_that_cannot_stage_is_named_and_the_others_finish(tmp_path: Path) -> None:
    tenant = fill(Tenant(tmp_path), 60)
    (tmp_path / "search").write_text("in the way of a folder")
    summary = tenant.backfill()
    (error,) = summary.errors
    assert error.startswith("search: ")
    assert str(tmp_path / "search") in error
    assert tenant.contents_of("vector")[0] == {"note": 60}
    (tmp_path / "search").unlink()
    assert tenant.backfill().errors == ()
    assert tenant.contents()["search"][0] == {"note": 60, "site": 3}


def test_parts_that_cannot_be_written_end_the_lane_with_their_path(tmp_path: Path) -> None:
    tenant = fill(Tenant(tmp_path), 60)
    (tmp_path / "runs").write_text("in the way of a folder")
    summary = tenant.backfill(["vector"])
    (error,) = summary.errors
    assert str(tmp_path / "runs") in error
    assert "run again" in error
    (tmp_path / "runs").unlink()
    assert tenant.backfill(["vector"]).errors == ()
    assert tenant.contents_of("vector")[0] == {"note": 60}


def test_a_model_that_always_fails_ends_its_lane_only(tmp_path: Path) -> None:
    tenant = Tenant(tmp_path)
    tenant.put(*(note(i, f"poison {i}") for i in range(60)))
    summary = tenant.backfill()
    (error,) = summary.errors
    assert "embedder hash fails on every row" in error


def test_unknown_planes_are_refused(tmp_path: Path) -> None:
    assert "note" in ENTITIES["entities"]
    with pytest.raises(ConfigError, match="unknown plane nowhere"):
        fill(Tenant(tmp_path), 1).backfill(["nowhere"])


def test_the_same_block_twice_is_the_same_store(tmp_path: Path) -> None:
    tenant = fill(Tenant(tmp_path), 60)
    tenant.backfill()
    before = tenant.contents()
    for plane in PLANES:
        lane = tenant.lane(plane)
        (stage,) = earlier_stages(lane, loaded=True)
        blocks = [stage.folder.read_table(name) for name in stage.parts()]
        assert StoreSink(lane).write([*blocks, *blocks], None).failures == ()
    assert tenant.contents() == before
