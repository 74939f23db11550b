"""Hashes of the digest tree: what a node was made from, and roughly what it says.

`content_hash` is a Merkle hash: equal hashes mean that nothing below has changed. `sem_hash` is a 64-bit SimHash
(Charikar, STOC 2002) of the summary's embedding after centring: near texts differ in few bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

SEM_BITS = 64
NO_SEM_HASH = "0" * 16
MAX_DISTANCE = 8
BANDS = MAX_DISTANCE + 1


def text_hash(text: str) -> str:
    """sha256 of a text, 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def leaf_hash(recipe: str, source_hash: str, parent_ids: Iterable[str]) -> str:
    """content_hash of a level-0 node: sha256(recipe ‖ 0 ‖ sha256(source text) ‖ 0 ‖ sorted parent ids)."""
    return text_hash("\0".join((recipe, source_hash, *sorted(parent_ids))))


def parent_hash(recipe: str, child_hashes: Iterable[str]) -> str:
    """content_hash of a node with children: sha256(recipe ‖ 0 ‖ sorted child hashes)."""
    return text_hash("\0".join((recipe, *sorted(child_hashes))))


def input_hash(recipe: str, level: int, budget: int, inputs: Iterable[str]) -> str:
    """What a summary was made of: equal for two nodes whose summaries are interchangeable.

    `inputs`: the source_hash of a level-0 node, or the distinct summary hashes of the children in the order read.
    """
    return text_hash("\0".join((recipe, str(level), str(budget), *inputs)))


def bands(value: str) -> tuple[int, ...]:
    """A sem_hash cut into BANDS numbers: hashes within MAX_DISTANCE bits of each other agree in one of them.

    Eight flipped bits touch at most eight of nine bands (multi-index hashing: Norouzi, Punjani, Fleet, CVPR 2012).
    """
    number = int(value, 16)
    found = []
    for band in range(BANDS):
        width = SEM_BITS // BANDS + (band < SEM_BITS % BANDS)
        found.append(number & ((1 << width) - 1))
        number >>= width
    return tuple(found)


def sem_hash(vectors: np.ndarray, mean: np.ndarray) -> list[str]:
    """SimHashes of (n, dim) embeddings around `mean` (dim,), 16 lower-case hex digits each.

    Without centring, real embeddings share a direction and fall into a handful of buckets. The zero vector has
    NO_SEM_HASH: it says nothing and is near nothing.
    """
    # Rounded, because the last bits of a product depend on how many rows are multiplied at once.
    signs = np.round((vectors.astype(np.float64) - mean) @ _planes(vectors.shape[1]), 6) > 0
    empty = ~np.any(vectors, axis=1)
    packed = np.packbits(signs, axis=1)
    return [NO_SEM_HASH if none else bits.tobytes().hex() for bits, none in zip(packed, empty, strict=True)]


def hamming(left: str, right: str) -> int:
    """Bits in which two sem_hashes differ."""
    return (int(left, 16) ^ int(right, 16)).bit_count()


def _planes(dim: int) -> np.ndarray:
    # The same planes for ever: a sem_hash is stored and compared years later.
    return np.random.default_rng(20_240_229).standard_normal((dim, SEM_BITS)).astype(np.float32)
