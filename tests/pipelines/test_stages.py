"""Stages on plain tables: what changed, what is made of it, whole rows, receipts."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import embed
from pipelines.embed import EmbedStage
from pipelines.receipts import Failure, Receipt, read_receipts, receipts_table
from pipelines.sinks import whole_rows
from pipelines.stages import changed_rows, pending_table, plain_stage, split_pending
from recall.errors import ConfigError, TerminalStoreError
from recall.model_ports import TextSpan
from recall.records import Record, edges_of, record, with_edges
from recall.registry import Registry
from recall.rows import Ref, Row
from recall.schema import document_schema, edge_schema, filter_fields, node_schema, vector_schema

REGISTRY = Registry.parse(
    {
        "entities": {
            "note": {
                "columns": {
                    "title": "string",
                    "year": {"type": "int", "filterable": True},
                    "site": "string",
                    "friends": "strings",
                },
                "embed": {"fields": ["title"], "chunk_tokens": 16, "overlap": 4},
                "search": {"fields": ["title"]},
                "edges": [
                    {"field": "site", "rel": "AT", "target": "site"},
                    {"field": "friends", "rel": "KNOWS", "target": "note"},
                ],
            },
            "site": {"columns": {"name": "string"}},
            "fact": {
                "columns": {"head": "string", "tail": "string"},
                "edge": {
                    "source": {"field": "head", "entity": "note"},
                    "rel": "FACT",
                    "target": {"field": "tail", "entity": "site"},
                },
            },
        }
    }
)
NOTE = REGISTRY.entity("note")
DIM = 4


def pending_schema() -> pa.Schema:
    identity = [field.with_nullable(True) for field in document_schema(Registry({}))]
    tally = pa.struct([(name, pa.int64()) for name in ("rows", "unchanged", "deleted")])
    return pa.schema([*with_edges(identity), *filter_fields(REGISTRY), pa.field("tally", tally)])


def note(row_id: str, title: str | None = "text", version: int = 1, **values: object) -> Row:
    given = {"id": row_id, "title": title, "year": None, "site": None, "friends": None, **values}
    return Row(Ref("note", row_id), version, given)


def seen(*rows: Row, plane: str = "vector") -> list[Record]:
    return [record(plane, "t", REGISTRY.entity(row.ref.entity), row) for row in rows]


class Words:
    """An embedder whose tokens are words; raises on a text that holds `poison`."""

    name = "words"
    dim = DIM
    max_tokens = 32

    def __init__(self) -> None:
        self.embedded: list[str] = []

    def token_spans(self, texts: list[str]) -> list[list[TextSpan]]:
        spans = []
        for text in texts:
            found, at = [], 0
            for word in text.split():
                start = text.index(word, at)
                at = start + len(word)
                found.append(TextSpan(start, at))
            spans.append(found)
        return spans

    def embed(self, texts: list[str]) -> np.ndarray:
        if any("poison" in text for text in texts):
            raise ValueError("cannot read this")
        self.embedded += texts
        return np.tile(np.array([1, 0, 0, 0], np.float32), (len(texts), 1))


def stage(records: list[Record], model: Words | None = None) -> tuple[pa.Table, Receipt]:
    rows, _ = split_pending(pending_table(records, Receipt(), pending_schema()))
    staged = list(EmbedStage(model or Words(), REGISTRY, vector_schema(REGISTRY, DIM))(rows))
    return pa.concat_tables([s.table for s in staged]), sum((s.receipt for s in staged), Receipt())


def test_only_rows_whose_hash_differs_are_changed() -> None:
    records = seen(note("same"), note("edited"), note("new"))
    stored = {records[0].key: records[0].hash, records[1].key: "old"}
    changed, tally = changed_rows(records, stored)
    assert [r.ref.id for r in changed] == ["edited", "new"]
    assert (tally.rows, tally.unchanged, tally.deleted) == (3, 1, 0)


def test_a_new_version_of_the_same_content_is_unchanged() -> None:
    old, new = seen(note("a", version=1), note("a", version=9))
    assert changed_rows([new], {old.key: old.hash})[0] == []


@pytest.mark.parametrize("change", [{"title": "other"}, {"year": 1999}])
def test_text_and_filter_values_are_content(change: dict[str, object]) -> None:
    old, new = seen(note("a"), note("a", **change))
    assert len(changed_rows([new], {old.key: old.hash})[0]) == 1


def test_scope_is_content_and_other_columns_are_not() -> None:
    old, scoped, linked = seen(
        note("a"), Row(Ref("note", "a"), 1, note("a").values, scope="s"), note("a", site="somewhere")
    )
    assert old.hash != scoped.hash
    assert old.hash == linked.hash
    before, after = seen(note("a"), note("a", site="somewhere"), plane="graph")
    assert before.hash != after.hash


def test_tombstones_are_deletes_of_what_the_plane_holds() -> None:
    gone = Row(Ref("note", "a"), 5, {}, deleted=True)
    records = seen(gone)
    assert changed_rows(records, {records[0].key: "live"})[1].deleted == 1
    assert changed_rows(records, {records[0].key: ""})[0] == []
    assert changed_rows(records, {})[0] == []


def test_a_row_that_lost_its_text_loses_its_vector_once() -> None:
    before, after = seen(note("a"), note("a", title="  "))
    changed, _ = changed_rows([after], {before.key: before.hash})
    table, receipt = stage(changed)
    assert table.to_pylist()[0] | {"live": False, "vector": None, "ordinal": 0} == table.to_pylist()[0]
    assert (receipt.changed, receipt.chunks, receipt.model_calls) == (1, 0, 0)
    assert changed_rows([after], {after.key: after.hash})[0] == []
    assert changed_rows([after], {})[0] == []


def test_pending_rows_keep_their_types_when_every_value_is_null() -> None:
    schema = pending_schema()
    rare = [*(note(str(i)) for i in range(100)), note("x", year=1999)]
    tables = [pending_table(seen(row), Receipt(rows=1), schema) for row in rare]
    assert all(table.schema == schema for table in tables)
    rows, tally = split_pending(pa.concat_tables(tables))
    assert (rows.num_rows, tally.rows) == (101, 101)
    assert rows["i_year"].to_pylist()[-1] == 1999


def test_chunks_follow_the_row_and_point_into_its_text() -> None:
    text = " ".join(f"word{i}" for i in range(40))
    table, receipt = stage(seen(note("a", title=text, year=7), note("b", title="short")))
    rows = table.to_pylist()
    assert table.schema == vector_schema(REGISTRY, DIM)
    assert [(r["id"], r["ordinal"]) for r in rows] == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
    assert rows[0]["key"] == f"{rows[0]['row_key']}-0"
    assert text[rows[1]["start"] : rows[1]["end"]].split()[:2] == ["word12", "word13"]
    assert {r["i_year"] for r in rows[:3]} == {7}
    assert (receipt.changed, receipt.chunks, receipt.tokens, receipt.model_calls) == (2, 4, 41, 1)


def test_no_text_leaves_the_embedding_stage() -> None:
    table, _ = stage(seen(note("a", title="a secret sentence")))
    assert b"secret" not in pickle.dumps(table.to_pydict())


def test_a_row_the_model_chokes_on_fails_alone() -> None:
    model = Words()
    notes = [note(str(i), title="poison" if i in (3, 11) else f"text {i}") for i in range(20)]
    table, receipt = stage(seen(*notes), model)
    assert table.num_rows == 18
    assert sorted(failure.id for failure in receipt.failures) == ["11", "3"]
    assert receipt.failures[0].reason == "ValueError: cannot read this"
    assert receipt.changed == 18
    assert len(model.embedded) == len(set(model.embedded)) == 18


def test_a_model_that_fails_on_everything_is_not_the_rows_fault() -> None:
    with pytest.raises(ConfigError, match="embedder words fails on every row"):
        stage(seen(*(note(str(i), title="poison") for i in range(embed.ROWS_TO_BLAME_MODEL))))


def test_long_texts_are_embedded_in_bounded_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "CALL_CHARACTERS", 100)
    table, receipt = stage(seen(*(note(str(i), title="word " * 9) for i in range(10))))
    assert (table.num_rows, receipt.model_calls) == (10, 5)


def test_documents_and_nodes_have_exactly_the_columns_of_their_plane() -> None:
    for plane, schema in (("search", document_schema(REGISTRY)), ("graph", node_schema(REGISTRY))):
        records = seen(note("a", year=3), Row(Ref("note", "b"), 1, {}, deleted=True), plane=plane)
        rows, _ = split_pending(pending_table(records, Receipt(), pending_schema()))
        (staged,) = plain_stage(rows, schema)
        assert staged.table.schema == schema
        assert staged.receipt.changed == 1
        assert [row["live"] for row in staged.table.to_pylist()] == [True, False]


def test_edges_unfold_with_owner_and_version() -> None:
    fact = Row(Ref("fact", "f"), 3, {"id": "f", "head": "a", "tail": "s"})
    records = seen(note("a", site="s", friends=["b", "b", "c"], version=2), note("b"), fact, plane="graph")
    rows, _ = split_pending(pending_table(records, Receipt(), pending_schema()))
    edges = edges_of(rows)
    assert edges.schema == edge_schema()
    assert [tuple(e.values()) for e in edges.to_pylist()] == [
        (records[0].key, "note", "a", "AT", "site", "s", 2),
        (records[0].key, "note", "a", "KNOWS", "note", "b", 2),
        (records[0].key, "note", "a", "KNOWS", "note", "c", 2),
        (records[2].key, "note", "a", "FACT", "site", "s", 3),
    ]
    assert edges_of(rows.slice(1, 1)).num_rows == 0
    assert edges_of(rows.slice(2, 1)).num_rows == 1


@given(st.lists(st.integers(1, 6), min_size=1, max_size=20), st.integers(1, 8))
def test_slices_never_split_a_row(sizes: list[int], limit: int) -> None:
    keys = [f"row{i}" for i, size in enumerate(sizes) for _ in range(size)]
    slices = [part["row_key"].to_pylist() for part in whole_rows(pa.table({"row_key": keys}), limit)]
    assert [key for part in slices for key in part] == keys
    assert all(len(part) <= limit or len(set(part)) == 1 for part in slices)
    assert all(set(left).isdisjoint(right) for left, right in pairwise(slices))


def test_receipts_add_up_and_carry_errors() -> None:
    one = Receipt(rows=2, changed=1, failures=(Failure("note", "a", "why"),))
    assert read_receipts(receipts_table([one, one])) == Receipt(rows=4, changed=2, failures=one.failures * 2)
    with pytest.raises(TerminalStoreError, match="no space"):
        read_receipts(receipts_table([one], TerminalStoreError("staging", "/x", "no space")))
