"""Distillation without Ray: the tree after any change is the tree of the rows, and costs what the change needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from digesting import SMALL, Digested, letter, note, words
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.distill import run_distill
from pipelines.distill_summary import Progress
from recall.digest.nodes import DIGEST, TENANT_NODE
from recall.errors import Busy, ConfigError
from recall.registry import Registry
from recall.rows import Ref

SLOW = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def unrelated(tree: dict, *names: str) -> dict:
    """The tree without columns that a comparison leaves out."""
    return {node: {k: v for k, v in values.items() if k not in names} for node, values in tree.items()}


def beneath(tree: dict, node: str) -> set[str]:
    """Level-0 nodes under a node."""
    if tree[node]["level"] == 0:
        return {node}
    return {leaf for child in tree[node]["child_ids"] for leaf in beneath(tree, child)}


def ancestors(tree: dict, leaf: str) -> set[str]:
    above = {leaf}
    while more := {node for node, one in tree.items() if above & set(one["child_ids"])} - above:
        above |= more
    return above - {leaf}


def check_shape(tree: dict, fan_in: int, budget: int) -> None:
    """Limits hold, every child is there, and every row is under the root."""
    leaves = {node for node, one in tree.items() if one["level"] == 0}
    for one in tree.values():
        children = [tree[child] for child in one["child_ids"]]
        assert len(children) <= fan_in
        assert sum(child["tokens"] for child in children) <= budget
        assert set(one["cited_ids"]) <= set(one["child_ids"])
        assert one["tokens"] <= 16
    for leaf in leaves:
        for parent in tree[leaf]["parent_ids"]:
            assert leaf in beneath(tree, parent)
    assert (beneath(tree, TENANT_NODE) if leaves else set()) == leaves


@st.composite
def edits(draw) -> list:
    """A few rounds; each writes or deletes some of 24 notes and 6 letters."""
    ids = st.integers(0, 23)
    long = st.builds(lambda n: words(str(n), 30), st.integers(0, 30))
    text = st.one_of(long, st.sampled_from(["", "short", "the same short text"]))
    write = st.tuples(st.just("put"), ids, text, st.sampled_from(["a", "b", None]), st.sampled_from(["x", "y", None]))
    row = st.one_of(write, st.tuples(st.just("bury"), ids), st.tuples(st.just("letter"), st.integers(0, 5), text))
    return draw(st.lists(st.lists(row, min_size=1, max_size=14), min_size=2, max_size=4))


@SLOW
@given(edits())
def test_after_any_edits_the_tree_is_the_one_of_a_rebuild(tmp_path_factory, rounds) -> None:
    tenant = Digested(tmp_path_factory.mktemp("incremental"), rows_per_part=7)
    for version, changes in enumerate(rounds, 1):
        for change in changes:
            if change[0] == "put":
                _, row_id, text, topic, team = change
                tenant.put(note(row_id, text, version, topic, team=team))
            elif change[0] == "letter":
                tenant.put(letter(change[1], change[2], version))
            else:
                tenant.bury(Ref("note", str(change[1])), version=version)
        assert tenant.run().complete
    tree = tenant.tree()
    check_shape(tree, SMALL["max_fan_in"], SMALL["input_budget"])
    assert tree == tenant.rebuilt(tmp_path_factory.mktemp("rebuilt"))
    again = tenant.run()
    assert (again.calls, again.written, again.removed) == (0, 0, 0)


def test_the_tree_does_not_depend_on_order_or_layout(tmp_path: Path) -> None:
    rows = [note(i, topic=f"t{i % 3}") for i in range(60)]
    one, other = Digested(tmp_path / "a"), Digested(tmp_path / "b", rows_per_part=7, distill={**SMALL, "batch": 5})
    one.put(*rows)
    one.run()
    for row in rows[::-1]:
        other.put(row)
    other.run()
    assert one.tree() == other.tree()


@pytest.mark.parametrize("sample", [2, 8, 40])
def test_a_tree_fitted_on_a_few_of_the_rows_is_a_tree_of_all(sample: int, tmp_path: Path) -> None:
    tenant = Digested(tmp_path / "one", distill={**SMALL, "sample": sample, "batch": 2})
    tenant.put(*(note(i) for i in range(60)))
    assert tenant.run().complete
    check_shape(tenant.tree(), SMALL["max_fan_in"], SMALL["input_budget"])
    other = Digested(tmp_path / "other", distill={**SMALL, "sample": sample}, rows_per_part=7)
    other.put(*(note(i) for i in reversed(range(60))))
    other.run()
    assert other.tree() == tenant.tree()


def test_an_unchanged_run_makes_no_call_and_no_write(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i) for i in range(50)))
    first = tenant.run()
    before = tenant.nodes()
    tenant.log.unlink()
    second = tenant.run()
    assert (second.calls, second.written, second.removed, second.changed) == (0, 0, 0, 0)
    assert second.saved == sum(bool(row.values["asked"]) for row in before.values()) > 0
    assert first.calls + first.saved == second.saved
    assert tenant.nodes() == before
    assert not tenant.asked()


def test_unchanged_rows_are_looked_at_and_nothing_else_is(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i) for i in range(90)), note("short", "short"), note("none", ""))
    tenant.run()
    assert steps(tenant) == {"look"}
    tenant.put(note("short", "other"))
    assert {"look", "read", "place rows"} <= steps(tenant)
    assert steps(tenant) == {"look"}
    tenant.put(note("none", "", 2, topic="another"))
    assert steps(tenant) == {"look"}


@pytest.mark.parametrize(
    "change",
    [
        lambda tenant: tenant.put(note(1, topic="another")),
        lambda tenant: tenant.put(note(1, team="another")),
        lambda tenant: tenant.bury(Ref("note", "1")),
        lambda tenant: tenant.bury(
            Ref(DIGEST, "digest:0:note:1"), version=tenant.nodes()["digest:0:note:1"].version + 1
        ),
    ],
)
def test_a_look_sees_every_change_that_a_tree_shows(change: Callable[[Digested], None], tmp_path: Path) -> None:
    tenant = Digested(tmp_path / "one")
    tenant.put(*(note(i) for i in range(12)))
    tenant.run()
    change(tenant)
    tenant.run()
    assert tenant.tree() == tenant.rebuilt(tmp_path / "rebuilt")


@pytest.mark.parametrize("count", [1, 3, 10])
def test_changes_cost_their_own_paths(count: int, tmp_path: Path) -> None:
    tenant = Digested(tmp_path, distill={"batch": 64})
    tenant.put(*(note(i, topic=f"t{i % 5}") for i in range(200)))
    tenant.run()
    before = tenant.tree()
    changed = [note(i, f"now {words(f'new {i}', 30)}", 2, topic=f"t{i % 5}") for i in range(count)]
    tenant.put(*changed)
    summary = tenant.run()
    after = tenant.tree()
    leaves = {f"digest:0:note:{i}" for i in range(count)}
    paths = [ancestors(tree, leaf) for tree in (before, after) for leaf in leaves]
    assert 0 < summary.calls <= count + len(set().union(*paths))
    # A changed row is read under its scope and under the cluster it left and the one it joined.
    depth = max(map(len, paths)) - 1
    assert summary.calls <= count * (1 + 2 * depth) + 1
    assert after == tenant.rebuilt(tmp_path / "rebuilt")


def test_a_leaf_that_splits_costs_no_calls_under_unchanged_scopes(tmp_path: Path) -> None:
    tenant = Digested(tmp_path, distill={"max_fan_in": 4, "batch": 64})
    tenant.put(*(note(i, topic=f"t{i}") for i in range(40)))
    tenant.run()
    before = tenant.tree()
    tenant.put(*(note(f"new {i}", topic=f"new {i}") for i in range(12)))
    summary = tenant.run()
    after = tenant.tree()
    clusters = {node for node in after if ":cluster:" in node}
    assert clusters - before.keys()
    moved = {n for n in before if n in after and after[n]["parent_ids"] != before[n]["parent_ids"]}
    assert moved
    scopes = [f"digest:1:scope:topic:t{i}" for i in range(40)]
    assert all(after[node]["summary"] == before[node]["summary"] for node in scopes)
    asked = [line for line in tenant.asked() if line.startswith("0|")]
    assert len(asked) == 52
    assert summary.calls < 12 + len(after.keys() - before.keys()) + 12


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_rows_make_a_small_tree(count: int, tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(note("unseen", ""), *(letter(i) for i in range(count)))
    summary = tenant.run()
    tree = tenant.tree()
    check_shape(tree, 4, 80)
    assert summary.rows == count == sum(one["level"] == 0 for one in tree.values())
    assert (TENANT_NODE in tree) == (count > 0)
    if count == 1:
        # Nothing is left to summarise: the only text goes up as it is.
        assert tree[TENANT_NODE]["summary"] == tree["digest:0:letter:0"]["summary"]
        assert summary.calls == 1


def test_five_hundred_equal_rows_are_asked_once(tmp_path: Path) -> None:
    tenant = Digested(tmp_path, distill={"batch": 64})
    tenant.put(*(note(i, words("same", 30)) for i in range(500)))
    summary = tenant.run()
    assert (summary.calls, summary.rows, summary.failed) == (1, 500, 0)
    tree = tenant.tree()
    assert len({one["summary"] for one in tree.values()}) == 1
    assert max(len(one["child_ids"]) for one in tree.values()) <= 32
    assert beneath(tree, TENANT_NODE) == {f"digest:0:note:{i}" for i in range(500)}
    tenant.put(note("one more", words("same", 30)))
    assert tenant.run().calls == 0


def test_a_row_that_moves_leaves_its_old_scope(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i, topic="a" if i < 10 else "b") for i in range(20)), note("only", topic="c"))
    tenant.run()
    tenant.put(note(3, version=2, topic="b"), note("only", version=2, topic=None))
    summary = tenant.run()
    tree = tenant.tree()
    assert "digest:0:note:3" not in beneath(tree, "digest:1:scope:topic:a")
    assert "digest:0:note:3" in beneath(tree, "digest:1:scope:topic:b")
    assert "digest:1:scope:topic:c" not in tree
    assert summary.removed >= 1
    assert not [line for line in tenant.asked().elements() if line.startswith("0|note 3") and tenant.asked()[line] > 1]


def test_emptied_deleted_and_vanished_rows_leave_the_tree(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i) for i in range(12)))
    tenant.run()
    tenant.put(note(1, "", 2))
    tenant.bury(Ref("note", "2"))
    summary = tenant.run()
    tree = tenant.tree()
    assert beneath(tree, TENANT_NODE) == {f"digest:0:note:{i}" for i in range(12) if i not in (1, 2)}
    assert summary.removed >= 2
    assert tree == tenant.rebuilt(tmp_path / "rebuilt")


def test_rows_that_vanish_without_a_trace_are_noticed(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i) for i in range(12)))
    tenant.run()
    store = tenant.store()
    with store._database.writing(tenant.name) as connection:
        connection.exec_driver_sql("DELETE FROM note WHERE id = '5'")
    tenant.run()
    assert beneath(tenant.tree(), TENANT_NODE) == {f"digest:0:note:{i}" for i in range(12) if i != 5}


def test_a_tenant_without_rows_costs_nothing(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    summary = tenant.run(flow=None, load=True)
    assert (summary.rows, summary.backfill, summary.startup_seconds) == (0, None, 0)
    assert not tenant.nodes()


def test_all_rows_deleted_leaves_nothing(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i) for i in range(30)))
    tenant.run()
    count = len(tenant.tree())
    tenant.bury(*(Ref("note", str(i)) for i in range(30)))
    summary = tenant.run()
    assert (tenant.tree(), summary.removed, summary.calls) == ({}, count, 0)
    assert tenant.run().removed == 0
    tenant.put(note(1, version=20))
    tenant.run()
    assert set(tenant.tree()) == {"digest:0:note:1", "digest:1:scope:topic:t", TENANT_NODE}


GUARDED = {
    **SMALL,
    "guard": {
        "rules": [
            {"name": "secret", "pattern": "SECRET", "block": True},
            {"name": "mail", "pattern": r"\S+@\S+", "replacement": "[mail]"},
            {"name": "all", "pattern": "^erase .*$", "replacement": ""},
        ]
    },
}


def test_a_row_blocked_after_it_was_summarised_is_gone_everywhere(tmp_path: Path) -> None:
    tenant = Digested(tmp_path, distill=GUARDED)
    tenant.put(*(note(i) for i in range(8)), note("x", "marker zebra"), note("m", "write to me@example.org soon"))
    tenant.run()
    tree = tenant.tree()
    assert tree["digest:0:note:m"]["summary"] == "write to [mail] soon"
    assert any("zebra" in one["summary"] for one in tree.values() if one["level"] > 0)
    tenant.put(note("x", "marker zebra SECRET", 2), note("m", "erase me", 2))
    summary = tenant.run()
    assert (summary.blocked, summary.failed) == (1, 0)
    tree = tenant.tree()
    assert not {"digest:0:note:x", "digest:0:note:m"} & set(tree)
    assert not any("zebra" in one["summary"] or "SECRET" in one["summary"] for one in tree.values())
    assert tree == tenant.rebuilt(tmp_path / "rebuilt")


def test_a_summary_that_the_guard_blocks_is_not_asked_for_again(tmp_path: Path) -> None:
    rule = {"name": "tilde", "pattern": "^note 3 says", "block": True}
    tenant = Digested(tmp_path, distill={**SMALL, "guard": {"rules": [rule]}})
    tenant.put(*(note(i, f"about: note {i} says {words(str(i), 30)}") for i in range(6)))
    # The source passes, because it begins otherwise; what the model makes of it may not.
    tenant.put(note("3", f"\u200anote 3 says {words('3', 30)}", 2))
    summary = tenant.run()
    assert summary.blocked >= 1
    assert "digest:0:note:3" not in tenant.tree()
    tenant.log.unlink()
    again = tenant.run(full=False)
    assert (again.calls, again.written) == (0, 0)


def test_a_row_without_a_digest_may_go_and_a_look_still_settles_it(tmp_path: Path) -> None:
    rule = {"name": "tilde", "pattern": "^note 3 says", "block": True}
    tenant = Digested(tmp_path, distill={**SMALL, "guard": {"rules": [rule]}})
    tenant.put(*(note(i) for i in range(6) if i != 3), note("3", f"\u200anote 3 says {words('3', 30)}"))
    assert tenant.run().blocked == 1
    assert steps(tenant) == {"look"}
    tenant.bury(Ref("note", "3"))
    assert "level 1" not in steps(tenant)
    assert steps(tenant) == {"look"}


def test_a_new_recipe_makes_the_whole_tree_anew(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i) for i in range(20)))
    tenant.run()
    old = tenant.tree()
    changed = replace(tenant, distill={**SMALL, "output_budget": 20})
    summary = changed.run()
    new = changed.tree()
    assert summary.calls >= 20
    assert {one["recipe"] for one in new.values()}.isdisjoint(one["recipe"] for one in old.values())
    assert new == changed.rebuilt(tmp_path / "rebuilt")


def test_a_full_run_asks_everything_and_writes_nothing_that_is_the_same(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i) for i in range(20)))
    first = tenant.run()
    before = tenant.nodes()
    full = tenant.run(full=True)
    assert full.calls >= first.calls > 20
    assert (full.written, full.removed) == (0, 0)
    assert tenant.nodes() == before


def test_failed_calls_are_reported_and_the_next_run_repairs(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    rows = [note(i, f"poison {words(str(i), 30)}" if i % 20 == 7 else None) for i in range(60)]
    tenant.put(*rows)
    summary = tenant.run()
    assert summary.failed == 3
    assert not summary.complete
    assert "incomplete" in summary.line()
    letters = Path(str(summary.dead_letters)).read_text().splitlines()
    assert len(letters) == 3
    assert all("poisoned" in line for line in letters)
    # Each was tried as often as the settings say.
    assert sorted(times for line, times in tenant.asked().items() if "poison" in line) == [2, 2, 2]
    tree = tenant.tree()
    assert beneath(tree, TENANT_NODE) == {f"digest:0:note:{i}" for i in range(60) if i % 20 != 7}
    check_shape(tree, 4, 80)
    (tmp_path / "healed").touch()
    healed = tenant.run()
    assert (healed.complete, healed.failed) == (True, 0)
    assert healed.calls < 3 * 20
    tree = tenant.tree()
    assert len(beneath(tree, TENANT_NODE)) == 60
    again = tenant.run()
    assert (again.calls, again.written) == (0, 0)


def test_a_row_whose_new_summary_fails_stands_by_its_old_one(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i, topic="a") for i in range(10)))
    tenant.run()
    before = tenant.tree()["digest:0:note:4"]
    tenant.put(note(4, f"poison {words('4', 30)}", 2, topic="b"))
    assert tenant.run().failed == 1
    tree = tenant.tree()
    assert tree["digest:0:note:4"]["summary"] == before["summary"]
    assert "digest:0:note:4" in beneath(tree, "digest:1:scope:topic:b")
    assert "digest:0:note:4" not in beneath(tree, "digest:1:scope:topic:a")
    assert tenant.run().failed == 1
    (tmp_path / "healed").touch()
    assert tenant.run().complete
    assert "poison" in tenant.tree()["digest:0:note:4"]["summary"]
    assert tenant.tree() == tenant.rebuilt(tmp_path / "rebuilt")


def test_a_failed_node_above_is_left_out_until_it_is_repaired(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    # Short enough to be its own summary: the model meets it one level up.
    tenant.put(*(note(i, f"{'poison' if i == 2 else 'fine'} {i} " + "abcdef " * 6) for i in range(12)))
    summary = tenant.run()
    assert summary.failed >= 1
    tree = tenant.tree()
    assert TENANT_NODE in tree
    assert not any("poison" in one["summary"] for one in tree.values() if one["level"] > 0)
    (tmp_path / "healed").touch()
    assert tenant.run().complete
    tree = tenant.tree()
    check_shape(tree, 4, 80)
    assert len(beneath(tree, TENANT_NODE)) == 12
    assert tree == tenant.rebuilt(tmp_path / "rebuilt")


def test_a_model_that_fails_on_everything_ends_the_run(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i, f"poison {words(str(i), 30)}") for i in range(16)))
    with pytest.raises(ConfigError, match="fails on every task"):
        tenant.run()


def test_tenants_with_equal_ids_never_meet(tmp_path: Path) -> None:
    one, other = Digested(tmp_path), Digested(tmp_path, name="zenith")
    one.put(*(note(i, f"one {words(str(i), 30)}") for i in range(20)))
    other.put(*(note(i, f"other {words(str(i), 30)}") for i in range(20)))
    one.run()
    before = one.nodes()
    other.run()
    assert one.nodes() == before
    assert not any("one" in row.values["summary"].split() for row in other.nodes().values())
    other.bury(*(Ref("note", str(i)) for i in range(20)))
    other.run()
    assert one.nodes() == before
    assert one.run().written == 0


def test_equal_texts_of_two_tenants_are_asked_in_each(tmp_path: Path) -> None:
    one, other = Digested(tmp_path), Digested(tmp_path, name="zenith")
    for tenant in (one, other):
        tenant.put(note(1, words("same", 30)))
        assert tenant.run().calls == 1


def test_a_node_is_in_the_scope_that_all_beneath_it_share(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(
        *(note(i, topic="a", team="red") for i in range(6)), *(note(f"b{i}", topic="b", team="blue") for i in "12")
    )
    tenant.put(note("n", topic="c"))
    tenant.run()
    tree = tenant.tree()
    assert tree["digest:0:note:1"]["scope"] == "red"
    assert tree["digest:1:scope:topic:a"]["scope"] == "red"
    assert tree["digest:1:scope:topic:b"]["scope"] == "blue"
    assert tree[TENANT_NODE]["scope"] is None
    for node, one in tree.items():
        assert one["scope"] in ({tree[leaf]["scope"] for leaf in beneath(tree, node)} if one["scope"] else {None})
    # Only who may see it changes, not what it says: nobody is asked, and nobody reads on who may not.
    tenant.put(*(note(i, version=2, topic="a", team="green") for i in range(6)))
    summary = tenant.run()
    tree = tenant.tree()
    assert summary.calls == 0
    assert tree["digest:0:note:1"]["scope"] == tree["digest:1:scope:topic:a"]["scope"] == "green"
    assert tree == tenant.rebuilt(tmp_path / "rebuilt")


def test_a_dry_run_counts_and_leaves_no_trace(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i) for i in range(20)), note("short", "short"))
    summary = tenant.run(dry_run=True)
    assert (summary.rows, summary.changed, summary.calls, summary.written) == (21, 21, 20, 0)
    assert "dry run" in summary.line()
    assert not tenant.asked()
    assert not tenant.nodes()
    assert not (tmp_path / "runs").exists()


def test_no_texts_are_left_behind(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i) for i in range(20)))
    tenant.run()
    left = sorted(path.name for path in (tmp_path / "runs").rglob("*") if path.is_file())
    assert left == ["routing.npz", "state.json"]


class Stopped(Exception):
    """What ends a run of these tests between two passes."""


def stop_at(tenant: Digested, step: str, **options: object) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == step:
            raise Stopped

    with pytest.raises(Stopped):
        tenant.run(on_progress=stop, **options)


def steps(tenant: Digested, **options: object) -> set[str]:
    found: set[str] = set()
    tenant.run(on_progress=lambda progress: found.add(progress.step), **options)
    return found


def test_a_level_that_is_done_is_not_looked_at_again(tmp_path: Path) -> None:
    tenant = Digested(tmp_path / "killed")
    tenant.put(*(note(i) for i in range(60)))
    stop_at(tenant, "level 2")
    marks = [path.name for path in (tmp_path / "killed").rglob("level-*")]
    assert marks == ["level-1_SUCCESS"]
    found = steps(tenant)
    assert "level 1" not in found
    assert {"level 2", "level 3"} <= found
    assert tenant.tree() == tenant.rebuilt(tmp_path / "rebuilt")
    assert not list((tmp_path / "killed").rglob("level-*"))
    assert steps(tenant) == {"look"}


def test_a_level_is_done_for_its_own_rows_only(tmp_path: Path) -> None:
    tenant = Digested(tmp_path / "killed")
    tenant.put(*(note(i) for i in range(60)))
    stop_at(tenant, "level 2")
    # The mark of the first run must not survive that the second one begins to write the same level anew.
    tenant.put(note(1, f"now {words('new', 30)}", 2))
    stop_at(tenant, "level 1")
    tenant.put(note(1, version=3))
    assert {"level 1", "level 2"} <= steps(tenant)
    assert tenant.tree() == tenant.rebuilt(tmp_path / "rebuilt")


def test_a_level_with_a_failure_is_not_done(tmp_path: Path) -> None:
    tenant = Digested(tmp_path / "killed", distill={**SMALL, "batch": 4})
    tenant.put(*(note(i) for i in range(60)), note("bad", "poison"), note("worse", f"poison {words('x', 30)}"))
    stop_at(tenant, "level 2")
    (tmp_path / "killed" / "healed").touch()
    assert "level 1" in steps(tenant)
    assert tenant.tree() == tenant.rebuilt(tmp_path / "rebuilt")


def test_levels_of_another_recipe_are_not_done(tmp_path: Path) -> None:
    tenant = Digested(tmp_path / "killed")
    tenant.put(*(note(i) for i in range(60)))
    stop_at(tenant, "level 2")
    replace(tenant, distill={**SMALL, "output_budget": 20}).run()
    assert {"level 1", "level 2"} <= steps(tenant)
    assert tenant.tree() == tenant.rebuilt(tmp_path / "rebuilt")


def test_a_full_run_that_was_killed_begins_again(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i) for i in range(60)))
    tenant.run()
    stop_at(tenant, "level 2", full=True)
    assert {"level 1", "level 2"} <= steps(tenant, full=True)


def test_a_held_tenant_is_not_distilled(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(note(1))
    with tenant.store().lease(tenant.name, "backfill"), pytest.raises(Busy, match="backfill"):
        tenant.run()


def test_an_application_without_distilled_entities_is_told_so(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    with pytest.raises(ConfigError, match="no entity declares `distill`"):
        run_distill(tenant.settings, Registry({}), tenant.name)


def test_two_summaries_of_every_entity_must_fit_a_call(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    note_spec = tenant.registry.entity("note").spec
    large = note_spec.model_copy(update={"distill": note_spec.distill.model_copy(update={"budget": 41})})
    with pytest.raises(ConfigError, match=r"'note'.*half of distill\.input_budget"):
        run_distill(tenant.settings, Registry({"note": large}), tenant.name)


def test_digests_are_rows_of_their_own_entity(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(note(1))
    tenant.run()
    row = tenant.nodes()["digest:0:note:1"]
    assert row.ref == Ref(DIGEST, "digest:0:note:1")
    assert (row.values["source_entity"], row.values["source_id"]) == ("note", "1")


def test_parts_of_a_killed_run_of_another_recipe_do_not_stay(tmp_path: Path) -> None:
    tenant = Digested(tmp_path)
    tenant.put(*(note(i) for i in range(5)))
    tenant.run()
    (home,) = (path.parent for path in (tmp_path / "runs").rglob("routing.npz"))
    (home / "killed").mkdir()
    (home / "killed" / "pending-x.parquet").write_bytes(b"a text")
    replace(tenant, distill={**SMALL, "output_budget": 20}).run()
    assert not (home / "killed").exists()
    assert (home / "routing.npz").exists()
