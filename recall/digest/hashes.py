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


def text_hash(text: str) -> str:
    """sha256 of a text, 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def leaf_hash(recipe: str, source_hash: str, parent_ids: Iterable[str]) -> str:
    """content_hash of a level-0 node: sha256(recipe ‖ 0 ‖ sha256(source text) ‖ 0 ‖ sorted parent ids)."""
    return text_hash("\0".join((recipe, source_hash, *sorted(parent_ids))))


def parent_hash(recipe: str, child_hashes: Iterable[str]) -> str:
    """content_hash of a node with children: sha256(recipe ‖ 0 ‖ sorted child hashes)."""
    return text_hash("\0".join((recipe, *sorted(child_hashes))))


def sem_hash(vectors: np.ndarray, mean: np.ndarray) -> list[str]:
    """SimHashes of (n, dim) embeddings around `mean` (dim,), 16 lower-case hex digits each.

    Without centring, real embeddings share a direction and fall into a handful of buckets. The zero vector has
    NO_SEM_HASH: it says nothing and is near nothing.
    """
    centred = vectors - mean
    signs = centred @ _planes(vectors.shape[1]) > 0
    empty = ~np.any(vectors, axis=1)
    packed = np.packbits(signs, axis=1)
    return [NO_SEM_HASH if none else bits.tobytes().hex() for bits, none in zip(packed, empty, strict=True)]


def hamming(left: str, right: str) -> int:
    """Bits in which two sem_hashes differ."""
    return (int(left, 16) ^ int(right, 16)).bit_count()


def _planes(dim: int) -> np.ndarray:
    # The same planes for ever: a sem_hash is stored and compared years later.
    return np.random.default_rng(20_240_229).standard_normal((dim, SEM_BITS)).astype(np.float32)
