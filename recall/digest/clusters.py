"""From leaves of the routing tree to clusters: leaves with too few members join a neighbour. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Side:
    """A subtree: clusters in path order (cluster path, its leaves), or leaves that are together below the floor."""

    clusters: list[tuple[str, list[str]]] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)


def settle(counts: Mapping[str, int], noise_floor: int) -> dict[str, str]:
    """The cluster of each leaf, by path; `counts` are members by leaf.

    A leaf below `noise_floor` members joins the nearest cluster of its sibling. Where the sibling is too small as
    well, their first common ancestor with enough members is the cluster. Leaves that are too few in all have none.
    """
    found = _solve("", sorted(path for path, count in counts.items() if count), counts, noise_floor)
    return {leaf: cluster for cluster, leaves in found.clusters for leaf in leaves}


def _solve(prefix: str, leaves: Sequence[str], counts: Mapping[str, int], floor: int) -> _Side:
    if not leaves:
        return _Side()
    if len(leaves) == 1:
        (leaf,) = leaves
        return _Side([(leaf, [leaf])]) if counts[leaf] >= floor else _Side(loose=[leaf])
    left, right = (
        _solve(prefix + bit, [leaf for leaf in leaves if leaf[len(prefix)] == bit], counts, floor) for bit in "01"
    )
    if left.clusters and right.loose:
        left.clusters[-1][1].extend(right.loose)
    elif right.clusters and left.loose:
        right.clusters[0][1].extend(left.loose)
    elif left.loose or right.loose:
        loose = left.loose + right.loose
        if sum(counts[leaf] for leaf in loose) >= floor:
            return _Side([(prefix, loose)])
        return _Side(loose=loose)
    return _Side(left.clusters + right.clusters)
