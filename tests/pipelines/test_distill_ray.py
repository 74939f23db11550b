"""Distillation on a real Ray: the same tree as without it, after kills too, and digests in every plane."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from digesting import SMALL, Digested, FakeSummarizer, letter, note, words
from ray.data import Dataset

from pipelines.asking import ANSWERS
from pipelines.lanes import Lane
from recall.keys import store_key
from recall.model_ports import SummaryTask
from recall.rows import Ref

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def fill(tenant: Digested) -> Digested:
    """Rows in three scopes, some texts twice, some short, a few without scope."""
    tenant.put(*(note(i, topic=f"t{i % 3}") for i in range(90)), *(letter(i) for i in range(12)))
    tenant.put(*(note(f"twin {i}", words("twin", 30), topic="t1") for i in range(4)), note("short", "short"))
    return tenant


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Digested:
    """What a run that nothing disturbed leaves, made without Ray."""
    tenant = fill(Digested(tmp_path_factory.mktemp("reference")))
    tenant.run()
    return tenant


def test_ray_makes_the_same_tree(tmp_path: Path, reference: Digested) -> None:
    tenant = fill(Digested(tmp_path))
    steps: list[str] = []
    summary = tenant.spread(on_progress=lambda step: steps.append(step.step))
    assert tenant.tree() == reference.tree()
    assert summary.calls == reference.asked().total()
    assert {"read", "summarise rows", "place rows", "level 1", "level 2"} <= set(steps)
    again = tenant.spread()
    assert (again.calls, again.written, again.removed) == (0, 0, 0)


def test_little_work_is_done_without_ray(tmp_path: Path, reference: Digested, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = fill(Digested(tmp_path, rows_per_part=400, distill={**SMALL, "batch": 400}))
    monkeypatch.setattr("pipelines.flow.ray_session", lambda _: pytest.fail("Ray was started"))
    summary = tenant.run(flow=None)
    assert (summary.calls, summary.startup_seconds) == (reference.asked().total(), 0)
    assert tenant.tree() == reference.tree()


@pytest.mark.parametrize(
    ("step", "at"),
    [("read", 2), ("summarise rows", 3), ("share summaries", 1), ("place rows", 2), ("level 1", 2), ("level 3", 1)],
)
def test_killed_and_started_again_ends_in_the_same_tree(
    step: str, at: int, tmp_path: Path, reference: Digested
) -> None:
    tenant = fill(Digested(tmp_path))
    tenant.start_and_kill(step, at)
    tenant.run()
    assert tenant.tree() == reference.tree()
    # Only what was in flight at the kill may have been asked twice: one slice.
    asked = tenant.asked()
    assert asked.keys() == reference.asked().keys()
    assert asked.total() - reference.asked().total() <= 2 * tenant.settings.distill.batch
    assert tenant.run().written == 0


def test_a_bulk_engine_gets_a_whole_pass_at_once(tmp_path: Path, reference: Digested) -> None:
    engine = FakeEngine(tmp_path / "bulk.log")
    tenant = fill(Digested(tmp_path / "data"))
    summary = tenant.spread(bulk=engine)
    assert tenant.tree() == reference.tree()
    # One Dataset for the rows, one for each height that has something to ask.
    assert 1 < engine.passes <= summary.depth + 1
    assert engine.asked() == reference.asked().keys()
    assert tenant.spread(bulk=engine).calls == 0


class FakeEngine:
    """`BulkSummarizer` that answers as the fake summarizer does."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.passes = 0

    def asked(self) -> set[str]:
        return set(self._log.read_text().splitlines())

    def __call__(self, tasks: Dataset) -> Dataset:
        self.passes += 1
        return tasks.map_batches(_answer, fn_args=(self._log,), batch_format="pyarrow")


def _answer(batch: pa.Table, log: Path) -> pa.Table:
    rows = batch.to_pylist()
    answers = FakeSummarizer(log).summarize([SummaryTask(r["level"], tuple(r["texts"]), r["budget"]) for r in rows])
    found = [
        {"task": row["task"], "summary": answer.text, "cited": list(answer.cited), "error": answer.error}
        for row, answer in zip(rows, answers, strict=True)
    ]
    return pa.Table.from_pylist(found, schema=ANSWERS)


def test_digests_reach_every_plane_and_leave_it(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i, topic=f"t{i % 2}") for i in range(10)))
    summary = tenant.spread(load=True)
    assert summary.backfill is not None
    assert summary.backfill.errors == ()
    assert {lane.plane: lane.loaded.written for lane in summary.backfill.lanes} == {
        "vector": summary.written,
        "search": summary.written,
        "graph": summary.written,
    }
    tenant.bury(*(Ref("note", str(i)) for i in range(10)))
    gone = tenant.spread(load=True)
    assert gone.removed == summary.written
    lane = Lane("search", tenant.name, tenant.settings, tenant.registry)
    with lane.store() as store:
        assert store.hashes(tenant.name, [store_key(tenant.name, "digest", "digest:2:tenant")]) != {}
    assert tenant.spread(load=True).backfill is None


def test_many_rows_in_one_scope(tmp_path: Path) -> None:
    tenant = Digested(tmp_path, distill={"batch": 256}, rows_per_part=500)
    tenant.put(*(note(i, words(str(i), 30), topic="one") for i in range(1200)))
    summary = tenant.spread()
    tree = tenant.tree()
    assert (summary.failed, summary.rows) == (0, 1200)
    assert max(len(one["child_ids"]) for one in tree.values()) <= 32
    assert tree["digest:1:scope:topic:one"]["level"] == 1
    tenant.put(note(1, "other", 2, topic="one"))
    assert tenant.spread().calls <= 2 * summary.depth + 4
    assert SMALL["max_fan_in"] == 4
