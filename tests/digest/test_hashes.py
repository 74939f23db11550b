"""Hashes and ids of digests: what they depend on, and that an index finds whatever is near."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from recall.digest.hashes import MAX_DISTANCE, NO_SEM_HASH, bands, hamming, input_hash, sem_hash
from recall.digest.nodes import entity_node, level1_parts, natural, parent_of_part, scope_node, scope_nodes
from recall.digest.routing import cluster_id, cluster_path
from recall.keys import check_id
from recall.rows import Ref

hashes = st.integers(0, 2**64 - 1)


@given(hashes, st.sets(st.integers(0, 63), max_size=MAX_DISTANCE))
def test_hashes_within_eight_bits_share_a_band(number: int, flipped: set[int]) -> None:
    other = number
    for bit in flipped:
        other ^= 1 << bit
    left, right = f"{number:016x}", f"{other:016x}"
    assert hamming(left, right) == len(flipped)
    assert any(one == two for one, two in zip(bands(left), bands(right), strict=True))


@given(hashes)
def test_bands_hold_every_bit_once(number: int) -> None:
    widths = [8] + [7] * 8
    joined, shift = 0, 0
    for band, width in zip(bands(f"{number:016x}"), widths, strict=True):
        joined |= band << shift
        shift += width
    assert (joined, shift) == (number, 64)


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_a_sem_hash_does_not_depend_on_its_batch(count: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)
    mean = vectors.mean(axis=0)
    assert sem_hash(vectors, mean) == [sem_hash(vector[None, :], mean)[0] for vector in vectors]


def test_the_zero_vector_says_nothing() -> None:
    assert sem_hash(np.zeros((1, 8), np.float32), np.ones(8, np.float32)) == [NO_SEM_HASH]


def test_an_input_is_a_recipe_a_level_a_budget_and_texts_in_order() -> None:
    made = [
        input_hash("r", 0, 16, ["a", "b"]),
        input_hash("q", 0, 16, ["a", "b"]),
        input_hash("r", 1, 16, ["a", "b"]),
        input_hash("r", 0, 17, ["a", "b"]),
        input_hash("r", 0, 16, ["b", "a"]),
        input_hash("r", 0, 16, ["ab"]),
    ]
    assert len(set(made)) == len(made)


@given(st.text(alphabet="#.01a:", min_size=1, max_size=8), st.text(alphabet="01", max_size=6), st.integers(1, 9))
@example("t#1.01", "0", 1)
@example("t#1.01#", "0", 1)
def test_a_part_names_the_node_it_belongs_to(value: str, bits: str, level: int) -> None:
    node = scope_node("topic", value)
    assert parent_of_part(f"{node}#{level}.{bits}") == node
    assert parent_of_part(node) == node
    assert level1_parts(node) == ("scope", "topic", value)


@given(st.lists(st.text(alphabet="#.01", min_size=1, max_size=6), unique=True, min_size=2))
def test_scope_values_never_share_a_node(values: list[str]) -> None:
    assert len({scope_node("topic", value) for value in values}) == len(values)


def test_ids_have_a_legal_length_and_stay_apart() -> None:
    for name in ("x" * 1024, "系" * 341, "x" * 1023 + "y"):
        made = [entity_node(Ref("note", name)), scope_node("topic", name) + "#9." + "0" * 124]
        assert all(check_id(node) == node for node in made)
    assert entity_node(Ref("note", "x" * 1024)) != entity_node(Ref("note", "x" * 1023 + "y"))


@given(st.text(alphabet="01", max_size=60))
def test_a_cluster_id_names_its_path(path: str) -> None:
    assert cluster_path(cluster_id(path)) == path
    assert level1_parts(cluster_id(path)) == ("cluster", None, None)


def test_a_row_is_in_one_scope_for_each_value() -> None:
    values = {"a": "x", "b": ["y", "z", "y"], "c": 3, "d": True, "e": None, "f": "", "g": []}
    assert scope_nodes(list("abcdefg"), values) == sorted(
        scope_node(name, value) for name, value in [("a", "x"), ("b", "y"), ("b", "z"), ("c", "3"), ("d", "true")]
    )


def test_natural_order_counts() -> None:
    assert sorted(["turn 10", "turn 9", "turn 9b", "other"], key=natural) == ["other", "turn 9", "turn 9b", "turn 10"]
