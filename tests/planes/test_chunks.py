"""Chunk tables before they are written: duplicates, the version gate, missing columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recall.errors import ConfigError
from recall.keys import chunk_key
from recall.planes.chunks import (
    StoredRow,
    conform,
    gate,
    last_of_each_row,
    refuse_bad_vectors,
    stored_rows,
    tombstone_table,
)
from recall.planes.conformance.data import DIM, Record, axis, conformance_registry, item, vector_table
from recall.rows import Ref, Tombstone
from recall.schema import vector_schema

REGISTRY = conformance_registry()
SCHEMA = vector_schema(REGISTRY, DIM)


def chunks(*records: Record) -> pa.Table:
    return vector_table(REGISTRY, "t", records)


def with_chunks(row_id: str, version: int, count: int, content: str = "x") -> Record:
    vectors = np.stack([axis(i % DIM) for i in range(count)])
    return Record(Ref("item", row_id), version, vectors=vectors, hash=content)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.integers(1, 3)), max_size=8))
def test_one_occurrence_of_each_row_stays_the_highest_then_the_last(batch: list[tuple[str, int, int]]) -> None:
    table = chunks(*(with_chunks(row, version, count, str(i)) for i, (row, version, count) in enumerate(batch)))
    kept = last_of_each_row(table)
    expected = {}
    for place, (row, version, count) in enumerate(batch):
        if row not in expected or version >= expected[row][0]:
            expected[row] = (version, count, str(place))
    found: dict[str, list[tuple[int, int, str]]] = {}
    for record in kept.to_pylist():
        found.setdefault(record["id"], []).append((record["version"], record["ordinal"], record["hash"]))
    assert found.keys() == expected.keys()
    for row, (version, count, content) in expected.items():
        assert sorted(found[row]) == [(version, ordinal, content) for ordinal in range(count)]


def test_the_gate_refuses_older_rows_and_buried_ones_and_names_leftover_chunks() -> None:
    rows = [
        with_chunks("older", 4, 1),
        with_chunks("same", 5, 1),
        with_chunks("fewer", 6, 2),
        with_chunks("dead", 5, 1),
    ]
    table = chunks(*rows, with_chunks("fresh", 1, 1))
    keys = dict(zip(table["id"].to_pylist(), table["row_key"].to_pylist(), strict=True))
    stored = {keys[row]: StoredRow(5, False, 3) for row in ("older", "same", "fewer")}
    stored[keys["dead"]] = StoredRow(5, True, 1)
    admitted = gate(table, stored)
    assert (admitted.rows, admitted.stale) == (3, 2)
    assert set(admitted.table["id"].to_pylist()) == {"same", "fewer", "fresh"}
    gone = [chunk_key(keys["same"], 1), chunk_key(keys["same"], 2), chunk_key(keys["fewer"], 2)]
    assert sorted(admitted.leftovers) == sorted(gone)


def test_a_tombstone_may_repeat_itself_but_a_row_without_text_does_not_rise_from_it() -> None:
    stone = tombstone_table("t", [Tombstone(Ref("item", "a"), 5)], SCHEMA)
    (key,) = stone["row_key"].to_pylist()
    buried = {key: StoredRow(5, True, 1)}
    assert gate(stone, buried).stale == 0
    assert gate(chunks(item("a", 5, live=False)), buried).stale == 1
    assert gate(chunks(item("a", 6, live=False)), buried).stale == 0


def test_stored_rows_count_chunks_and_know_tombstones() -> None:
    columns = {
        "row_key": ["a", "a", "b", "c"],
        "version": [2, 2, 3, 4],
        "live": [True, True, False, False],
        "hash": ["h", "h", "", "h"],
        "ordinal": [1, 0, 0, 0],
    }
    expected = {"a": StoredRow(2, False, 2), "b": StoredRow(3, True, 1), "c": StoredRow(4, False, 1)}
    assert stored_rows(columns) == expected


def test_a_missing_filter_column_is_null_and_a_missing_key_is_named() -> None:
    table = chunks(item("a", status="open")).drop_columns(["s_status"])
    assert conform(table, SCHEMA)["s_status"].to_pylist() == [None]
    with pytest.raises(ConfigError, match="row_key"):
        conform(table.drop_columns(["row_key"]), SCHEMA)
    wrong = table.set_column(table.schema.get_field_index("version"), "version", pa.array(["x"]))
    with pytest.raises(ConfigError, match="version"):
        conform(wrong, SCHEMA)


def test_a_live_chunk_without_a_vector_is_refused_with_its_whole_row() -> None:
    table = chunks(with_chunks("a", 1, 2), item("b"))
    rows = table.to_pylist()
    rows[1]["vector"] = None
    kept, failures = refuse_bad_vectors(pa.Table.from_pylist(rows, schema=table.schema))
    assert kept["id"].to_pylist() == ["b"]
    assert [(failure.key, failure.transient) for failure in failures] == [(rows[0]["row_key"], False)]
