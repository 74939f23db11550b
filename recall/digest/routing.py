"""The routing tree: a binary tree over embeddings whose leaves are clusters. A leaf's path is the cluster's identity.

Fitted once per tenant and recipe on a sample, by bisecting 2-means (Steinbach, Karypis, Kumar, 2000) started from the
first principal direction; from then on it only grows. Routing a row is depth × one dot product, so it is a map over
rows and never a shuffle. Deterministic: the same sample in any order gives the same tree.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

MAX_DEPTH = 60
_ITERATIONS = 8


@dataclass(slots=True)
class _Split:
    """An inner node: rows with `vector · normal > offset` go right (bit 1)."""

    normal: np.ndarray
    offset: float

    def right(self, rows: np.ndarray) -> np.ndarray:
        """Which of (n, dim) rows go right: for each row the same, whatever rows stand beside it."""
        sums = (rows.astype(np.float64) * self.normal).sum(axis=1)
        return np.asarray(np.round(sums - self.offset, 7) > 0)


@dataclass(slots=True)
class RoutingTree:
    """Inner nodes by path (a text of '0' and '1'; the root is ""). Every path without a split is a leaf.

    `mean` is the mean of the sample, what a sem_hash is centred on. `stuck`: leaves that could not be split, by the
    number of members that they had then.
    """

    dim: int
    mean: np.ndarray
    splits: dict[str, _Split] = field(default_factory=dict)
    stuck: dict[str, int] = field(default_factory=dict)

    @classmethod
    def fit(cls, sample: np.ndarray, max_leaf: int) -> RoutingTree:
        """A tree whose leaves hold at most `max_leaf` rows of the (n, dim) `sample`, as far as rows differ."""
        sample = _sorted(sample)
        mean = sample.mean(axis=0) if len(sample) else np.zeros(sample.shape[1], np.float32)
        tree = cls(sample.shape[1], mean.astype(np.float32))
        tree.grow("", sample, max_leaf)
        return tree

    def grow(self, path: str, members: np.ndarray, max_leaf: int) -> None:
        """Split the leaf at `path` until each leaf below holds at most `max_leaf` of `members` ((n, dim)).

        Rows that cannot be told apart stay together, whatever their number.
        """
        pending = [(path, _sorted(members))]
        while pending:
            here, rows = pending.pop()
            if len(rows) <= max_leaf or len(here) >= MAX_DEPTH:
                continue
            split = _bisect(rows)
            if split is None:
                continue
            self.splits[here] = split
            right = split.right(rows)
            pending += [(here + "0", rows[~right]), (here + "1", rows[right])]

    def is_leaf(self, path: str) -> bool:
        """Whether `path` is a leaf of this tree."""
        return path not in self.splits and (not path or path[:-1] in self.splits)

    def overfull(self, counts: Mapping[str, int], max_leaf: int) -> dict[str, int]:
        """The leaves of `counts` with more than `max_leaf` members that are worth splitting: not tried, or doubled."""
        return {path: n for path, n in counts.items() if n > max(max_leaf, 2 * self.stuck.get(path, 0))}

    def graft(self, path: str, raw: bytes, members: int) -> None:
        """Take over what a copy of this tree grew below the leaf `path`; it is stuck when nothing grew."""
        grown = {at: split for at, split in RoutingTree.load(raw).splits.items() if at.startswith(path)}
        self.splits |= grown
        if not grown:
            self.stuck[path] = members

    def route(self, vectors: np.ndarray) -> list[str]:
        """The leaf path of each of (n, dim) vectors."""
        paths = [""] * len(vectors)
        pending = [("", np.arange(len(vectors)))]
        while pending:
            here, rows = pending.pop()
            split = self.splits.get(here)
            if split is None or not len(rows):
                for row in rows:
                    paths[row] = here
                continue
            right = split.right(vectors[rows])
            pending += [(here + "0", rows[~right]), (here + "1", rows[right])]
        return paths

    def leaves(self) -> list[str]:
        """All leaf paths, in order."""
        if not self.splits:
            return [""]
        return sorted(path + bit for path in self.splits for bit in "01" if path + bit not in self.splits)

    def dump(self) -> bytes:
        """Bytes that `load` turns back into an equal tree."""
        paths = sorted(self.splits)
        normals = np.array([self.splits[path].normal for path in paths], dtype=np.float32).reshape(len(paths), self.dim)
        offsets = np.array([self.splits[path].offset for path in paths], dtype=np.float64)
        buffer = io.BytesIO()
        np.savez(
            buffer,
            mean=self.mean,
            paths=np.array(paths, dtype=str),
            normals=normals,
            offsets=offsets,
            stuck_paths=np.array(sorted(self.stuck), dtype=str),
            stuck_counts=np.array([self.stuck[path] for path in sorted(self.stuck)], dtype=np.int64),
        )
        return buffer.getvalue()

    @classmethod
    def load(cls, raw: bytes) -> RoutingTree:
        with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
            splits = {
                str(path): _Split(normal, float(offset))
                for path, normal, offset in zip(stored["paths"], stored["normals"], stored["offsets"], strict=True)
            }
            stuck = {
                str(path): int(count) for path, count in zip(stored["stuck_paths"], stored["stuck_counts"], strict=True)
            }
            return cls(len(stored["mean"]), stored["mean"], splits, stuck)


def cluster_id(path: str) -> str:
    """Node id of the cluster at a leaf: `digest:1:cluster:{path bits as 16 hex}:{bits}`; stable while the leaf is."""
    return f"digest:1:cluster:{int(path or '0', 2) << (64 - len(path)) if path else 0:016x}:{len(path)}"


def cluster_path(node_id: str) -> str:
    """The leaf path that a cluster's node id names."""
    _, _, _, prefix, bits = node_id.split(":")
    return f"{int(prefix, 16):064b}"[: int(bits)]


def _sorted(rows: np.ndarray) -> np.ndarray:
    # Row order must not matter: sums of floats depend on it.
    return rows[np.lexsort(rows.T[::-1])]


def _bisect(rows: np.ndarray) -> _Split | None:
    """2-means of (n, dim) rows as a plane between the two centres; None when all rows are the same."""
    mean = rows.mean(axis=0)
    centred = rows - mean
    direction = _principal(centred)
    if direction is None:
        return None
    right = centred @ direction > 0
    split = _between(rows, right)
    for _ in range(_ITERATIONS):
        if split is None:
            return None
        moved = split.right(rows)
        if np.array_equal(moved, right):
            return split
        right = moved
        refined = _between(rows, right)
        if refined is None:
            return split
        split = refined
    return split


def _principal(centred: np.ndarray) -> np.ndarray | None:
    """First principal direction by power iteration; None for rows without spread."""
    spread = np.einsum("ij,ij->i", centred, centred)
    if spread.max(initial=0.0) < 1e-10:
        return None
    direction = centred[int(spread.argmax())]
    for _ in range(_ITERATIONS):
        direction = centred.T @ (centred @ direction)
        direction = direction / max(float(np.linalg.norm(direction)), 1e-30)
    return np.asarray(direction, dtype=np.float32)


def _between(rows: np.ndarray, right: np.ndarray) -> _Split | None:
    """The plane half-way between the centres of the two sides; None when a side is empty or the centres coincide."""
    if right.all() or not right.any():
        return None
    high, low = rows[right].mean(axis=0), rows[~right].mean(axis=0)
    normal = (high - low).astype(np.float32)
    length = float(np.linalg.norm(normal))
    if length < 1e-6:
        return None
    normal /= length
    return _Split(normal, float(((high + low) / 2) @ normal))
