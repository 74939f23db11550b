"""The routing tree and the hashes: determinism, small leaves, identity of clusters."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recall.digest.hashes import NO_SEM_HASH, hamming, leaf_hash, parent_hash, sem_hash
from recall.digest.routing import RoutingTree, cluster_id


def clouds(seed, centres=12, each=40, dim=16):
    random = np.random.default_rng(seed)
    middle = random.standard_normal((centres, dim)) * 3
    rows = np.concatenate([middle[n] + 0.3 * random.standard_normal((each, dim)) for n in range(centres)])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32)


def test_leaves_are_small_and_hold_what_belongs_together():
    rows = clouds(1)
    tree = RoutingTree.fit(rows, 64)
    paths = np.array(tree.route(rows))
    sizes = [int((paths == leaf).sum()) for leaf in tree.leaves()]
    assert max(sizes) <= 64
    inside = np.mean([(rows[paths == leaf] @ rows[paths == leaf].T).mean() for leaf in set(paths)])
    assert inside > (rows @ rows.T).mean() + 0.5


def test_fit_does_not_depend_on_the_order_of_the_sample():
    rows = clouds(2)
    shuffled = rows[np.random.default_rng(0).permutation(len(rows))]
    assert RoutingTree.fit(rows, 32).dump() == RoutingTree.fit(shuffled, 32).dump()


def test_growing_one_leaf_leaves_the_others_alone():
    rows = clouds(3)
    tree = RoutingTree.fit(rows, 100)
    before = tree.route(rows)
    path = before[0]
    tree.grow(path, rows[[p == path for p in before]], 10)
    after = tree.route(rows)
    assert any(one != other for one, other in zip(before, after, strict=True))
    for old, new in zip(before, after, strict=True):
        assert new == old or (old == path and new.startswith(path))


def test_round_trip_through_bytes():
    rows = clouds(4)
    tree = RoutingTree.fit(rows, 32)
    copy = RoutingTree.load(tree.dump())
    assert copy.route(rows) == tree.route(rows)
    assert copy.leaves() == tree.leaves()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 3), st.integers(1, 8))
def test_few_and_equal_rows_are_no_problem(count, max_leaf):
    rows = np.ones((count, 4), dtype=np.float32)
    assert RoutingTree.fit(rows, max_leaf).route(rows) == [""] * count


def test_five_hundred_equal_rows_stay_together():
    rows = np.tile(np.float32([0.6, 0.8, 0, 0]), (500, 1))
    tree = RoutingTree.fit(rows, 32)
    assert tree.leaves() == [""]
    assert set(tree.route(rows)) == {""}


def test_cluster_ids_tell_paths_apart():
    assert cluster_id("") == "digest:1:cluster:0000000000000000:0"
    assert cluster_id("1") == "digest:1:cluster:8000000000000000:1"
    assert len({cluster_id(path) for path in ("", "0", "00", "1", "10", "01")}) == 6


def test_sem_hash_is_near_for_near_vectors_and_empty_for_zero():
    rows = clouds(5)
    mean = rows.mean(axis=0)
    hashes = sem_hash(np.vstack([rows[:2], rows[-1:], np.zeros((1, rows.shape[1]), np.float32)]), mean)
    assert hamming(hashes[0], hashes[1]) < hamming(hashes[0], hashes[2])
    assert hashes[3] == NO_SEM_HASH
    assert all(len(one) == 16 for one in hashes)


def test_merkle_hashes_depend_on_recipe_source_parents_and_children_not_on_order():
    assert leaf_hash("r", "s", ["a", "b"]) == leaf_hash("r", "s", ["b", "a"])
    assert (
        len(
            {
                leaf_hash("r", "s", ["a"]),
                leaf_hash("q", "s", ["a"]),
                leaf_hash("r", "t", ["a"]),
                leaf_hash("r", "s", []),
            }
        )
        == 4
    )
    assert parent_hash("r", ["x", "y"]) == parent_hash("r", ["y", "x"]) != parent_hash("r", ["x"])
