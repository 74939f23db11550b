"""Clusters: small leaves join a neighbour, whatever the shape of the tree."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from recall.digest.clusters import settle


@st.composite
def leaf_counts(draw) -> dict[str, int]:
    """Members of the leaves of a random binary tree."""
    leaves = [""]
    for _ in range(draw(st.integers(0, 12))):
        leaf = leaves.pop(draw(st.integers(0, len(leaves) - 1)))
        leaves += [leaf + "0", leaf + "1"]
    return {leaf: draw(st.integers(0, 4)) for leaf in leaves}


@given(leaf_counts(), st.integers(1, 4))
def test_every_member_is_in_one_large_enough_cluster(counts: dict[str, int], floor: int) -> None:
    clusters = settle(counts, floor)
    occupied = {leaf for leaf, count in counts.items() if count}
    if sum(counts.values()) < floor:
        assert clusters == {}
        return
    assert clusters.keys() == occupied
    sizes: dict[str, int] = {}
    for leaf, cluster in clusters.items():
        sizes[cluster] = sizes.get(cluster, 0) + counts[leaf]
    assert min(sizes.values(), default=floor) >= floor
    # A leaf that is large enough keeps its own name.
    assert all(clusters[leaf] == leaf for leaf in occupied if counts[leaf] >= floor)
    # No cluster's path begins with that of another, so the names stay apart.
    assert not any(after.startswith(before) for before, after in pairwise(sorted(set(sizes))))


@given(leaf_counts())
def test_clusters_do_not_depend_on_the_order_of_leaves(counts: dict[str, int]) -> None:
    assert settle(counts, 2) == settle(dict(reversed(counts.items())), 2)


def test_a_small_leaf_joins_its_sibling_or_what_is_next_to_it() -> None:
    assert settle({"0": 1, "1": 5}, 2) == {"0": "1", "1": "1"}
    assert settle({"00": 3, "01": 3, "1": 1}, 2) == {"00": "00", "01": "01", "1": "01"}
    assert settle({"00": 1, "01": 1, "1": 5}, 2) == {"00": "0", "01": "0", "1": "1"}
    assert settle({"00": 1, "01": 0, "10": 0, "11": 1}, 2) == {"00": "", "11": ""}
    assert settle({"": 1}, 2) == {}
